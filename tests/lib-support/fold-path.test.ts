import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { foldPath } from '../../lib/support/fold-path.ts';

describe('foldPath', () => {
  const cases: readonly (readonly [path: string, folded: string])[] = [
    ['/', '/'],
    ['//', '/'],
    ['/a/b', '/a/b'],
    ['/A/b/', '/a/b'],
    ['/a//b///', '/a/b'],
    ['/a;x=1/b;y', '/a/b'],
    ['/%61%2D%7e', '/a-~'],
    ['/a%2fb', '/a%2fb'],
    ['/a%2Fb%5C', '/a%2fb%5c'],
    ['/%2561', '/%2561'],
    ['/%C3%A9', '/%c3%a9'],
  ];
  for (const [path, folded] of cases) {
    it(`makes ${folded} of ${path}, and nothing more of that`, () => {
      assert.equal(foldPath(path), folded);
      assert.equal(foldPath(folded), folded);
    });
  }
});
