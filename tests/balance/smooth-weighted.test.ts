import assert from 'node:assert/strict';
import { test } from 'node:test';
import { SmoothWeighted } from '../../lib/balance/smooth-weighted.ts';
import { seededRandom } from './services.ts';

interface Weighted {
  readonly id: string;
  readonly weight: number;
}

const all = () => true;
const list = (weights: Record<string, number>): Weighted[] =>
  Object.entries(weights).map(([id, weight]) => ({ id, weight }));

function picks(
  selector: SmoothWeighted<Weighted>,
  nodes: readonly Weighted[],
  count: number,
  accepts: (node: Weighted) => boolean = all,
): string {
  return Array.from({ length: count }, () => selector.next(nodes, accepts)?.id ?? '-').join('');
}

test('weights 3:2:1 give A B A C B A, again and again', () => {
  assert.equal(picks(new SmoothWeighted(), list({ A: 3, B: 2, C: 1 }), 12), 'ABACBAABACBA');
});

test('weights 5:1:1 give the sequence in the description of nginx', () => {
  assert.equal(picks(new SmoothWeighted(), list({ a: 5, b: 1, c: 1 }), 7), 'aabacaa');
});

test('equal weights take turns', () => {
  assert.equal(picks(new SmoothWeighted(), list({ a: 1, b: 1, c: 1 }), 6), 'abcabc');
});

test('fractional weights have their share', () => {
  assert.equal(picks(new SmoothWeighted(), list({ a: 0.5, b: 0.25, c: 0.25 }), 8), 'abcaabca');
});

test('weight 0 gets nothing, not even alone, and the predicate is not asked about it', () => {
  const selector = new SmoothWeighted<Weighted>();
  assert.equal(picks(selector, list({ a: 0, b: 1 }), 3), 'bbb');
  assert.equal(
    selector.next(list({ a: 0 }), () => assert.fail('asked')),
    undefined,
  );
  assert.equal(selector.next([], all), undefined);
});

test('yields nothing when all are refused, and goes on undisturbed afterwards', () => {
  const selector = new SmoothWeighted<Weighted>();
  const nodes = list({ A: 3, B: 2, C: 1 });
  assert.equal(picks(selector, nodes, 2), 'AB');
  assert.equal(
    picks(selector, nodes, 3, () => false),
    '---',
  );
  assert.equal(picks(selector, nodes, 4), 'ACBA');
});

test('keeps its state over a swap that leaves the nodes unchanged', () => {
  const selector = new SmoothWeighted<Weighted>();
  assert.equal(picks(selector, list({ A: 3, B: 2, C: 1 }), 2), 'AB');
  selector.retain(new Set(['A', 'B', 'C']));
  assert.equal(picks(selector, list({ A: 3, B: 2, C: 1 }), 4), 'ACBA');
});

test('forgets nodes that are gone', () => {
  const selector = new SmoothWeighted<Weighted>();
  const nodes = list({ A: 1, B: 1 });
  assert.equal(picks(selector, nodes, 1), 'A');
  selector.retain(new Set());
  assert.equal(picks(selector, nodes, 2), 'AB');
});

test('a light node is not starved after the heavy one beside it is gone', () => {
  const selector = new SmoothWeighted<Weighted>();
  const before = list({ heavy: 1000, b: 1, c: 1 });
  let picked: string | undefined;
  // Up to b's turn: from then on b owes a thousand.
  do picked = selector.next(before, all)?.id;
  while (picked !== 'b');
  const sequence = picks(selector, list({ b: 1, c: 1 }), 10);
  assert.ok([...sequence].filter((id) => id === 'b').length >= 4, sequence);
});

test('in any window of one period each node is picked exactly as often as it weighs', () => {
  for (let seed = 1; seed <= 60; seed += 1) {
    const random = seededRandom(seed);
    const nodes = Array.from({ length: 1 + Math.floor(random() * 8) }, (_, index) => ({
      id: `n${index}`,
      weight: Math.floor(random() * 10),
    }));
    const total = nodes.reduce((sum, node) => sum + node.weight, 0);
    if (total === 0) continue;
    const selector = new SmoothWeighted<Weighted>();
    const sequence = Array.from({ length: total * 3 }, () => selector.next(nodes, all)?.id);
    for (let start = 0; start <= total * 2; start += 1) {
      const window = sequence.slice(start, start + total);
      for (const node of nodes) {
        assert.equal(window.filter((id) => id === node.id).length, node.weight, `seed ${seed}, from ${start}`);
      }
    }
  }
});

test('never yields a refused node, and shares stay near the weights while nodes come and go', () => {
  for (let seed = 1; seed <= 40; seed += 1) {
    const random = seededRandom(seed);
    const nodes = Array.from({ length: 6 }, (_, index) => ({
      id: `n${index}`,
      weight: 1 + Math.floor(random() * 50),
    }));
    const selector = new SmoothWeighted<Weighted>();
    const due = new Map<string, number>();
    const got = new Map<string, number>();
    for (let pick = 0; pick < 2_000; pick += 1) {
      const accepted = new Set(nodes.filter(() => random() < 0.7).map((node) => node.id));
      const total = nodes.reduce((sum, node) => sum + (accepted.has(node.id) ? node.weight : 0), 0);
      const picked = selector.next(nodes, (node) => accepted.has(node.id));
      if (accepted.size === 0) {
        assert.equal(picked, undefined);
        continue;
      }
      assert.ok(picked && accepted.has(picked.id), `seed ${seed}`);
      got.set(picked.id, (got.get(picked.id) ?? 0) + 1);
      for (const node of nodes) {
        if (accepted.has(node.id)) due.set(node.id, (due.get(node.id) ?? 0) + node.weight / total);
      }
    }
    for (const node of nodes) {
      const difference = Math.abs((got.get(node.id) ?? 0) - (due.get(node.id) ?? 0));
      assert.ok(difference < 20, `seed ${seed}: ${node.id} is ${difference} away from its due`);
    }
  }
});
