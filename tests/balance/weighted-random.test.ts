import assert from 'node:assert/strict';
import { test } from 'node:test';
import { WeightedRandom } from '../../lib/balance/weighted-random.ts';
import { seededRandom } from './services.ts';

interface Weighted {
  readonly id: string;
  readonly weight: number;
}

const all = () => true;

test('shares follow the weights', () => {
  const selector = new WeightedRandom<Weighted>(seededRandom(7));
  const nodes = [
    { id: 'a', weight: 6 },
    { id: 'zero', weight: 0 },
    { id: 'b', weight: 3 },
    { id: 'c', weight: 1 },
  ];
  const got = new Map<string | undefined, number>();
  for (let pick = 0; pick < 20_000; pick += 1) {
    const id = selector.next(nodes, all)?.id;
    got.set(id, (got.get(id) ?? 0) + 1);
  }
  assert.ok(Math.abs(got.get('a')! / 20_000 - 0.6) < 0.015, `a: ${got.get('a')}`);
  assert.ok(Math.abs(got.get('b')! / 20_000 - 0.3) < 0.015, `b: ${got.get('b')}`);
  assert.ok(Math.abs(got.get('c')! / 20_000 - 0.1) < 0.015, `c: ${got.get('c')}`);
  assert.equal(got.get('zero'), undefined);
  selector.retain();
});

test('the ends of the random range pick the first and the last node', () => {
  const nodes = [
    { id: 'a', weight: 1 },
    { id: 'b', weight: 1 },
  ];
  assert.equal(new WeightedRandom<Weighted>(() => 0).next(nodes, all)?.id, 'a');
  assert.equal(new WeightedRandom<Weighted>(() => 1 - 2 ** -53).next(nodes, all)?.id, 'b');
});

test('never yields a node that is refused or weighs nothing', () => {
  const random = seededRandom(3);
  const selector = new WeightedRandom<Weighted>();
  for (let round = 0; round < 2_000; round += 1) {
    const nodes = Array.from({ length: Math.floor(random() * 6) }, (_, index) => ({
      id: `n${index}`,
      weight: random() < 0.3 ? 0 : random() * 5,
    }));
    const accepted = new Set(nodes.filter(() => random() < 0.5).map((node) => node.id));
    const picked = selector.next(nodes, (node) => accepted.has(node.id));
    const possible = nodes.filter((node) => node.weight > 0 && accepted.has(node.id));
    if (possible.length === 0) assert.equal(picked, undefined);
    else assert.ok(picked && possible.includes(picked));
  }
});
