import assert from 'node:assert/strict';
import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { test } from 'node:test';
import { DEFAULTS, type HealthOptions } from '../../lib/config/options.ts';
import { HealthChecker } from '../../lib/health/health-checker.ts';
import { HealthRegistry } from '../../lib/health/health-registry.ts';
import type { ProbeOptions, ProbeResult, ProbeTarget } from '../../lib/health/probe.ts';
import type { Node, Snapshot } from '../../lib/model.ts';
import { silentLogger } from '../../lib/observe/log.ts';
import { systemClock } from '../../lib/support/clock.ts';
import { type ServiceSketch, snapshotOf } from '../balance/services.ts';
import { FakeClock } from '../support/fake-clock.ts';

interface Call {
  readonly target: ProbeTarget;
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
  readonly atMs: number;
  answer(result: ProbeResult): void;
}

const OK: ProbeResult = { ok: true, status: 200 };
const FAILED: ProbeResult = { ok: false, error: 'refused' };
const settled = () => new Promise((resolve) => setImmediate(resolve));

class World {
  readonly clock = new FakeClock();
  readonly startMs = this.clock.now();
  readonly calls: Call[] = [];
  readonly errors: string[] = [];
  /** What probes answer at once; null = each waits for `answer`. */
  result: ProbeResult | null = OK;
  readonly registry = new HealthRegistry({
    suspicion: DEFAULTS.health.suspicion,
    clock: this.clock,
    logger: silentLogger,
  });
  readonly checker: HealthChecker;

  constructor(options: Partial<HealthOptions> = {}, maxConcurrent = 64) {
    this.checker = new HealthChecker({
      registry: this.registry,
      clock: this.clock,
      logger: { ...silentLogger, error: (event) => void this.errors.push(event) },
      options: { ...DEFAULTS.health, jitter: 0, ...options },
      probe: (target, timeoutMs, given) => this.#probe(target, timeoutMs, given),
      random: () => 0.5,
      maxConcurrent,
    });
  }

  /** When probes of `hostname` began, in milliseconds since the start. */
  timesOf(hostname: string): number[] {
    return this.calls.filter((call) => call.target.hostname === hostname).map((call) => call.atMs);
  }

  begin(...services: ServiceSketch[]): Snapshot {
    const snapshot = snapshotOf(...services);
    this.checker.update(snapshot);
    this.checker.start();
    return snapshot;
  }

  last(): Call {
    return this.calls.at(-1)!;
  }

  #probe(target: ProbeTarget, timeoutMs: number, options: ProbeOptions | undefined): Promise<ProbeResult> {
    const atMs = this.clock.now() - this.startMs;
    const signal = options?.signal ?? assert.fail('no signal');
    return new Promise((answer) => {
      this.calls.push({ target, timeoutMs, signal, atMs, answer });
      if (this.result) answer(this.result);
    });
  }
}

const user = (nodes: ServiceSketch['nodes'], extra: Partial<ServiceSketch> = {}): ServiceSketch => ({
  id: 'u',
  affinity: 'user',
  nodes,
  ...extra,
});
const stateless = (nodes: ServiceSketch['nodes'], extra: Partial<ServiceSketch> = {}): ServiceSketch => ({
  id: 'n',
  affinity: 'none',
  nodes,
  ...extra,
});
const nodeOf = (snapshot: Snapshot, id: string): Node => snapshot.nodes.get(id)!;
const withHealth = (health: Partial<NonNullable<ServiceSketch['health']>>) => ({
  health: { ...DEFAULTS.service.health, ...health },
});

test('nodes of services with users are probed soon after the start, then every interval', async () => {
  const world = new World();
  const snapshot = world.begin(user([{ id: 'a' }]));
  await world.clock.advanceAsync(16_000);
  assert.deepEqual(world.timesOf('a'), [500, 5_500, 10_500, 15_500]);
  assert.deepEqual(world.calls[0]?.target, {
    protocol: 'http:',
    hostname: 'a',
    port: 80,
    authority: 'a',
    path: '/health',
    ca: null,
    insecure: false,
  });
  assert.equal(world.calls[0]?.timeoutMs, 2_000);
  const details = world.registry.details(nodeOf(snapshot, 'a').healthKey);
  assert.deepEqual([details.state, details.lastKind, details.successesInRow], ['UP', 'active', 4]);
});

