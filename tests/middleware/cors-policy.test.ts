import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { CorsOptions } from '../../lib/config/options.ts';
import { CorsPolicy } from '../../lib/middleware/cors-policy.ts';

function policy(allowedOriginPatterns: readonly string[], more: Partial<CorsOptions> = {}): CorsPolicy {
  return new CorsPolicy({
    enabled: true,
    allowedOriginPatterns,
    allowCredentials: false,
    maxAgeMs: 3_600_000,
    ...more,
  });
}

/** The value of a field in raw pairs. */
function valueIn(raw: readonly string[], name: string): string | undefined {
  const at = raw.findIndex((text, index) => index % 2 === 0 && text.toLowerCase() === name);
  return at < 0 ? undefined : raw[at + 1];
}

const allowed = (patterns: readonly string[], origin: string, more: Partial<CorsOptions> = {}) =>
  valueIn(policy(patterns, more).responseHeaders(origin), 'access-control-allow-origin');

describe('CorsPolicy', () => {
  const verdicts: readonly (readonly [pattern: string, origin: string, allowed: boolean])[] = [
    ['https://app.example.com', 'https://app.example.com', true],
    ['https://app.example.com', 'HTTPS://APP.example.com', true],
    ['https://app.example.com', 'http://app.example.com', false],
    ['https://app.example.com', 'https://app.example.com:8443', false],
    ['https://app.example.com', 'https://app.example.com.evil.com', false],
    ['https://*.example.com', 'https://a.b.example.com', true],
    ['https://*.example.com', 'https://example.com', false],
    ['https://*.example.com', 'https://evil.com/.example.com', false],
    ['https://*.example.com', 'https://evil.com#.example.com', false],
    ['https://*.example.com', 'https://evilexample.com', false],
    ['https://*.example.com', 'https://a.example.com\nx', false],
    ['http://localhost:*', 'http://localhost:5173', true],
    ['http://localhost:*', 'http://localhost', true],
    ['http://localhost:*', 'http://localhost:5173@evil.com', false],
    ['http://localhost:[80,8080]', 'http://localhost:8080', true],
    ['http://localhost:[80,8080]', 'http://localhost:81', false],
    ['*://example.com', 'capacitor://example.com', true],
    ['https://*', 'https://anything.test:1', true],
    ['https://*', 'http://anything.test', false],
    ['null', 'null', true],
    ['https://*.example.com', 'null', false],
  ];
  for (const [pattern, origin, fine] of verdicts) {
    it(`${fine ? 'lets' : 'does not let'} ${JSON.stringify(origin)} in by ${pattern}`, () => {
      assert.equal(allowed([pattern], origin), fine ? origin : undefined);
    });
  }

  it('answers * for every origin, and names the origin when cookies are allowed', () => {
    assert.equal(allowed(['*'], 'https://a.test'), '*');
    assert.equal(allowed(['*'], 'https://a.test', { allowCredentials: true }), 'https://a.test');
    assert.equal(allowed(['*'], 'null', { allowCredentials: true }), undefined);
    assert.equal(allowed(['*'], `https://${'a'.repeat(400)}`), undefined);
  });

  it('exposes its own fields, and tells caches that the answer depends on the origin', () => {
    const fields = policy(['https://a.test'], { allowCredentials: true }).responseHeaders('https://a.test');
    assert.equal(valueIn(fields, 'access-control-expose-headers'), 'X-Gateway-Node, X-Request-Id, Content-Disposition');
    assert.equal(valueIn(fields, 'access-control-allow-credentials'), 'true');
    assert.equal(valueIn(fields, 'vary'), 'Origin');
    assert.deepEqual(policy(['https://a.test']).responseHeaders(undefined), ['Vary', 'Origin']);
    assert.deepEqual(policy(['*']).responseHeaders(undefined), []);
  });

  it('answers a preflight with what was asked for', () => {
    const raw = [
      'Origin',
      'https://a.test',
      'Access-Control-Request-Method',
      'PUT',
      'Access-Control-Request-Headers',
      'x-token, content-type',
    ];
    const fields = policy(['https://a.test'], { allowCredentials: true }).preflight(raw);
    assert.ok(fields, 'it is a preflight');
    assert.equal(valueIn(fields, 'access-control-allow-origin'), 'https://a.test');
    assert.equal(valueIn(fields, 'access-control-allow-methods'), 'PUT');
    assert.equal(valueIn(fields, 'access-control-allow-headers'), 'x-token, content-type');
    assert.equal(valueIn(fields, 'access-control-max-age'), '3600');
    assert.equal(valueIn(fields, 'access-control-allow-credentials'), 'true');
  });

  it('gives a foreign origin, two origins, or a strange method no permission', () => {
    const own = policy(['https://a.test']);
    const method = ['Access-Control-Request-Method', 'PUT'];
    for (const raw of [
      ['Origin', 'https://b.test', ...method],
      ['Origin', 'https://a.test', 'Origin', 'https://a.test', ...method],
      ['Origin', 'https://a.test', 'Access-Control-Request-Method', 'P UT'],
    ]) {
      const fields = own.preflight(raw);
      assert.ok(fields, raw.join(' '));
      assert.equal(valueIn(fields, 'access-control-allow-origin'), undefined, raw.join(' '));
    }
    const strange = own.preflight(['Origin', 'https://a.test', ...method, 'Access-Control-Request-Headers', 'a b']);
    assert.equal(valueIn(strange ?? [], 'access-control-allow-headers'), undefined);
  });

  it('leaves an OPTIONS request that is no preflight to the node', () => {
    assert.equal(policy(['*']).preflight(['Origin', 'https://a.test']), null);
    assert.equal(policy(['*']).preflight(['Access-Control-Request-Method', 'PUT']), null);
  });
});
