import assert from 'node:assert/strict';
import { test } from 'node:test';
import { HealthRegistry, type HealthState } from '../../lib/health/health-registry.ts';
import { type LogFields, silentLogger } from '../../lib/observe/log.ts';
import { Metrics } from '../../lib/observe/metrics.ts';
import { seededRandom } from '../balance/services.ts';
import { FakeClock } from '../support/fake-clock.ts';

class World {
  readonly clock = new FakeClock();
  readonly metrics = new Metrics();
  readonly events: { event: string; fields: LogFields | undefined }[] = [];
  readonly changes: string[] = [];
  readonly registry: HealthRegistry;

  constructor(suspicion = { flips: 10, windowMs: 10_000 }) {
    const note = (event: string, fields?: LogFields) => void this.events.push({ event, fields });
    this.registry = new HealthRegistry({
      suspicion,
      clock: this.clock,
      logger: { ...silentLogger, info: note, warn: note, error: note },
      metrics: this.metrics,
    });
    this.registry.subscribe((key, from, to) => void this.changes.push(`${key} ${from}>${to}`));
  }

  watch(failures: number, ...keys: string[]): void {
    this.registry.retain(new Map(keys.map((key) => [key, { failures }])));
  }

  fail(key: string): boolean {
    return this.registry.observe(key, false, 'active', 'refused');
  }

  succeed(key: string): boolean {
    return this.registry.observe(key, true, 'active');
  }

  states(...keys: string[]): HealthState[] {
    return keys.map((key) => this.registry.stateOf(key));
  }

  logged(event: string): number {
    return this.events.filter((entry) => entry.event === event).length;
  }
}

const keysOf = (count: number) => Array.from({ length: count }, (_, index) => `k${index}`);

test('a new address is UNKNOWN and usable', () => {
  const world = new World();
  world.watch(3, 'a');
  assert.equal(world.registry.stateOf('a'), 'UNKNOWN');
  assert.equal(world.registry.isUsable('a'), true);
  assert.equal(world.registry.wasChecked('a'), false);
});

test('three failures in a row make DOWN, one success makes UP, and observe tells only the changes', () => {
  const world = new World();
  world.watch(3, 'a');
  assert.deepEqual([world.succeed('a'), world.succeed('a')], [true, false]);
  assert.deepEqual([world.fail('a'), world.fail('a'), world.fail('a'), world.fail('a')], [false, false, true, false]);
  assert.equal(world.registry.isUsable('a'), false);
  assert.deepEqual([world.succeed('a'), world.succeed('a')], [true, false]);
  assert.deepEqual(world.changes, ['a UNKNOWN>UP', 'a UP>DOWN', 'a DOWN>UP']);
});

test('a success between failures starts the row again', () => {
  const world = new World();
  world.watch(3, 'a');
  for (const ok of [false, false, true, false, false]) world.registry.observe('a', ok, 'passive');
  assert.equal(world.registry.stateOf('a'), 'UP');
});

test('failures of a never-seen address leave it UNKNOWN until they are enough', () => {
  const world = new World();
  world.watch(2, 'a');
  assert.equal(world.fail('a'), false);
  assert.equal(world.registry.stateOf('a'), 'UNKNOWN');
  assert.equal(world.registry.wasChecked('a'), true);
  assert.equal(world.fail('a'), true);
  assert.deepEqual(world.changes, ['a UNKNOWN>DOWN']);
});