test('three failing probes make DOWN, one good one UP', async () => {
  const world = new World();
  const { healthKey } = nodeOf(world.begin(user([{ id: 'a' }])), 'a');
  world.result = FAILED;
  await world.clock.advanceAsync(5_500);
  assert.equal(world.registry.stateOf(healthKey), 'UNKNOWN');
  await world.clock.advanceAsync(5_000);
  assert.equal(world.registry.stateOf(healthKey), 'DOWN');
  assert.equal(world.registry.details(healthKey).lastError, 'refused');
  world.result = OK;
  await world.clock.advanceAsync(5_000);
  assert.equal(world.registry.stateOf(healthKey), 'UP');
});

test('stateless services are probed every 30 s, after 10 successes every 2 min, after 5 failures every 3 min', async () => {
  const world = new World();
  world.begin(stateless([{ id: 'a' }]));
  await world.clock.advanceAsync(270_500);
  assert.equal(world.calls.length, 10);
  await world.clock.advanceAsync(119_999);
  assert.equal(world.calls.length, 10);
  world.result = FAILED;
  await world.clock.advanceAsync(1);
  assert.equal(world.calls.length, 11);
  await world.clock.advanceAsync(120_000);
  assert.equal(world.calls.length, 15);
  await world.clock.advanceAsync(179_999);
  assert.equal(world.calls.length, 15);
  await world.clock.advanceAsync(1);
  assert.equal(world.calls.length, 16);
});

test("a service's own health settings go before the global ones", async () => {
  const world = new World();
  const { healthKey } = nodeOf(
    world.begin(user([{ id: 'a' }], withHealth({ intervalMs: 400, timeoutMs: 99, failures: 1 }))),
    'a',
  );
  world.result = FAILED;
  await world.clock.advanceAsync(1_100);
  assert.deepEqual(world.timesOf('a'), [200, 600, 1_000]);
  assert.equal(world.last().timeoutMs, 99);
  assert.equal(world.registry.stateOf(healthKey), 'DOWN');
});

test('disabled nodes and nodes of disabled services are not probed, draining ones are', async () => {
  const world = new World();
  world.begin(
    user([
      { id: 'a', enabled: false },
      { id: 'b', draining: true },
    ]),
    stateless([{ id: 'c' }], { enabled: false }),
  );
  await world.clock.advanceAsync(1_000);
  assert.deepEqual(
    world.calls.map((call) => call.target.hostname),
    ['b'],
  );
});

test('an address that services share is probed once: as often as the most eager, as patiently as the most patient', async () => {
  const world = new World();
  const baseUrl = 'http://shared:80';
  const snapshot = world.begin(
    stateless([{ id: 'a', baseUrl }], withHealth({ timeoutMs: 100, failures: 4 })),
    user([{ id: 'b', baseUrl }], withHealth({ timeoutMs: 300, failures: 1 })),
    user([{ id: 'c', baseUrl }], { id: 'other', healthPath: '/other' }),
  );
  world.result = FAILED;
  await world.clock.advanceAsync(16_000);
  const shared = world.calls.filter((call) => call.target.path === '/health');
  assert.deepEqual(
    shared.map((call) => call.atMs),
    [500, 5_500, 10_500, 15_500],
  );
  assert.equal(shared[0]?.timeoutMs, 300);
  assert.equal(world.registry.details(nodeOf(snapshot, 'b').healthKey).failuresInRow, 4);
  assert.equal(world.registry.stateOf(nodeOf(snapshot, 'b').healthKey), 'DOWN');
  assert.equal(world.calls.length, 8);
});

test('a probe that lasts longer than the interval is not overlapped by the next', async () => {
  const world = new World();
  world.begin(user([{ id: 'a' }], withHealth({ intervalMs: 1_000 })));
  world.result = null;
  await world.clock.advanceAsync(10_000);
  assert.equal(world.calls.length, 1);
  world.last().answer(OK);
  await world.clock.advanceAsync(999);
  assert.equal(world.calls.length, 1);
  await world.clock.advanceAsync(1);
  assert.equal(world.calls.length, 2);
});

