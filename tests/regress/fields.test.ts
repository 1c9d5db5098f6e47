/** Header fields on their way through: what belongs to one hop stays there, everything else passes as it was written. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { Forwarding } from '../support/forwarding.ts';
import {
  answering,
  chunked,
  type Fields,
  fieldOf,
  fieldsOf,
  type Message,
  ok,
  type RawAnswer,
} from '../support/raw-http.ts';

/** What the node sees of a request with these field lines. */
async function seenByNode(forwarding: Forwarding, lines: readonly string[], method = 'GET'): Promise<Message> {
  let seen: Message | undefined;
  await forwarding.exchange(
    `${method} /app/x HTTP/1.1\r\nHost: h.example:8080\r\n${lines.map((line) => `${line}\r\n`).join('')}\r\n`,
    answering((request, connection) => {
      seen = request;
      connection.write(ok());
    }),
  );
  assert.ok(seen, 'the node saw the request');
  return seen;
}

/** What a client sees of an answer with these field lines. */
async function seenByClient(forwarding: Forwarding, lines: readonly string[]): Promise<RawAnswer> {
  const fields = lines.map((line) => `${line}\r\n`).join('');
  return (await forwarding.exchange('GET /app/x HTTP/1.1\r\nHost: h\r\n\r\n', answering(ok('ok', fields)))).answer;
}

function assertAbsent(fields: Fields, ...names: string[]): void {
  for (const name of names) assert.deepEqual(fieldsOf(fields, name), [], name);
}

