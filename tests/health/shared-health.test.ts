import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { DEFAULTS } from '../../lib/config/options.ts';
import { HealthChecker } from '../../lib/health/health-checker.ts';
import { HealthRegistry } from '../../lib/health/health-registry.ts';
import type { ProbeResult } from '../../lib/health/probe.ts';
import { type HealthMessage, SharedHealth } from '../../lib/health/shared-health.ts';
import type { Node, Snapshot } from '../../lib/model.ts';
import { silentLogger } from '../../lib/observe/log.ts';
import { Metrics } from '../../lib/observe/metrics.ts';
import { snapshotOf } from '../balance/services.ts';
import { FakeClock } from '../support/fake-clock.ts';

const WAIT_MS = 3_000;
const OPTIONS = { ...DEFAULTS.health, jitter: 0, failures: 3, intervalMs: 5_000, onDemandMs: 1_000 };

interface Process {
  readonly id: number;
  readonly registry: HealthRegistry;
  readonly shared: SharedHealth;
  readonly metrics: Metrics;
  /** Changes of state that were logged. */
  readonly logged: string[];
}

/** Several processes that probe the same nodes, with a primary that carries their messages. */
class World {
  readonly clock = new FakeClock();
  readonly processes: Process[] = [];
  readonly sent: { readonly from: number; readonly kind: string }[] = [];
  probes: string[] = [];
  result: ProbeResult | null = { ok: true, status: 200 };
  readonly held: ((result: ProbeResult) => void)[] = [];
  proberId = 0;
  /** Messages are lost. */
  cut = false;
  readonly snapshot: Snapshot = snapshotOf({ id: 's', nodes: [{ id: 'a' }, { id: 'b' }] });
  readonly node: Node = this.snapshot.nodes.get('a')!;

  add(): Process {
    const id = this.processes.length + 1;
    const logged: string[] = [];
    const metrics = new Metrics();
    const log = (event: string) => void logged.push(event);
    const logger = { ...silentLogger, info: log, warn: log };
    const { clock } = this;
    const registry = new HealthRegistry({ suspicion: OPTIONS.suspicion, clock, logger, metrics });
    const probe = (target: { hostname: string }) => {
      this.probes.push(`${id} ${target.hostname}`);
      return this.result === null
        ? new Promise<ProbeResult>((resolve) => this.held.push(resolve))
        : Promise.resolve(this.result);
    };
    const checker = new HealthChecker({ registry, clock, logger, options: OPTIONS, probe, random: () => 0.5 });
    const to = (choose: (other: Process) => boolean) => (message: HealthMessage) => {
      this.sent.push({ from: id, kind: message.kind });
      if (this.cut) return;
      // As JSON, as it goes between processes.
      const text = JSON.stringify(message);
      for (const other of this.processes)
        if (other.id !== id && choose(other)) other.shared.receive(id, JSON.parse(text));
    };
    const shared = new SharedHealth({
      registry,
      checker,
      channel: {
        toProber: to((other) => other.id === this.proberId),
        toOthers: to(() => true),
        toOne: (one, message) => to((other) => other.id === one)(message),
      },
      clock,
      onDemandMs: OPTIONS.onDemandMs,
      waitMs: WAIT_MS,
    });
    const process = { id, registry, shared, metrics, logged };
    this.processes.push(process);
    shared.update(this.snapshot);
    shared.start();
    shared.appoint(id === this.proberId);
    return process;
  }

  appoint(id: number): void {
    this.proberId = id;
    for (const { id: own, shared } of this.processes) shared.appoint(own === id);
  }

  async pass(ms = 0): Promise<void> {
    await this.clock.advanceAsync(ms);
    for (let turn = 0; turn < 3; turn += 1) await new Promise((resolve) => setImmediate(resolve));
  }

  states(node = this.node): string[] {
    return this.processes.map(({ registry }) => registry.stateOf(node.healthKey));
  }

  kinds(from: number): string[] {
    return this.sent.filter((one) => one.from === from).map(({ kind }) => kind);
  }
}

/** Three of which the first probes. */
async function started(): Promise<
  World & { readonly first: Process; readonly second: Process; readonly third: Process }
> {
  const world = new World();
  const [first, second, third] = [world.add(), world.add(), world.add()];
  world.appoint(1);
  await world.pass(1_000);
  world.sent.length = 0;
  return Object.assign(world, { first, second, third });
}

