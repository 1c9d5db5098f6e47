/**
 * Upgraded connections: bytes, ends and errors are carried both ways, to the user's node only, and nothing is left
 * behind. `TUNNEL_CYCLES` and `TUNNEL_ABORTS` open and abort more of them.
 */
import assert from 'node:assert/strict';
import { type EventEmitter, once } from 'node:events';
import { after, before, describe, it } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { type RawData, WebSocket, WebSocketServer } from 'ws';
import { BackendNode } from '../support/backend-node.ts';
import { Forwarding } from '../support/forwarding.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import {
  answering,
  Closed,
  connectRaw,
  DEADLINE_MS,
  fieldOf,
  fieldsOf,
  type Message,
  ok,
  type RawConnection,
} from '../support/raw-http.ts';
import { waitUntil } from '../support/wait-until.ts';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

const UPGRADE =
  'GET /app/socket HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\nX-Other: kept\r\nSec-WebSocket-Protocol: a, b\r\n\r\n';
const SWITCHED = 'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n';

/** The arguments of the next event, which must come in time. */
function soon(emitter: EventEmitter, event: string): ReturnType<typeof once> {
  return once(emitter, event, { signal: AbortSignal.timeout(DEADLINE_MS) });
}

describe('a tunnel', () => {
  const forwarding = new Forwarding();
  before(() => forwarding.start());
  after(() => forwarding.stop());

  /** Opens one; `more` goes out in one piece with the node's 101. */
  async function open(more = ''): Promise<{ client: RawConnection; node: RawConnection; request: Message }> {
    let request: Message | undefined;
    forwarding.node.restart(async (connection) => {
      request = await connection.readRequest();
      connection.write(SWITCHED + more);
    });
    const client = await forwarding.client();
    client.write(UPGRADE);
    const answer = await client.readAnswer();
    assert.equal(answer.status, 101);
    assert.equal(fieldOf(answer.fields, 'upgrade'), 'echo');
    assert.match(fieldOf(answer.fields, 'connection') ?? '', /^upgrade$/i);
    assert.ok(request);
    return { client, node: await forwarding.node.connection(), request };
  }

  async function isGone(): Promise<void> {
    const { parts } = forwarding.gateway.gateway;
    await waitUntil('the tunnel to be over', () => parts.tunnels.size === 0);
  }

  it('is asked for with the fields the client sent, and carries bytes both ways', async () => {
    const { client, node, request } = await open();
    assert.equal(request.startLine, 'GET /app/socket HTTP/1.1');
    assert.deepEqual(fieldsOf(request.fields, 'upgrade'), ['echo']);
    assert.match(fieldOf(request.fields, 'connection') ?? '', /upgrade/i);
    assert.equal(fieldOf(request.fields, 'x-other'), 'kept');
    assert.equal(fieldOf(request.fields, 'sec-websocket-protocol'), 'a, b');
    client.write('\0\xff to the node');
    assert.equal((await node.take(13)).toString('latin1'), '\0\xff to the node'.slice(0, 13));
    node.write('\r\n\r\nHTTP/1.1 200 OK\r\n\r\n');
    assert.equal((await client.take(23)).toString('latin1'), '\r\n\r\nHTTP/1.1 200 OK\r\n\r\n');
    client.reset();
    await isGone();
  });

  it('carries what was sent with the request and what came with the 101', async () => {
    forwarding.node.restart(async (connection) => {
      await connection.readRequest();
      connection.write(`${SWITCHED}early from the node`);
    });
    const client = await forwarding.client();
    client.write(`${UPGRADE}early from the client`);
    await client.readAnswer();
    assert.equal(await client.takeUntil('node'), 'early from the node');
    const node = await forwarding.node.connection();
    assert.equal(await node.takeUntil('client'), 'early from the client');
    client.reset();
    await isGone();
  });

  it("carries the client's FIN and lets the node go on", async () => {
    const { client, node } = await open();
    client.end('last words');
    assert.equal(await node.done(), 'end');
    assert.equal(node.unread, 'last words');
    node.write('still talking');
    assert.equal(await client.takeUntil('talking'), 'still talking');
    node.end();
    assert.equal(await client.done(), 'end');
    await isGone();
  });

  it("carries the node's FIN and lets the client go on", async () => {
    const { client, node } = await open();
    node.end('last words');
    assert.equal(await client.done(), 'end');
    assert.equal(client.unread, 'last words');
    client.write('still talking');
    assert.equal(await node.takeUntil('talking'), 'still talking');
    client.end();
    assert.equal(await node.done(), 'end');
    await isGone();
  });

  it('carries a reset of either side as a reset', async () => {
    const first = await open();
    first.client.reset();
    assert.equal(await first.node.done(), 'reset');
    await isGone();
    const second = await open();
    second.node.reset();
    assert.equal(await second.client.done(), 'reset');
    await isGone();
  });

  it('carries a reset behind a FIN of the other side', async () => {
    const first = await open();
    first.client.end();
    await first.node.done();
    first.node.reset();
    await isGone();
    const second = await open();
    second.node.end();
    await second.client.done();
    second.client.reset();
    await isGone();
  });

  it('holds a writer back whose reader does not read', async () => {
    for (const towardsClient of [true, false]) {
      const { client, node } = await open();
      const [writer, reader] = towardsClient ? [node, client] : [client, node];
      reader.discards = true;
      reader.socket.pause();
      void writer.pour(100_000_000);
      let taken = -1;
      await waitUntil('a standstill', async () => {
        const before = taken;
        await new Promise((resolve) => setTimeout(resolve, 200));
        taken = writer.socket.bytesWritten - writer.socket.writableLength;
        return taken === before;
      });
      assert.ok(taken < 40_000_000, `${taken} bytes`);
      reader.socket.resume();
      await reader.until('all of it', () => reader.receivedBytes >= 100_000_000, 20_000);
      client.reset();
      await isGone();
    }
  });

  it("is refused with the node's status, fields and body", async () => {
    for (const [answer, body] of [
      [ok('come in by the door', 'X-Why: here\r\n').replace('200 OK', '403 Forbidden'), 'come in by the door'],
      [
        'HTTP/1.1 426 Upgrade Required\r\nX-Why: here\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n',
        'abc',
      ],
      ['HTTP/1.1 200 OK\r\nX-Why: here\r\nContent-Length: 0\r\n\r\n', ''],
      [`HTTP/1.0 401 No\r\nX-Why: here\r\nContent-Length: 100000\r\n\r\n${'x'.repeat(100_000)}`, 'x'.repeat(100_000)],
    ] as const) {
      const { client, answer: refusal } = await forwarding.exchange(`${UPGRADE}early words`, answering(answer));
      assert.ok(answer.includes(` ${refusal.status} `));
      assert.equal(refusal.body.toString(), body);
      assert.equal(fieldOf(refusal.fields, 'x-why'), 'here');
      assert.equal(await client.done(), 'end');
      client.socket.end();
      await soon(client.socket, 'close');
      await isGone();
    }
  });

  it('is refused by a node that breaks off, says nonsense or is never heard of', async () => {
    for (const [bytes, status] of [
      ['', 502],
      ['nonsense\r\n\r\n', 502],
      ['HTTP/1.1 101 Switching', 502],
    ] as const) {
      const { answer } = await forwarding.exchange(UPGRADE, async (connection) => {
        await connection.readRequest();
        connection.end(bytes);
      });
      assert.equal(answer.status, status, bytes);
    }
    forwarding.node.restart(async (connection) => {
      await connection.readRequest();
      connection.write('HTTP/1.1 403 Forbidden\r\nContent-Length: 10\r\n\r\npart');
      await client.until('the part', () => client.unread.includes('part'));
      connection.reset();
    });
    const client = await forwarding.client();
    client.write(UPGRADE);
    await assert.rejects(client.readAnswer(), Closed);
    await isGone();
  });

  it("ends the node's request when the client leaves before the answer", async () => {
    for (const leave of ['reset', 'end'] as const) {
      forwarding.node.restart(async (connection) => void (await connection.readRequest()));
      const client = await forwarding.client();
      client.write(UPGRADE);
      const node = await forwarding.node.connection();
      await node.until('the request', () => node.receivedBytes > 100);
      client[leave]();
      await node.done();
      await isGone();
    }
  });

  it('asked for with a body, or outside of every service, is refused', async () => {
    forwarding.node.restart(answering(ok()));
    for (const [request, status] of [
      [UPGRADE.replace('\r\n\r\n', '\r\nContent-Length: 5\r\n\r\nhello'), 400],
      [UPGRADE.replace('/app/', '/elsewhere/'), 404],
      [UPGRADE.replace('/app/', '/app/../'), 400],
      [UPGRADE.replace('Host: h', 'Host: h\r\nHost: i'), 400],
    ] as const) {
      const client = await forwarding.client();
      client.write(request);
      assert.equal((await client.readAnswer()).status, status, request);
      await client.done();
    }
    assert.equal(forwarding.node.connections.length, 0);
  });
});