test('an update leaves running schedules alone, adds new addresses and ends removed ones', async () => {
  const world = new World();
  world.begin(user([{ id: 'a' }, { id: 'b' }]));
  await world.clock.advanceAsync(3_000);
  world.checker.update(snapshotOf(user([{ id: 'a', weight: 7 }, { id: 'c' }])));
  await world.clock.advanceAsync(5_000);
  assert.deepEqual(world.timesOf('a'), [500, 5_500]);
  assert.deepEqual(world.timesOf('b'), [500]);
  assert.deepEqual(world.timesOf('c'), [3_500]);
});

test('a changed interval takes effect at once, for a probe under way after it ended', async () => {
  const world = new World();
  world.begin(user([{ id: 'a' }]));
  await world.clock.advanceAsync(1_000);
  world.checker.update(snapshotOf(user([{ id: 'a' }], withHealth({ intervalMs: 1_500 }))));
  await world.clock.advanceAsync(1_500);
  assert.deepEqual(world.timesOf('a'), [500, 2_500]);
  world.result = null;
  await world.clock.advanceAsync(1_500);
  world.checker.update(snapshotOf(user([{ id: 'a' }], withHealth({ intervalMs: 200 }))));
  await world.clock.advanceAsync(1_000);
  world.last().answer(OK);
  await world.clock.advanceAsync(250);
  assert.deepEqual(world.timesOf('a'), [500, 2_500, 4_000, 5_200]);
});

test('changed global settings take effect on the next configure', async () => {
  const world = new World();
  world.checker.configure({ ...DEFAULTS.health, jitter: 0, intervalMs: 2_000 });
  const { healthKey } = nodeOf(world.begin(user([{ id: 'a' }])), 'a');
  await world.clock.advanceAsync(2_500);
  assert.deepEqual(world.timesOf('a'), [500, 2_500]);
  world.result = FAILED;
  world.checker.configure({
    ...DEFAULTS.health,
    jitter: 0,
    intervalMs: 1_000,
    failures: 1,
    suspicion: { flips: 1, windowMs: 5_000 },
  });
  await world.clock.advanceAsync(1_000);
  assert.deepEqual(world.timesOf('a'), [500, 2_500, 3_500]);
  assert.equal(world.registry.stateOf(healthKey), 'UP', 'one node is enough for suspicion now');
  await world.clock.advanceAsync(5_000);
  assert.equal(world.registry.stateOf(healthKey), 'DOWN');
});

test('the result of an address that was removed meanwhile is ignored, also when it came back', async () => {
  const world = new World();
  world.result = null;
  const both = snapshotOf(user([{ id: 'a' }]));
  world.checker.update(both);
  world.checker.start();
  await world.clock.advanceAsync(500);
  const old = world.last();
  world.checker.update(snapshotOf());
  assert.equal(old.signal.aborted, true);
  world.checker.update(both);
  old.answer(OK);
  await settled();
  assert.equal(world.registry.wasChecked(nodeOf(both, 'a').healthKey), false);
  await world.clock.advanceAsync(500);
  assert.equal(world.calls.length, 2);
  world.last().answer(FAILED);
  await settled();
  assert.equal(world.registry.details(nodeOf(both, 'a').healthKey).failuresInRow, 1);
  assert.equal(world.clock.pending, 1);
});

test('stop ends timers and probes, ignores late results, and both calls are idempotent', async () => {
  const world = new World();
  world.result = null;
  const snapshot = world.begin(user([{ id: 'a' }, { id: 'b' }]));
  world.checker.start();
  assert.equal(world.clock.pending, 2);
  await world.clock.advanceAsync(500);
  world.checker.stop();
  world.checker.stop();
  assert.deepEqual(
    world.calls.map((call) => call.signal.aborted),
    [true, true],
  );
  for (const call of world.calls) call.answer(OK);
  await world.clock.advanceAsync(60_000);
  assert.equal(world.calls.length, 2);
  assert.equal(world.clock.pending, 0);
  assert.equal(world.registry.wasChecked(nodeOf(snapshot, 'a').healthKey), false);
});

