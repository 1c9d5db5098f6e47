import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Placement } from '../../lib/balance/placement.ts';
import type { Node, Placement as Policy, Service } from '../../lib/model.ts';
import type { LogFields } from '../../lib/observe/log.ts';
import { silentLogger } from '../../lib/observe/log.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { type NodeSketch, serviceOf, snapshotOf } from './services.ts';

type Counts = ReadonlyMap<string, number>;

class World {
  readonly clock = new FakeClock();
  readonly down = new Set<string>();
  readonly bound = new Map<string, number>();
  readonly warnings: { event: string; fields: LogFields | undefined }[] = [];
  reads = 0;
  /** Replaced to delay or fail a count. */
  count: () => Promise<Counts> = async () => new Map(this.bound);
  readonly placement = new Placement({
    health: { isUsable: (healthKey) => !this.down.has(healthKey) },
    counts: {
      countByNode: (serviceId) => {
        assert.equal(serviceId, 's');
        this.reads += 1;
        return this.count();
      },
    },
    clock: this.clock,
    logger: { ...silentLogger, warn: (event, fields) => void this.warnings.push({ event, fields }) },
  });

  setDown(service: Service, ...ids: string[]): void {
    this.down.clear();
    for (const id of ids) this.down.add(service.nodesById.get(id)!.healthKey);
  }

  bind(node: Node): void {
    this.bound.set(node.id, (this.bound.get(node.id) ?? 0) + 1);
  }
}

function service(policy: Policy, ...nodes: NodeSketch[]): Service {
  return serviceOf({ id: 's', placement: policy, nodes });
}

/** Chooses `count` times without waiting; for policies that count nothing. */
function chosenAtOnce(world: World, target: Service, count: number): string {
  return Array.from({ length: count }, () => {
    const chosen = world.placement.choose(target);
    assert.ok(!(chosen instanceof Promise), 'it waited');
    return chosen.id;
  }).join('');
}

async function refusal(world: World, target: Service): Promise<string> {
  try {
    await world.placement.choose(target);
  } catch (error) {
    assert.ok(error instanceof Error && 'code' in error);
    return String(error.code);
  }
  return assert.fail('a node was chosen');
}

test('round robin takes nodes that are enabled, not draining and not DOWN, in turn, and counts nothing', () => {
  const world = new World();
  const target = service(
    'round-robin',
    { id: 'a' },
    { id: 'off', enabled: false },
    { id: 'b', weight: 0 },
    { id: 'drain', draining: true },
    { id: 'c' },
  );
  assert.equal(chosenAtOnce(world, target, 4), 'abca');
  world.setDown(target, 'b');
  assert.equal(chosenAtOnce(world, target, 3), 'cac');
  assert.equal(world.reads, 0);
});

test('weighted places by weight, and weight 0 gets nobody', () => {
  const world = new World();
  const target = service(
    'weighted',
    { id: 'A', weight: 3 },
    { id: 'B', weight: 2 },
    { id: 'C', weight: 1 },
    { id: 'Z', weight: 0 },
  );
  assert.equal(chosenAtOnce(world, target, 6), 'ABACBA');
  assert.equal(world.reads, 0);
});

test('weighted with nothing but weight 0 left has no node available', async () => {
  const world = new World();
  const target = service('weighted', { id: 'a' }, { id: 'z', weight: 0 });
  world.setDown(target, 'a');
  assert.equal(await refusal(world, target), 'no_node_available');
});

test('refuses with no_node_available when none is usable, whatever the policy, and asks no store', async () => {
  for (const policy of ['round-robin', 'weighted', 'least-users'] as const) {
    const world = new World();
    const target = service(policy, { id: 'a' }, { id: 'b', draining: true }, { id: 'c', enabled: false });
    world.setDown(target, 'a');
    assert.equal(await refusal(world, target), 'no_node_available', policy);
    assert.equal(world.reads, 0);
  }
});

test('least-users takes the node with the fewest bound users, in turn among equals', async () => {
  const world = new World();
  const target = service('least-users', { id: 'a' }, { id: 'b' }, { id: 'c' });
  world.bound.set('a', 2).set('b', 1).set('c', 2);
  const chosen: string[] = [];
  for (let login = 0; login < 5; login += 1) {
    const node = await world.placement.choose(target);
    chosen.push(node.id);
  }
  assert.deepEqual(chosen, ['b', 'c', 'a', 'b', 'c']);
  assert.equal(world.reads, 1);
});

