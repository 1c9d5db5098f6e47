/** Where an answer ends and what comes before it: bodyless ones, 1xx and Expect, trailers, and the two ages of HTTP. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { Forwarding } from '../support/forwarding.ts';
import { answering, chunked, fieldOf, fieldsOf, type Message, ok, type RawConnection } from '../support/raw-http.ts';

const GET = 'GET /app/x HTTP/1.1\r\nHost: h\r\n\r\n';

/** The connection is at the start of a message: another exchange on it works. */
async function isInOrder(forwarding: Forwarding, client: RawConnection): Promise<void> {
  assert.equal(client.unread, '', 'nothing is left over');
  client.write('GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n');
  assert.equal((await client.readAnswer()).status, 404);
  assert.deepEqual(forwarding.node.faults, []);
}

describe('an answer without a body', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  const cases: readonly [title: string, method: string, head: string, kept: Readonly<Record<string, string>>][] = [
    [
      'HEAD with a length',
      'HEAD',
      '200 OK\r\nContent-Length: 12345\r\nETag: "x"',
      { 'content-length': '12345', etag: '"x"' },
    ],
    ['HEAD with a length of 0', 'HEAD', '200 OK\r\nContent-Length: 0', { 'content-length': '0' }],
    ['HEAD without a length', 'HEAD', '200 OK\r\nX-A: b', { 'x-a': 'b' }],
    ['HEAD that would be chunked', 'HEAD', '200 OK\r\nTransfer-Encoding: chunked', {}],
    ['HEAD that is not found', 'HEAD', '404 Not Found\r\nContent-Length: 9', { 'content-length': '9' }],
    ['204', 'GET', '204 No Content\r\nX-A: b', { 'x-a': 'b' }],
    ['204 to a DELETE', 'DELETE', '204 No Content', {}],
    [
      '304',
      'GET',
      '304 Not Modified\r\nETag: "x"\r\nCache-Control: no-cache',
      { etag: '"x"', 'cache-control': 'no-cache' },
    ],
    ['304 with a length', 'GET', '304 Not Modified\r\nContent-Length: 777\r\nETag: "x"', { 'content-length': '777' }],
    ['304 to a HEAD', 'HEAD', '304 Not Modified\r\nContent-Length: 777', { 'content-length': '777' }],
  ];
  for (const [title, method, head, kept] of cases) {
    it(`keeps its head and the connection: ${title}`, async () => {
      const { client, answer } = await forwarding.exchange(
        `${method} /app/x HTTP/1.1\r\nHost: h\r\n\r\n`,
        answering(`HTTP/1.1 ${head}\r\n\r\n`),
      );
      assert.ok(head.startsWith(String(answer.status)), answer.startLine);
      for (const [name, value] of Object.entries(kept)) assert.deepEqual(fieldsOf(answer.fields, name), [value], name);
      if (answer.status === 204) assert.equal(fieldOf(answer.fields, 'transfer-encoding'), undefined);
      if (method === 'HEAD' && !('content-length' in kept))
        assert.equal(fieldOf(answer.fields, 'content-length'), undefined, 'no length is made up');
      await isInOrder(forwarding, client);
    });
  }

  it('lets the node keep its connection', async () => {
    forwarding.node.restart(
      answering((request, connection) =>
        connection.write(
          request.startLine.startsWith('HEAD')
            ? 'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n'
            : 'HTTP/1.1 204 No Content\r\n\r\n',
        ),
      ),
    );
    const client = await forwarding.client();
    for (const method of ['HEAD', 'GET', 'HEAD', 'DELETE']) {
      client.write(`${method} /app/x HTTP/1.1\r\nHost: h\r\n\r\n`);
      await client.readAnswer(method);
    }
    assert.equal(forwarding.node.connections.length, 1);
    await isInOrder(forwarding, client);
  });

  it('is told from one with an empty body', async () => {
    for (const head of ['Content-Length: 0\r\n\r\n', 'Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n']) {
      const { client, answer } = await forwarding.exchange(GET, answering(`HTTP/1.1 200 OK\r\n${head}`));
      assert.equal(answer.body.length, 0);
      await isInOrder(forwarding, client);
    }
  });
});

