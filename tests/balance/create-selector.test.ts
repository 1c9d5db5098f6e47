import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ConsistentHash } from '../../lib/balance/consistent-hash.ts';
import { createSelector } from '../../lib/balance/create-selector.ts';
import { SmoothWeighted } from '../../lib/balance/smooth-weighted.ts';
import { WeightedRandom } from '../../lib/balance/weighted-random.ts';

test('makes the selector that the balance names', () => {
  assert.ok(createSelector('weighted') instanceof SmoothWeighted);
  assert.ok(createSelector('random', () => 0) instanceof WeightedRandom);
  assert.ok(createSelector('consistent-hash') instanceof ConsistentHash);
});

test('in every balance, weight 0 gets nothing and a refused node is not yielded', () => {
  const nodes = [
    { id: 'zero', weight: 0 },
    { id: 'a', weight: 2 },
    { id: 'refused', weight: 5 },
    { id: 'b', weight: 1 },
  ];
  for (const balance of ['weighted', 'round-robin', 'random', 'consistent-hash'] as const) {
    const selector = createSelector<{ id: string; weight: number }>(balance);
    const got = new Set<string | undefined>();
    for (let pick = 0; pick < 200; pick += 1) {
      got.add(selector.next(nodes, (node) => node.id !== 'refused', `key-${pick}`)?.id);
    }
    assert.deepEqual([...got].sort(), ['a', 'b'], balance);
  }
});

test('round robin takes the others in turn', () => {
  const selector = createSelector<{ id: string; weight: number }>('round-robin');
  const nodes = [
    { id: 'a', weight: 7 },
    { id: 'zero', weight: 0 },
    { id: 'b', weight: 1 },
  ];
  assert.equal([1, 2, 3, 4, 5].map(() => selector.next(nodes, () => true)?.id).join(''), 'ababa');
});
