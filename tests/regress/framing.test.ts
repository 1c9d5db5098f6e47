/** Requests whose framing could be read in two ways are refused whole: nothing of them reaches a node. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { Forwarding } from '../support/forwarding.ts';
import { answering, chunked, ok } from '../support/raw-http.ts';

/** Behind each doubtful request: what an attacker would like to be taken for a request of its own. */
const SMUGGLED = 'GET /app/smuggled HTTP/1.1\r\nHost: h\r\n\r\n';

function post(fields: readonly string[], body: string, version = '1.1'): string {
  return `POST /app/x HTTP/${version}\r\nHost: h\r\n${fields.map((field) => `${field}\r\n`).join('')}\r\n${body}`;
}

describe('a request of doubtful framing', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  const chunkedBody = `0\r\n\r\n${SMUGGLED}`;
  const refused: Record<string, readonly string[]> = {
    'Content-Length together with Transfer-Encoding': [
      post(['Content-Length: 5', 'Transfer-Encoding: chunked'], chunkedBody),
      post(['Transfer-Encoding: chunked', 'Content-Length: 5'], chunkedBody),
      post(['Content-Length: 0', 'Transfer-Encoding: chunked'], chunkedBody),
      post(['Transfer-Encoding: chunked', 'content-length: 100'], chunkedBody),
      post([`Content-Length: ${chunkedBody.length}`, 'Transfer-Encoding: identity'], chunkedBody),
    ],
    'more than one Content-Length': [
      post(['Content-Length: 5', 'Content-Length: 6'], `12345${SMUGGLED}`),
      post(['Content-Length: 5', 'Content-Length: 5'], `12345${SMUGGLED}`),
      post(['Content-Length: 5', 'X: y', 'content-length: 0'], `12345${SMUGGLED}`),
      post(['Content-Length: 5, 5'], `12345${SMUGGLED}`),
      post(['Content-Length: 5, 6'], `12345${SMUGGLED}`),
    ],
    'a Content-Length that is no plain number': [
      ...['+5', '-5', '0x5', '5 5', '5;', '', '5.0', 'five', '5_', '0b1', '1e1', '99999999999999999999999', '"5"'].map(
        (length) => post([`Content-Length: ${length}`], `12345${SMUGGLED}`),
      ),
      post(['Content-Length: 5\0'], `12345${SMUGGLED}`),
    ],
    'a Transfer-Encoding other than chunked': [
      ...[
        'identity',
        'gzip',
        'chunked, gzip',
        'gzip, chunked',
        'chunked, chunked',
        'chunked, identity',
        'identity, chunked',
        'xchunked',
        'chunkedx',
        'chunked;q=1',
        '"chunked"',
        'chunked,',
        ',chunked',
        '\x0bchunked',
        'chunked\x0b',
        'chunk',
        '',
        'cow',
      ].map((coding) => post([`Transfer-Encoding: ${coding}`], chunkedBody)),
      post(['Transfer-Encoding: chunked', 'Transfer-Encoding: identity'], chunkedBody),
      post(['Transfer-Encoding: identity', 'Transfer-Encoding: chunked'], chunkedBody),
      post(['Transfer-Encoding: chunked', 'Transfer-Encoding: chunked'], chunkedBody),
      post(['Transfer-Encoding: x', 'Transfer-Encoding: chunked'], chunkedBody),
    ],
    'a Transfer-Encoding whose name is not quite one': [
      post(['Transfer-Encoding : chunked', 'Content-Length: 5'], chunkedBody),
      post([' Transfer-Encoding: chunked', 'Content-Length: 5'], chunkedBody),
      post(['Transfer-Encoding\t: chunked'], chunkedBody),
      post(['X: y\r\n\tTransfer-Encoding: chunked'], chunkedBody),
      post(['Transfer-Encoding:\r\n chunked'], chunkedBody),
      post(['Transfer\0-Encoding: chunked'], chunkedBody),
      post(['"Transfer-Encoding": chunked'], chunkedBody),
    ],
    'a Transfer-Encoding in HTTP/1.0': [
      post(['Transfer-Encoding: chunked'], chunkedBody, '1.0'),
      post(['Transfer-Encoding: chunked', 'Connection: keep-alive'], chunkedBody, '1.0'),
      post(['Transfer-Encoding: chunked', 'Content-Length: 3'], chunkedBody, '1.0'),
    ],
    'a folded field line': [
      post(['X: a\r\n b'], SMUGGLED),
      post(['X: a\r\n\tb'], SMUGGLED),
      post(['X: a\r\n '], SMUGGLED),
      `GET /app/x HTTP/1.1\r\n Host: h\r\nHost: h\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\nHost:\r\n h\r\n\r\n`,
    ],
    'a bare CR, a bare LF or a NUL in the head': [
      `GET /app/x HTTP/1.1\nHost: h\n\n${SMUGGLED}`,
      `GET /app/x HTTP/1.1\r\nHost: h\nX: y\r\n\r\n${SMUGGLED}`,
      `GET /app/x HTTP/1.1\r\nHost: h\r\nX: y\n\r\n${SMUGGLED}`,
      `GET /app/x HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\nHost: h\r\nX: a\r\r\n\r\n`,
      `GET /app/x HTTP/1.1\rHost: h\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\nHost: h\r\nX\0: b\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\nHost: h\r\nX: y\r\n\n${SMUGGLED}`,
    ],
    'a field line that is none': [
      `GET /app/x HTTP/1.1\r\nHost: h\r\nX : y\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\nHost: h\r\nX\t: y\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\nHost: h\r\n: no name\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\nHost: h\r\nX(y): z\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\nHost: h\r\nX y: z\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\nHost: h\r\nX\xe9: z\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\nHost: h\r\nX: \x01\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\nHost: h\r\nX: \x7f\r\n\r\n`,
    ],
    'two Host lines, or none in HTTP/1.1': [
      `GET /app/x HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\nHost: h\r\nX: y\r\nhOST: other\r\n\r\n`,
      `GET /app/x HTTP/1.0\r\nHost: h\r\nHost: other\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\nX-Host: h\r\n\r\n`,
    ],
    'a request line that is none': [
      `GET\t/app/x\tHTTP/1.1\r\nHost: h\r\n\r\n`,
      ` GET /app/x HTTP/1.1\r\nHost: h\r\n\r\n`,
      `GET /app/x y HTTP/1.1\r\nHost: h\r\n\r\n`,
      `GET /app/x HTTP/1.1 \r\nHost: h\r\n\r\n`,
      `GET /app/x HTTP/1.2\r\nHost: h\r\n\r\n`,
      `GET /app/x HTTP/2.0\r\nHost: h\r\n\r\n`,
      `GET /app/x HTTP/0.9\r\nHost: h\r\n\r\n`,
      `GET /app/x HTTP/1\r\nHost: h\r\n\r\n`,
      `GET /app/x HTTP/11.1\r\nHost: h\r\n\r\n`,
      `GET /app/x http/1.1\r\nHost: h\r\n\r\n`,
      `GET /app/x\r\nHost: h\r\n\r\n`,
      `GET /app/x\r\n\r\n`,
      `G:T /app/x HTTP/1.1\r\nHost: h\r\n\r\n`,
      `get /app/x HTTP/1.1\r\nHost: h\r\n\r\n`,
      `\0GET /app/x HTTP/1.1\r\nHost: h\r\n\r\n`,
      `\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03`,
      `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n`,
    ],
  };

  for (const [kind, requests] of Object.entries(refused)) {
    it(`is refused and the connection closed: ${kind}`, async () => {
      for (const request of requests) await forwarding.refuses(request, 400, JSON.stringify(request.slice(0, 120)));
    });
  }

  it('is refused in the middle of its body, and nothing behind it is taken for a request: a bad chunk', async () => {
    const bodies = [
      `x\r\n${SMUGGLED}`,
      `5 \r\nhello\r\n0\r\n\r\n`,
      ` 5\r\nhello\r\n0\r\n\r\n`,
      `0x5\r\nhello\r\n0\r\n\r\n`,
      `+5\r\nhello\r\n0\r\n\r\n`,
      `-5\r\nhello\r\n0\r\n\r\n`,
      `\r\nhello\r\n0\r\n\r\n`,
      `5\nhello\r\n0\r\n\r\n`,
      `5\rhello\r\n0\r\n\r\n`,
      `5\r\nhello!\r\n0\r\n\r\n`,
      `5\r\nhello\n0\r\n\r\n`,
      `5\r\nhello0\r\n\r\n`,
      `5\r\nhello\r\n0\r\nX\r\n\r\n`,
      `5\r\nhello\r\n0\r\nX : y\r\n\r\n`,
      `5\r\nhello\r\n0\r\nX: y\r\n z\r\n\r\n`,
      `5\r\nhello\r\n0\r\nX: a\0b\r\n\r\n`,
      `10000000000000005\r\nhello\r\n0\r\n\r\n`,
      `fffffffffffffffff\r\nhello\r\n0\r\n\r\n`,
      `5;\rx\r\nhello\r\n0\r\n\r\n`,
      `5;a\nb\r\nhello\r\n0\r\n\r\n`,
      `5;a\0\r\nhello\r\n0\r\n\r\n`,
      `5;a="x\r\n"\r\nhello\r\n0\r\n\r\n`,
    ];
    for (const body of bodies) {
      const what = JSON.stringify(body);
      const whole: string[] = [];
      forwarding.node.restart(
        answering((request, connection) => {
          whole.push(request.startLine);
          connection.write(ok());
        }),
      );
      const client = await forwarding.client();
      client.write(post(['Transfer-Encoding: chunked'], `${body}${SMUGGLED}`));
      const answer = await client.readAnswer('POST');
      assert.equal(answer.status, 400, `${what}: ${answer.startLine}`);
      await client.done();
      assert.equal(client.unread, '', what);
      assert.deepEqual(whole, [], `${what}: the node got no whole request`);
      for (const connection of forwarding.node.connections) {
        await connection.done();
        assert.ok(!Buffer.concat(connection.chunks).includes('smuggled'), what);
      }
      await forwarding.serves();
    }
  });

  it('never has its chunk extensions passed on, and their length is bounded', async () => {
    for (const extension of [';a', ';a=b', ';a="b c"', ';a;b;c']) {
      const { answer } = await forwarding.exchange(
        post(['Transfer-Encoding: chunked'], `5${extension}\r\nhello\r\n0${extension}\r\n\r\n`),
        answering((request, connection) => connection.write(ok(request.body.toString()))),
      );
      assert.equal(answer.body.toString(), 'hello', extension);
      const [connection] = forwarding.node.connections;
      assert.ok(!Buffer.concat(connection?.chunks ?? []).includes(extension), 'the extension stays here');
    }
    forwarding.node.restart(answering(ok()));
    const client = await forwarding.client();
    client.write(post(['Transfer-Encoding: chunked'], `5;${'a'.repeat(200_000)}\r\nhello\r\n0\r\n\r\n`));
    const answer = await client.readAnswer('POST');
    assert.ok([400, 413, 431].includes(answer.status), answer.startLine);
    await client.done();
  });

  it('ends the connection also when sound requests were answered before it', async () => {
    const bad = `POST /app/bad HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab${SMUGGLED}`;
    const seen: string[] = [];
    forwarding.node.restart(
      answering((request, connection) => {
        seen.push(request.startLine);
        connection.write(ok(request.startLine));
      }),
    );
    const client = await forwarding.client();
    client.write(`GET /app/1 HTTP/1.1\r\nHost: h\r\n\r\nGET /app/2 HTTP/1.1\r\nHost: h\r\n\r\n${bad}`);
    assert.equal((await client.readAnswer()).body.toString(), 'GET /app/1 HTTP/1.1');
    assert.equal((await client.readAnswer()).body.toString(), 'GET /app/2 HTTP/1.1');
    assert.equal((await client.readAnswer()).status, 400);
    await client.done();
    assert.equal(client.unread, '');
    assert.equal(seen.length, 2, seen.join());
  });

  it('does not let what follows a refusal be taken for a request, be it sent later', async () => {
    for (const first of [
      post(['Content-Length: 3', 'Transfer-Encoding: chunked'], ''),
      `GET /app/../x HTTP/1.1\r\nHost: h\r\nContent-Length: ${SMUGGLED.length}\r\nTransfer-Encoding: chunked\r\n\r\n`,
      `GET /app/x HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n`,
      'garbage\r\n\r\n',
    ]) {
      forwarding.node.restart(answering(ok()));
      const client = await forwarding.client();
      client.write(first);
      assert.equal((await client.readAnswer()).status, 400, JSON.stringify(first));
      client.write(SMUGGLED);
      await client.done();
      assert.equal(client.unread, '');
      assert.equal(forwarding.node.connections.length, 0);
    }
  });
});

