/** Nodes that break off, answer with nonsense or answer too early: the client never takes a part for the whole. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { Forwarding } from '../support/forwarding.ts';
import { answering, Closed, fieldOf, ok, type RawConnection } from '../support/raw-http.ts';

const get = (version = '1.1', path = '/app/x') => `GET ${path} HTTP/${version}\r\nHost: h\r\n\r\n`;

function errorOf(body: Buffer): string {
  return (JSON.parse(body.toString()) as { error: string }).error;
}

/** Ends of a connection, with and without a reset. */
const ENDS = { FIN: (node: RawConnection) => node.end(), RST: (node: RawConnection) => node.reset() } as const;

describe('an answer that stops too early', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  const heads: Record<string, string> = {
    'a length and no body': 'Content-Length: 10\r\n\r\n',
    'a length and a part': 'Content-Length: 10\r\n\r\n12345',
    'a large length and a part': `Content-Length: 1000000\r\n\r\n${'x'.repeat(200_000)}`,
    'chunks and no body': 'Transfer-Encoding: chunked\r\n\r\n',
    'chunks and no last one': 'Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n',
    'half a chunk': 'Transfer-Encoding: chunked\r\n\r\na\r\nhello',
    'a last chunk without its end': 'Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n',
    'half a trailer': 'Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-A: b',
    'half a chunk size': 'Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1',
  };
  for (const [title, head] of Object.entries(heads)) {
    it(`never has a tidy end for the client: ${title}`, async () => {
      for (const [how, end] of Object.entries(ENDS)) {
        for (const version of ['1.1', '1.0']) {
          const what = `${how}, HTTP/${version}`;
          let client: RawConnection | undefined;
          forwarding.node.restart(async (connection) => {
            await connection.readRequest();
            connection.write(`HTTP/1.1 200 OK\r\n${head}`);
            // The head has reached the client, so that it is too late for an error of the gateway's.
            await client?.until('the head', () => client?.receivedBytes !== 0);
            end(connection);
          });
          client = await forwarding.client();
          client.write(get(version));
          await assert.rejects(client.readAnswer(), Closed, what);
          const over = await client.done();
          const seen = Buffer.concat(client.chunks).toString('latin1');
          assert.match(seen, /^HTTP\/1\.1 200 /, what);
          assert.ok(!seen.endsWith('0\r\n\r\n'), `${what}: no last chunk`);
          // Without a length or chunks only a reset tells the client.
          if (!/content-length|transfer-encoding/i.test(seen)) assert.equal(over, 'reset', what);
        }
      }
      await forwarding.serves();
    });
  }

  it('ends with a reset also when it has neither length nor chunks and the node resets', async () => {
    for (const version of ['1.1', '1.0']) {
      let client: RawConnection | undefined;
      forwarding.node.restart(async (connection) => {
        await connection.readRequest();
        connection.write('HTTP/1.0 200 OK\r\n\r\nsome of it');
        await client?.until('the part', () => client?.unread.includes('some of it') === true);
        connection.reset();
      });
      client = await forwarding.client();
      client.write(get(version));
      await assert.rejects(client.readAnswer(), Closed, version);
      assert.ok(!client.unread.endsWith('0\r\n\r\n'), version);
    }
    await forwarding.serves();
  });

  it('is 502 when it stops before the end of its head', async () => {
    for (const part of [
      '',
      'H',
      'HTTP/1.1 200 OK\r\n',
      'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n',
      'HTTP/1.1 200 OK\r\nX: y\r\n\r',
    ]) {
      for (const [how, end] of Object.entries(ENDS)) {
        for (const version of ['1.1', '1.0']) {
          const { answer } = await forwarding.exchange(get(version), async (connection) => {
            await connection.readRequest();
            connection.write(part);
            end(connection);
          });
          assert.equal(answer.status, 502, `${JSON.stringify(part)} ${how}`);
          assert.match(errorOf(answer.body), /^node_(broke_off|bad_response)$/);
          assert.equal(fieldOf(answer.fields, 'x-gateway-node'), 'n1');
          assert.ok(!answer.body.includes(String(forwarding.node.port)), 'the address stays private');
        }
      }
    }
    await forwarding.serves();
  });

  it('is 502 when only 1xx came before it stopped', async () => {
    const { answer } = await forwarding.exchange(get(), async (connection) => {
      await connection.readRequest();
      connection.end('HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n');
    });
    assert.equal(answer.status, 502);
    assert.equal(answer.interim.length, 1);
  });
});