test('a restart probes again, once per schedule, even if a probe from before ends late', async () => {
  const world = new World();
  world.result = null;
  const node = nodeOf(world.begin(user([{ id: 'a' }])), 'a');
  await world.clock.advanceAsync(500);
  const old = world.last();
  world.checker.stop();
  world.checker.start();
  await world.clock.advanceAsync(500);
  old.answer(FAILED);
  await settled();
  assert.equal(world.registry.wasChecked(node.healthKey), false);
  const asking = world.checker.probeNow(node);
  await settled();
  assert.equal(world.calls.length, 2, 'the new probe is still shared');
  world.last().answer(OK);
  await asking;
  world.result = OK;
  await world.clock.advanceAsync(5_100);
  assert.deepEqual(world.timesOf('a'), [500, 1_000, 6_000]);
  assert.equal(world.clock.pending, 1);
});

test('what is not started probes nothing but takes passive observations', async () => {
  const world = new World();
  const snapshot = snapshotOf(user([{ id: 'a' }]));
  world.checker.update(snapshot);
  const node = nodeOf(snapshot, 'a');
  await world.checker.probeNow(node);
  await world.checker.probeUnknown([node]);
  world.checker.update(snapshotOf(user([{ id: 'a' }], withHealth({ intervalMs: 100 }))));
  await world.clock.advanceAsync(60_000);
  assert.equal(world.calls.length, 0);
  for (let failure = 0; failure < 3; failure += 1) world.checker.passive(node, false, 'reset');
  assert.equal(world.registry.stateOf(node.healthKey), 'DOWN');
  assert.equal(world.registry.details(node.healthKey).lastKind, 'passive');
  world.checker.passive(node, true);
  assert.equal(world.registry.stateOf(node.healthKey), 'UP');
});

test('a DOWN node is probed on demand, at most once a second, shared by all who ask', async () => {
  const world = new World({ intervalMs: 1_000_000 });
  const node = nodeOf(world.begin(user([{ id: 'a' }])), 'a');
  for (let failure = 0; failure < 3; failure += 1) world.checker.passive(node, false);
  world.result = null;
  await world.clock.advanceAsync(100);
  const asking = Array.from({ length: 50 }, () => world.checker.probeNow(node));
  await settled();
  assert.equal(world.calls.length, 1);
  world.last().answer(FAILED);
  await Promise.all(asking);
  await world.checker.probeNow(node);
  assert.equal(world.calls.length, 1, 'too soon: resolved without a probe');
  world.result = OK;
  await world.clock.advanceAsync(300);
  await world.checker.probeNow(node);
  assert.equal(world.calls.length, 1, 'a second has not passed');
  await world.clock.advanceAsync(700);
  assert.deepEqual(world.timesOf('a'), [100, 500], 'the schedule runs on');
  for (let failure = 0; failure < 3; failure += 1) world.checker.passive(node, false);
  await world.checker.probeNow(node);
  assert.deepEqual(world.timesOf('a'), [100, 500, 1_100]);
  assert.equal(world.registry.stateOf(node.healthKey), 'UP', 'observed before the caller goes on');
  assert.equal(world.registry.details(node.healthKey).lastKind, 'immediate');
});

test('asking for a probe while the scheduled one runs shares it, and the schedule goes on after it', async () => {
  const world = new World();
  const node = nodeOf(world.begin(user([{ id: 'a' }])), 'a');
  world.result = null;
  await world.clock.advanceAsync(500);
  let done = false;
  const asking = world.checker.probeNow(node).then(() => {
    done = true;
  });
  await settled();
  assert.deepEqual([world.calls.length, done], [1, false]);
  world.last().answer(OK);
  await asking;
  world.result = OK;
  await world.checker.probeNow(node);
  assert.equal(world.calls.length, 2, 'sharing did not use up the extra probe');
  await world.clock.advanceAsync(5_000);
  assert.deepEqual(world.timesOf('a'), [500, 500, 5_500]);
});

test('a scheduled probe that falls due while an extra one runs joins it', async () => {
  const world = new World();
  const node = nodeOf(world.begin(user([{ id: 'a' }])), 'a');
  world.result = null;
  const asking = world.checker.probeNow(node);
  await world.clock.advanceAsync(700);
  assert.equal(world.calls.length, 1);
  world.last().answer(OK);
  await asking;
  await world.clock.advanceAsync(5_000);
  assert.deepEqual(world.timesOf('a'), [0, 5_700]);
});

test('a node that nobody watches is not probed', async () => {
  const world = new World();
  world.begin(user([{ id: 'a' }]));
  await world.checker.probeNow({ healthKey: 'http://x:1/health' });
  await world.checker.probeUnknown([{ healthKey: 'http://x:1/health' }]);
  assert.equal(world.calls.length, 0);
});