test('100 parallel logins share one count and spread evenly', async () => {
  const world = new World();
  const target = service('least-users', { id: 'a' }, { id: 'b' }, { id: 'c' }, { id: 'd' });
  const nodes = await Promise.all(Array.from({ length: 100 }, () => world.placement.choose(target)));
  for (const id of ['a', 'b', 'c', 'd']) assert.equal(nodes.filter((node) => node.id === id).length, 25);
  assert.equal(world.reads, 1);
});

test('maxUsers is not overshot by parallel logins, and the rest is refused with no_capacity', async () => {
  for (const policy of ['round-robin', 'weighted', 'least-users'] as const) {
    const world = new World();
    const target = service(policy, { id: 'a', maxUsers: 10 }, { id: 'b', maxUsers: 5 });
    world.bound.set('a', 4);
    const results = await Promise.allSettled(Array.from({ length: 30 }, async () => world.placement.choose(target)));
    const nodes = results.flatMap((result) => (result.status === 'fulfilled' ? [result.value.id] : []));
    const codes = results.flatMap((result) => (result.status === 'rejected' ? [result.reason.code] : []));
    assert.equal(nodes.filter((id) => id === 'a').length, 6, policy);
    assert.equal(nodes.filter((id) => id === 'b').length, 5, policy);
    assert.deepEqual(new Set(codes), new Set(['no_capacity']));
    assert.equal(codes.length, 19);
  }
});

test('a full node among nodes without a limit is passed over', async () => {
  const world = new World();
  const target = service('round-robin', { id: 'a', maxUsers: 1 }, { id: 'b' });
  world.bound.set('a', 1);
  assert.equal((await world.placement.choose(target)).id, 'b');
  assert.equal((await world.placement.choose(target)).id, 'b');
});

test('maxUsers 0 takes nobody', async () => {
  const world = new World();
  assert.equal(await refusal(world, service('round-robin', { id: 'a', maxUsers: 0 })), 'no_capacity');
});

test('a limit on a node that cannot be chosen anyway costs no count', () => {
  const world = new World();
  const target = service('round-robin', { id: 'a' }, { id: 'b', maxUsers: 1, draining: true });
  assert.equal(chosenAtOnce(world, target, 2), 'aa');
});

test('counts are kept for a second', async () => {
  const world = new World();
  const target = service('least-users', { id: 'a' });
  await world.placement.choose(target);
  world.clock.advance(999);
  await world.placement.choose(target);
  assert.equal(world.reads, 1);
  world.clock.advance(1);
  await world.placement.choose(target);
  assert.equal(world.reads, 2);
});

test('a login that ended bound stays counted until a later count has it, so that the limit holds', async () => {
  const world = new World();
  const target = service('round-robin', { id: 'a', maxUsers: 1 });
  const node = await world.placement.choose(target);
  world.bind(node);
  world.placement.release(node);
  assert.equal(await refusal(world, target), 'no_capacity', 'the count is older than the binding');
  world.clock.advance(1_000);
  world.bound.clear();
  assert.equal((await world.placement.choose(target)).id, 'a', 'the new count decides');
});

test('a login that ended without a binding frees its place at once', async () => {
  const world = new World();
  const target = service('round-robin', { id: 'a', maxUsers: 1 });
  const node = await world.placement.choose(target);
  assert.equal(await refusal(world, target), 'no_capacity');
  world.placement.release(node, false);
  assert.equal((await world.placement.choose(target)).id, 'a');
});

test('a login that ends while a count runs stays counted: the count may have missed it', async () => {
  const world = new World();
  const target = service('round-robin', { id: 'a', maxUsers: 2 });
  const node = await world.placement.choose(target);
  world.clock.advance(1_000);
  let answer: (counts: Counts) => void = () => assert.fail('not asked');
  world.count = () =>
    new Promise((resolve) => {
      answer = resolve;
    });
  const second = world.placement.choose(target);
  world.placement.release(node);
  answer(new Map());
  assert.equal((await second).id, 'a');
  assert.equal(await refusal(world, target), 'no_capacity');
});

test('reserve and release count places that were taken without choosing, never below none', async () => {
  const world = new World();
  const target = service('round-robin', { id: 'a', maxUsers: 1 });
  const node = target.nodes[0]!;
  world.placement.release(node);
  world.placement.reserve(node);
  assert.equal(await refusal(world, target), 'no_capacity');
  world.placement.release(node, false);
  world.placement.release(node, false);
  assert.equal((await world.placement.choose(target)).id, 'a');
  assert.equal(await refusal(world, target), 'no_capacity');
});