describe('an answer that is not HTTP', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  const garbage: Record<string, readonly string[]> = {
    'a status line that is none': [
      'garbage\r\n\r\n',
      '\0\0\0\0\0\0\0\0',
      '\x15\x03\x01\0\x02\x02\x16',
      'HTTP/1.1\r\n\r\n',
      'HTTP/1.1 abc OK\r\n\r\n',
      'HTTP/1.1 20 OK\r\n\r\n',
      'HTTP/1.1 2000 OK\r\n\r\n',
      'HTTP/9.9 200 OK\r\n\r\n',
      'HTTP/1.1200 OK\r\n\r\n',
      'GET / HTTP/1.1\r\n\r\n',
      'SSH-2.0-OpenSSH_9.6\r\n',
      '<html>hello</html>',
      'HTTP/1.1 000 OK\r\nContent-Length: 0\r\n\r\n',
      'HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n',
    ],
    'fields that are none': [
      'HTTP/1.1 200 OK\r\nno colon\r\n\r\n',
      'HTTP/1.1 200 OK\r\nX y: z\r\n\r\n',
      'HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n',
      'HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 0\r\n\r\n',
      'HTTP/1.1 200 OK\r\nX : y\r\nContent-Length: 0\r\n\r\n',
      'HTTP/1.1 200 OK\r\nX: \x01\r\nContent-Length: 0\r\n\r\n',
    ],
    'framing of two minds': [
      'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!',
      'HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\nhello!',
      'HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello',
      'HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello',
      'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
      'HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nhello',
    ],
  };
  for (const [kind, answers] of Object.entries(garbage)) {
    it(`is 502 node_bad_response: ${kind}`, async () => {
      for (const bytes of answers) {
        for (const version of ['1.1', '1.0']) {
          const { answer } = await forwarding.exchange(get(version), async (connection) => {
            await connection.readRequest();
            connection.end(bytes);
          });
          assert.equal(answer.status, 502, `${JSON.stringify(bytes)}: ${answer.startLine}`);
          assert.match(errorOf(answer.body), /^node_(bad_response|broke_off)$/);
        }
        await forwarding.serves();
      }
    });
  }

  it('only in its reason phrase is passed on without it, be it 1xx, final or an upgrade', async () => {
    for (const [answer, status] of [
      ['HTTP/1.1 200 O\x01K\r\nContent-Length: 2\r\n\r\nok', 200],
      ['HTTP/1.1 103 Early\x7fHints\r\n\r\nHTTP/1.1 500 \x1b[31m\r\nContent-Length: 2\r\n\r\nok', 500],
      ['HTTP/1.1 101 Switch\x02\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n', 101],
    ] as const) {
      const upgrade = status === 101 ? 'Connection: Upgrade\r\nUpgrade: x\r\n' : '';
      const { client, answer: seen } = await forwarding.exchange(
        `GET /app/x HTTP/1.1\r\nHost: h\r\n${upgrade}\r\n`,
        answering(answer),
      );
      assert.equal(seen.status, status);
      assert.ok(!/[\x01\x02\x1b\x7f]/.test(Buffer.concat(client.chunks).toString('latin1')));
      client.socket.destroy();
    }
    await forwarding.serves();
  });

  it("breaks the client's answer when the nonsense is in the chunks", async () => {
    for (const chunk of [
      'x\r\nhello\r\n',
      '-5\r\nhello\r\n',
      '5\r\nhello!\r\n',
      ' 5\r\nhello\r\n',
      '5\nhello\n',
      'fffffffffffffffff\r\nx',
      '5\r\nhello\r\n0\r\nbad trailer\r\n\r\n',
    ]) {
      for (const version of ['1.1', '1.0']) {
        forwarding.node.restart(async (connection) => {
          await connection.readRequest();
          connection.write('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n');
          await client.until('the first chunk', () => client.unread.includes('abc'));
          connection.write(chunk);
        });
        const client = await forwarding.client();
        client.write(get(version));
        await assert.rejects(client.readAnswer(), Closed, JSON.stringify(chunk));
        assert.ok(!client.unread.endsWith('0\r\n\r\n'));
        if (version === '1.0') assert.equal(await client.done(), 'reset', JSON.stringify(chunk));
      }
      await forwarding.serves();
    }
  });

  it('followed by bytes nobody asked for spoils no other exchange', async () => {
    for (const extra of [
      'GARBAGE',
      'HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen',
      '\r\n\r\n',
      'x'.repeat(100_000),
    ]) {
      forwarding.node.restart(
        answering((request, connection) => connection.write(`${ok(request.startLine.split(' ')[1])}${extra}`)),
      );
      const client = await forwarding.client();
      for (const path of ['/app/1', '/app/2', '/app/3']) {
        client.write(get('1.1', path));
        const answer = await client.readAnswer();
        if (answer.status !== 502) assert.equal(answer.body.toString(), path, JSON.stringify(extra.slice(0, 20)));
      }
      assert.equal(client.unread, '');
    }
  });
});

