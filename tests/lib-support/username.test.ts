import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { normalizeUsername } from '../../lib/support/username.ts';

describe('normalizeUsername', () => {
  for (const [username, normalized] of [
    ['Alice', 'alice'],
    ['ALICE@EXAMPLE.COM', 'alice@example.com'],
    ['ÄÖÜ', 'äöü'],
    ['ΣΊΣΥΦΟΣ', 'σίσυφος'],
    ['张三', '张三'],
    ['İ', 'i̇'],
    ['I', 'i'],
    ['straße', 'straße'],
    [' alice', ' alice'],
    ['', ''],
  ] as const) {
    it(`makes ${JSON.stringify(normalized)} of ${JSON.stringify(username)}`, () => {
      assert.equal(normalizeUsername(username), normalized);
    });
  }

  it('changes nothing the second time', () => {
    for (let code = 0; code < 0x3000; code += 1) {
      const once = normalizeUsername(String.fromCharCode(code));
      assert.equal(normalizeUsername(once), once, `U+${code.toString(16)}`);
    }
  });

  it('does not tell names apart by anything but case', () => {
    assert.equal(normalizeUsername('aLiCe'), normalizeUsername('AlIcE'));
    assert.notEqual(normalizeUsername('alice'), normalizeUsername('alíce'));
    assert.notEqual(normalizeUsername('\u00e9'), normalizeUsername('e\u0301'));
  });
});