describe('SharedHealth', () => {
  it('probes in one process only, and all know the outcome, logged and counted once', async () => {
    const world = await started();
    assert.deepEqual(world.probes, ['1 a', '1 b']);
    assert.deepEqual(world.states(), ['UP', 'UP', 'UP']);
    for (const { registry } of world.processes) assert.equal(registry.details(world.node.healthKey).lastKind, 'active');
    await world.pass(10_000);
    assert.equal(world.probes.length, 6);
    assert.deepEqual(
      world.processes.map(({ logged }) => logged.length),
      [2, 0, 0],
    );
    const flips = world.processes.map(({ metrics }) => /flips_total\{to="UP"\} (\d)/.exec(metrics.render())?.[1]);
    assert.deepEqual(flips, ['2', undefined, undefined]);
  });

  it('lets successes of nodes that are UP stay where they are', async () => {
    const world = await started();
    for (let count = 0; count < 50; count += 1)
      for (const { shared } of world.processes) shared.passive(world.node, true);
    assert.deepEqual(world.sent, []);
    world.second.shared.passive({ healthKey: 'http://nobody' }, true);
    assert.deepEqual(world.sent, []);
  });

  it('adds up failures of all processes, and all learn of DOWN', async () => {
    const world = await started();
    world.first.shared.passive(world.node, false, 'refused');
    world.second.shared.passive(world.node, false, 'refused');
    assert.deepEqual(world.states(), ['UP', 'UP', 'UP']);
    world.third.shared.passive(world.node, false, 'reset');
    assert.deepEqual(world.states(), ['DOWN', 'DOWN', 'DOWN']);
    for (const { registry } of world.processes) assert.equal(registry.details(world.node.healthKey).lastError, 'reset');
  });

  it('lets a success in one process end a row of failures in another', async () => {
    const world = await started();
    for (let count = 0; count < 2; count += 1) world.second.shared.passive(world.node, false, 'reset');
    world.third.shared.passive(world.node, true);
    assert.deepEqual(world.kinds(3), ['observed'], 'now it is news');
    world.third.shared.passive(world.node, true);
    assert.deepEqual(world.kinds(3), ['observed'], 'and told once');
    for (let count = 0; count < 2; count += 1) world.second.shared.passive(world.node, false);
    assert.deepEqual(world.states(), ['UP', 'UP', 'UP']);
    world.second.shared.passive(world.node, false);
    assert.deepEqual(world.states(), ['DOWN', 'DOWN', 'DOWN']);
    world.third.shared.passive(world.node, true);
    assert.deepEqual(world.states(), ['UP', 'UP', 'UP']);
  });

  it('asks for the extra probe of a DOWN node once, whoever needs it, and waits for the outcome', async () => {
    const world = await started();
    world.result = null;
    for (let count = 0; count < 3; count += 1) world.second.shared.passive(world.node, false);
    world.probes = [];
    let over = 0;
    for (const { shared } of world.processes)
      for (let count = 0; count < 5; count += 1) void shared.probeNow(world.node).then(() => (over += 1));
    await world.pass();
    assert.deepEqual([world.probes, over], [['1 a'], 0]);
    assert.deepEqual(world.kinds(2).filter((kind) => kind === 'probe').length, 1);
    world.held.shift()?.({ ok: true, status: 200 });
    await world.pass();
    assert.equal(over, 15);
    assert.deepEqual(world.states(), ['UP', 'UP', 'UP']);
    // Sooner than the least time between two, nothing is asked.
    await world.second.shared.probeNow(world.node);
    assert.deepEqual(world.kinds(2).filter((kind) => kind === 'probe').length, 1);
    await world.pass(1_000);
    void world.second.shared.probeNow(world.node);
    await world.pass();
    assert.deepEqual(world.probes, ['1 a', '1 a']);
  });

  it('probes nodes that nobody knows, for those that ask', async () => {
    const world = new World();
    const [, second] = [world.add(), world.add()];
    world.appoint(1);
    assert.deepEqual(world.states(), ['UNKNOWN', 'UNKNOWN']);
    await second?.shared.probeUnknown([...world.snapshot.nodes.values()]);
    assert.deepEqual(world.probes.sort(), ['1 a', '1 b']);
    assert.deepEqual(world.states(), ['UP', 'UP']);
    await second?.shared.probeUnknown([...world.snapshot.nodes.values()]);
    assert.equal(world.probes.length, 2);
    await world.processes[0]?.shared.probeUnknown([world.node]);
    assert.equal(world.probes.length, 2);
  });

  it('tells one that starts what is known', async () => {
    const world = await started();
    for (let count = 0; count < 3; count += 1) world.first.shared.passive(world.node, false, 'reset');
    world.add();
    assert.deepEqual(world.states(), ['DOWN', 'DOWN', 'DOWN', 'DOWN']);
  });

  it('goes on from what it knew when another one is to probe', async () => {
    const world = await started();
    for (let count = 0; count < 3; count += 1) world.first.shared.passive(world.node, false, 'reset');
    world.first.shared.stop();
    world.processes.shift();
    world.probes = [];
    world.result = { ok: false, error: 'refused' };
    world.appoint(2);
    await world.pass(1_000);
    assert.deepEqual(world.probes.sort(), ['2 a', '2 b']);
    assert.deepEqual(world.states(), ['DOWN', 'DOWN']);
    world.result = { ok: true, status: 200 };
    await world.pass(5_000);
    assert.deepEqual(world.states(), ['UP', 'UP']);
    assert.ok(world.probes.every((probe) => probe.startsWith('2')));
    world.appoint(3);
    world.probes = [];
    await world.pass(6_000);
    assert.ok(world.probes.length > 0 && world.probes.every((probe) => probe.startsWith('3')), `${world.probes}`);
  });

  it('keeps nobody waiting for one that is gone, that is silent, or that stops', async () => {
    const world = await started();
    world.result = null;
    for (let count = 0; count < 3; count += 1) world.second.shared.passive(world.node, false);
    let over = 0;
    const ask = () => void world.second.shared.probeNow(world.node).then(() => (over += 1));
    ask();
    await world.pass();
    assert.equal(over, 0);
    world.appoint(3);
    await world.pass();
    assert.equal(over, 1);

    world.cut = true;
    await world.pass(1_000);
    ask();
    await world.pass(WAIT_MS - 1);
    assert.equal(over, 1);
    await world.pass(1);
    assert.equal(over, 2);

    ask();
    world.second.shared.stop();
    await world.pass();
    assert.equal(over, 3);
    ask();
    await world.pass();
    assert.equal(over, 4, 'after the stop nobody is asked');
  });

  it('lets go of questions about nodes that are gone', async () => {
    const world = await started();
    world.result = null;
    for (let count = 0; count < 3; count += 1) world.second.shared.passive(world.node, false);
    const waiting = world.second.shared.probeNow(world.node);
    await world.pass();
    world.second.shared.update(snapshotOf({ id: 's', nodes: [{ id: 'b' }] }));
    await waiting;
  });

  it('does not answer for another one when it does not probe itself, and hears no late word', async () => {
    const world = await started();
    const { second, third } = world;
    const down = { ...second.registry.details(world.node.healthKey), state: 'DOWN' } as const;
    world.first.shared.receive(2, { kind: 'states', states: [[world.node.healthKey, down]] });
    world.first.shared.receive(2, { kind: 'probed', id: 1, states: [[world.node.healthKey, down]] });
    assert.equal(world.states()[0], 'UP', 'the one that probes believes nobody');
    second.shared.receive(3, { kind: 'observed', healthKey: world.node.healthKey, ok: false, error: null });
    assert.equal(second.registry.details(world.node.healthKey).failuresInRow, 0);
    second.shared.receive(3, { kind: 'tell' });
    assert.deepEqual(world.kinds(2), []);
    // It was asked for a moment after another one had been appointed: the answer is that there is none.
    second.shared.receive(3, { kind: 'probe', id: 7, healthKey: world.node.healthKey, unknownOnly: false });
    await world.pass();
    assert.deepEqual(world.kinds(2), ['probed']);
    assert.equal(third.registry.stateOf(world.node.healthKey), 'UP');
    assert.equal(world.probes.length, 2);
  });

  it('starts and stops any number of times', async () => {
    const world = await started();
    world.first.shared.start();
    world.first.shared.stop();
    world.first.shared.stop();
    world.first.shared.appoint(true);
    world.probes = [];
    await world.pass(20_000);
    assert.deepEqual(world.probes, []);
    world.first.shared.start();
    await world.pass(1_000);
    assert.deepEqual(world.probes, ['1 a', '1 b']);
  });
});

describe('HealthRegistry, of what another process found out', () => {
  const details = {
    state: 'DOWN',
    sinceMs: 5,
    lastCheckMs: 6,
    lastKind: 'active',
    lastError: 'refused',
    successesInRow: 0,
    failuresInRow: 3,
  } as const;

  it('takes it over, tells listeners of a change, and ignores what it does not watch', () => {
    const registry = new HealthRegistry({
      suspicion: OPTIONS.suspicion,
      clock: new FakeClock(),
      logger: silentLogger,
    });
    const changes: string[] = [];
    registry.subscribe((healthKey, from, to) => void changes.push(`${healthKey} ${from} ${to}`));
    registry.adopt('k', details);
    assert.equal(registry.stateOf('k'), 'UNKNOWN');
    registry.retain(new Map([['k', { failures: 3 }]]));
    assert.deepEqual([registry.isSound('k'), registry.isSound('unknown'), registry.checked()], [false, true, []]);
    registry.adopt('k', details);
    registry.adopt('k', { ...details, sinceMs: null });
    assert.deepEqual(changes, ['k UNKNOWN DOWN']);
    assert.deepEqual(registry.details('k'), details);
    assert.deepEqual(registry.checked(), ['k']);
  });
});