describe('an answer that nobody asked for', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  it('ends the idle connection it came on, and is never given to the next request', async () => {
    for (const extra of [ok('stolen'), 'HTTP/1.1 200 OK\r\n', 'x', 'HTTP/1.1 100 Continue\r\n\r\n']) {
      forwarding.node.restart(async (connection) => {
        for (;;) {
          const request = await connection.readRequest();
          connection.write(ok(request.startLine.split(' ')[1]));
        }
      });
      const client = await forwarding.client();
      client.write(get('1.1', '/app/1'));
      assert.equal((await client.readAnswer()).body.toString(), '/app/1');
      const [first] = forwarding.node.connections;
      first?.write(extra);
      await first?.done();
      client.write(get('1.1', '/app/2'));
      assert.equal((await client.readAnswer()).body.toString(), '/app/2', extra);
      assert.equal(forwarding.node.connections.length, 2);
    }
  });
});

describe('an answer that comes during the upload', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  const TOTAL = 8_000_000;
  const uploads = {
    'with a length': `POST /app/x HTTP/1.1\r\nHost: h\r\nContent-Length: ${TOTAL}\r\n\r\n`,
    'in chunks': `POST /app/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n${TOTAL.toString(16)}\r\n`,
  };
  for (const [title, head] of Object.entries(uploads)) {
    it(`reaches the client whatever the node does with the rest: ${title}`, async () => {
      const then: Record<string, (node: RawConnection) => void> = {
        'reads on': (node) => void node.socket.resume(),
        'stops reading': (node) => void node.socket.pause(),
        'closes its side': (node) => node.end(),
        'closes, having said so': (node) => node.end(),
      };
      for (const [what, rest] of Object.entries(then)) {
        forwarding.node.restart(async (connection) => {
          await connection.readHead();
          await connection.take(1_000);
          connection.write(
            `HTTP/1.1 413 Too Large\r\n${what.includes('said') ? 'Connection: close\r\n' : ''}Content-Length: 7\r\n\r\ntoo big`,
          );
          rest(connection);
        });
        const client = await forwarding.client();
        client.write(head);
        const poured = client.pour(TOTAL);
        const answer = await client.readAnswer('POST');
        assert.equal(answer.status, 413, what);
        assert.equal(answer.body.toString(), 'too big', what);
        client.socket.destroy();
        await poured;
        await forwarding.serves();
      }
    });
  }

  it('is seen while a client sends nothing more, and the client may then send its next request or be closed', async () => {
    forwarding.node.restart(async (connection) => {
      await connection.readHead();
      connection.write(ok('early'));
    });
    const client = await forwarding.client();
    client.write('POST /app/x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n12345');
    assert.equal((await client.readAnswer('POST')).body.toString(), 'early');
    client.write('67890GET /elsewhere HTTP/1.1\r\nHost: h\r\n\r\n');
    try {
      assert.equal((await client.readAnswer()).status, 404);
    } catch (error) {
      assert.ok(error instanceof Closed, String(error));
    }
  });
});

