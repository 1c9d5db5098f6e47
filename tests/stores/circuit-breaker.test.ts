import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { CircuitBreaker } from '../../lib/stores/circuit-breaker.ts';
import { FakeClock } from '../support/fake-clock.ts';

describe('CircuitBreaker', () => {
  test('lets everybody ask while nothing fails', () => {
    const breaker = new CircuitBreaker(1_000, new FakeClock());
    breaker.ask()?.succeeded();
    assert.ok(breaker.ask() && breaker.ask());
    assert.equal(breaker.tripped, false);
  });

  test('turns everybody away for a while after a failure, then lets one try at a time', () => {
    const clock = new FakeClock();
    const breaker = new CircuitBreaker(1_000, clock);
    breaker.ask()?.failed();
    assert.equal(breaker.tripped, true);
    clock.advance(999);
    assert.equal(breaker.ask(), undefined);
    clock.advance(1);
    const trial = breaker.ask();
    assert.ok(trial);
    clock.advance(5_000);
    assert.equal(breaker.ask(), undefined);
    trial.failed();
    clock.advance(999);
    assert.equal(breaker.ask(), undefined);
    clock.advance(1);
    const second = breaker.ask();
    second?.succeeded();
    assert.equal(breaker.tripped, false);
    assert.ok(breaker.ask() && breaker.ask());
  });

  test('listens to calls that were under way when it tripped, and to each only once', () => {
    const clock = new FakeClock();
    const breaker = new CircuitBreaker(1_000, clock);
    const [slow, other] = [breaker.ask(), breaker.ask()];
    breaker.ask()?.failed();
    slow?.succeeded();
    assert.equal(breaker.tripped, false);
    slow?.failed();
    assert.equal(breaker.tripped, false);
    other?.failed();
    assert.equal(breaker.tripped, true);
    other?.succeeded();
    assert.equal(breaker.tripped, true);
  });

  test('does not let a second trial begin when an older call fails during the first', () => {
    const clock = new FakeClock();
    const breaker = new CircuitBreaker(1_000, clock);
    const old = breaker.ask();
    breaker.ask()?.failed();
    clock.advance(1_000);
    const trial = breaker.ask();
    old?.failed();
    clock.advance(1_000);
    assert.equal(breaker.ask(), undefined);
    trial?.succeeded();
    assert.ok(breaker.ask());
  });
});