describe('a small body of a stated length', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());
  const everyByte = Buffer.from(Array.from({ length: 4_096 }, (_, index) => index & 0xff)).toString('latin1');

  for (const [title, pieces] of [
    ['with its head', [ok(everyByte)]],
    ['behind its head', [ok(everyByte).slice(0, -4_096), everyByte]],
    ['in parts', [ok(everyByte).slice(0, -3_000), everyByte.slice(-3_000, -1), everyByte.slice(-1)]],
  ] as const) {
    it(`keeps every byte when it comes ${title}`, async () => {
      forwarding.node.restart(
        answering(async (_request, connection) => {
          for (const piece of pieces) {
            connection.write(Buffer.from(piece, 'latin1'));
            await new Promise((resolve) => setTimeout(resolve, 20));
          }
        }),
      );
      // The second answer has no connection of its own before the first has gone out.
      const client = await forwarding.client();
      client.write('GET /app/1 HTTP/1.1\r\nHost: h\r\n\r\nGET /app/2 HTTP/1.1\r\nHost: h\r\n\r\n');
      for (let answer = 0; answer < 2; answer += 1) {
        const { status, body } = await client.readAnswer();
        assert.equal(status, 200);
        assert.equal(body.toString('latin1'), everyByte);
      }
      assert.equal(client.unread, '');
    });
  }
});

describe('an answer before the answer', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  const upload = (expect: string) =>
    `POST /app/x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: ${expect}\r\n\r\n`;

  it('goes through with its fields while the final one is still to come', async () => {
    let release: () => void = () => undefined;
    const gate = new Promise<void>((resolve) => {
      release = resolve;
    });
    forwarding.node.restart(
      answering(async (_request, connection) => {
        connection.write(
          'HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nlink: </b.js>\r\nX-Any: 1\r\n\r\n',
        );
        await gate;
        connection.write(ok('late'));
      }),
    );
    const client = await forwarding.client();
    client.write(GET);
    const hints = await client.readHead();
    assert.equal(hints.startLine, 'HTTP/1.1 103 Early Hints');
    assert.deepEqual(hints.fields, [
      ['Link', '</a.css>; rel=preload'],
      ['link', '</b.js>'],
      ['X-Any', '1'],
    ]);
    release();
    assert.equal((await client.readAnswer()).body.toString(), 'late');
    await isInOrder(forwarding, client);
  });

  it('may be any of 1xx, and many of them', async () => {
    const many = Array.from(
      { length: 60 },
      (_, index) => `HTTP/1.1 1${index % 2 ? '03' : '02'} S${index}\r\nX-N: ${index}\r\n\r\n`,
    );
    for (const interim of [
      ['HTTP/1.1 102 Processing\r\n\r\n'],
      ['HTTP/1.1 100 Continue\r\n\r\n'],
      ['HTTP/1.1 199 Odd\r\nX: y\r\n\r\n'],
      many,
    ]) {
      const { client, answer } = await forwarding.exchange(GET, answering(interim.join('') + ok('end')));
      assert.equal(answer.body.toString(), 'end');
      assert.deepEqual(
        answer.interim.map((head) => head.startLine),
        interim.map((text) => text.split('\r\n')[0]),
      );
      await isInOrder(forwarding, client);
    }
  });

  it('that concerns one hop only loses what does', async () => {
    const { answer } = await forwarding.exchange(
      GET,
      answering(
        `HTTP/1.1 103 Early Hints\r\nConnection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=1\r\nLink: </a>\r\n\r\n${ok()}`,
      ),
    );
    assert.deepEqual(answer.interim[0]?.fields, [['Link', '</a>']]);
  });

  it('never goes to an HTTP/1.0 client', async () => {
    const { client, answer } = await forwarding.exchange(
      'GET /app/x HTTP/1.0\r\nHost: h\r\n\r\n',
      answering(`HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n${ok('only')}`),
    );
    assert.deepEqual(answer.interim, []);
    assert.equal(answer.body.toString(), 'only');
    assert.ok(!Buffer.concat(client.chunks).includes('Link'));
  });

  it("to Expect is the node's: the body is sent when the node has said so, and not before", async () => {
    forwarding.node.restart(async (connection) => {
      const head = await connection.readHead();
      assert.equal(fieldOf(head.fields, 'expect'), '100-continue');
      assert.equal(connection.unread, '', 'no body yet');
      connection.write('HTTP/1.1 100 Continue\r\n\r\n');
      const { body } = await connection.readBody(head);
      connection.write(ok(body.toString()));
    });
    const client = await forwarding.client();
    client.write(upload('100-continue'));
    assert.equal((await client.readHead()).startLine, 'HTTP/1.1 100 Continue');
    client.write('hello');
    assert.equal((await client.readAnswer('POST')).body.toString(), 'hello');
    await isInOrder(forwarding, client);
  });

  it('to Expect may be a refusal, and the body is never sent', async () => {
    for (const status of ['413 Too Large', '401 Unauthorized', '417 Expectation Failed', '200 OK']) {
      forwarding.node.restart(async (connection) => {
        await connection.readHead();
        connection.write(`HTTP/1.1 ${status}\r\nContent-Length: 2\r\n\r\nno`);
        await connection.done();
        assert.equal(connection.unread, '', 'no body came');
      });
      const client = await forwarding.client();
      client.write(upload('100-continue'));
      const answer = await client.readAnswer('POST');
      assert.ok(status.startsWith(String(answer.status)), answer.startLine);
      assert.deepEqual(answer.interim, []);
      assert.equal(answer.body.toString(), 'no');
      client.socket.destroy();
      await forwarding.serves();
      assert.deepEqual(forwarding.node.faults, []);
    }
  });

  it('is not waited for by a client that sends its body anyway', async () => {
    const { client, answer } = await forwarding.exchange(
      `${upload('100-continue')}hello`,
      answering((request, connection) => connection.write(ok(request.body.toString()))),
    );
    assert.equal(answer.body.toString(), 'hello');
    // Without "continue" a server cannot know whether the body will come, so it may end the connection.
    assert.equal(fieldOf(answer.fields, 'connection'), 'close');
    assert.equal(await client.done(), 'end');
  });

  it('to an Expect that nobody knows is left to the node', async () => {
    const { answer } = await forwarding.exchange(
      `${upload('something-else')}hello`,
      answering((request, connection) => connection.write(ok(fieldOf(request.fields, 'expect') ?? ''))),
    );
    assert.equal(answer.body.toString(), 'something-else');
  });
});

