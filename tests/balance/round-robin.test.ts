import assert from 'node:assert/strict';
import { test } from 'node:test';
import { RoundRobin } from '../../lib/balance/round-robin.ts';

const all = () => true;
const list = (ids: string) => [...ids].map((id) => ({ id, weight: 1 }));

function picks(selector: RoundRobin<{ id: string; weight: number }>, nodes: string, count: number): string {
  const given = list(nodes);
  return Array.from({ length: count }, () => selector.next(given, all)?.id).join('');
}

test('takes each node in turn, in the order of the list, from the first', () => {
  assert.equal(picks(new RoundRobin(), 'abc', 7), 'abcabca');
});

test('ignores weights', () => {
  const selector = new RoundRobin<{ id: string; weight: number }>();
  const nodes = [
    { id: 'a', weight: 0 },
    { id: 'b', weight: 9 },
  ];
  assert.equal([1, 2, 3, 4].map(() => selector.next(nodes, all)?.id).join(''), 'abab');
});

test('skips what the predicate refuses and asks about each node at most once', () => {
  const selector = new RoundRobin();
  const nodes = list('abc');
  const asked: string[] = [];
  const picked = selector.next(nodes, (node) => {
    asked.push(node.id);
    return node.id === 'c';
  });
  assert.equal(picked?.id, 'c');
  assert.deepEqual(asked, ['a', 'b', 'c']);
  asked.length = 0;
  assert.equal(
    selector.next(nodes, (node) => {
      asked.push(node.id);
      return false;
    }),
    undefined,
  );
  assert.deepEqual(asked, ['a', 'b', 'c']);
});

test('yields nothing for no nodes', () => {
  assert.equal(new RoundRobin().next([], all), undefined);
});

test('goes on where it was when nodes are added before the last one picked', () => {
  const selector = new RoundRobin<{ id: string; weight: number }>();
  assert.equal(picks(selector, 'abc', 2), 'ab');
  assert.equal(picks(selector, 'xyabc', 2), 'cx');
});

test('goes on with the successor when the last one picked is gone', () => {
  const selector = new RoundRobin<{ id: string; weight: number }>();
  assert.equal(picks(selector, 'abc', 2), 'ab');
  selector.retain();
  assert.equal(picks(selector, 'ac', 3), 'cac');
  assert.equal(picks(selector, 'a', 2), 'aa');
});

test('begins again when the last one picked was the last of the list and is gone', () => {
  const selector = new RoundRobin<{ id: string; weight: number }>();
  assert.equal(picks(selector, 'abc', 3), 'abc');
  assert.equal(picks(selector, 'ab', 2), 'ab');
});