describe('a request of sound framing', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  const echo = answering((request, connection) => connection.write(ok(request.body.toString('latin1'))));

  it('reaches the node with the framing it came with', async () => {
    const withLength = await forwarding.exchange(post(['Content-Length: 5'], 'hello'), echo);
    assert.equal(withLength.answer.body.toString(), 'hello');
    const inChunks = await forwarding.exchange(post(['Transfer-Encoding: Chunked'], chunked('hel', 'lo')), echo);
    assert.equal(inChunks.answer.body.toString(), 'hello');
    for (const size of ['5', '05', '0000005']) {
      const body = `${size}\r\nhello\r\n00\r\n\r\n`;
      const { answer } = await forwarding.exchange(post(['Transfer-Encoding: chunked'], body), echo);
      assert.equal(answer.body.toString(), 'hello', size);
    }
    assert.deepEqual(forwarding.node.faults, []);
  });

  it('is served also behind an empty line, as RFC 9112 section 2.2 has it', async () => {
    const { answer } = await forwarding.exchange('\r\nGET /app/x HTTP/1.1\r\nHost: h\r\n\r\n', echo);
    assert.equal(answer.status, 200);
  });

  it('goes on with single blanks when its request line has several, which RFC 9112 section 3 lets a reader skip', async () => {
    const seen: string[] = [];
    const script = answering((request, connection) => {
      seen.push(request.startLine);
      connection.write(ok());
    });
    for (const line of ['GET  /app/x HTTP/1.1', 'GET /app/x  HTTP/1.1']) {
      const { answer } = await forwarding.exchange(`${line}\r\nHost: h\r\n\r\n`, script);
      assert.equal(answer.status, 200);
    }
    assert.deepEqual(seen, ['GET /app/x HTTP/1.1', 'GET /app/x HTTP/1.1']);
  });

  it('is served byte by byte', async () => {
    forwarding.node.restart(echo);
    const client = await forwarding.client();
    for (const byte of post(['Transfer-Encoding: chunked'], chunked('hel', 'lo'))) {
      client.write(byte);
      await new Promise((resolve) => setImmediate(resolve));
    }
    assert.equal((await client.readAnswer()).body.toString(), 'hello');
  });
});