describe('trailers', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  it('of an answer pass, with their announcement', async () => {
    const { client, answer } = await forwarding.exchange(
      'GET /app/x HTTP/1.1\r\nHost: h\r\nTE: trailers\r\nConnection: TE\r\n\r\n',
      answering(
        'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, grpc-status\r\n\r\n' +
          '5\r\nhello\r\n0\r\nX-Sum: abc\r\ngrpc-status: 0\r\nX-Sum: def\r\n\r\n',
      ),
    );
    assert.equal(answer.body.toString(), 'hello');
    assert.equal(fieldOf(answer.fields, 'trailer'), 'X-Sum, grpc-status');
    assert.deepEqual(answer.trailers, [
      ['X-Sum', 'abc'],
      ['grpc-status', '0'],
      ['X-Sum', 'def'],
    ]);
    await isInOrder(forwarding, client);
  });

  it('of a request pass', async () => {
    let trailers: unknown;
    await forwarding.exchange(
      'POST /app/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: abc\r\nx-two: 2\r\n\r\n',
      answering((request, connection) => {
        trailers = request.trailers;
        connection.write(ok());
      }),
    );
    assert.deepEqual(trailers, [
      ['X-Sum', 'abc'],
      ['x-two', '2'],
    ]);
  });

  it('that would change what was said already do not pass, either way', async () => {
    const bad =
      'Host: evil\r\nSet-Cookie: a=b\r\nAuthorization: x\r\nContent-Type: text/html\r\n' +
      'X-Forwarded-For: 6.6.6.6\r\nX-Gateway-Epoch: 9\r\nConnection: close\r\nX-Good: 1\r\n';
    let trailers: unknown;
    const { answer } = await forwarding.exchange(
      `POST /app/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n${bad}\r\n`,
      answering((request, connection) => {
        trailers = request.trailers;
        connection.write(`HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\ny\r\n0\r\n${bad}\r\n`);
      }),
    );
    assert.deepEqual(trailers, [['X-Good', '1']]);
    assert.deepEqual(answer.trailers, [['X-Good', '1']]);
  });

  it('that are announced where there are none disturb nothing, either way', async () => {
    let seen: Message | undefined;
    const { answer } = await forwarding.exchange(
      'POST /app/x HTTP/1.1\r\nHost: h\r\nTrailer: X-Sum\r\nContent-Length: 5\r\n\r\nhello',
      answering((request, connection) => {
        seen = request;
        connection.write(ok('answer', 'Trailer: X-Sum\r\n'));
      }),
    );
    assert.equal(seen?.body.toString(), 'hello');
    assert.equal(answer.body.toString(), 'answer');
    for (const [request, node] of [
      ['GET /app/x HTTP/1.1', 'HTTP/1.1 204 No Content\r\nTrailer: X\r\n\r\n'],
      ['GET /app/x HTTP/1.1', 'HTTP/1.1 304 Not Modified\r\nTrailer: X\r\n\r\n'],
      ['HEAD /app/x HTTP/1.1', 'HTTP/1.1 200 OK\r\nTrailer: X\r\nTransfer-Encoding: chunked\r\n\r\n'],
      ['GET /app/x HTTP/1.0', 'HTTP/1.1 200 OK\r\nTrailer: X\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n'],
      ['DELETE /app/x HTTP/1.1', ok('', 'Trailer: X\r\n')],
    ] as const) {
      const { answer } = await forwarding.exchange(`${request}\r\nHost: h\r\nTrailer: Y\r\n\r\n`, answering(node));
      assert.ok(node.includes(` ${answer.status} `), `${request}: ${answer.startLine}`);
    }
  });

  it('are left out for an HTTP/1.0 client', async () => {
    const { client, answer } = await forwarding.exchange(
      'GET /app/x HTTP/1.0\r\n\r\n',
      answering('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: abc\r\n\r\n'),
    );
    assert.equal(answer.body.toString(), 'hello');
    assert.ok(!Buffer.concat(client.chunks).includes('X-Sum'));
  });
});

