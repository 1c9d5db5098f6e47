/** Slow readers hold the sender back: what does not flow on is not read, so the gateway's memory stays bounded. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { Forwarding } from '../support/forwarding.ts';
import { ok, type RawConnection } from '../support/raw-http.ts';

const TOTAL = 200_000_000;
/** What kernel buffers of four sockets and the streams' own may hold, with room. */
const HELD_AT_MOST = 40_000_000;

/** Bytes handed to the socket and taken by the kernel. */
function takenFrom(connection: RawConnection): number {
  return connection.socket.bytesWritten - connection.socket.writableLength;
}

/** Waits until no more flows. */
async function standstill(connection: RawConnection): Promise<number> {
  for (let before = -1; ; ) {
    const taken = takenFrom(connection);
    if (taken === before && taken > 0) return taken;
    before = taken;
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
}

describe('a reader that does not read', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  for (const framing of ['Content-Length', 'chunked', 'the end of the connection'] as const) {
    it(`holds back a node that writes 200 MB, framed by ${framing}, and has it all when it reads`, async () => {
      let sender: RawConnection | undefined;
      forwarding.node.restart(async (connection) => {
        sender = connection;
        await connection.readRequest();
        if (framing === 'Content-Length') connection.write(`HTTP/1.1 200 OK\r\nContent-Length: ${TOTAL}\r\n\r\n`);
        else if (framing === 'chunked')
          connection.write(`HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${TOTAL.toString(16)}\r\n`);
        else connection.write('HTTP/1.0 200 OK\r\n\r\n');
        await connection.pour(TOTAL);
        if (framing === 'chunked') connection.write('\r\n0\r\n\r\n');
        if (framing === 'the end of the connection') connection.end();
      });
      const client = await forwarding.client();
      client.discards = true;
      client.socket.pause();
      client.write('GET /app/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n');
      await forwarding.node.connection();
      const rss = process.memoryUsage.rss();
      const taken = await standstill(sender as RawConnection);
      assert.ok(taken < HELD_AT_MOST, `${taken} bytes were taken from the node`);
      assert.ok(process.memoryUsage.rss() - rss < HELD_AT_MOST, 'memory stays');
      client.socket.resume();
      assert.equal(await client.done(30_000), 'end');
      assert.ok(client.receivedBytes > TOTAL, `${client.receivedBytes} bytes arrived`);
      await forwarding.serves();
    });
  }

  it("that leaves ends the node's request though it was held back", async () => {
    forwarding.node.restart(async (connection) => {
      await connection.readRequest();
      connection.write(`HTTP/1.1 200 OK\r\nContent-Length: ${TOTAL}\r\n\r\n`);
      await connection.pour(TOTAL);
    });
    const client = await forwarding.client();
    client.socket.pause();
    client.write('GET /app/x HTTP/1.1\r\nHost: h\r\n\r\n');
    const sender = await forwarding.node.connection();
    await standstill(sender);
    client.reset();
    await sender.done();
  });

  for (const framing of ['Content-Length', 'chunked'] as const) {
    it(`holds back a client that uploads 200 MB, framed by ${framing}, and the node has it all when it reads`, async () => {
      let release: () => void = () => undefined;
      const gate = new Promise<void>((resolve) => {
        release = resolve;
      });
      forwarding.node.restart(async (connection) => {
        connection.socket.pause();
        connection.discards = true;
        await gate;
        connection.socket.resume();
        await connection.until('the body', () => connection.receivedBytes >= TOTAL, 30_000);
        connection.write(ok('all of it', 'Connection: close\r\n'));
      });
      const client = await forwarding.client();
      const fields = framing === 'chunked' ? 'Transfer-Encoding: chunked' : `Content-Length: ${TOTAL}`;
      client.write(`POST /app/x HTTP/1.1\r\nHost: h\r\n${fields}\r\n\r\n`);
      if (framing === 'chunked') client.write(`${TOTAL.toString(16)}\r\n`);
      const rss = process.memoryUsage.rss();
      const poured = client.pour(TOTAL);
      await forwarding.node.connection();
      const taken = await standstill(client);
      assert.ok(taken < HELD_AT_MOST, `${taken} bytes were taken from the client`);
      assert.ok(process.memoryUsage.rss() - rss < HELD_AT_MOST, 'memory stays');
      release();
      await poured;
      if (framing === 'chunked') client.write('\r\n0\r\n\r\n');
      assert.equal((await client.readAnswer('POST')).body.toString(), 'all of it');
    });
  }
});