test('never-probed nodes are probed at once, in parallel, each once; checked ones are not', async () => {
  const world = new World();
  const snapshot = world.begin(stateless([{ id: 'a' }, { id: 'b' }, { id: 'c' }]));
  const nodes = [...snapshot.nodes.values()];
  world.checker.passive(nodes[2]!, false);
  world.result = null;
  const first = world.checker.probeUnknown(nodes);
  const second = world.checker.probeUnknown(nodes);
  await settled();
  assert.deepEqual(
    world.calls.map((call) => call.target.hostname),
    ['a', 'b'],
  );
  world.calls[0]!.answer(OK);
  world.calls[1]!.answer(FAILED);
  await Promise.all([first, second]);
  assert.deepEqual(
    nodes.map((node) => world.registry.stateOf(node.healthKey)),
    ['UP', 'UNKNOWN', 'UNKNOWN'],
  );
  await world.checker.probeUnknown(nodes);
  assert.equal(world.calls.length, 2);
});

test('no more probes run at one time than allowed; one that is waited for goes first', async () => {
  const world = new World({}, 2);
  const ids = ['a', 'b', 'c', 'd', 'e'];
  const snapshot = world.begin(user(ids.map((id) => ({ id }))));
  world.result = null;
  await world.clock.advanceAsync(500);
  const hosts = () => world.calls.map((call) => call.target.hostname).join('');
  assert.equal(hosts(), 'ab');
  const asking = world.checker.probeNow(nodeOf(snapshot, 'd'));
  world.calls[0]!.answer(OK);
  await settled();
  assert.equal(hosts(), 'abd');
  for (const index of [1, 2]) world.calls[index]!.answer(OK);
  await asking;
  await settled();
  assert.equal(hosts(), 'abdce');
  world.calls[3]!.answer(OK);
  world.calls[4]!.answer(OK);
  world.result = OK;
  await world.clock.advanceAsync(5_000);
  assert.equal(world.calls.length, 10);
});

test('an extra probe overtakes the queue when all turns are taken', async () => {
  const world = new World({}, 1);
  const snapshot = world.begin(
    user([{ id: 'a' }, { id: 'b' }]),
    user([{ id: 'c' }], { id: 'v', ...withHealth({ intervalMs: 50_000 }) }),
  );
  await world.clock.advanceAsync(5_000);
  world.result = null;
  await world.clock.advanceAsync(500);
  const asking = world.checker.probeNow(nodeOf(snapshot, 'c'));
  world.last().answer(OK);
  await settled();
  assert.equal(world.last().target.hostname, 'c');
  world.last().answer(OK);
  await asking;
  await settled();
  assert.equal(world.last().target.hostname, 'b');
});

test('stop frees those who wait for a turn', async () => {
  const world = new World({}, 1);
  const snapshot = world.begin(user([{ id: 'a' }, { id: 'b' }]));
  world.result = null;
  const asking = [...snapshot.nodes.values()].map((node) => world.checker.probeNow(node));
  await settled();
  assert.equal(world.calls.length, 1);
  world.checker.stop();
  world.last().answer(FAILED);
  await Promise.all(asking);
  assert.equal(world.calls.length, 1);
});

test('a stable stateless node that requests see fail is probed again within the regular tier', async () => {
  const world = new World();
  const snapshot = world.begin(stateless([{ id: 'a' }]));
  const node = nodeOf(snapshot, 'a');
  await world.clock.advanceAsync(280_000);
  assert.equal(world.calls.length, 10);
  for (let failure = 0; failure < 3; failure += 1) world.checker.passive(node, false);
  await world.clock.advanceAsync(29_999);
  assert.equal(world.calls.length, 10);
  await world.clock.advanceAsync(1);
  assert.equal(world.calls.length, 11);
  assert.equal(world.registry.stateOf(node.healthKey), 'UP');
});

test('passive failures do not put a node into the degraded tier, and a near probe stays where it is', async () => {
  const world = new World();
  const node = nodeOf(world.begin(stateless([{ id: 'a' }])), 'a');
  await world.clock.advanceAsync(10_500);
  for (let failure = 0; failure < 20; failure += 1) world.checker.passive(node, false);
  await world.clock.advanceAsync(20_000);
  assert.deepEqual(world.timesOf('a'), [500, 30_500]);
});