describe('the fields of a request', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  it('keep their spelling, order, values and duplicates', async () => {
    const lines = [
      'X-B: 1',
      'x-a: 2',
      'X-b: 3',
      'COOKIE: a=b',
      'Cookie: c=d',
      'Accept: text/html, */*;q=0.1',
      'X-Latin: caf\xe9',
      'X-Empty:',
      'X-Inner: a  b\tc',
      "!#$%&'*+-.^_`|~: token",
      '__proto__: x',
      'constructor: y',
      'Authorization: Bearer x',
      'X-Colon: a:b: c',
      'If-None-Match: "x", W/"y"',
    ];
    const { fields } = await seenByNode(forwarding, lines);
    const pairs = lines.map((line) => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 1).trim()]);
    const names = new Set(pairs.map(([name]) => name));
    assert.deepEqual(
      fields.filter(([name]) => names.has(name)),
      pairs,
    );
  });

  it('lose blanks around their value and nothing else', async () => {
    const { fields } = await seenByNode(forwarding, ['X-A: \t  a b \t', 'X-B:c']);
    assert.equal(fieldOf(fields, 'x-a'), 'a b');
    assert.equal(fieldOf(fields, 'x-b'), 'c');
  });

  it('that concern one hop only stay on that hop', async () => {
    const { fields } = await seenByNode(forwarding, [
      'Connection: keep-alive',
      'Keep-Alive: timeout=5',
      'Proxy-Connection: keep-alive',
      'Proxy-Authorization: Basic eDp5',
      'TE: gzip',
      'Upgrade: h2c',
      'X-Stays: here',
    ]);
    assertAbsent(fields, 'keep-alive', 'proxy-connection', 'proxy-authorization', 'te', 'upgrade');
    assert.equal(fieldOf(fields, 'x-stays'), 'here');
  });

  it('that Connection names go no further, in any spelling and on any line', async () => {
    for (const lines of [
      ['Connection: X-Secret', 'X-Secret: 1'],
      ['X-Secret: 1', 'connection: close, x-SECRET'],
      ['Connection: , ,x-secret ,', 'X-Secret: 1', 'x-secret: 2'],
      ['Connection: keep-alive', 'Connection: x-secret', 'X-Secret: 1'],
      ['CONNECTION:x-secret,x-other', 'X-Secret: 1', 'X-Other: 2'],
    ]) {
      const { fields } = await seenByNode(forwarding, lines);
      assertAbsent(fields, 'x-secret', 'x-other');
      for (const value of fieldsOf(fields, 'connection')) assert.ok(!/secret|other/i.test(value), value);
    }
  });

  it('that the gateway answers for cannot be taken away by naming them in Connection', async () => {
    let seen: Message | undefined;
    await forwarding.exchange(
      'POST /app/x HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 6.6.6.6\r\nContent-Length: 5\r\n' +
        'Connection: Host, Content-Length, X-Forwarded-For, X-Forwarded-Proto, X-Request-Id, Transfer-Encoding\r\n\r\nhello',
      answering((request, connection) => {
        seen = request;
        connection.write(ok());
      }),
    );
    assert.equal(seen?.body.toString(), 'hello');
    assert.equal(fieldOf(seen?.fields ?? [], 'host'), 'h');
    assert.equal(fieldOf(seen?.fields ?? [], 'x-forwarded-for'), '127.0.0.1');
    assert.ok(fieldOf(seen?.fields ?? [], 'x-request-id'));
  });

  it('announce trailers to the node when the client takes them', async () => {
    for (const te of ['trailers', 'Trailers', 'deflate;q=0.5, trailers', 'trailers;q=1']) {
      const { fields } = await seenByNode(forwarding, [`TE: ${te}`, 'Connection: TE']);
      assert.deepEqual(fieldsOf(fields, 'te'), ['trailers'], te);
      assert.match(fieldOf(fields, 'connection') ?? '', /\bTE\b/);
    }
  });

  it('say where the request came from, and nothing that the client made up', async () => {
    const { fields } = await seenByNode(forwarding, [
      'X-Forwarded-For: 6.6.6.6',
      'x-forwarded-for: 7.7.7.7',
      'X-Forwarded-Proto: https',
      'X-Forwarded-Host: evil.example',
      'X-Forwarded-Port: 1',
      'X-Forwarded-Prefix: /evil',
      'Forwarded: for=6.6.6.6',
      'X-Gateway-Node: evil',
      'x-gateway-epoch: 7',
      'X-Gateway-Anything: evil',
    ]);
    assert.deepEqual(fieldsOf(fields, 'x-forwarded-for'), ['127.0.0.1']);
    assert.deepEqual(fieldsOf(fields, 'x-forwarded-proto'), ['http']);
    assert.deepEqual(fieldsOf(fields, 'x-forwarded-host'), ['h.example:8080']);
    assert.deepEqual(fieldsOf(fields, 'host'), ['h.example:8080']);
    for (const [name, value] of fields) assert.ok(!/evil|6\.6|7\.7/.test(value), `${name}: ${value}`);
    assertAbsent(fields, 'x-gateway-epoch', 'x-gateway-node', 'via');
  });

  it('keep a sound request id and get a new one for any other', async () => {
    assert.deepEqual(
      fieldsOf((await seenByNode(forwarding, ['X-Request-Id: abc.1:2/3+4=5-6_7'])).fields, 'x-request-id'),
      ['abc.1:2/3+4=5-6_7'],
    );
    for (const id of ['a b', '"x"', 'x'.repeat(129), '\xe9', '<script>']) {
      const [made, ...more] = fieldsOf((await seenByNode(forwarding, [`X-Request-Id: ${id}`])).fields, 'x-request-id');
      assert.ok(made && made !== id && /^[A-Za-z0-9._:/+=-]{1,128}$/.test(made), made);
      assert.equal(more.length, 0);
    }
  });

  it('name a body of no length only where a body is usual', async () => {
    assert.equal(fieldOf((await seenByNode(forwarding, [], 'POST')).fields, 'content-length'), '0');
    assert.deepEqual(fieldsOf((await seenByNode(forwarding, ['Content-Length: 0'], 'POST')).fields, 'content-length'), [
      '0',
    ]);
    for (const method of ['GET', 'HEAD', 'DELETE', 'OPTIONS'])
      assertAbsent((await seenByNode(forwarding, [], method)).fields, 'content-length', 'transfer-encoding');
  });

  it('keep the body of every method that has one', async () => {
    for (const method of ['GET', 'DELETE', 'OPTIONS', 'PUT', 'PATCH', 'PROPFIND', 'REPORT', 'QUERY', 'M-SEARCH']) {
      for (const body of ['Content-Length: 5\r\n\r\nhello', `Transfer-Encoding: chunked\r\n\r\n${chunked('hello')}`]) {
        const { answer } = await forwarding.exchange(
          `${method} /app/x HTTP/1.1\r\nHost: h\r\n${body}`,
          answering((request, connection) =>
            connection.write(ok(`${request.startLine.split(' ')[0]} ${request.body.toString()}`)),
          ),
        );
        if (method === 'QUERY' && answer.status === 400) continue; // Not every version of the parser knows it.
        assert.equal(answer.body.toString(), `${method} hello`);
      }
    }
  });
});

