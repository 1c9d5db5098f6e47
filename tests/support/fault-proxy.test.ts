/** The proxy that other tests fail stores with does what it says, fault by fault. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import * as net from 'node:net';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import { FaultProxy } from './fault-proxy.ts';
import { waitUntil } from './wait-until.ts';

/** A client that keeps what it gets and how it ended. */
class Client {
  received = '';
  ended: 'fin' | 'reset' | 'refused' | undefined;
  connected = false;
  readonly socket: net.Socket;

  constructor(port: number) {
    this.socket = net.connect({ host: '127.0.0.1', port, allowHalfOpen: true });
    this.socket.on('connect', () => {
      this.connected = true;
    });
    this.socket.setEncoding('latin1').on('data', (text: string) => {
      this.received += text;
    });
    this.socket.on('end', () => {
      this.ended ??= 'fin';
    });
    this.socket.on('error', (error: NodeJS.ErrnoException) => {
      this.ended ??= error.code === 'ECONNREFUSED' ? 'refused' : 'reset';
    });
  }

  /** Sends and waits for the echo. */
  async echo(text: string): Promise<void> {
    const wanted = this.received + text;
    this.socket.write(text);
    await waitUntil(`the echo of ${text}`, () => this.received === wanted);
  }

  end(): Promise<string> {
    return waitUntil('the end', () => this.ended);
  }
}

describe('a fault proxy', () => {
  const clients: Client[] = [];
  const servers: net.Socket[] = [];
  let server: net.Server;
  let proxy: FaultProxy;

  before(async () => {
    server = net.createServer({ allowHalfOpen: true }, (socket) => {
      servers.push(socket);
      socket.on('error', () => undefined);
      socket.on('data', (chunk) => socket.write(chunk));
      socket.on('end', () => socket.end());
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
  });
  after(() => {
    server.close();
  });
  beforeEach(async () => {
    servers.length = 0;
    proxy = await FaultProxy.open((server.address() as net.AddressInfo).port);
  });
  afterEach(async () => {
    for (const client of clients.splice(0)) client.socket.destroy();
    await proxy.close();
  });

  function open(): Client {
    const client = new Client(proxy.port);
    clients.push(client);
    return client;
  }

  async function working(): Promise<Client> {
    const client = open();
    await client.echo('hello');
    return client;
  }

  /** Sends on each; nothing of it may come back although another connection is served in between. */
  async function assertSilent(silent: readonly Client[]): Promise<void> {
    const before = silent.map((client) => client.received);
    const receivedBefore = proxy.received;
    for (const client of silent) client.socket.write('lost');
    await waitUntil('the bytes at the proxy', () => proxy.received >= receivedBefore + silent.length);
    // Two ways through the loop and the kernel, and as many for the echo that must not come.
    const witness = net.createServer((socket) => socket.pipe(socket));
    witness.listen(0, '127.0.0.1');
    await once(witness, 'listening');
    const other = new Client((witness.address() as net.AddressInfo).port);
    for (let turn = 0; turn < 5; turn += 1) await other.echo(`turn ${turn}`);
    other.socket.destroy();
    witness.close();
    assert.deepEqual(
      silent.map((client) => client.received),
      before,
    );
    assert.deepEqual(
      silent.map((client) => client.ended),
      silent.map(() => undefined),
    );
  }

  it('passes bytes and ends both ways, and counts', async () => {
    const client = await working();
    await client.echo('again');
    assert.deepEqual([proxy.accepted, proxy.received, proxy.open], [1, 2, 1]);
    client.socket.end('bye');
    assert.equal(await client.end(), 'fin');
    assert.equal(client.received, 'helloagainbye', 'what was sent before the end arrives before it');
    const second = await working();
    assert.equal(proxy.accepted, 2);
    servers.at(-1)?.resetAndDestroy();
    assert.equal(await second.end(), 'reset');
    await waitUntil('nothing to be open', () => proxy.open === 0);
  });

  it('delays each chunk by so much, in order', async () => {
    const client = await working();
    proxy.delayMs = 30;
    const startedMs = performance.now();
    client.socket.write('a');
    proxy.delayMs = 20;
    client.socket.write('b');
    await waitUntil('both', () => client.received === 'helloab');
    assert.ok(performance.now() - startedMs >= 40, 'there and back');
  });

  it('holds bytes back and passes them later', async () => {
    const client = await working();
    await proxy.set('hold');
    const late = open();
    await assertSilent([client, late]);
    await proxy.set('pass');
    await waitUntil('what was held back', () => client.received === 'hellolost' && late.received === 'lost');
  });

  it('swallows everything in a black hole, and what was swallowed stays so', async () => {
    const client = await working();
    await proxy.set('black-hole');
    const late = open();
    await waitUntil('a connection', () => late.connected);
    await assertSilent([client, late]);
    servers[0]?.destroy();
    await proxy.set('pass');
    await assertSilent([client, late]);
    assert.equal(proxy.accepted, 2);
    assert.equal(servers.length, 1, 'the server never saw the second');
    await working();
  });

  it('silences the connections there and serves new ones', async () => {
    const client = await working();
    await proxy.set('half-open');
    await assertSilent([client]);
    await working();
    await assertSilent([client]);
  });

  it('serves the connections there and silences new ones', async () => {
    const client = await working();
    await proxy.set('half-open-new');
    const late = open();
    await assertSilent([late]);
    await client.echo('still');
    await proxy.set('pass');
    await assertSilent([late]);
    await working();
  });

  it('resets the connections there and new ones', async () => {
    const client = await working();
    await proxy.set('reset');
    assert.equal(await client.end(), 'reset');
    assert.equal(await open().end(), 'reset');
    assert.equal(proxy.accepted, 2);
    await proxy.set('pass');
    await working();
  });

  it('refuses new connections, and takes them again on the same port', async () => {
    const client = await working();
    const { port } = proxy;
    await proxy.set('refuse');
    assert.equal(await client.end(), 'reset');
    assert.equal(await open().end(), 'refused');
    assert.equal(proxy.accepted, 1);
    await proxy.set('pass');
    assert.equal(proxy.port, port);
    await working();
  });
});
