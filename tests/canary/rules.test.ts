/** Which requests an explicit rule matches, down to repeated names and odd encodings. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { compileRule } from '../../lib/canary/rules.ts';

type Kind = 'header' | 'cookie' | 'query';

function matches(type: Kind, name: string, value: string, rawHeaders: readonly string[], target = '/api/x'): boolean {
  return compileRule({ type, name, value, version: 'v2' })({ rawHeaders, target });
}

describe('a header rule', () => {
  it('compares the name in any case and the value letter by letter', () => {
    assert.equal(matches('header', 'X-Version', 'v2', ['Host', 'h', 'x-vErsion', 'v2']), true);
    assert.equal(matches('header', 'X-Version', 'v2', ['X-Version', 'V2']), false);
    assert.equal(matches('header', 'X-Version', 'v2', ['X-Version', 'v2, v1']), false);
    assert.equal(matches('header', 'X-Version', 'v2', ['X-Versions', 'v2', 'V-Xersion', 'v2']), false);
    assert.equal(matches('header', 'X-Version', 'v2', []), false);
  });

  it('reads the first line when the field is repeated', () => {
    assert.equal(matches('header', 'X-Version', 'v2', ['X-Version', 'v2', 'x-version', 'v1']), true);
    assert.equal(matches('header', 'X-Version', 'v2', ['X-Version', 'v1', 'x-version', 'v2']), false);
  });

  it('matches an empty value only where the field is there', () => {
    assert.equal(matches('header', 'X-Test', '', ['X-Test', '']), true);
    assert.equal(matches('header', 'X-Test', '', ['Host', 'h']), false);
  });

  it('takes the bytes of a value for UTF-8', () => {
    const sent = Buffer.from('测试', 'utf8').toString('latin1');
    assert.equal(matches('header', 'X-Group', '测试', ['X-Group', sent]), true);
  });
});

describe('a cookie rule', () => {
  it('compares name and value letter by letter, without quotes', () => {
    assert.equal(matches('cookie', 'version', 'beta', ['Cookie', 'a=b; version=beta; c=d']), true);
    assert.equal(matches('cookie', 'version', 'beta', ['cookie', 'version="beta"']), true);
    assert.equal(matches('cookie', 'version', 'beta', ['Cookie', 'Version=beta']), false);
    assert.equal(matches('cookie', 'version', 'beta', ['Cookie', 'xversion=beta; version=beta2']), false);
    assert.equal(matches('cookie', 'version', 'be%74a', ['Cookie', 'version=be%74a']), true, 'nothing is decoded');
  });

  it('reads the first cookie of the name', () => {
    assert.equal(matches('cookie', 'version', 'beta', ['Cookie', 'version=stable; version=beta']), false);
    assert.equal(matches('cookie', 'version', 'beta', ['Cookie', 'version=beta; version=stable']), true);
  });

  it('takes several Cookie lines for one list', () => {
    assert.equal(matches('cookie', 'version', 'beta', ['Cookie', 'a=b', 'Host', 'h', 'cookie', 'version=beta']), true);
    assert.equal(matches('cookie', 'version', 'beta', ['Cookie', 'version=x', 'Cookie', 'version=beta']), false);
  });
});

describe('a query rule', () => {
  it('decodes names and values as forms encode them', () => {
    for (const query of ['preview=true', 'a=1&preview=true', 'p%72eview=tr%75e', '&&preview=true&', '?&preview=true'])
      assert.equal(matches('query', 'preview', 'true', [], `/api/x?${query}`), true, query);
    assert.equal(matches('query', 'my group', 'a b', [], '/api/x?my+group=a%20b'), true);
    assert.equal(matches('query', 'my group', 'a b', [], '/api/x?my%20group=a+b'), true);
    assert.equal(matches('query', 'a+b', 'c+d', [], '/api/x?a%2Bb=c%2Bd'), true);
    assert.equal(matches('query', '组', '测试', [], '/api/x?%E7%BB%84=%E6%B5%8B%E8%AF%95'), true);
    assert.equal(matches('query', 'p', 'a=b', [], '/api/x?p=a=b'), true);
  });

  it('takes what is not encoded properly as it stands', () => {
    assert.equal(matches('query', 'p', '100%', [], '/api/x?p=100%'), true);
    assert.equal(matches('query', 'p', '%ff', [], '/api/x?p=%ff'), true);
  });

  it('reads the first parameter of the name, and nothing outside the query', () => {
    assert.equal(matches('query', 'preview', 'true', [], '/api/x?preview=false&preview=true'), false);
    assert.equal(matches('query', 'preview', 'true', [], '/api/preview=true'), false);
    assert.equal(matches('query', 'preview', 'true', [], '/api/x?Preview=true'), false);
    assert.equal(matches('query', 'preview', 'true', [], '/api/x?a?preview=true'), false);
  });

  it('takes a name alone for an empty value', () => {
    assert.equal(matches('query', 'preview', '', [], '/api/x?preview'), true);
    assert.equal(matches('query', 'preview', '', [], '/api/x?preview='), true);
    assert.equal(matches('query', 'preview', '', [], '/api/x?'), false);
    assert.equal(matches('query', 'preview', '', [], '/api/x'), false);
  });
});