test('details tell since when, the last check and its kind, the last error and the counts in a row', () => {
  const world = new World();
  const startMs = world.clock.now();
  world.watch(2, 'a');
  assert.deepEqual(world.registry.details('a'), {
    state: 'UNKNOWN',
    sinceMs: startMs,
    lastCheckMs: null,
    lastKind: null,
    lastError: null,
    successesInRow: 0,
    failuresInRow: 0,
  });
  world.clock.advance(10);
  world.registry.observe('a', true, 'immediate');
  world.clock.advance(10);
  world.registry.observe('a', false, 'passive');
  assert.deepEqual(world.registry.details('a'), {
    state: 'UP',
    sinceMs: startMs + 10,
    lastCheckMs: startMs + 20,
    lastKind: 'passive',
    lastError: 'failed',
    successesInRow: 0,
    failuresInRow: 1,
  });
  world.clock.advance(10);
  world.registry.observe('a', false, 'active', 'status 500');
  world.clock.advance(10);
  world.registry.observe('a', true, 'active');
  const details = world.registry.details('a');
  assert.equal(details.lastError, 'status 500');
  assert.deepEqual([details.sinceMs, details.successesInRow, details.failuresInRow], [startMs + 40, 1, 0]);
});

test('an address that is not watched is usable, and observations of it are ignored', () => {
  const world = new World();
  assert.equal(world.registry.observe('x', false, 'passive'), false);
  assert.equal(world.registry.isUsable('x'), true);
  assert.equal(world.registry.stateOf('x'), 'UNKNOWN');
  assert.equal(world.registry.wasChecked('x'), false);
  assert.equal(world.registry.details('x').sinceMs, null);
});

test('retain keeps what stays, forgets what is gone and takes over thresholds', () => {
  const world = new World();
  world.watch(1, 'a', 'b');
  world.fail('a');
  world.fail('b');
  world.watch(3, 'a', 'c');
  assert.deepEqual(world.states('a', 'b', 'c'), ['DOWN', 'UNKNOWN', 'UNKNOWN']);
  world.watch(3, 'a', 'b', 'c');
  assert.equal(world.registry.details('b').failuresInRow, 0);
  assert.equal(world.fail('b'), false);
  world.succeed('a');
  assert.deepEqual([world.fail('a'), world.fail('a'), world.fail('a')], [false, false, true]);
});

test('metrics show states of watched addresses and count the changes', () => {
  const world = new World();
  world.watch(1, 'a', 'b', 'c');
  world.fail('a');
  world.succeed('b');
  const text = world.metrics.render();
  assert.match(text, /gateway_health_state\{target="a"\} 2/);
  assert.match(text, /gateway_health_state\{target="b"\} 1/);
  assert.match(text, /gateway_health_state\{target="c"\} 0/);
  assert.match(text, /gateway_health_flips_total\{to="DOWN"\} 1/);
  world.watch(1, 'b');
  assert.doesNotMatch(world.metrics.render(), /target="a"/);
});

test('each change is logged with its cause', () => {
  const world = new World();
  world.watch(1, 'a');
  world.fail('a');
  assert.deepEqual(world.events, [
    {
      event: 'health_changed',
      fields: { healthKey: 'a', from: 'UNKNOWN', to: 'DOWN', kind: 'active', error: 'refused' },
    },
  ]);
});

test('a listener hears nothing after it unsubscribed, and one that throws disturbs nobody', () => {
  const world = new World();
  world.watch(1, 'a');
  const heard: string[] = [];
  world.registry.subscribe(() => {
    throw new Error('broken');
  });
  const unsubscribe = world.registry.subscribe((_key, _from, to) => void heard.push(to));
  assert.equal(world.fail('a'), true);
  unsubscribe();
  assert.equal(world.succeed('a'), true);
  assert.deepEqual(heard, ['DOWN']);
  assert.equal(world.logged('health_listener_failed'), 2);
});

test('nine nodes going DOWN within the window are believed', () => {
  const world = new World();
  world.watch(1, ...keysOf(9));
  for (const key of keysOf(9)) assert.equal(world.fail(key), true);
  assert.equal(world.logged('health_network_suspected'), 0);
});

