import assert from 'node:assert/strict';
import { beforeEach, describe, it } from 'node:test';
import { StatelessBalancer } from '../../lib/balance/balancer.ts';
import type { Balance, Node, Service } from '../../lib/model.ts';
import { type NodeSketch, serviceOf, snapshotOf } from './services.ts';

describe('StatelessBalancer', () => {
  let down: Set<string>;
  /** Addresses of which nothing is known, with what a probe would find; absent = UP, or DOWN when in `down`. */
  let unknown: Map<string, boolean>;
  let checked: Set<string>;
  let probed: string[][];
  let balancer: StatelessBalancer;

  beforeEach(() => {
    down = new Set();
    unknown = new Map();
    checked = new Set();
    probed = [];
    balancer = new StatelessBalancer({
      version: () => down.size * 1_000 + unknown.size,
      stateOf: (healthKey) => (down.has(healthKey) ? 'DOWN' : unknown.has(healthKey) ? 'UNKNOWN' : 'UP'),
      wasChecked: (healthKey) => !unknown.has(healthKey) || checked.has(healthKey),
      async probeUnknown(nodes) {
        probed.push(nodes.map((node) => node.id));
        for (const { healthKey } of nodes) {
          checked.add(healthKey);
          if (unknown.get(healthKey)) unknown.delete(healthKey);
        }
      },
    });
  });

  /** What is chosen without waiting. */
  function now(chosen: Node | Promise<Node>): Node {
    assert.ok(!(chosen instanceof Promise), 'it is chosen in the same tick');
    return chosen;
  }

  function service(nodes: readonly NodeSketch[], balance: Balance = 'round-robin', id = 's'): Service {
    return serviceOf({ id, affinity: 'none', balance, nodes });
  }

  const abc = [{ id: 'a' }, { id: 'b' }, { id: 'c' }];
  const picks = (of: Service, count: number, key = '') =>
    Array.from({ length: count }, () => now(balancer.choose(of, key)).id).join('');

  it('balances as the service says', () => {
    assert.equal(picks(service(abc), 6), 'abcabc');
    const weighted = [
      { id: 'a', weight: 3 },
      { id: 'b', weight: 2 },
      { id: 'c', weight: 1 },
    ];
    assert.equal(picks(service(weighted, 'weighted', 'w'), 6), 'abacba');
    const random = new Set(picks(service(abc, 'random', 'r'), 200));
    assert.deepEqual([...random].sort(), ['a', 'b', 'c']);
  });

  it('sends one key of a consistent hash to one node, and not all keys to the same', () => {
    const hashed = service(abc, 'consistent-hash');
    assert.match(picks(hashed, 20, '192.0.2.1'), /^(.)\1*$/);
    const nodes = new Set(Array.from({ length: 100 }, (_, index) => now(balancer.choose(hashed, `key ${index}`)).id));
    assert.equal(nodes.size, 3);
  });

  it('leaves out nodes that are switched off, draining or DOWN', () => {
    const nodes = [{ id: 'a', enabled: false }, { id: 'b', draining: true }, { id: 'c' }, { id: 'd' }, { id: 'e' }];
    const of = service(nodes);
    down.add(of.nodesById.get('d')!.healthKey);
    assert.equal(picks(of, 4), 'cece');
  });

  it('uses nodes that are DOWN when there are no others, but none that are switched off or draining', () => {
    const of = service([{ id: 'a', enabled: false }, { id: 'b', draining: true }, { id: 'c' }, { id: 'd' }]);
    for (const node of of.nodes) down.add(node.healthKey);
    assert.equal(picks(of, 4), 'cdcd');
  });

  it('takes only nodes that are UP, in the same tick, while there is one', () => {
    const of = service(abc);
    unknown.set(of.nodesById.get('a')!.healthKey, true);
    assert.equal(picks(of, 4), 'bcbc');
    assert.deepEqual(probed, []);
  });

  it('probes those never probed before it chooses among them, and goes round those found UP', async () => {
    const of = service([...abc, { id: 'd', enabled: false }, { id: 'e', draining: true }, { id: 'f', weight: 0 }]);
    for (const node of of.nodes) unknown.set(node.healthKey, node.id !== 'b');
    assert.equal((await balancer.choose(of, '')).id, 'a');
    assert.deepEqual(probed[0], ['a', 'b', 'c'], 'those that may be chosen, and no others');
    assert.equal(picks(of, 3), 'cac');
  });

  it('prefers nodes of which a probe could not tell to those that are DOWN', async () => {
    const of = service(abc);
    down.add(of.nodesById.get('a')!.healthKey);
    unknown.set(of.nodesById.get('b')!.healthKey, false);
    unknown.set(of.nodesById.get('c')!.healthKey, false);
    assert.equal((await balancer.choose(of, '')).id, 'b');
    assert.equal(picks(of, 3), 'cbc');
    assert.equal(probed.length, 1, 'they are probed once');
  });

  it('names another node in the same order, none twice, and none that is DOWN while a fit one is asked for', () => {
    const of = service([{ id: 'x', enabled: false }, { id: 'y', draining: true }, ...abc, { id: 'd' }]);
    const node = (id: string) => of.nodesById.get(id)!;
    down.add(node('a').healthKey);
    unknown.set(node('b').healthKey, false);
    const tried = [node('d')];
    const order: string[] = [];
    for (let next = balancer.another(of, '', tried, true); next; next = balancer.another(of, '', tried, true)) {
      tried.push(next);
      order.push(next.id);
    }
    assert.deepEqual(order, ['c', 'b']);
    assert.equal(balancer.another(of, '', tried, false)?.id, 'a');
    assert.equal(balancer.another(of, '', [...tried, node('a')], false), undefined);
  });

  it('refuses when no node may take requests at all', () => {
    for (const nodes of [[], [{ id: 'a', enabled: false }], [{ id: 'a', draining: true }]]) {
      assert.throws(() => balancer.choose(service(nodes), ''), { code: 'no_node_available', status: 503 });
    }
    assert.throws(() => balancer.choose(service([{ id: 'a', weight: 0 }], 'weighted', 'w'), ''), {
      code: 'no_node_available',
    });
  });

  it('keeps services apart', () => {
    const [one, two] = [service(abc, 'round-robin', 'one'), service(abc, 'round-robin', 'two')];
    assert.equal(picks(one, 2), 'ab');
    assert.equal(picks(two, 2), 'ab');
    assert.equal(picks(one, 1), 'c');
  });

  it('goes on where it was after a swap that leaves the service as it is', () => {
    const sketch = { id: 's', affinity: 'none', balance: 'round-robin', nodes: abc } as const;
    const [before, after] = [snapshotOf(sketch), snapshotOf(sketch)];
    assert.equal(picks(before.services.get('s')!, 2), 'ab');
    balancer.update(after);
    assert.equal(picks(after.services.get('s')!, 2), 'ca');
  });

  it('begins anew after a change of the balance, and after the service was gone', () => {
    const roundRobin = { id: 's', affinity: 'none', balance: 'round-robin', nodes: abc } as const;
    const snapshot = snapshotOf(roundRobin);
    const of = snapshot.services.get('s')!;
    assert.equal(picks(of, 2), 'ab');
    assert.equal(picks(service(abc, 'weighted'), 1), 'a', 'a selector of its own');
    assert.equal(picks(of, 1), 'a');
    assert.equal(picks(of, 1), 'b');
    balancer.update(snapshotOf());
    assert.equal(picks(of, 1), 'a');
  });

  it('forgets the turn of nodes that are gone, and of no others', () => {
    const nodes = [
      { id: 'a', weight: 2 },
      { id: 'b', weight: 1 },
    ];
    const sketch = (of: readonly NodeSketch[]) =>
      snapshotOf({ id: 's', affinity: 'none', balance: 'weighted', nodes: of });
    const whole = sketch(nodes);
    assert.equal(picks(whole.services.get('s')!, 1), 'a');
    balancer.update(whole);
    assert.equal(picks(whole.services.get('s')!, 3), 'baa', 'b is next when nothing was forgotten');
    balancer.update(sketch(nodes.slice(0, 1)));
    balancer.update(whole);
    assert.equal(picks(whole.services.get('s')!, 1), 'a', 'b begins at nothing');
  });
});