test('a degraded node that requests find to be DOWN is probed again within the regular tier', async () => {
  const world = new World();
  const node = nodeOf(world.begin(stateless([{ id: 'a' }], withHealth({ failures: 10 }))), 'a');
  world.result = FAILED;
  await world.clock.advanceAsync(121_000);
  assert.equal(world.calls.length, 5);
  for (let failure = 0; failure < 5; failure += 1) world.checker.passive(node, false);
  assert.equal(world.registry.stateOf(node.healthKey), 'DOWN');
  await world.clock.advanceAsync(30_000);
  assert.equal(world.calls.length, 6);
});

test('a change of an address that is watched by others than the checker does no harm', () => {
  const world = new World();
  world.begin(user([{ id: 'a' }]));
  world.registry.retain(new Map([['foreign', { failures: 1 }]]));
  assert.equal(world.registry.observe('foreign', false, 'passive'), true);
});

test('a probe that throws counts as a failure and is logged', async () => {
  const clock = new FakeClock();
  const registry = new HealthRegistry({ suspicion: DEFAULTS.health.suspicion, clock, logger: silentLogger });
  const errors: string[] = [];
  const checker = new HealthChecker({
    registry,
    clock,
    logger: { ...silentLogger, error: (event) => void errors.push(event) },
    options: DEFAULTS.health,
    probe: () => Promise.reject(new Error('broken')),
  });
  const snapshot = snapshotOf(user([{ id: 'a' }]));
  checker.update(snapshot);
  checker.start();
  await clock.advanceAsync(1_000);
  assert.equal(registry.details(nodeOf(snapshot, 'a').healthKey).lastError, 'broken');
  assert.deepEqual(errors, ['health_probe_threw']);
  checker.stop();
});

test('with real probes a node that goes and comes back is seen to, on demand', async () => {
  const server = http.createServer((_request, response) => response.end('ok'));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const registry = new HealthRegistry({
    suspicion: DEFAULTS.health.suspicion,
    clock: systemClock,
    logger: silentLogger,
  });
  const options = { ...DEFAULTS.health, intervalMs: 3_600_000, onDemandMs: 0, failures: 1 };
  const checker = new HealthChecker({
    registry,
    clock: systemClock,
    logger: silentLogger,
    options,
    random: () => 0.99,
  });
  const snapshot = snapshotOf(user([{ id: 'a', baseUrl: `http://127.0.0.1:${port}` }]));
  const node = nodeOf(snapshot, 'a');
  checker.update(snapshot);
  checker.start();
  await checker.probeUnknown([node]);
  assert.equal(registry.stateOf(node.healthKey), 'UP');
  server.close();
  await once(server, 'close');
  await checker.probeNow(node);
  assert.equal(registry.stateOf(node.healthKey), 'DOWN');
  server.listen(port, '127.0.0.1');
  await once(server, 'listening');
  await checker.probeNow(node);
  assert.equal(registry.stateOf(node.healthKey), 'UP');
  checker.stop();
  server.close();
});

test('one never-probed node that is found UP lets the others have a moment, and no more', async () => {
  const world = new World();
  const snapshot = world.begin(stateless([{ id: 'a' }, { id: 'b' }, { id: 'c' }]));
  const nodes = [...snapshot.nodes.values()];
  world.result = null;
  const ended: string[] = [];
  void world.checker.probeUnknown(nodes).then(() => ended.push('all'));
  await settled();
  assert.equal(world.calls.length, 3);
  world.calls[0]!.answer(FAILED);
  await settled();
  await world.clock.advanceAsync(90);
  assert.deepEqual(ended, [], 'that one fails is no reason to go on');
  world.calls[1]!.answer(OK);
  await settled();
  await world.clock.advanceAsync(99);
  assert.deepEqual(ended, []);
  await world.clock.advanceAsync(1);
  assert.deepEqual(ended, ['all']);
  assert.equal(world.calls[2]!.signal.aborted, false, 'the probe itself goes on');
  // Those who ask while it lasts share it, and again wait for nobody else.
  const again = world.checker.probeUnknown(nodes);
  await settled();
  assert.equal(world.calls.length, 3);
  world.calls[2]!.answer(OK);
  await again;
});
