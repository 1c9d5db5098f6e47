/** The limits and timeouts of the configuration, each with its code, and that what is refused leaves nothing behind. */
import assert from 'node:assert/strict';
import * as net from 'node:net';
import { after, before, describe, it } from 'node:test';
import { Forwarding } from '../support/forwarding.ts';
import { answering, Closed, chunked, fieldOf, ok, type RawConnection } from '../support/raw-http.ts';

const GET = 'GET /app/x HTTP/1.1\r\nHost: h\r\n\r\n';
const post = (framing: string, body = '') => `POST /app/x HTTP/1.1\r\nHost: h\r\n${framing}\r\n\r\n${body}`;

function errorOf(body: Buffer): string {
  return (JSON.parse(body.toString()) as { error: string }).error;
}

describe('limits.body', () => {
  const forwarding = new Forwarding({ config: 'limits: { body: 10KB }' });
  before(() => forwarding.start());
  after(() => forwarding.stop());

  it('refuses a declared length with 413 before anything reaches the node', async () => {
    for (const length of [10_241, 1_000_000, 9_007_199_254_740_991]) {
      forwarding.node.restart(answering(ok()));
      const client = await forwarding.client();
      client.write(post(`Content-Length: ${length}`));
      const answer = await client.readAnswer('POST');
      assert.equal(answer.status, 413);
      assert.equal(errorOf(answer.body), 'body_too_large');
      assert.equal(forwarding.node.connections.length, 0);
      client.socket.destroy();
    }
    await forwarding.serves();
  });

  it('refuses a declared length with 413 though the client asked with Expect', async () => {
    forwarding.node.restart(answering(ok()));
    const client = await forwarding.client();
    client.write(post('Content-Length: 10241\r\nExpect: 100-continue'));
    const answer = await client.readAnswer('POST');
    assert.equal(answer.status, 413);
    assert.deepEqual(answer.interim, []);
  });

  it('refuses chunks with 413 when they have become too many, and the node never has a whole request', async () => {
    const whole: string[] = [];
    forwarding.node.restart(
      answering((request, connection) => {
        whole.push(request.startLine);
        connection.write(ok());
      }),
    );
    const chunk = `3e8\r\n${'x'.repeat(1_000)}\r\n`;
    for (const atOnce of [true, false]) {
      const client = await forwarding.client();
      client.write(post('Transfer-Encoding: chunked'), chunk);
      if (!atOnce) await forwarding.node.connection();
      client.write(`${chunk.repeat(10)}0\r\n\r\n`);
      const answer = await client.readAnswer('POST');
      assert.equal(answer.status, 413);
      assert.equal(errorOf(answer.body), 'body_too_large');
      if (!atOnce) await (await forwarding.node.connection()).done();
      assert.deepEqual(whole, []);
    }
    await forwarding.serves();
  });

  it('lets the answer be read by a client that goes on sending', async () => {
    const client = await forwarding.client();
    client.write(post('Content-Length: 900000'));
    const poured = client.pour(900_000);
    assert.equal((await client.readAnswer('POST')).status, 413);
    client.socket.destroy();
    await poured;
  });

  it('lets through what is just as large', async () => {
    const echo = answering((request, connection) => connection.write(ok(String(request.body.length))));
    const body = 'x'.repeat(10_240);
    for (const request of [
      post(`Content-Length: ${body.length}`, body),
      post('Transfer-Encoding: chunked', chunked(body.slice(0, 5_000), body.slice(5_000))),
    ])
      assert.equal((await forwarding.exchange(request, echo)).answer.body.toString(), '10240');
  });
});