test('the tenth node going DOWN within the window makes all stay as they were, logged once', () => {
  const world = new World();
  const keys = keysOf(12);
  world.watch(1, ...keys);
  const before = world.clock.now();
  for (const key of keys.slice(0, 6)) world.succeed(key);
  for (const key of keys) {
    world.clock.advance(900);
    world.fail(key);
  }
  assert.deepEqual(world.states(...keys), [...Array(6).fill('UP'), ...Array(6).fill('UNKNOWN')]);
  assert.equal(world.registry.details('k0').sinceMs, before, 'since when is restored too');
  assert.equal(world.logged('health_network_suspected'), 1);
  assert.match(world.metrics.render(), /gateway_health_suspicions_total 1/);
  assert.equal(world.changes.filter((change) => change.endsWith('UP>DOWN')).length, 6);
  assert.equal(world.changes.filter((change) => change.endsWith('DOWN>UP')).length, 6);
  assert.equal(world.changes.filter((change) => change.endsWith('DOWN>UNKNOWN')).length, 3);
});

test('ten nodes going DOWN over more than the window are believed', () => {
  const world = new World();
  world.watch(1, ...keysOf(30));
  for (const key of keysOf(30)) {
    world.clock.advance(1_200);
    assert.equal(world.fail(key), true);
  }
});

test('the window includes its last millisecond', () => {
  for (const [lastMs, suspected] of [
    [10_000, 1],
    [10_001, 0],
  ] as const) {
    const world = new World({ flips: 2, windowMs: 10_000 });
    world.watch(1, 'a', 'b');
    world.fail('a');
    world.clock.advance(lastMs);
    world.fail('b');
    assert.equal(world.logged('health_network_suspected'), suspected);
  }
});

test('one node flapping ten times raises no suspicion', () => {
  const world = new World();
  world.watch(1, 'a', 'b');
  for (let flap = 0; flap < 20; flap += 1) {
    world.fail('a');
    world.succeed('a');
  }
  assert.equal(world.fail('b'), true);
  assert.equal(world.logged('health_network_suspected'), 0);
});

test('during the hold nothing goes DOWN, but one success still makes UP at once', () => {
  const world = new World({ flips: 2, windowMs: 10_000 });
  world.watch(1, 'gone', 'a', 'b', 'c');
  world.fail('gone');
  world.clock.advance(20_000);
  world.fail('a');
  world.fail('b');
  world.clock.advance(9_999);
  assert.deepEqual([world.fail('a'), world.fail('c')], [false, false]);
  assert.deepEqual(world.states('gone', 'a', 'b', 'c'), ['DOWN', 'UNKNOWN', 'UNKNOWN', 'UNKNOWN'], 'as they were');
  assert.equal(world.succeed('gone'), true);
  assert.equal(world.logged('health_network_suspected'), 1);
});

test('the round after the hold is believed, and raises no second suspicion', () => {
  const world = new World();
  const keys = keysOf(20);
  world.watch(1, ...keys);
  for (const key of keys) world.fail(key);
  world.clock.advance(10_000);
  for (const key of keys.slice(0, 15)) assert.equal(world.fail(key), true, key);
  assert.equal(world.succeed('k15'), true);
  assert.deepEqual(world.states('k0', 'k14', 'k15', 'k16'), ['DOWN', 'DOWN', 'UP', 'UNKNOWN']);
  assert.equal(world.logged('health_network_suspected'), 1);
});

test('a node that answered during the hold is judged afresh afterwards', () => {
  const world = new World({ flips: 2, windowMs: 10_000 });
  world.watch(1, 'a', 'b');
  world.fail('a');
  world.fail('b');
  world.succeed('a');
  world.succeed('b');
  world.clock.advance(10_000);
  world.fail('a');
  world.fail('b');
  assert.deepEqual(world.states('a', 'b'), ['UP', 'UP']);
  assert.equal(world.logged('health_network_suspected'), 2);
});

test('changes from before a suspicion do not count for the next one', () => {
  const world = new World({ flips: 2, windowMs: 10_000 });
  world.watch(1, 'a', 'b', 'c');
  world.fail('a');
  world.fail('b');
  world.clock.advance(10_000);
  assert.equal(world.fail('c'), true);
});

