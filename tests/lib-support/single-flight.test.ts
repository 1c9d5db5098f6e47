import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { SingleFlight } from '../../lib/support/single-flight.ts';

/** Work that ends when the test says so. */
class Work {
  started = 0;
  readonly #ends: { resolve: (value: string) => void; reject: (error: Error) => void }[] = [];

  readonly begin = () => {
    this.started += 1;
    return new Promise<string>((resolve, reject) => this.#ends.push({ resolve, reject }));
  };

  resolve(index: number, value: string): void {
    this.#ends[index]?.resolve(value);
  }

  reject(index: number): void {
    this.#ends[index]?.reject(new Error('no'));
  }
}

describe('SingleFlight', () => {
  it('runs concurrent calls of one key once', async () => {
    const [flights, work] = [new SingleFlight<string>(), new Work()];
    const calls = Array.from({ length: 100 }, () => flights.run('a', work.begin));
    assert.deepEqual([work.started, flights.size], [1, 1]);
    work.resolve(0, 'done');
    assert.deepEqual(new Set(await Promise.all(calls)), new Set(['done']));
    assert.equal(flights.size, 0);
  });

  it('runs each key for itself', async () => {
    const [flights, work] = [new SingleFlight<string>(), new Work()];
    const [a, b] = [flights.run('a', work.begin), flights.run('b', work.begin)];
    assert.deepEqual([work.started, flights.size], [2, 2]);
    work.resolve(1, 'of b');
    work.resolve(0, 'of a');
    assert.deepEqual(await Promise.all([a, b]), ['of a', 'of b']);
  });

  it('begins anew once the last run is over, well or not', async () => {
    const [flights, work] = [new SingleFlight<string>(), new Work()];
    const first = [flights.run('a', work.begin), flights.run('a', work.begin)];
    work.reject(0);
    for (const call of first) await assert.rejects(call, /no/);
    const second = flights.run('a', work.begin);
    assert.equal(work.started, 2);
    work.resolve(1, 'done');
    assert.equal(await second, 'done');
    assert.equal(flights.size, 0);
  });

  it('keeps nothing of work that fails before it begins', async () => {
    const flights = new SingleFlight<string>();
    assert.throws(() => flights.run('a', () => assert.fail('at once')), /at once/);
    assert.equal(flights.size, 0);
    assert.equal(await flights.run('a', () => Promise.resolve('done')), 'done');
  });

  it('lets later callers start afresh after forget, and does not mix up the two runs', async () => {
    const [flights, work] = [new SingleFlight<string>(), new Work()];
    const early = flights.run('a', work.begin);
    flights.forget('a');
    const late = flights.run('a', work.begin);
    assert.equal(work.started, 2);
    work.resolve(0, 'old');
    assert.equal(await early, 'old');
    assert.equal(flights.size, 1, 'the end of the old run does not end the new one');
    const joined = flights.run('a', work.begin);
    assert.equal(work.started, 2);
    work.resolve(1, 'new');
    assert.deepEqual(await Promise.all([late, joined]), ['new', 'new']);
    flights.forget('a');
    assert.equal(flights.size, 0);
  });
});