describe('a kept-alive connection that the node closes', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  const body = 'Content-Length: 5\r\n\r\nhello';
  const requests: Record<string, readonly [head: string, repeated: boolean]> = {
    GET: ['GET /app/2 HTTP/1.1\r\nHost: h\r\n\r\n', true],
    HEAD: ['HEAD /app/2 HTTP/1.1\r\nHost: h\r\n\r\n', true],
    OPTIONS: ['OPTIONS /app/2 HTTP/1.1\r\nHost: h\r\n\r\n', true],
    DELETE: ['DELETE /app/2 HTTP/1.1\r\nHost: h\r\n\r\n', true],
    'PUT without a body': ['PUT /app/2 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n', true],
    'POST without a body': ['POST /app/2 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n', false],
    POST: [`POST /app/2 HTTP/1.1\r\nHost: h\r\n${body}`, false],
    PATCH: [`PATCH /app/2 HTTP/1.1\r\nHost: h\r\n${body}`, false],
    'PUT with a body': [`PUT /app/2 HTTP/1.1\r\nHost: h\r\n${body}`, false],
    'an unknown method': ['FROB /app/2 HTTP/1.1\r\nHost: h\r\n\r\n', false],
  };
  for (const [title, [head, repeated]] of Object.entries(requests)) {
    if (title === 'an unknown method') continue; // The parser knows a closed list of methods.
    it(`when it gets ${title} ${repeated ? 'is replaced, once' : 'is not replaced: what may have been done is not done again'}`, async () => {
      for (const [how, end] of Object.entries(ENDS)) {
        const seen: string[] = [];
        forwarding.node.restart(async (connection) => {
          seen.push((await connection.readRequest()).startLine);
          connection.write(ok('first'));
          seen.push((await connection.readRequest()).startLine);
          end(connection);
        });
        const client = await forwarding.client();
        client.write('GET /app/1 HTTP/1.1\r\nHost: h\r\n\r\n');
        assert.equal((await client.readAnswer()).body.toString(), 'first');
        client.write(head);
        const answer = await client.readAnswer(head.slice(0, head.indexOf(' ')));
        const line = head.slice(0, head.indexOf('\r\n'));
        if (repeated) {
          assert.equal(answer.status, 200, how);
          assert.deepEqual(seen, ['GET /app/1 HTTP/1.1', line, line], how);
          assert.equal(forwarding.node.connections.length, 2);
        } else {
          assert.equal(answer.status, 502, how);
          assert.equal(errorOf(answer.body), 'node_broke_off');
          assert.deepEqual(seen, ['GET /app/1 HTTP/1.1', line], how);
        }
      }
    });
  }

  it('is not replaced a second time, nor when a fresh one is closed, nor when an answer had begun', async () => {
    let connections = 0;
    forwarding.node.restart(async (connection) => {
      connections += 1;
      await connection.readRequest();
      if (connections === 1) {
        connection.write(ok('first'));
        await connection.readRequest();
      }
      connection.end();
    });
    const client = await forwarding.client();
    client.write(get());
    assert.equal((await client.readAnswer()).status, 200);
    client.write(get());
    assert.equal((await client.readAnswer()).status, 502);
    assert.equal(connections, 2, 'the dead one and one fresh one');
    client.write(get());
    assert.equal((await client.readAnswer()).status, 502);
    assert.equal(connections, 3, 'a fresh one is not replaced');

    let requests = 0;
    forwarding.node.restart(async (connection) => {
      await connection.readRequest();
      connection.write(ok('first'));
      await connection.readRequest();
      requests += 1;
      connection.end('HTTP/1.1 200 OK\r\nContent-');
    });
    const other = await forwarding.client();
    other.write(get());
    assert.equal((await other.readAnswer()).status, 200);
    other.write(get());
    assert.equal((await other.readAnswer()).status, 502);
    assert.equal(requests, 1, 'a part of an answer says that the request was seen');
  });

  it('is not used when it was closed while idle', async () => {
    for (const head of ['GET /app/2 HTTP/1.1\r\nHost: h\r\n\r\n', `POST /app/2 HTTP/1.1\r\nHost: h\r\n${body}`]) {
      forwarding.node.restart(async (connection) => {
        await connection.readRequest();
        connection.write(ok('served'));
      });
      const client = await forwarding.client();
      client.write(get());
      await client.readAnswer();
      const [first] = forwarding.node.connections;
      first?.end();
      // The gateway has taken note when it closed its own side.
      await first?.done();
      client.write(head);
      assert.equal((await client.readAnswer()).body.toString(), 'served');
    }
  });
});
