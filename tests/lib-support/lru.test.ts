import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Lru } from '../../lib/support/lru.ts';
import { Seeded } from '../support/seeded.ts';

function filled(maxEntries: number, keys: string): Lru<string, number> {
  const lru = new Lru<string, number>(maxEntries);
  for (const [index, key] of [...keys].entries()) lru.set(key, index);
  return lru;
}

const keysOf = (lru: Lru<string, number>) => [...lru.entries()].map(([key]) => key).join('');

describe('Lru', () => {
  it('forgets the entry used longest ago when one too many comes', () => {
    const lru = filled(3, 'abcd');
    assert.equal(keysOf(lru), 'bcd');
    assert.equal(lru.get('a'), undefined);
    assert.equal(lru.size, 3);
  });

  it('takes reading and writing for use, but not peeking', () => {
    const lru = filled(3, 'abc');
    assert.equal(lru.get('a'), 0);
    assert.equal(lru.peek('b'), 1);
    lru.set('d', 3);
    assert.equal(keysOf(lru), 'cad');
    lru.set('c', 9);
    lru.set('e', 4);
    assert.equal(keysOf(lru), 'dce');
    assert.equal(lru.peek('c'), 9);
  });

  it('does not grow by a key that it has, nor by asking for one that it has not', () => {
    const lru = filled(2, 'ab');
    lru.set('b', 7);
    assert.equal(lru.get('x'), undefined);
    assert.equal(lru.peek('x'), undefined);
    assert.equal(keysOf(lru), 'ab');
    assert.equal(lru.get('b'), 7);
  });

  it('keeps values that are false', () => {
    const lru = new Lru<string, number | null | string>(2);
    lru.set('zero', 0);
    lru.set('null', null);
    assert.equal(lru.get('zero'), 0);
    lru.set('empty', '');
    assert.deepEqual([lru.get('null'), lru.get('zero'), lru.get('empty')], [undefined, 0, '']);
  });

  it('forgets one on request, or all', () => {
    const lru = filled(3, 'abc');
    assert.equal(lru.delete('b'), true);
    assert.equal(lru.delete('b'), false);
    assert.equal(keysOf(lru), 'ac');
    lru.clear();
    assert.equal(lru.size, 0);
    lru.set('z', 1);
    assert.equal(keysOf(lru), 'z');
  });

  it('holds one entry if that is all it may', () => {
    const lru = filled(1, 'ab');
    assert.equal(keysOf(lru), 'b');
  });

  it('does what a list in order of use would do', () => {
    for (let seed = 0; seed < 50; seed += 1) {
      const random = new Seeded(seed);
      const lru = new Lru<string, number>(4);
      let list: [string, number][] = [];
      for (let step = 0; step < 200; step += 1) {
        const key = random.pick([...'abcdefg']);
        const known = list.find(([name]) => name === key);
        switch (random.below(4)) {
          case 0:
            list = [...list.filter((entry) => entry !== known), [key, step] as [string, number]].slice(-4);
            lru.set(key, step);
            break;
          case 1:
            if (known) list = [...list.filter((entry) => entry !== known), known];
            assert.equal(lru.get(key), known?.[1]);
            break;
          case 2:
            assert.equal(lru.peek(key), known?.[1]);
            break;
          default:
            list = list.filter((entry) => entry !== known);
            assert.equal(lru.delete(key), known !== undefined);
        }
        assert.deepEqual([...lru.entries()], list, `seed ${seed}, step ${step}`);
      }
    }
  });
});
