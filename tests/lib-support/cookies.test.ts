import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { readCookie } from '../../lib/support/cookies.ts';

describe('a cookie', () => {
  const cases: readonly (readonly [string, string | undefined])[] = [
    ['sid=1', '1'],
    ['a=0; sid=1; b=2', '1'],
    ['sid=first; sid=second', 'first'],
    ['  sid = 1 ;x', '1'],
    ['sid="quoted"', 'quoted'],
    ['sid="', '"'],
    ['sid=a=b', 'a=b'],
    ['sid=', ''],
    ['SID=1', undefined],
    ['xsid=1; sidx=2', undefined],
    ['sid', undefined],
    ['a; sid=1', '1'],
    ['', undefined],
  ];
  for (const [header, value] of cases) {
    it(`in '${header}' is ${value === undefined ? 'not there' : `'${value}'`}`, () => {
      assert.equal(readCookie(header, 'sid'), value);
    });
  }
});
