/** Request targets: what a node could understand otherwise than the gateway is refused, all else passes byte for byte. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { Forwarding } from '../support/forwarding.ts';
import { answering, fieldOf, fieldsOf, ok } from '../support/raw-http.ts';

const get = (target: string, host = 'h') => `GET ${target} HTTP/1.1\r\nHost: ${host}\r\n\r\n`;

describe('a request target', () => {
  const forwarding = new Forwarding({ config: 'limits: { header: 8KB }' });
  before(() => forwarding.start());
  after(() => forwarding.stop());

  const echo = answering((request, connection) =>
    connection.write(ok(`${request.startLine}|${fieldsOf(request.fields, 'host').join()}`)),
  );

  it('with a dot segment is refused, however the dots and slashes are written', async () => {
    const dots = ['..', '.%2e', '%2e.', '%2E%2e', '.', '%2e', '%2E'];
    const ends = ['', '/', '/x', '?q', '%2f', '%2Fx', '%5c', '%5Cx', ';', ';a=b/x', '%3b', '%3B/x'];
    for (const dot of dots) {
      for (const end of ends) await forwarding.declines(get(`/app/${dot}${end}`), 400, `/app/${dot}${end}`);
      for (const start of ['/app/a%2f', '/app/a%2F', '/app/a%5c', '/app/a%5C', '/', '/app//', '/app/a/b/'])
        await forwarding.declines(get(`${start}${dot}/x`), 400, `${start}${dot}/x`);
      await forwarding.declines(get(`http://h/app/${dot}/x`), 400, `absolute ${dot}`);
    }
  });

  it('with a backslash, a NUL, a control byte or a byte beyond ASCII is refused', async () => {
    for (const path of ['/app\\x', '/app/\\..\\x', '\\app/x', '/app/x\\', '/app/%00', '/app/x%00.html', '/%00/app'])
      await forwarding.declines(get(path), 400, path);
    for (const code of [0, 1, 7, 8, 9, 11, 12, 13, 0x1b, 0x7f, 0x80, 0xa0, 0xe9, 0xff]) {
      const byte = String.fromCharCode(code);
      await forwarding.declines(get(`/app/a${byte}b`), 400, `byte ${code} in the path`);
      await forwarding.declines(get(`/app/a?b${byte}c`), 400, `byte ${code} in the query`);
    }
    await forwarding.declines(get('/app/x#fragment'), 400, 'a fragment');
    await forwarding.declines(get('/app/x?q#fragment'), 400, 'a fragment behind the query');
  });

  it('with a percent sign that escapes nothing is refused', async () => {
    for (const path of ['/app/%', '/app/%2', '/app/%zz', '/app/%u002e', '/app/%%2e', '/app/x%', '/app/%2?x'])
      await forwarding.declines(get(path), 400, path);
  });

  it('of a form that belongs to no service is refused', async () => {
    for (const target of [
      'app/x',
      'ftp://h/app/x',
      'http:///app/x',
      'http:/app/x',
      'http:app/x',
      'http://user:secret@h/app/x',
      'http://h:80@other/app/x',
      'http://:80/app/x',
      'http://h\\app/x',
      'http://h%2fapp/x x',
      'http://h#/app/x',
      '*',
    ])
      await forwarding.declines(get(target), 400, target);
    for (const target of [
      '//app/x',
      '///app/x',
      '/',
      '/ap',
      '/apple',
      '/app.x',
      '/app%2fx',
      '/APP/x',
      '/%61pp/x',
      '//h/app/x',
    ])
      assert.equal((await forwarding.exchange(get(target), echo)).answer.status, 404, target);
    assert.equal(forwarding.node.connections.length, 0);
  });

  it('of CONNECT and OPTIONS * opens nothing and reaches no node', async () => {
    forwarding.node.restart(echo);
    for (const request of [
      'CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n',
      'CONNECT /app/x HTTP/1.1\r\nHost: h\r\n\r\n',
      'OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n',
    ]) {
      const client = await forwarding.client();
      client.write(request);
      const { status } = await client.readAnswer();
      assert.ok(
        (status >= 400 && status < 500) || (request.startsWith('OPTIONS') && status < 300),
        `${request} ${status}`,
      );
      client.socket.destroy();
    }
    assert.equal(forwarding.node.connections.length, 0);
  });

  it('that is sound passes byte for byte', async () => {
    for (const target of [
      '/app',
      '/app/',
      '/app?',
      '/app?a=b&a=c',
      '/app/x??y?',
      '/app//x///y',
      '/app/a%2Fb%2fc',
      '/app/a%5Cb',
      '/app/%41%7e~',
      '/app/a;b=c,d',
      '/app/...',
      '/app/.x',
      '/app/x.',
      '/app/..x/x..',
      '/app/%2e%2e%2e/x',
      "/app/!$&'()*+,;=:@-._~",
      '/app/|^{}`"<>[]',
      '/app/x?/../..%2f\\..&%',
      '/app/x?%00%0d%0a',
      '/app/x?url=http://h/../',
      '/app/%0d%0aX:%20y',
      '/app/%E4%BD%A0',
    ]) {
      const { answer } = await forwarding.exchange(get(target), echo);
      assert.equal(answer.body.toString(), `GET ${target} HTTP/1.1|h`, target);
    }
    assert.deepEqual(forwarding.node.faults, []);
  });

  it('in absolute form goes on in origin form, and its authority outweighs Host', async () => {
    for (const [target, expected] of [
      ['http://h/app/x', '/app/x|h'],
      ['http://other:81/app/x?q', '/app/x?q|other:81'],
      ['HTTP://h/app//x', '/app//x|h'],
      ['https://h/app', '/app|h'],
      ['http://[::1]:80/app', '/app|[::1]:80'],
    ] as const) {
      const [path, host] = expected.split('|');
      const { answer } = await forwarding.exchange(get(target), echo);
      assert.equal(answer.body.toString(), `GET ${path} HTTP/1.1|${host}`, target);
    }
    assert.equal((await forwarding.exchange(get('http://h'), echo)).answer.status, 404);
    assert.equal((await forwarding.exchange(get('http://h?/app'), echo)).answer.status, 404);
  });

  it('may be as long as the head may be, and is refused with 431 beyond', async () => {
    const long = `/app/${'x'.repeat(7_000)}`;
    const { answer } = await forwarding.exchange(get(long), echo);
    assert.equal(answer.body.toString(), `GET ${long} HTTP/1.1|h`);
    for (const target of [
      `/app/${'x'.repeat(20_000)}`,
      `/app?${'x'.repeat(20_000)}`,
      `http://${'x'.repeat(20_000)}/app`,
    ]) {
      const refusal = await forwarding.refuses(get(target), 431, target.slice(0, 20));
      assert.equal(JSON.parse(refusal.body.toString()).error, 'header_too_large');
      assert.equal(fieldOf(refusal.fields, 'connection'), 'close');
    }
  });
});