describe('limits.header', () => {
  const forwarding = new Forwarding({ config: 'limits: { header: 4KB }' });
  before(() => forwarding.start());
  after(() => forwarding.stop());

  it('refuses a larger head with 431 and closes, whatever makes it large', async () => {
    for (const fields of [
      `X: ${'y'.repeat(5_000)}`,
      `${'X'.repeat(5_000)}: y`,
      Array.from({ length: 500 }, (_, index) => `X-${index}: value`).join('\r\n'),
      `Cookie: ${'a=b; '.repeat(1_500)}`,
      `X: ${'y'.repeat(300_000)}`,
    ]) {
      const answer = await forwarding.refuses(
        `GET /app/x HTTP/1.1\r\nHost: h\r\n${fields}\r\n\r\n`,
        431,
        fields.slice(0, 20),
      );
      assert.equal(errorOf(answer.body), 'header_too_large');
      assert.equal(fieldOf(answer.fields, 'connection'), 'close');
    }
  });

  it('refuses a head that never ends with 431', async () => {
    forwarding.node.restart(answering(ok()));
    const client = await forwarding.client();
    client.write('GET /app/x HTTP/1.1\r\nHost: h\r\n');
    for (let index = 0; index < 2_000 && client.over === null && client.receivedBytes === 0; index += 1) {
      client.write(`X-${index}: y\r\n`);
      if (index % 50 === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    assert.equal((await client.readAnswer()).status, 431);
    await client.done();
  });

  it('refuses trailers that are larger', async () => {
    forwarding.node.restart(answering(ok()));
    const client = await forwarding.client();
    client.write(post('Transfer-Encoding: chunked', `1\r\nx\r\n0\r\nX: ${'y'.repeat(10_000)}\r\n\r\n`));
    assert.equal((await client.readAnswer('POST')).status, 431);
    await client.done();
    await forwarding.serves();
  });

  it('lets hundreds of fields through that fit', async () => {
    const fields = Array.from({ length: 400 }, (_, index) => `X-${index}: y`);
    let seen = 0;
    const { answer } = await forwarding.exchange(
      `GET /app/x HTTP/1.1\r\nHost: h\r\n${fields.join('\r\n')}\r\n\r\n`,
      answering((request, connection) => {
        seen = request.fields.filter(([name]) => /^X-\d+$/.test(name)).length;
        connection.write(ok());
      }),
    );
    assert.equal(answer.status, 200);
    assert.equal(seen, 400);
  });

  it('does not hold for answers, which are refused with 502 only when they are huge', async () => {
    const large = await forwarding.exchange(GET, answering(ok('ok', `X-Large: ${'y'.repeat(100_000)}\r\n`)));
    assert.equal(fieldOf(large.answer.fields, 'x-large')?.length, 100_000);
    const many = await forwarding.exchange(GET, answering(ok('ok', 'X-Many: y\r\n'.repeat(5_000))));
    assert.equal(many.answer.fields.filter(([name]) => name === 'X-Many').length, 5_000);
    for (const fields of [`X: ${'y'.repeat(400_000)}\r\n`, 'X-Many: y\r\n'.repeat(40_000)]) {
      const { answer } = await forwarding.exchange(GET, answering(ok('ok', fields)));
      assert.equal(answer.status, 502);
      assert.match(errorOf(answer.body), /^node_(bad_response|broke_off)$/);
    }
    await forwarding.serves();
  });
});

describe('a head of very many fields', () => {
  const forwarding = new Forwarding({ config: 'limits: { header: 256KB }' });
  before(() => forwarding.start());
  after(() => forwarding.stop());

  it('passes with all of them or is refused, and never with some', async () => {
    for (const count of [999, 1_000, 1_001, 2_001, 9_000]) {
      const fields = Array.from({ length: count }, (_, index) => `X-${index}: y\r\n`).join('');
      let seen = 0;
      const { answer } = await forwarding.exchange(
        `POST /app/x HTTP/1.1\r\nHost: h\r\n${fields}Content-Length: 5\r\nX-Last: 1\r\n\r\nhello`,
        answering((request, connection) => {
          seen = request.fields.filter(([name]) => /^X-\d+$/.test(name)).length;
          connection.write(ok(`${request.body.toString()} ${fieldOf(request.fields, 'x-last')}`));
        }),
      );
      assert.equal(answer.body.toString(), 'hello 1', String(count));
      assert.equal(seen, count);
    }
  });
});

describe('timeouts', () => {
  const forwarding = new Forwarding({
    config: 'timeouts: { requestHead: 1s, response: 400ms, idle: 400ms, keepAlive: 1s, connect: 500ms }',
  });
  before(() => forwarding.start());
  after(() => forwarding.stop());

  it('requestHead: a head that does not come in time is 408 and the connection closed', async () => {
    forwarding.node.restart(answering(ok()));
    const slow = async (part: string) => {
      const client = await forwarding.client();
      client.write(part);
      const answer = await client.readAnswer();
      assert.equal(answer.status, 408);
      assert.equal(errorOf(answer.body), 'request_timeout');
      await client.done();
    };
    const head = 'GET /app/x HTTP/1.1\r\nHost: h\r\n';
    await Promise.all(['G', head, `${head}X: `, `${head}X: y\r\n\r`].map(slow));
    assert.equal(forwarding.node.connections.length, 0);
  });

  it('requestHead: a head that drips in byte by byte is not spared', async () => {
    const client = await forwarding.client();
    client.write('GET /app/x HTTP/1.1\r\nHost: h\r\n');
    const drip = setInterval(() => client.write('X: y\r\n'), 100);
    try {
      assert.equal((await client.readAnswer()).status, 408);
      await client.done();
    } finally {
      clearInterval(drip);
    }
  });

  it("idle: a body that stops coming is 408, and the node's request is ended", async () => {
    for (const request of [
      post('Content-Length: 10', '12345'),
      post('Content-Length: 10'),
      post('Transfer-Encoding: chunked', '5\r\nhello\r\n'),
      post('Transfer-Encoding: chunked', '5\r\nhello\r\n0\r\n'),
    ]) {
      forwarding.node.restart(async (connection) => void (await connection.readRequest()));
      const client = await forwarding.client();
      client.write(request);
      const answer = await client.readAnswer('POST');
      assert.equal(answer.status, 408, JSON.stringify(request));
      assert.equal(errorOf(answer.body), 'request_timeout');
      await (await forwarding.node.connection()).done();
      client.socket.destroy();
      await forwarding.serves();
    }
  });

  it('idle: a body that comes slowly but does come is served', async () => {
    forwarding.node.restart(answering((request, connection) => connection.write(ok(request.body.toString()))));
    const client = await forwarding.client();
    client.write(post('Content-Length: 5'));
    for (const byte of 'hello') {
      await new Promise((resolve) => setTimeout(resolve, 120));
      client.write(byte);
    }
    assert.equal((await client.readAnswer('POST')).body.toString(), 'hello');
  });

  it("idle: a node that stops in the middle of its answer breaks the client's", async () => {
    for (const head of [
      'Content-Length: 10\r\n\r\n12345',
      'Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n',
      'Content-Length: 10\r\n\r\n',
    ]) {
      for (const version of ['1.1', '1.0']) {
        forwarding.node.restart(answering(`HTTP/1.1 200 OK\r\n${head}`));
        const client = await forwarding.client();
        client.write(`GET /app/x HTTP/${version}\r\nHost: h\r\n\r\n`);
        await assert.rejects(client.readAnswer(), Closed);
        await (await forwarding.node.connection()).done();
      }
    }
    await forwarding.serves();
  });

  it('response: a node that accepted and stays silent is 504, with and without a body, fresh and kept connections', async () => {
    for (const request of [
      GET,
      post('Content-Length: 5', 'hello'),
      post('Transfer-Encoding: chunked', chunked('hello')),
    ]) {
      for (const kept of [false, true]) {
        forwarding.node.restart(async (connection) => {
          if (kept) {
            await connection.readRequest();
            connection.write(ok());
          }
          await connection.readRequest();
        });
        const client = await forwarding.client();
        if (kept) {
          client.write(GET);
          await client.readAnswer();
        }
        client.write(request);
        const answer = await client.readAnswer();
        assert.equal(answer.status, 504);
        assert.equal(errorOf(answer.body), 'node_timeout');
        assert.equal(forwarding.node.connections.length, 1, 'nothing was sent twice');
        await forwarding.node.connections[0]?.done();
      }
    }
    await forwarding.serves();
  });

  it('response: half a head is no answer', async () => {
    const { answer } = await forwarding.exchange(GET, async (connection) => {
      await connection.readRequest();
      connection.write('HTTP/1.1 200 OK\r\nContent-');
    });
    assert.equal(answer.status, 504);
  });

  it('response: is counted from the last byte of the request, and a node may take longer to say 1xx and again to answer', async () => {
    const { answer } = await forwarding.exchange(GET, async (connection) => {
      await connection.readRequest();
      for (let round = 0; round < 3; round += 1) {
        await new Promise((resolve) => setTimeout(resolve, 200));
        connection.write('HTTP/1.1 102 Processing\r\n\r\n');
      }
      connection.write(ok('slow'));
    });
    assert.equal(answer.body.toString(), 'slow');
    assert.equal(answer.interim.length, 3);
  });

  it('response: is counted for each request, whichever of those that came with it have been answered', async () => {
    forwarding.node.restart(
      answering((request, connection) => {
        if (request.startLine.includes('/quick')) connection.write(ok());
      }),
    );
    const places = ['quick', 'stuck', 'quick', 'stuck', 'stuck', 'quick'];
    const statuses = await Promise.all(
      places.map(async (place) => {
        const client = await forwarding.client();
        client.write(`GET /app/${place} HTTP/1.1\r\nHost: h\r\n\r\n`);
        return (await client.readAnswer()).status;
      }),
    );
    assert.deepEqual(statuses, [200, 504, 200, 504, 504, 200]);
  });

  it('keepAlive: an idle client is disconnected, with nothing said', async () => {
    const { client } = await forwarding.exchange(GET, answering(ok()));
    assert.equal(await client.done(), 'end');
    assert.equal(client.unread, '');
  });
});

describe('a node that cannot be reached', () => {
  it('is 502 node_unreachable when it refuses, and served again when it is back', async () => {
    const forwarding = new Forwarding();
    await forwarding.start();
    try {
      const { port } = forwarding.node;
      await forwarding.node.stop();
      for (const request of [
        GET,
        post('Content-Length: 5', 'hello'),
        post('Transfer-Encoding: chunked', chunked('hello')),
      ]) {
        const { answer } = await forwarding.exchange(request);
        assert.equal(answer.status, 502);
        assert.equal(errorOf(answer.body), 'node_unreachable');
        assert.ok(!answer.body.includes(String(port)));
      }
      await forwarding.node.start(port);
      await forwarding.serves();
    } finally {
      await forwarding.stop();
    }
  });

  it('is 502 node_unreachable when it does not take the connection in time', async () => {
    // A full accept queue drops the handshake, as a host that is gone would.
    const full = await fullAcceptQueue();
    const forwarding = new Forwarding({
      config: 'timeouts: { connect: 300ms }',
      service: `    loginPath: null`,
    });
    forwarding.node.stop = async () => undefined;
    Object.defineProperty(forwarding.node, 'start', { value: async () => forwarding.node });
    Object.defineProperty(forwarding.node, 'baseUrl', { value: `http://127.0.0.1:${full.port}` });
    try {
      await forwarding.start();
      const { answer } = await forwarding.exchange(GET);
      assert.equal(answer.status, 502);
      assert.equal(errorOf(answer.body), 'node_unreachable');
    } finally {
      await forwarding.stop();
      await full.close();
    }
  });
});

/** A listening port on which no handshake completes. */
async function fullAcceptQueue(): Promise<{ port: number; close(): Promise<void> }> {
  const { spawn } = await import('node:child_process');
  const code =
    "const s=require('net').createServer();s.listen({port:0,host:'127.0.0.1',backlog:1},()=>{" +
    "process.stdout.write(String(s.address().port)+'\\n');setTimeout(()=>{for(;;);},50)})";
  const child = spawn(process.execPath, ['-e', code], { stdio: ['ignore', 'pipe', 'inherit'] });
  const port = await new Promise<number>((resolve) =>
    child.stdout.once('data', (text: Buffer) => resolve(Number(text))),
  );
  await new Promise((resolve) => setTimeout(resolve, 100));
  const held = Array.from({ length: 8 }, () => net.connect(port, '127.0.0.1').on('error', () => undefined));
  await new Promise((resolve) => setTimeout(resolve, 100));
  return {
    port,
    async close() {
      for (const socket of held) socket.destroy();
      const gone = new Promise((resolve) => child.once('exit', resolve));
      child.kill('SIGKILL');
      await gone;
    },
  };
}

describe('limits.connectionsPerNode', () => {
  const forwarding = new Forwarding({ config: 'limits: { connectionsPerNode: 2 }' });
  before(() => forwarding.start());
  after(() => forwarding.stop());

  it('is 503 overloaded beyond, and places are free again after answers, aborts and errors alike', async () => {
    const waiting: RawConnection[] = [];
    for (let round = 0; round < 4; round += 1) {
      waiting.length = 0;
      let arrived: () => void = () => undefined;
      const two = new Promise<void>((resolve) => {
        arrived = resolve;
      });
      forwarding.node.restart(async (connection) => {
        await connection.readRequest();
        waiting.push(connection);
        if (waiting.length === 2) arrived();
      });
      const clients = [await forwarding.client(), await forwarding.client()];
      for (const client of clients) client.write(GET);
      await two;
      const third = await forwarding.client();
      third.write(GET);
      const refusal = await third.readAnswer();
      assert.equal(refusal.status, 503);
      assert.equal(errorOf(refusal.body), 'overloaded');
      assert.ok(fieldOf(refusal.fields, 'retry-after'));
      if (round === 0) for (const connection of waiting) connection.write(ok());
      if (round === 1) for (const client of clients) client.reset();
      if (round === 2) for (const connection of waiting) connection.reset();
      if (round === 3) for (const connection of waiting) connection.end('nonsense\r\n\r\n');
      if (round === 1) for (const connection of waiting) await connection.done();
      else for (const client of clients) await client.readAnswer();
    }
    await forwarding.serves();
  });
});
