import assert from 'node:assert/strict';
import { test } from 'node:test';
import { DEFAULTS } from '../../lib/config/options.ts';
import { firstDelayMs, nextDelayMs, planFor, regularMs, tighterPlan } from '../../lib/health/schedule.ts';

const middle = () => 0.5;
const noInterval = DEFAULTS.service.health;
const user = planFor({ affinity: 'user', health: noInterval }, DEFAULTS.health);
const stateless = planFor({ affinity: 'none', health: noInterval }, DEFAULTS.health);

test('services with bound users are probed every interval, whatever the results', () => {
  for (const [successesInRow, failuresInRow] of [
    [0, 0],
    [1000, 0],
    [0, 1000],
  ] as const) {
    assert.equal(nextDelayMs(user, { successesInRow, failuresInRow }, middle), 5_000);
  }
});

test('stateless services are probed in tiers: 30 s, after 10 successes 2 min, after 5 failures 3 min', () => {
  const delays = (
    [
      [0, 0],
      [9, 0],
      [10, 0],
      [11, 0],
      [0, 1],
      [0, 4],
      [0, 5],
      [0, 6],
    ] as const
  ).map(([successesInRow, failuresInRow]) => nextDelayMs(stateless, { successesInRow, failuresInRow }, middle));
  assert.deepEqual(delays, [30_000, 30_000, 120_000, 120_000, 30_000, 30_000, 180_000, 180_000]);
});

test("a service's own interval goes before the global one, and before the tiers", () => {
  const health = { ...noInterval, intervalMs: 700 };
  assert.equal(
    nextDelayMs(
      planFor({ affinity: 'user', health }, DEFAULTS.health),
      { successesInRow: 0, failuresInRow: 0 },
      middle,
    ),
    700,
  );
  assert.equal(
    nextDelayMs(
      planFor({ affinity: 'none', health }, DEFAULTS.health),
      { successesInRow: 50, failuresInRow: 0 },
      middle,
    ),
    700,
  );
});

test('each delay is shifted by at most the share of jitter, to both sides', () => {
  const row = { successesInRow: 0, failuresInRow: 0 };
  assert.equal(
    nextDelayMs(user, row, () => 0),
    4_500,
  );
  assert.ok(Math.abs(nextDelayMs(user, row, () => 1) - 5_500) < 1e-6);
  assert.equal(
    nextDelayMs({ ...user, jitter: 0 }, row, () => 0),
    5_000,
  );
});

test('the first probe comes within a second, or within a shorter interval', () => {
  assert.equal(firstDelayMs(user, middle), 500);
  assert.equal(firstDelayMs(stateless, middle), 500);
  assert.equal(firstDelayMs({ kind: 'interval', intervalMs: 200, jitter: 0 }, middle), 100);
});

test('of two plans the one that probes more often is the tighter', () => {
  assert.equal(tighterPlan(user, stateless), user);
  assert.equal(tighterPlan(stateless, user), user);
  assert.equal(regularMs(stateless), 30_000);
});

test('a service has numbers of its own where it names them, and the global ones elsewhere', () => {
  const own = { regularMs: 1_000, stableMs: null, degradedMs: null, stableAfter: 2, degradedAfter: null };
  const health = { ...noInterval, jitter: 0, tiers: own };
  assert.deepEqual(planFor({ affinity: 'none', health }, DEFAULTS.health), {
    kind: 'tiers',
    jitter: 0,
    tiers: { ...DEFAULTS.health.tiers, regularMs: 1_000, stableAfter: 2 },
  });
  assert.deepEqual(planFor({ affinity: 'user', health }, DEFAULTS.health), {
    kind: 'interval',
    intervalMs: DEFAULTS.health.intervalMs,
    jitter: 0,
  });
});
