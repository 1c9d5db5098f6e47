/** The page as it is served and shipped, without a browser: header fields, hashes, and what must not stand in it. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import * as fs from 'node:fs';
import * as path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { consolePage, readConsole } from '../../lib/admin/console.ts';
import { findPackageFile } from '../../lib/process/package-file.ts';
import { ADMIN_TOKENS } from '../support/admin-client.ts';
import { BackendNode } from '../support/backend-node.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import { call } from '../support/http-client.ts';

const source = fs.readFileSync(findPackageFile('lib/admin/console.html'), 'utf8');
const script = /<script>(.*?)<\/script>/s.exec(source)?.[1] ?? '';
const sha256 = (text: string) => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;

describe('the page of the console on the admin listener', () => {
  let stores: StoreSetup;
  let fixture: GatewayFixture;
  const n1 = new BackendNode('n1');

  before(async () => {
    await n1.start();
    stores = await openStores('embedded');
    fixture = await startGateway({ stores, nodes: [n1], admin: ADMIN_TOKENS });
  });
  after(async () => {
    await fixture?.stop();
    await stores?.close();
    await n1.stop();
  });

  it('is there without a token, under a policy that lets in nothing but itself', async () => {
    const answer = await call(fixture.adminPort, '/');
    assert.equal(answer.status, 200);
    assert.equal(answer.headers['content-type'], 'text/html; charset=utf-8');
    assert.equal(answer.text, source);
    const policy = String(answer.headers['content-security-policy']);
    const directives = new Map(
      policy.split('; ').map((part) => [part.split(' ')[0], part.split(' ').slice(1).join(' ')]),
    );
    assert.equal(directives.get('default-src'), "'none'");
    assert.equal(directives.get('script-src'), sha256(script));
    assert.equal(directives.get('style-src'), sha256(/<style>(.*?)<\/style>/s.exec(source)?.[1] ?? ''));
    assert.equal(directives.get('connect-src'), "'self'");
    for (const name of ['frame-ancestors', 'base-uri', 'form-action', 'trusted-types'])
      assert.equal(directives.get(name), "'none'", name);
    assert.equal(directives.get('require-trusted-types-for'), "'script'");
    assert.doesNotMatch(policy, /unsafe|\*/);
    assert.equal(answer.headers['referrer-policy'], 'no-referrer');
    assert.equal(answer.headers['x-content-type-options'], 'nosniff');
    assert.equal(answer.headers['x-frame-options'], 'DENY');
    assert.equal(answer.headers['cache-control'], 'no-store');
  });

  it('is found under /console too, answers HEAD, and takes no POST', async () => {
    for (const place of ['/console', '/console/']) {
      const moved = await call(fixture.adminPort, place);
      assert.deepEqual([moved.status, moved.headers.location], [307, '/'], place);
    }
    const head = await call(fixture.adminPort, '/', { method: 'HEAD' });
    assert.deepEqual(
      [head.status, head.body.length, head.headers['content-length']],
      [200, 0, String(Buffer.byteLength(source))],
    );
    assert.equal((await call(fixture.adminPort, '/', { method: 'POST' })).status, 405);
  });

  it('is not on the public listener', async () => {
    assert.equal((await call(fixture.port, '/')).status, 404);
  });
});

describe('console.html', () => {
  it('is in the package, in the place where the compiled program looks for it', () => {
    const root = path.dirname(findPackageFile('package.json'));
    const output = execFileSync('npm', ['pack', '--dry-run', '--json', '--ignore-scripts', '--offline'], {
      cwd: root,
      encoding: 'utf8',
    });
    const packed = JSON.parse(output) as unknown;
    assert.match(JSON.stringify(packed), /"path":"lib\/admin\/console\.html"/);
  });

  it('names no other place and never parses markup', () => {
    assert.doesNotMatch(source, /https?:\/\/|\/\/[a-z]+\.[a-z]+|url\(|@import/i);
    assert.doesNotMatch(source, /\s(?:src|style|on\w+)\s*=\s*["']/i);
    assert.doesNotMatch(
      script,
      /innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|new Function|createContextualFragment|srcdoc/,
    );
  });

  it('has every word in both languages, with the same gaps, and no word that nobody uses', () => {
    const table = /const WORDS = (\{.*?\n\});/s.exec(script)?.[1] ?? '';
    const words = new Function(`return ${table}`)() as Record<string, [string, string]>;
    const gaps = (text: string) => [...text.matchAll(/\{(\w+)\}/g)].map(([, name]) => name).sort();
    assert.ok(Object.keys(words).length > 100);
    for (const [key, texts] of Object.entries(words)) {
      assert.equal(texts.length, 2, key);
      assert.deepEqual(gaps(texts[0]), gaps(texts[1]), key);
      assert.notEqual(texts[0], texts[1], key);
    }
    const rest = source.replace(table, '');
    for (const [, key] of rest.matchAll(/\bt\('(\w+)'|data-t(?:-label)?="(\w+)"|head: '(\w+)'/g))
      if (key) assert.ok(key in words, key);
    for (const key of Object.keys(words)) {
      const composed = /Means$/.test(key) && key.replace('Means', '') in words;
      const ofTheApi = ['viewer', 'operator', 'admin'].includes(key);
      assert.ok(composed || ofTheApi || new RegExp(`['"]${key}['"]|\\b${key}:`).test(rest), `nobody uses ${key}`);
    }
  });

  it('has the same hashes when it was checked out with other line ends', () => {
    const windows = consolePage(source.replaceAll('\n', '\r\n'));
    assert.deepEqual(windows.headers, readConsole().headers);
    assert.deepEqual(windows.body, readConsole().body);
  });

  it('is refused when a script or style would not be covered by the policy', () => {
    assert.throws(() => consolePage('<style></style>'), /one <script>.*has 0/);
    assert.throws(() => consolePage('<script></script><script>1</script><style></style>'), /one <script>.*has 2/);
    assert.throws(() => consolePage('<script></script>'), /one <style>.*has 0/);
  });
});
