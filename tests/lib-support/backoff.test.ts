import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Backoff } from '../../lib/support/backoff.ts';

describe('Backoff', () => {
  test('doubles up to the longest wait, and starts anew after a reset', () => {
    const backoff = new Backoff({ firstMs: 100, mostMs: 1_000, random: () => 1 });
    assert.deepEqual(
      Array.from({ length: 6 }, () => backoff.nextMs()),
      [100, 200, 400, 800, 1_000, 1_000],
    );
    backoff.reset();
    assert.equal(backoff.nextMs(), 100);
  });

  test('leaves half of each wait to chance', () => {
    const least = new Backoff({ firstMs: 100, mostMs: 1_000, random: () => 0 });
    assert.deepEqual([least.nextMs(), least.nextMs()], [50, 100]);
    const waits = Array.from({ length: 200 }, () => new Backoff({ firstMs: 100, mostMs: 1_000 }).nextMs());
    assert.ok(waits.every((waitMs) => waitMs >= 50 && waitMs <= 100));
    assert.ok(new Set(waits).size > 100);
  });

  test('stays at the longest wait after thousands of attempts', () => {
    const backoff = new Backoff({ firstMs: 100, mostMs: 5_000, random: () => 1 });
    for (let attempt = 0; attempt < 5_000; attempt += 1) backoff.nextMs();
    assert.equal(backoff.nextMs(), 5_000);
  });
});