describe('a node of another age', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  it('may end its body with its connection, which the client sees as a proper end', async () => {
    for (const version of ['1.0', '1.1']) {
      for (const body of ['', 'some body', 'x'.repeat(300_000)]) {
        const { client, answer } = await forwarding.exchange(GET, async (connection) => {
          await connection.readRequest();
          connection.end(`HTTP/${version} 200 OK\r\nX-A: b\r\n\r\n${body}`);
        });
        assert.equal(answer.body.length, body.length);
        assert.match(answer.startLine, /^HTTP\/1\.1 /);
        if (answer.chunks) await isInOrder(forwarding, client);
      }
    }
  });

  it('may be HTTP/1.0 with a length, and is asked again on a new connection unless it keeps it', async () => {
    for (const [fields, connections] of [
      ['', 2],
      ['Connection: keep-alive\r\n', 1],
    ] as const) {
      forwarding.node.restart(async (connection) => {
        do {
          await connection.readRequest();
          connection.write(`HTTP/1.0 200 OK\r\n${fields}Content-Length: 2\r\n\r\nok`);
        } while (fields !== '');
        connection.end();
      });
      const client = await forwarding.client();
      for (let round = 0; round < 2; round += 1) {
        client.write(GET);
        assert.equal((await client.readAnswer()).body.toString(), 'ok');
      }
      assert.equal(forwarding.node.connections.length, connections, fields);
      await isInOrder(forwarding, client);
    }
  });

  it('may say close after an answer, and the client keeps its connection', async () => {
    const { client } = await forwarding.exchange(GET, async (connection) => {
      await connection.readRequest();
      connection.end(ok('ok', 'Connection: close\r\n'));
    });
    await isInOrder(forwarding, client);
  });
});

describe('an HTTP/1.0 client', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  it('gets no chunks, and the end of its connection as the end of the body', async () => {
    for (const node of [`HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${chunked('hel', 'lo')}`, ok('hello')]) {
      const { client, answer } = await forwarding.exchange('GET /app/x HTTP/1.0\r\nHost: h\r\n\r\n', answering(node));
      assert.equal(answer.chunks, null);
      assert.equal(fieldOf(answer.fields, 'transfer-encoding'), undefined);
      assert.equal(answer.body.toString(), 'hello');
      assert.equal(await client.done(), 'end');
    }
  });

  it('keeps its connection when it asks for that and the length is known', async () => {
    const request = 'GET /app/x HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n';
    const { client, answer } = await forwarding.exchange(request, answering(ok('one')));
    assert.match(fieldOf(answer.fields, 'connection') ?? '', /keep-alive/i);
    client.write(request);
    assert.equal((await client.readAnswer()).body.toString(), 'one');
  });

  it('need not send a Host, and the node gets one', async () => {
    let seen: string[] = [];
    const { answer } = await forwarding.exchange(
      'POST /app/x HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello',
      answering((request, connection) => {
        seen = fieldsOf(request.fields, 'host');
        connection.write(ok(request.body.toString()));
      }),
    );
    assert.equal(answer.body.toString(), 'hello');
    assert.deepEqual(seen, [`127.0.0.1:${forwarding.node.port}`]);
  });

  it('reaches the node as HTTP/1.1', async () => {
    const { answer } = await forwarding.exchange(
      'GET /app/x HTTP/1.0\r\n\r\n',
      answering((request, connection) => connection.write(ok(request.startLine))),
    );
    assert.equal(answer.body.toString(), 'GET /app/x HTTP/1.1');
  });
});
