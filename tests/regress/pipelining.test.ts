/** Several requests on one connection, and several connections: each client gets its own answers in its own order. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { Forwarding } from '../support/forwarding.ts';
import { answering, chunked, ok, type RawConnection } from '../support/raw-http.ts';

const get = (path: string) => `GET /app/${path} HTTP/1.1\r\nHost: h\r\n\r\n`;

describe('requests on one connection', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  it('are answered in their order though the node answers in another', async () => {
    const waiting = new Map<string, RawConnection>();
    let all: () => void = () => undefined;
    const arrived = new Promise<void>((resolve) => {
      all = resolve;
    });
    forwarding.node.restart(async (connection) => {
      const path = (await connection.readRequest()).startLine.split(' ')[1] ?? '';
      waiting.set(path, connection);
      if (waiting.size === 5) all();
    });
    const client = await forwarding.client();
    client.write([1, 2, 3, 4, 5].map((index) => get(String(index))).join(''));
    await arrived;
    for (const [path, connection] of [...waiting].reverse()) connection.write(ok(path));
    for (const index of [1, 2, 3, 4, 5]) assert.equal((await client.readAnswer()).body.toString(), `/app/${index}`);
    assert.equal(client.unread, '');
  });

  it('may have bodies of any framing between them', async () => {
    forwarding.node.restart(
      answering((request, connection) =>
        connection.write(ok(`${request.startLine.split(' ')[1]} ${request.body.toString()}`)),
      ),
    );
    const client = await forwarding.client();
    client.write(
      `POST /app/1 HTTP/1.1\r\nHost: h\r\nContent-Length: ${get('x').length}\r\n\r\n${get('x')}` +
        get('2') +
        `POST /app/3 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n${chunked('a', 'bc')}` +
        `PUT /app/4 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n${get('5')}`,
    );
    for (const expected of [`/app/1 ${get('x')}`, '/app/2 ', '/app/3 abc', '/app/4 ', '/app/5 '])
      assert.equal((await client.readAnswer()).body.toString(), expected);
  });

  it('get the errors of the gateway in their turn', async () => {
    forwarding.node.restart(answering((request, connection) => connection.write(ok(request.startLine))));
    const client = await forwarding.client();
    client.write(
      `${get('1')}GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n${get('2')}GET /app/../x HTTP/1.1\r\nHost: h\r\n\r\n${get('3')}`,
    );
    const statuses: number[] = [];
    for (let index = 0; index < 5; index += 1) statuses.push((await client.readAnswer()).status);
    assert.deepEqual(statuses, [200, 404, 200, 400, 200]);
  });

  it('that follow one whose answer broke off are not answered by its remains', async () => {
    forwarding.node.restart(async (connection) => {
      const { startLine } = await connection.readRequest();
      if (startLine.includes('/app/1')) {
        connection.write('HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart');
        await client.until('the part', () => client.unread.includes('part'));
        connection.reset();
      } else connection.write(ok('second'));
    });
    const client = await forwarding.client();
    client.write(get('1') + get('2'));
    await client.done();
    assert.ok(client.unread.endsWith('part'), client.unread);
  });

  it('end with the one that says close', async () => {
    forwarding.node.restart(answering((request, connection) => connection.write(ok(request.startLine))));
    const client = await forwarding.client();
    client.write(`GET /app/1 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n${get('2')}`);
    assert.match((await client.readAnswer()).body.toString(), /\/app\/1/);
    assert.equal(await client.done(), 'end');
    assert.equal(client.unread, '');
  });

  it("may come with the client's FIN behind them, and are answered", async () => {
    forwarding.node.restart(answering((request, connection) => connection.write(ok(request.startLine.split(' ')[1]))));
    const client = await forwarding.client();
    client.end(get('1') + get('2'));
    try {
      assert.equal((await client.readAnswer()).body.toString(), '/app/1');
      assert.equal((await client.readAnswer()).body.toString(), '/app/2');
    } catch {
      // A client that closed its side may have left altogether: ending its requests is right, too.
      await client.done();
    }
  });
});

describe('requests on many connections', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  it('get their own answers, also while others break off and leave', async () => {
    forwarding.node.restart(
      answering((request, connection) => {
        const nonce = /n=(\w+)/.exec(request.startLine)?.[1] ?? '';
        if (request.startLine.includes('/break')) connection.end('HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort');
        else connection.write(ok(nonce));
      }),
    );
    const oneClient = async (number: number) => {
      for (let round = 0; round < 8; round += 1) {
        const client = await forwarding.client();
        if (number % 5 === 0) {
          client.write(get('gone'));
          client.reset();
        } else if (number % 5 === 1) {
          client.write(get('break'));
          await client.done();
        } else {
          for (let request = 0; request < 3; request += 1) {
            const nonce = `c${number}r${round}q${request}`;
            client.write(get(`x?n=${nonce}`));
            assert.equal((await client.readAnswer()).body.toString(), nonce);
          }
        }
        client.socket.destroy();
      }
    };
    await Promise.all(Array.from({ length: 25 }, (_, number) => oneClient(number)));
    assert.deepEqual(forwarding.node.faults, []);
  });
});
