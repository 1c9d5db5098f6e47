/** Bodies stream: events arrive one by one, large bodies arrive whole, and either side's leaving ends the other's part. */
import assert from 'node:assert/strict';
import { createHash, type Hash } from 'node:crypto';
import { after, before, describe, it } from 'node:test';
import { Forwarding } from '../support/forwarding.ts';
import { answering, Closed, fieldOf, ok, type RawConnection } from '../support/raw-http.ts';
import { waitUntil } from '../support/wait-until.ts';

const GET = 'GET /app/x HTTP/1.1\r\nHost: h\r\n\r\n';
const TOTAL = 64 * 1_048_576;

describe('a stream', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  async function nothingInFlight(): Promise<void> {
    await waitUntil('no exchange under way', () => forwarding.gateway.gateway.parts.forwarder.inFlight === 0);
  }

  it('of server-sent events passes each one before the next is written', async () => {
    for (const framing of ['chunked', 'the end of the connection'] as const) {
      let next: () => void = () => undefined;
      let received = Promise.resolve();
      forwarding.node.restart(async (connection) => {
        await connection.readRequest();
        const chunks = framing === 'chunked';
        connection.write(
          `HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n${chunks ? 'Transfer-Encoding: chunked' : 'Connection: close'}\r\n\r\n`,
        );
        for (let index = 0; index < 50; index += 1) {
          received = new Promise((resolve) => {
            next = resolve;
          });
          const event = `id: ${index}\ndata: event ${index}\n\n`;
          connection.write(chunks ? `${event.length.toString(16)}\r\n${event}\r\n` : event);
          await received;
        }
        if (chunks) connection.write('0\r\n\r\n');
        else connection.end();
      });
      const client = await forwarding.client();
      client.write(GET);
      const head = await client.readHead();
      assert.equal(fieldOf(head.fields, 'content-type'), 'text/event-stream');
      for (let index = 0; index < 50; index += 1) {
        await client.takeUntil(`data: event ${index}\n\n`);
        next();
      }
      await client.takeUntil('0\r\n\r\n');
      assert.deepEqual(forwarding.node.faults, []);
    }
  });

  it('has its head at the client before a byte of its body was written', async () => {
    for (const framing of ['Content-Length: 4', 'Transfer-Encoding: chunked']) {
      let go: () => void = () => undefined;
      const gate = new Promise<void>((resolve) => {
        go = resolve;
      });
      forwarding.node.restart(async (connection) => {
        await connection.readRequest();
        connection.write(`HTTP/1.1 200 OK\r\n${framing}\r\n\r\n`);
        await gate;
        connection.write(framing.includes('chunked') ? '4\r\nbody\r\n0\r\n\r\n' : 'body');
      });
      const client = await forwarding.client();
      client.write(GET);
      const head = await client.readHead();
      go();
      assert.equal((await client.readBody(head, 'response')).body.toString(), 'body');
    }
  });

  it('of a request reaches the node piece by piece, and the answer comes while it goes on', async () => {
    for (const framing of ['Content-Length: 30', 'Transfer-Encoding: chunked']) {
      const chunks = framing.includes('chunked');
      forwarding.node.restart(async (connection) => {
        await connection.readHead();
        connection.write('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n');
        for (let index = 0; index < 10; index += 1) {
          await connection.takeUntil(`p${index};`);
          connection.write(`3\r\ne${index};\r\n`);
        }
        if (chunks) await connection.takeUntil('0\r\n\r\n');
        connection.write('0\r\n\r\n');
      });
      const client = await forwarding.client();
      client.write(`POST /app/x HTTP/1.1\r\nHost: h\r\n${framing}\r\n\r\n`);
      await client.readHead();
      for (let index = 0; index < 10; index += 1) {
        client.write(chunks ? `3\r\np${index};\r\n` : `p${index};`);
        await client.takeUntil(`e${index};`);
      }
      if (chunks) client.write('0\r\n\r\n');
      await client.takeUntil('0\r\n\r\n');
      assert.deepEqual(forwarding.node.faults, []);
      await nothingInFlight();
    }
  });

  /** Sends 64 MB that differ everywhere, in pieces of odd sizes; returns their hash. */
  async function send(to: RawConnection, chunks: boolean): Promise<string> {
    const hash = createHash('sha256');
    const source = Buffer.alloc(200_000);
    for (let index = 0; index < source.length; index += 1) source[index] = (index * 31 + (index >> 8)) & 0xff;
    let sent = 0;
    for (let round = 0; sent < TOTAL; round += 1) {
      const size = Math.min(TOTAL - sent, 1 + ((round * 7_919) % 150_000));
      const start = (round * 13) % 1_000;
      const part = source.subarray(start, start + size);
      hash.update(part);
      sent += part.length;
      if (chunks) to.write(`${part.length.toString(16)}\r\n`);
      await to.pour(part.length, part);
      if (chunks) to.write('\r\n');
    }
    if (chunks) to.write('0\r\n\r\n');
    return hash.digest('hex');
  }

  /** Takes a body off the connection piece by piece; returns its hash. */
  async function receive(from: RawConnection, chunks: boolean): Promise<string> {
    const hash = createHash('sha256');
    let received = 0;
    const takeAll = async (bytes: number, into: Hash) => {
      for (let left = bytes; left > 0; ) {
        await from.until('more', () => from.unread !== '');
        const part = await from.take(Math.min(left, from.unread.length));
        into.update(part);
        left -= part.length;
        received += part.length;
        from.chunks.length = 0;
      }
    };
    if (!chunks) await takeAll(TOTAL, hash);
    else {
      for (;;) {
        const size = Number.parseInt(await from.takeUntil('\r\n'), 16);
        if (size === 0) break;
        await takeAll(size, hash);
        await from.takeUntil('\r\n');
      }
      await from.takeUntil('\r\n');
    }
    assert.equal(received, TOTAL);
    return hash.digest('hex');
  }

  for (const framing of ['Content-Length', 'chunked'] as const) {
    const chunks = framing === 'chunked';
    const field = chunks ? 'Transfer-Encoding: chunked' : `Content-Length: ${TOTAL}`;

    it(`of 64 MB arrives byte for byte at the client: ${framing}`, async () => {
      let sent = '';
      forwarding.node.restart(async (connection) => {
        await connection.readRequest();
        connection.write(`HTTP/1.1 200 OK\r\n${field}\r\n\r\n`);
        sent = await send(connection, chunks);
      });
      const client = await forwarding.client();
      client.write(GET);
      await client.readHead();
      const received = await receive(client, chunks);
      assert.equal(received, sent);
    });

    it(`of 64 MB arrives byte for byte at the node: ${framing}`, async () => {
      let received = '';
      forwarding.node.restart(async (connection) => {
        await connection.readHead();
        received = await receive(connection, chunks);
        connection.write(ok());
      });
      const client = await forwarding.client();
      client.write(`POST /app/x HTTP/1.1\r\nHost: h\r\n${field}\r\n\r\n`);
      const sent = await send(client, chunks);
      assert.equal((await client.readAnswer('POST')).status, 200);
      assert.equal(received, sent);
    });
  }

  it('ends at the node when the client leaves, in every phase', async () => {
    const head = 'POST /app/x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n';
    const phases: Record<string, readonly [request: string, answer: string]> = {
      'in the middle of its body': [`${head}12345`, ''],
      'before its body': [head, ''],
      'in the middle of its chunks': [
        'POST /app/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n',
        '',
      ],
      'before the answer': [GET, ''],
      'before the answer to its body': [`${head}1234567890`, ''],
      'after 1xx': [GET, 'HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n'],
      'after the head': [GET, 'HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n'],
      'in the middle of the answer': [GET, 'HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345'],
      'in the middle of the chunks': [GET, 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n'],
      'in the middle of both bodies': [`${head}12345`, 'HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345'],
    };
    for (const [phase, [request, answer]] of Object.entries(phases)) {
      for (const how of ['reset', 'end'] as const) {
        for (const kept of [false, true]) {
          forwarding.node.restart(async (connection) => {
            if (kept) {
              await connection.readRequest();
              connection.write(ok());
            }
            await connection.readHead();
            connection.write(answer);
          });
          const client = await forwarding.client();
          if (kept) {
            client.write(GET);
            await client.readAnswer();
          }
          const before = client.receivedBytes;
          client.write(request);
          const node = await forwarding.node.connection();
          const line = request.slice(0, request.indexOf('\r\n'));
          await node.until(
            'the request',
            () => Buffer.concat(node.chunks).toString().split(line).length > (kept && line.startsWith('GET') ? 2 : 1),
          );
          if (answer !== '') await client.until('the answer', () => client.receivedBytes > before);
          client[how]();
          await node.done().catch((error: unknown) => {
            throw new Error(`${phase}, ${how}, ${kept ? 'kept' : 'fresh'}: ${String(error)}`);
          });
          assert.equal(forwarding.node.connections.length, 1, 'nothing was sent again');
        }
      }
    }
    await nothingInFlight();
    await forwarding.serves();
  });

  it("of one client that leaves does not touch another's", async () => {
    let go: () => void = () => undefined;
    const gate = new Promise<void>((resolve) => {
      go = resolve;
    });
    forwarding.node.restart(
      answering(async (request, connection) => {
        connection.write('HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\none');
        await gate;
        connection.write(request.startLine.includes('stay') ? 'two' : 'bad');
      }),
    );
    const leaver = await forwarding.client();
    const stayer = await forwarding.client();
    leaver.write('GET /app/leave HTTP/1.1\r\nHost: h\r\n\r\n');
    stayer.write('GET /app/stay HTTP/1.1\r\nHost: h\r\n\r\n');
    await Promise.all([leaver.takeUntil('one'), stayer.takeUntil('one')]);
    leaver.reset();
    go();
    await stayer.takeUntil('two');
    await nothingInFlight();
  });

  it('ends at the client when the node leaves, in every phase: with an error before the head, broken off after', async () => {
    const upload = 'POST /app/x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n12345';
    const phases: Record<string, readonly [request: string, answer: string]> = {
      'before the body was sent': [upload, ''],
      'before the head': [GET, ''],
      'after 1xx': [GET, 'HTTP/1.1 102 Processing\r\n\r\n'],
      'after the head': [GET, 'HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n'],
      'in the middle': [GET, 'HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345'],
      'in the middle of both bodies': [upload, 'HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345'],
      'in the middle of the chunks': [GET, 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n'],
    };
    for (const [phase, [request, answer]] of Object.entries(phases)) {
      for (const how of ['reset', 'end'] as const) {
        let client: RawConnection | undefined;
        forwarding.node.restart(async (connection) => {
          await connection.readHead();
          connection.write(answer);
          if (answer !== '') await client?.until('the answer', () => client?.receivedBytes !== 0);
          connection[how]();
        });
        client = await forwarding.client();
        client.write(request);
        if (answer.includes(' 200 ')) await assert.rejects(client.readAnswer('POST'), Closed, `${phase}, ${how}`);
        else assert.equal((await client.readAnswer('POST')).status, 502, `${phase}, ${how}`);
        client.socket.destroy();
      }
    }
    await nothingInFlight();
    await forwarding.serves();
  });
});