test('of a node that went DOWN twice the later time counts, and hides no older one', () => {
  const world = new World({ flips: 3, windowMs: 10_000 });
  world.watch(1, 'a', 'b', 'c');
  world.fail('a');
  world.fail('b');
  world.clock.advance(9_000);
  world.succeed('a');
  world.fail('a');
  world.clock.advance(6_000);
  assert.equal(world.fail('c'), true, "b's change is out of the window");
});

test('a node that recovered before the suspicion counts, and stays UP', () => {
  const world = new World({ flips: 3, windowMs: 10_000 });
  world.watch(1, 'a', 'b', 'c');
  for (const key of ['a', 'b']) world.fail(key);
  world.succeed('a');
  assert.equal(world.fail('c'), false);
  assert.deepEqual(world.states('a', 'b', 'c'), ['UP', 'UNKNOWN', 'UNKNOWN']);
});

test('many nodes coming UP raise no suspicion', () => {
  const world = new World({ flips: 10, windowMs: 10_000 });
  world.watch(1, ...keysOf(20));
  for (const key of keysOf(20)) {
    world.clock.advance(2_000);
    world.fail(key);
  }
  world.clock.advance(20_000);
  for (const key of keysOf(20)) assert.equal(world.succeed(key), true);
  assert.equal(world.logged('health_network_suspected'), 0);
});

test('a node that is removed no longer counts', () => {
  const world = new World({ flips: 2, windowMs: 10_000 });
  world.watch(1, 'a', 'b');
  world.fail('a');
  world.watch(1, 'b');
  assert.equal(world.fail('b'), true);
});

test('suspicion can be switched off and changed while running', () => {
  const world = new World({ flips: 0, windowMs: 10_000 });
  world.watch(1, ...keysOf(50));
  for (const key of keysOf(49)) assert.equal(world.fail(key), true);
  world.registry.setSuspicion({ flips: 2, windowMs: 10_000 });
  assert.equal(world.fail('k49'), false);
});

test('without metrics it works the same', () => {
  const registry = new HealthRegistry({
    suspicion: { flips: 2, windowMs: 1_000 },
    clock: new FakeClock(),
    logger: silentLogger,
  });
  registry.retain(
    new Map([
      ['a', { failures: 1 }],
      ['b', { failures: 1 }],
    ]),
  );
  assert.equal(registry.observe('a', false, 'active'), true);
  assert.equal(registry.observe('b', false, 'active'), false);
  registry.retain(new Map());
  assert.equal(registry.stateOf('a'), 'UNKNOWN');
});

test('for random histories: never DOWN with fewer failures in a row than the threshold, never DOWN after a success', () => {
  for (let seed = 1; seed <= 50; seed += 1) {
    const random = seededRandom(seed);
    const world = new World({ flips: 4, windowMs: 3_000 });
    const keys = keysOf(8);
    world.watch(3, ...keys);
    const row = new Map<string, number>();
    const told = new Map<string, HealthState>();
    world.registry.subscribe((key, from, to) => {
      assert.equal(told.get(key) ?? 'UNKNOWN', from);
      told.set(key, to);
    });
    for (let step = 0; step < 1_000; step += 1) {
      const key = keys[Math.floor(random() * keys.length)]!;
      const ok = random() < 0.35;
      world.clock.advance(random() * 300);
      const before = world.registry.stateOf(key);
      const changed = world.registry.observe(key, ok, 'active');
      row.set(key, ok ? 0 : (row.get(key) ?? 0) + 1);
      const after = world.registry.stateOf(key);
      assert.equal(changed, before !== after, `seed ${seed}, step ${step}`);
      assert.equal(told.get(key) ?? 'UNKNOWN', after);
      if (ok) assert.equal(after, 'UP');
      if (after === 'DOWN') assert.ok(row.get(key)! >= 3);
    }
  }
});
