import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { checkTarget, isLoginPath, parseAbsolute, pathOf } from '../../lib/proxy/targets.ts';

const DOT_SEGMENT = 'the target has a dot segment';
const BAD_BYTE = 'the target has a byte that is not allowed in a URL';
const BACKSLASH = 'the path has a backslash';
const BAD_ESCAPE = 'the path has a malformed percent escape';
const ENCODED_NUL = 'the path has an encoded NUL';
const BAD_FORM = 'the target is neither a path nor an http URL';

describe('checkTarget', () => {
  it('passes what every reader understands in the same way', () => {
    for (const target of [
      '/',
      '/a/b?c=d',
      '/a//b///',
      '/.well-known/x',
      '/...',
      '/..x/x../.x/x.',
      '/a.',
      '/%2e%2e%2e/x',
      '/%5B...slug%5D.js',
      '/a%2Fb%2fc',
      '/a%5Cb',
      '/queues/%2F/x',
      '/a;v=1/b,c',
      '/a;../b',
      '/;x/a',
      '/a..;x/b',
      '/...;x/b',
      '/%39%99%Af',
      '/%0d%0a',
      '/%E4%BD%A0',
      '/https://x.example/y',
      '//other.example/x',
      "/!$&'()*+,;=:@-._~|^{}",
      '/q?redirect=http://x/../..//e\\f',
      '/q?%&%2&%zz&%00',
      '/q??../',
      'http://h/a',
      'HTTPS://H:443/a?b',
      'http://[::1]:80',
      'http://h?/../',
    ])
      assert.equal(checkTarget(target), null, target);
  });

  const refusals: readonly (readonly [reason: string, targets: readonly string[]])[] = [
    [
      DOT_SEGMENT,
      [
        '/..',
        '/.',
        '/./a',
        '/a/../b',
        '/a/..?q',
        '/a/.%2e/b',
        '/a/%2E%2e',
        '/a/%2e/b',
        '/a%2f..%2fb',
        '/a/..%2Fb',
        '/a/..%5cb',
        '/a%5c..%5Cb',
        '/a/..;/b',
        '/a/.;x=1/b',
        '/a/%2e%2e%3Bx/b',
        '//../a',
        '/a%2f%2e',
        'http://h/..',
      ],
    ],
    [BACKSLASH, ['/\\h/x', '/a\\', '/a/..\\b', '/a\\..\\b?q']],
    [BAD_ESCAPE, ['/%', '/a%2', '/a%zz', '/a%2g?x=1', '/a%u002e', '/%%2e', '/a%2?f']],
    [ENCODED_NUL, ['/a%00', '/%00', '/a%00/../b']],
    [
      BAD_BYTE,
      [
        '/a b',
        '/a\0b',
        '/a\tb',
        '/a\r\nb',
        '/a\x7fb',
        '/a\x80b',
        '/\u4f60',
        '/a?b c',
        '/a?b\n',
        '/a?\xe9',
        '/a?\x7f',
        '/a#b',
        '/a?b#c',
      ],
    ],
    [
      BAD_FORM,
      [
        '',
        '*',
        'a/b',
        '@h/a',
        'h:443',
        '\\\\h\\a',
        'ftp://h/a',
        'http:/h/a',
        'http:///a',
        'http://:80/a',
        'http://u@h/a',
        'http://u:p@h/a',
        'http://h\\a',
        'http://h#a',
        'http://h a/',
      ],
    ],
  ];
  for (const [reason, targets] of refusals) {
    it(`refuses, because ${reason}`, () => {
      for (const target of targets) assert.equal(checkTarget(target), reason, JSON.stringify(target));
    });
  }
});

describe('parseAbsolute', () => {
  it('takes the authority off and leaves the rest byte for byte', () => {
    assert.deepEqual(parseAbsolute('http://h/a%2Fb?c'), { authority: 'h', target: '/a%2Fb?c' });
    assert.deepEqual(parseAbsolute('HTTPS://H:8443//a'), { authority: 'H:8443', target: '//a' });
    assert.deepEqual(parseAbsolute('http://[::1]:80?q=http://x/'), { authority: '[::1]:80', target: '/?q=http://x/' });
    assert.deepEqual(parseAbsolute('http://h'), { authority: 'h', target: '/' });
  });

  it('knows no other form', () => {
    for (const target of ['/http://h/', '//h/a', '*', 'h:443', '', 'ws://h/a', 'http://u@h/'])
      assert.equal(parseAbsolute(target), null, target);
  });
});

describe('pathOf', () => {
  it('ends at the first question mark', () => {
    assert.equal(pathOf('/a/b'), '/a/b');
    assert.equal(pathOf('/a?b?c'), '/a');
    assert.equal(pathOf('/?/app'), '/');
  });
});

describe('isLoginPath', () => {
  const own = { pathPrefix: '/js/a', loginPaths: new Set(['/js/a/auth/login', '/js/a/auth/sms']) };
  const bare = { pathPrefix: null, loginPaths: new Set(['/auth/login']) };

  it('knows what a node may take for the same path, and nothing else', () => {
    for (const path of [
      '/js/a/auth/login',
      '/js/a/auth/sms',
      '/js/a/auth/login/',
      '/js/a/auth/%6cogin',
      '/js/a/auth/%4Cogin',
      '/js/a/auth/Login',
      '/js/a/auth/login;x=1',
      '/js/a/auth/login%3bx=1',
      '/js/a//auth///login//',
    ])
      assert.equal(isLoginPath(own, path), true, path);
    for (const path of [
      '/auth/login',
      '/js/a',
      '/js/a/auth%2flogin',
      '/js/a/auth/%256cogin',
      '/js/a/auth/login/x',
      '/',
    ])
      assert.equal(isLoginPath(own, path), false, path);
  });

  it("puts a route's prefix in the place of the service's", () => {
    for (const service of [bare, own]) {
      assert.equal(isLoginPath(service, '/api/auth/login', '/api'), true);
      assert.equal(isLoginPath(service, '/auth/login', '/'), true);
      assert.equal(isLoginPath(service, '/auth/login', ''), true);
      assert.equal(isLoginPath(service, '/other/auth/login', '/api'), false);
      assert.equal(isLoginPath(service, '/js/a/auth/login', '/api'), false);
      assert.equal(isLoginPath(service, '/api/auth/Login/', '/api'), true);
    }
    assert.equal(isLoginPath({ pathPrefix: '/', loginPaths: new Set(['/login']) }, '/api/login', '/api'), true);
  });

  it('is false for a service without login stickiness', () => {
    assert.equal(isLoginPath({ pathPrefix: '/a', loginPaths: new Set() }, '/a/login'), false);
  });
});
