import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ConsistentHash } from '../../lib/balance/consistent-hash.ts';
import { seededRandom } from './services.ts';

interface Weighted {
  readonly id: string;
  readonly weight: number;
}

const KEYS = Array.from({ length: 20_000 }, (_, index) => `10.0.${index >> 8}.${index & 255}`);
const all = () => true;
const list = (count: number, weight = 1): Weighted[] =>
  Array.from({ length: count }, (_, index) => ({ id: `node-${index + 1}`, weight }));

function owners(nodes: readonly Weighted[], accepts: (node: Weighted) => boolean = all): (string | undefined)[] {
  const selector = new ConsistentHash<Weighted>();
  return KEYS.map((key) => selector.next(nodes, accepts, key)?.id);
}

function shares(nodes: readonly Weighted[]): Map<string | undefined, number> {
  const counts = new Map<string | undefined, number>();
  for (const id of owners(nodes)) counts.set(id, (counts.get(id) ?? 0) + 1 / KEYS.length);
  return counts;
}

test('the same key stays with the same node, whatever the order of the list', () => {
  const nodes = list(5);
  assert.deepEqual(owners(nodes), owners(nodes));
  assert.deepEqual(owners(nodes), owners([...nodes].reverse()));
});

test('a known key goes to a known node, so that gateways of different builds agree', () => {
  const selector = new ConsistentHash<Weighted>();
  const nodes = list(3);
  const picked = ['alice', 'bob', 'carol', '10.1.2.3', ''].map((key) => selector.next(nodes, all, key)?.id);
  assert.deepEqual(picked, ['node-2', 'node-3', 'node-2', 'node-2', 'node-1']);
  assert.equal(selector.next(nodes, all)?.id, picked[4]);
});

test('keys spread by weight, and weight 0 gets nothing', () => {
  const equal = shares(list(10));
  for (const [id, share] of equal) assert.ok(share > 0.07 && share < 0.13, `${id}: ${share}`);
  const mixed = shares([
    { id: 'a', weight: 3 },
    { id: 'b', weight: 1 },
    { id: 'zero', weight: 0 },
  ]);
  assert.ok(Math.abs(mixed.get('a')! - 0.75) < 0.06, `a: ${mixed.get('a')}`);
  assert.equal(mixed.has('zero'), false);
});

test('a weight too small for one virtual node still gets one', () => {
  assert.deepEqual([...shares([{ id: 'tiny', weight: 0.0001 }]).keys()], ['tiny']);
});

test('adding a node moves about 1/N of the keys, all of them to the new node', () => {
  for (const count of [3, 9, 19]) {
    const before = owners(list(count));
    const after = owners(list(count + 1));
    const moved = KEYS.map((_, index) => index).filter((index) => before[index] !== after[index]);
    assert.ok(moved.every((index) => after[index] === `node-${count + 1}`));
    const share = moved.length / KEYS.length;
    assert.ok(share <= 1.3 / (count + 1), `${count} + 1 nodes: ${share}`);
    assert.ok(share >= 0.7 / (count + 1), `${count} + 1 nodes: ${share}`);
  }
});

test('a refused node gives its keys to others and no other key moves', () => {
  const nodes = list(5);
  const before = owners(nodes);
  const after = owners(nodes, (node) => node.id !== 'node-2');
  const heirs = new Set<string | undefined>();
  before.forEach((owner, index) => {
    if (owner === 'node-2') heirs.add(after[index]);
    else assert.equal(after[index], owner);
  });
  assert.deepEqual([...heirs].sort(), ['node-1', 'node-3', 'node-4', 'node-5']);
});

test('asks about each node at most once and ends when all are refused', () => {
  const selector = new ConsistentHash<Weighted>();
  const nodes = list(20);
  const asked: string[] = [];
  const picked = selector.next(
    nodes,
    (node) => {
      asked.push(node.id);
      return false;
    },
    'k',
  );
  assert.equal(picked, undefined);
  assert.equal(asked.length, 20);
  assert.equal(new Set(asked).size, 20);
  assert.equal(selector.next([], all, 'k'), undefined);
  assert.equal(selector.next([{ id: 'a', weight: 0 }], all, 'k'), undefined);
});

test('yields the objects of the list it was given, also when a swap left ids and weights unchanged', () => {
  const selector = new ConsistentHash<Weighted>();
  const old = list(4);
  const fresh = list(4);
  const first = selector.next(old, all, 'alice');
  const second = selector.next(fresh, all, 'alice');
  selector.retain();
  assert.equal(first?.id, second?.id);
  assert.ok(fresh.includes(second!));
});

test('a changed weight takes effect', () => {
  const selector = new ConsistentHash<Weighted>();
  assert.equal(selector.next([{ id: 'a', weight: 1 }], all, 'k')?.id, 'a');
  assert.equal(
    selector.next(
      [
        { id: 'a', weight: 0 },
        { id: 'b', weight: 1 },
      ],
      all,
      'k',
    )?.id,
    'b',
  );
});

test('weights in the thousands share by weight within a bounded ring', () => {
  const counts = shares([
    { id: 'a', weight: 30_000 },
    { id: 'b', weight: 10_000 },
  ]);
  assert.ok(Math.abs(counts.get('a')! - 0.75) < 0.02, `a: ${counts.get('a')}`);
});

test('never yields a refused node, for random sets', () => {
  const random = seededRandom(11);
  const selector = new ConsistentHash<Weighted>();
  for (let round = 0; round < 300; round += 1) {
    const nodes = Array.from({ length: Math.floor(random() * 6) }, (_, index) => ({
      id: `n${index}`,
      weight: random() < 0.3 ? 0 : random() * 2,
    }));
    const accepted = new Set(nodes.filter(() => random() < 0.5).map((node) => node.id));
    const picked = selector.next(nodes, (node) => accepted.has(node.id), `key-${round}`);
    const possible = nodes.filter((node) => node.weight > 0 && accepted.has(node.id));
    if (possible.length === 0) assert.equal(picked, undefined);
    else assert.ok(picked && possible.includes(picked));
  }
});