/** A node of the demo service whose WebSockets echo, with what it saw. */
class SocketNode extends BackendNode {
  readonly sockets: WebSocket[] = [];
  readonly epochs: (string | undefined)[] = [];
  readonly #server = new WebSocketServer({
    noServer: true,
    handleProtocols: (protocols) => [...protocols].pop() ?? false,
  });

  async startWithSockets(): Promise<void> {
    await this.start();
    this.server.on('upgrade', (request, socket, head) => {
      this.epochs.push(request.headers['x-gateway-epoch'] as string | undefined);
      this.#server.handleUpgrade(request, socket, head, (webSocket) => {
        this.sockets.push(webSocket);
        webSocket.on('error', () => undefined);
        webSocket.on('message', (data: RawData, binary: boolean) => webSocket.send(data, { binary }));
      });
    });
  }
}

describe('a WebSocket', () => {
  const nodes = [new SocketNode('n1'), new SocketNode('n2')];
  let stores: StoreSetup;
  let gateway: GatewayFixture;

  before(async () => {
    for (const node of nodes) await node.startWithSockets();
    stores = await openStores('embedded');
    gateway = await startGateway({ stores, nodes });
  });
  after(async () => {
    await gateway?.stop();
    await stores?.close();
    for (const node of nodes) await node.stop();
  });

  function connect(token?: string, protocols: string[] = []): WebSocket {
    const webSocket = new WebSocket(`ws://127.0.0.1:${gateway.port}/js/a/live`, protocols, {
      headers: token === undefined ? {} : { 'x-token': token },
    });
    webSocket.on('error', () => undefined);
    return webSocket;
  }

  async function opened(token?: string): Promise<WebSocket> {
    const webSocket = connect(token);
    await soon(webSocket, 'open');
    return webSocket;
  }

  async function echoed(webSocket: WebSocket, data: string | Buffer): Promise<Buffer> {
    const answer = soon(webSocket, 'message');
    webSocket.send(data);
    return (await answer)[0] as Buffer;
  }

  async function homeOf(token: string): Promise<SocketNode> {
    const id = (await gateway.get('/js/a/x', token)).headers['x-gateway-node'];
    return nodes.find((node) => node.id === id) as SocketNode;
  }

  it('carries text, binary, large, fragmented and empty messages, pings and subprotocols', async () => {
    const webSocket = connect(undefined, ['chat', 'superchat']);
    const [[response]] = await Promise.all([soon(webSocket, 'upgrade'), soon(webSocket, 'open')]);
    assert.ok(response.headers['x-gateway-node']);
    assert.equal(webSocket.protocol, 'superchat');
    assert.equal((await echoed(webSocket, 'tëxt')).toString(), 'tëxt');
    assert.equal((await echoed(webSocket, '')).length, 0);
    const large = Buffer.alloc(3_000_000, 'abc\0');
    assert.ok((await echoed(webSocket, large)).equals(large));
    const whole = soon(webSocket, 'message');
    for (const [part, fin] of [
      ['one ', false],
      ['two ', false],
      ['three', true],
    ] as const)
      webSocket.send(part, { fin });
    assert.equal(String((await whole)[0]), 'one two three');
    const pong = soon(webSocket, 'pong');
    webSocket.ping('p');
    assert.equal(String((await pong)[0]), 'p');
    webSocket.close(4001, 'bye');
    const [code, reason] = await soon(webSocket, 'close');
    assert.deepEqual([code, String(reason)], [4001, 'bye']);
  });

  it('of a bound user goes to their node, with the epoch, though another node would be next', async () => {
    for (const name of ['anna', 'bert', 'carl']) {
      const token = await gateway.tokenOf(name);
      const home = await homeOf(token);
      const before = home.sockets.length;
      for (let round = 0; round < 4; round += 1) (await opened(token)).terminate();
      assert.equal(home.sockets.length, before + 4);
      assert.equal(home.epochs.at(-1), '1');
    }
  });

  it('is closed with 1012 when the binding moves, and the next one leads to the new node', async () => {
    const token = await gateway.tokenOf('mover');
    const home = await homeOf(token);
    const other = nodes.find((node) => node !== home) as SocketNode;
    const webSockets = [await opened(token), await opened(token)];
    const atNode = home.sockets.slice(-2).map((socket) => soon(socket, 'close'));
    const closed = webSockets.map((webSocket) => soon(webSocket, 'close'));
    await gateway.gateway.parts.bindings.move('demo', 'u-mover', other.id);
    for (const close of closed) assert.equal((await close)[0], 1012);
    await Promise.all(atNode);
    const before = other.sockets.length;
    const again = await opened(token);
    assert.equal(other.sockets.length, before + 1);
    assert.equal(other.epochs.at(-1), '2');
    again.terminate();
  });

  it('is closed with 1012 when the binding is removed', async () => {
    const token = await gateway.tokenOf('leaver');
    const webSocket = await opened(token);
    const closed = soon(webSocket, 'close');
    await gateway.gateway.parts.bindings.remove('demo', 'u-leaver');
    assert.equal((await closed)[0], 1012);
  });

  it('is closed also when the binding moved while it was being opened', async () => {
    const token = await gateway.tokenOf('racer');
    const home = await homeOf(token);
    const other = nodes.find((node) => node !== home) as SocketNode;
    const [hold] = home.server.listeners('upgrade') as ((...args: unknown[]) => void)[];
    home.server.removeAllListeners('upgrade');
    const asked = soon(home.server, 'upgrade');
    const webSocket = connect(token);
    const args = await asked;
    await gateway.gateway.parts.bindings.move('demo', 'u-racer', other.id);
    home.server.on('upgrade', hold as never);
    const closed = soon(webSocket, 'close');
    hold?.(...args);
    assert.equal((await closed)[0], 1012);
  });

  it('stays open when anything else changes', async () => {
    const token = await gateway.tokenOf('stayer');
    const home = await homeOf(token);
    const other = nodes.find((node) => node !== home) as SocketNode;
    await gateway.tokenOf('somebody');
    const webSocket = await opened(token);
    const anonymous = await opened();
    const { bindings } = gateway.gateway.parts;
    await bindings.move('demo', 'u-somebody', other.id);
    await bindings.move('demo', 'u-somebody', home.id);
    await bindings.setFrozen('demo', 'u-stayer', true);
    await bindings.setFrozen('demo', 'u-stayer', false);
    await bindings.remove('demo', 'u-somebody');
    await bindings.move('demo', 'u-stayer', home.id);
    bindings.expireAll();
    gateway.gateway.parts.tunnels.recheckAll();
    await gateway.tokenOf('another');
    assert.equal((await echoed(webSocket, 'still here')).toString(), 'still here');
    assert.equal((await echoed(anonymous, 'me too')).toString(), 'me too');
    webSocket.terminate();
    anonymous.terminate();
  });

  it('of a user without a binding, or with a frozen one, is refused with 503', async () => {
    const token = await gateway.tokenOf('frozen');
    await gateway.gateway.parts.bindings.setFrozen('demo', 'u-frozen', true);
    const webSocket = connect(token);
    const [, response] = await soon(webSocket, 'unexpected-response');
    assert.equal(response.statusCode, 503);
    response.resume();
  });

  it('leaves nothing behind: opened and closed 2,000 times, and aborted 300 times', async () => {
    const token = await gateway.tokenOf('churn');
    const { parts } = gateway.gateway;
    const counts = () => {
      const resources = process.getActiveResourcesInfo();
      return {
        sockets: resources.filter((name) => name === 'TCPSocketWrap').length,
        timers: resources.filter((name) => name === 'Timeout').length,
      };
    };
    const settled = () =>
      waitUntil('all tunnels over', () => parts.tunnels.size === 0 && parts.forwarder.inFlight === 0);
    const cycle = async (abort: number) => {
      if (abort === 1) {
        // Gone before the answer.
        const raw = await connectRaw(gateway.port);
        raw.write('GET /js/a/live HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n');
        raw.reset();
        return;
      }
      const webSocket = connect(token);
      await once(webSocket, 'open');
      const closed = once(webSocket, 'close');
      if (abort === 2) webSocket.terminate();
      else if (abort === 3)
        nodes.flatMap((node) => node.sockets.splice(0)).forEach((socket) => void socket.terminate());
      else webSocket.close();
      if (abort === 3 && webSocket.readyState === WebSocket.OPEN) webSocket.terminate();
      await closed;
    };
    const many = async (count: number, abort: (index: number) => number) => {
      for (let done = 0; done < count; done += 50) {
        await Promise.all(Array.from({ length: 50 }, (_, index) => cycle(abort(done + index))));
        for (const node of nodes) node.sockets.length = 0;
      }
      await settled();
    };
    const heapBytes = () => {
      // What the test itself keeps.
      gateway.lines.length = 0;
      for (const node of nodes) node.journal.length = 0;
      collectGarbage();
      return process.memoryUsage().heapUsed;
    };
    await many(500, (index) => index % 4);
    await waitUntil('sockets to be closed', () => counts().sockets < 20);
    const before = counts();
    const heapBefore = heapBytes();
    await many(Number(process.env['TUNNEL_CYCLES'] ?? 2_000), () => 0);
    await many(Number(process.env['TUNNEL_ABORTS'] ?? 300), (index) => 1 + (index % 3));
    await waitUntil('sockets to be where they were', () => counts().sockets <= before.sockets + 2);
    await waitUntil('timers to be where they were', () => counts().timers <= before.timers + 2);
    assert.equal(parts.tunnels.size, 0);
    const grownBytes = heapBytes() - heapBefore;
    assert.ok(grownBytes < 2_000_000, `the heap grew by ${grownBytes} bytes`);
    assert.equal((await gateway.get('/js/a/x', token)).status, 200);
  });
});