test('health that changes while the count runs is seen', async () => {
  const world = new World();
  const target = service('least-users', { id: 'a' }, { id: 'b' });
  world.bound.set('b', 5);
  const chosen = world.placement.choose(target);
  world.setDown(target, 'a');
  assert.equal((await chosen).id, 'b');
});

test('least-users goes on in turn, with one warning a second, when bindings cannot be counted', async () => {
  const world = new World();
  const target = service('least-users', { id: 'a' }, { id: 'b' });
  world.count = () => Promise.reject(new Error('connection refused'));
  const nodes = await Promise.all(Array.from({ length: 4 }, () => world.placement.choose(target)));
  assert.equal(nodes.map((node) => node.id).join(''), 'abab');
  assert.deepEqual(world.warnings, [
    { event: 'placement_count_failed', fields: { serviceId: 's', error: 'connection refused' } },
  ]);
  world.clock.advance(999);
  await world.placement.choose(target);
  assert.equal(world.reads, 1, 'a failing store is not asked by every login');
  world.clock.advance(1);
  world.count = async () => new Map([['a', 3]]);
  assert.equal((await world.placement.choose(target)).id, 'b');
});

test('a failed count gives no settled login away', async () => {
  const world = new World();
  const target = service('round-robin', { id: 'a', maxUsers: 1 });
  const node = await world.placement.choose(target);
  world.placement.release(node);
  world.clock.advance(1_000);
  world.count = () => Promise.reject(new Error('connection refused'));
  assert.equal(await refusal(world, target), 'directory_unavailable');
  world.clock.advance(1_000);
  world.count = async () => new Map([['a', 1]]);
  assert.equal(await refusal(world, target), 'no_capacity');
});

test('a limit that cannot be checked refuses with directory_unavailable and keeps the cause', async () => {
  const world = new World();
  const cause = new Error('connection refused');
  world.count = () => Promise.reject(cause);
  for (const policy of ['round-robin', 'least-users'] as const) {
    await assert.rejects(
      async () => world.placement.choose(service(policy, { id: 'a', maxUsers: 5 }, { id: 'b' })),
      (error: Error & { code?: string }) => error.code === 'directory_unavailable' && error.cause === cause,
    );
  }
});

test('anonymous requests go round over open nodes, apart from the turns of new users', () => {
  const world = new World();
  const target = service(
    'round-robin',
    { id: 'a', maxUsers: 0 },
    { id: 'b' },
    { id: 'c', draining: true },
    { id: 'd', enabled: false },
  );
  const anonymous = (): string => world.placement.anonymous(target).id;
  assert.equal(anonymous() + anonymous() + anonymous(), 'aba');
  world.setDown(target, 'a');
  assert.equal(anonymous() + anonymous(), 'bb');
  assert.equal(chosenAtOnce(world, target, 1), 'b');
  world.setDown(target, 'a', 'b');
  assert.throws(anonymous, { code: 'no_node_available' });
});

test('turns and weights go on over a snapshot swap', () => {
  const world = new World();
  const sketch = {
    id: 's',
    placement: 'weighted' as const,
    nodes: [
      { id: 'A', weight: 3 },
      { id: 'B', weight: 2 },
      { id: 'C', weight: 1 },
    ],
  };
  const before = snapshotOf(sketch);
  assert.equal(chosenAtOnce(world, before.services.get('s')!, 2), 'AB');
  assert.equal(world.placement.anonymous(before.services.get('s')!).id, 'A');
  const after = snapshotOf(sketch);
  world.placement.update(after);
  assert.equal(chosenAtOnce(world, after.services.get('s')!, 4), 'ACBA');
  assert.equal(world.placement.anonymous(after.services.get('s')!).id, 'B');
});

test('what was settled on a node that is gone is forgotten', async () => {
  const world = new World();
  const both = snapshotOf({
    id: 's',
    nodes: [
      { id: 'a', enabled: false },
      { id: 'b', maxUsers: 1 },
    ],
  });
  const target = both.services.get('s')!;
  world.placement.release(await world.placement.choose(target));
  world.placement.update(both);
  assert.equal(await refusal(world, target), 'no_capacity');
  world.placement.update(snapshotOf({ id: 's', nodes: [{ id: 'a' }] }));
  assert.equal((await world.placement.choose(target)).id, 'b');
});

test('what was reserved in a service that is gone is forgotten', async () => {
  const world = new World();
  const target = service('round-robin', { id: 'a', maxUsers: 1 });
  await world.placement.choose(target);
  world.placement.update(snapshotOf());
  assert.equal((await world.placement.choose(target)).id, 'a');
  assert.equal(world.reads, 2);
});