describe('the fields of a request from a trusted proxy', () => {
  const forwarding = new Forwarding({ config: 'trustedProxies: ["127.0.0.0/8"]\nvia: edge' });
  before(() => forwarding.start());
  after(() => forwarding.stop());

  it('keep what that proxy said, with its own address appended', async () => {
    const { fields } = await seenByNode(forwarding, [
      'X-Forwarded-For: 192.0.2.1',
      'X-Forwarded-For: 198.51.100.2',
      'X-Forwarded-Proto: https',
      'X-Forwarded-Host: public.example',
      'Forwarded: for=192.0.2.1',
      'Via: 1.1 first',
    ]);
    assert.deepEqual(fieldsOf(fields, 'x-forwarded-for'), ['192.0.2.1, 198.51.100.2, 127.0.0.1']);
    assert.deepEqual(fieldsOf(fields, 'x-forwarded-proto'), ['https']);
    assert.deepEqual(fieldsOf(fields, 'x-forwarded-host'), ['public.example']);
    assert.deepEqual(fieldsOf(fields, 'forwarded'), ['for=192.0.2.1']);
    assert.deepEqual(fieldsOf(fields, 'via'), ['1.1 first', '1.1 edge']);
  });

  it('still lose what claims to be of the gateway', async () => {
    const { fields } = await seenByNode(forwarding, ['X-Gateway-Epoch: 9', 'X-Gateway-Node: n9']);
    assertAbsent(fields, 'x-gateway-epoch', 'x-gateway-node');
  });
});

describe('the Host of a request', () => {
  const forwarding = new Forwarding({ service: '    hostHeader: node' });
  before(() => forwarding.start());
  after(() => forwarding.stop());

  it("is the node's own where the service says so, and the client's is told apart", async () => {
    const { fields } = await seenByNode(forwarding, []);
    assert.deepEqual(fieldsOf(fields, 'host'), [`127.0.0.1:${forwarding.node.port}`]);
    assert.deepEqual(fieldsOf(fields, 'x-forwarded-host'), ['h.example:8080']);
  });
});

describe('the fields of an answer', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  it('keep their spelling, order, values and duplicates, and Set-Cookie lines stay apart', async () => {
    const lines = [
      'Set-Cookie: a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT',
      'X-B: 1',
      'set-cookie: b=2, c=3',
      'x-a: caf\xe9',
      'X-B: 2',
      'Date: Wed, 21 Oct 2026 07:28:00 GMT',
      'Server: a node',
      'Content-Encoding: gzip',
      'ETag: "x"',
      'Vary: a',
      'Vary: b',
      'WWW-Authenticate: Basic realm="x"',
      'X-Empty:',
      '__proto__: x',
    ];
    const { fields } = await seenByClient(forwarding, lines);
    const pairs = lines.map((line) => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 1).trim()]);
    const names = new Set(pairs.map(([name]) => name));
    assert.deepEqual(
      fields.filter(([name]) => names.has(name)),
      pairs,
    );
  });

  it('that concern one hop only stay on that hop', async () => {
    const { fields } = await seenByClient(forwarding, [
      'Connection: close, X-Secret',
      'Keep-Alive: timeout=77',
      'Proxy-Connection: close',
      'Proxy-Authenticate: Basic',
      'Upgrade: h2c',
      'X-Secret: 1',
      'Connection: x-also',
      'X-Also: 2',
    ]);
    assertAbsent(fields, 'x-secret', 'x-also', 'proxy-connection', 'upgrade', 'proxy-authenticate');
    assert.ok(!fieldsOf(fields, 'keep-alive').includes('timeout=77'));
    for (const value of fieldsOf(fields, 'connection')) assert.ok(!/secret|also|close/i.test(value), value);
  });

  it('keep the length though Connection names it', async () => {
    const { client, answer } = await forwarding.exchange(
      'GET /app/x HTTP/1.1\r\nHost: h\r\n\r\n',
      answering(ok('hello', 'Connection: Content-Length, Set-Cookie\r\n')),
    );
    assert.equal(answer.body.toString(), 'hello');
    assert.equal(client.unread, '');
  });

  it('name the node, whatever the node calls itself', async () => {
    const { fields } = await seenByClient(forwarding, [
      'X-Gateway-Node: other',
      'x-gateway-version: v9',
      'X-Request-Id: mine',
    ]);
    assert.deepEqual(fieldsOf(fields, 'x-gateway-node'), ['n1']);
    assertAbsent(fields, 'x-gateway-version', 'via');
    assert.equal(fieldsOf(fields, 'x-request-id').length, 1);
    assert.notEqual(fieldOf(fields, 'x-request-id'), 'mine');
  });

  it('and its reason phrase and status pass, unusual ones too', async () => {
    for (const line of [
      '200 Fine by me',
      '299 Odd',
      '418 I am a teapot',
      '404 ',
      '999 High',
      '500 Caf\xe9',
      '303 See Other',
    ]) {
      const { answer } = await forwarding.exchange(
        'GET /app/x HTTP/1.1\r\nHost: h\r\n\r\n',
        answering(`HTTP/1.1 ${line}\r\nContent-Length: 2\r\nLocation: http://elsewhere/\r\n\r\nok`),
      );
      assert.equal(answer.startLine.trimEnd(), `HTTP/1.1 ${line}`.trimEnd(), line);
      assert.equal(answer.body.toString(), 'ok');
    }
  });
});
