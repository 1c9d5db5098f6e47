/**
 * A stateless and a bound service in one gateway, on nodes made of bytes that fail in every phase: on the first, other
 * nodes are asked where that can do no harm; on the second nothing of this applies.
 */
import assert from 'node:assert/strict';
import * as net from 'node:net';
import { after, afterEach, before, describe, it } from 'node:test';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import {
  answering,
  connectRaw,
  fieldOf,
  type Message,
  ok,
  type RawAnswer,
  type RawConnection,
  RawNode,
  type Script,
} from '../support/raw-http.ts';
import { waitUntil } from '../support/wait-until.ts';

const BODY_64K = 'b'.repeat(65_536);
/** Of the service `slow`: the shortest response time-out that leaves room for a busy machine. */
const RESPONSE_MS = 800;

/** Reads a request whole, then ends the connection. */
const closesUnanswered: Script = async (connection) => {
  await connection.readRequest();
  connection.end();
};
const FAILURES: Record<string, Script> = {
  'resets at the first byte': (connection) => connection.reset(),
  'resets behind the head': async (connection) => {
    await connection.readHead();
    connection.reset();
  },
  'resets behind the request': async (connection) => {
    await connection.readRequest();
    connection.reset();
  },
  'ends behind the request': closesUnanswered,
  'ends after 103 Early Hints': async (connection) => {
    await connection.readRequest();
    connection.end('HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n');
  },
  'ends in the middle of its head': async (connection) => {
    await connection.readRequest();
    connection.end('HTTP/1.1 200 OK\r\nContent-Le');
  },
  'answers with something that is no HTTP': async (connection) => {
    await connection.readRequest();
    connection.end('220 smtp.example.com ESMTP\r\n\r\n');
  },
};

describe('when nodes fail', () => {
  const nodes = [new RawNode(), new RawNode(), new RawNode()];
  /** Of the bound service. */
  const home = [new RawNode(), new RawNode()];
  const clients: RawConnection[] = [];
  let stores: StoreSetup;
  let gateway: GatewayFixture;
  let closedPort = 0;

  before(async () => {
    for (const node of [...nodes, ...home]) await node.start();
    closedPort = await freePort();
    stores = await openStores('embedded');
    const list = (prefix: string, of: readonly RawNode[]) =>
      of.map((node, index) => `      - { id: ${prefix}${index + 1}, baseUrl: "${node.baseUrl}" }`);
    gateway = await startGateway({
      stores,
      nodes: [],
      // Whatever happens no node is taken for down: each request must find its own way.
      config: 'health: { interval: 1h, failures: 1000000 }\n',
      services: [
        'services:',
        '  - { id: free, pathPrefix: /free, affinity: none, balance: round-robin, healthPath: null, nodes: [',
        ...nodes.map((node, index) => `      { id: f${index + 1}, baseUrl: "${node.baseUrl}" },`),
        '    ] }',
        '  - { id: slow, pathPrefix: /slow, affinity: none, balance: round-robin, healthPath: null,',
        `      timeouts: { response: ${RESPONSE_MS}ms }, nodes: [`,
        ...nodes.map((node, index) => `      { id: s${index + 1}, baseUrl: "${node.baseUrl}" },`),
        '    ] }',
        '  - { id: half, pathPrefix: /half, affinity: none, balance: round-robin, healthPath: null, nodes: [',
        `      { id: h1, baseUrl: "http://127.0.0.1:${closedPort}" }, { id: h2, baseUrl: "${nodes[1]!.baseUrl}" } ] }`,
        '  - { id: gone, pathPrefix: /gone, affinity: none, healthPath: null, nodes: [',
        `      { id: g1, baseUrl: "http://127.0.0.1:${closedPort}" } ] }`,
        '  - id: bound',
        '    pathPrefix: /bound',
        '    healthPath: null',
        '    nodes:',
        ...list('b', home),
      ].join('\n'),
    });
  });
  after(async () => {
    await gateway?.stop();
    await stores?.close();
    for (const node of [...nodes, ...home]) await node.stop();
  });
  afterEach(async () => {
    for (const client of clients.splice(0)) client.socket.destroy();
    for (const node of [...nodes, ...home]) {
      assert.deepEqual(node.faults, []);
      node.restart(answering(ok()));
    }
    const { forwarder } = gateway.gateway.parts;
    await waitUntil('nothing is under way', () => forwarder.inFlight === 0);
    await waitUntil('no place is taken', () =>
      [...forwarder.options.connections.inFlight.values()].every((count) => count === 0),
    );
  });

  async function client(): Promise<RawConnection> {
    const connection = await connectRaw(gateway.port);
    clients.push(connection);
    return connection;
  }

  async function send(bytes: string, method = /^[A-Z]+/.exec(bytes)?.[0]): Promise<RawAnswer> {
    const connection = await client();
    connection.write(bytes);
    return connection.readAnswer(method);
  }

  const get = (path: string) => `GET ${path} HTTP/1.1\r\nHost: h\r\n\r\n`;
  const withBody = (method: string, path: string, body: string) =>
    `${method} ${path} HTTP/1.1\r\nHost: h\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
  const errorOf = (answer: RawAnswer) => (JSON.parse(answer.body.toString()) as { error: string }).error;
  const nodeOf = (answer: RawAnswer) => fieldOf(answer.fields, 'x-gateway-node');
  /** Makes all but the last of `list` fail; whose turn it is does not matter then. */
  const failBut = (index: number, script: Script, reply = answering(ok('served'))) => {
    nodes.forEach((node, at) => {
      node.restart(at === index ? reply : script);
    });
  };
  const touched = (of: readonly RawNode[]) => of.map((node) => node.connections.length);
  const lastLine = () =>
    waitUntil('the access line', () => gateway.events('request').at(-1) as { attempts: number } | undefined);

  for (const [title, script] of Object.entries(FAILURES)) {
    it(`a GET gets its answer from another node when one ${title}, each node asked once`, async () => {
      for (let turn = 0; turn < 3; turn += 1) {
        failBut(turn, script);
        // From three starting points of the round.
        for (let start = 0; start < 3; start += 1) {
          for (const node of nodes) for (const each of node.connections.splice(0)) each.socket.destroy();
          const answer = await send(get('/free/x'));
          assert.equal(`${answer.status} ${answer.body} ${nodeOf(answer)}`, `200 served f${turn + 1}`);
          for (const count of touched(nodes)) assert.ok(count <= 1, `asked ${count} times`);
        }
      }
    });

    it(`a POST is not repeated when its node ${title}`, async () => {
      for (const node of nodes) node.restart(script);
      for (const body of ['hello', '']) {
        const before = touched(nodes).reduce((sum, count) => sum + count, 0);
        const answer = await send(withBody('POST', '/free/x', body));
        assert.equal(answer.status, 502);
        assert.match(errorOf(answer), /^node_(broke_off|bad_response)$/);
        assert.equal(touched(nodes).reduce((sum, count) => sum + count, 0) - before, 1, 'one node saw it, once');
      }
    });

    it(`on the bound service nobody else is asked when the node ${title}`, async () => {
      for (const node of home) node.restart(script);
      const answer = await send(get('/bound/x'));
      assert.equal(answer.status, 502);
      assert.match(errorOf(answer), /^node_(broke_off|bad_response)$/);
      assert.deepEqual(touched(home).sort(), [0, 1]);
    });
  }

  it('503 no_node_available when every node had its turn, with the attempts in the access line', async () => {
    for (const node of nodes) node.restart(closesUnanswered);
    const answer = await send(get('/free/x'));
    assert.equal(`${answer.status} ${errorOf(answer)}`, '503 no_node_available');
    assert.ok(Number(fieldOf(answer.fields, 'retry-after')) > 0);
    assert.deepEqual(touched(nodes), [1, 1, 1]);
    assert.equal((await lastLine()).attempts, 3);
    const refused = await send(get('/gone/x'));
    assert.equal(`${refused.status} ${errorOf(refused)}`, '503 no_node_available');
    assert.equal(JSON.stringify(refused).includes(String(closedPort)), false, 'no address is told');
  });

  it('any method and any size goes on to another node when there was no connection', async () => {
    const seen: Message[] = [];
    nodes[1]!.restart(
      answering((request, connection) => {
        seen.push(request);
        connection.write(ok('served'));
      }),
    );
    const huge = 'h'.repeat(1_000_000);
    for (const body of ['', 'hello', BODY_64K, huge]) {
      // Both starting points of the round.
      for (let start = 0; start < 2; start += 1) {
        const answer = await send(withBody('POST', '/half/x', body));
        assert.equal(`${answer.status} ${nodeOf(answer)}`, '200 h2', `${body.length} bytes`);
        assert.equal(seen.at(-1)?.body.toString(), body);
      }
    }
    assert.equal(seen.length, 8);
    const sent = 'POST /half/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n';
    for (let start = 0; start < 2; start += 1) {
      const connection = await client();
      connection.write(`${sent}5\r\nhel`);
      await new Promise((resolve) => setImmediate(resolve));
      connection.write('lo\r\n0\r\nX-End: yes\r\n\r\n');
      assert.equal((await connection.readAnswer()).status, 200);
      assert.equal(seen.at(-1)?.body.toString(), 'hello');
      assert.deepEqual(seen.at(-1)?.trailers, [['X-End', 'yes']]);
    }
  });

  it('a PUT of up to 64 KB is sent again whole, with its trailers, and a larger one is not', async () => {
    let bodies: string[] = [];
    const keeps = answering((request, connection) => {
      bodies.push(`${request.body} ${JSON.stringify(request.trailers)}`);
      connection.write(ok('served'));
    });
    for (let last = 0; last < 3; last += 1) {
      bodies = [];
      failBut(last, closesUnanswered, keeps);
      assert.equal((await send(withBody('PUT', '/free/x', BODY_64K))).status, 200);
      const chunks = `${'8\r\n12345678\r\n'.repeat(1_000)}0\r\nX-End: yes\r\n\r\n`;
      const head = 'PUT /free/x HTTP/1.1\r\nHost: h\r\nTrailer: X-End\r\nTransfer-Encoding: chunked\r\n\r\n';
      assert.equal((await send(head + chunks)).status, 200);
      assert.deepEqual(bodies, [`${BODY_64K} []`, `${'12345678'.repeat(1_000)} [["X-End","yes"]]`]);
    }
    for (const node of nodes) node.restart(closesUnanswered);
    const chunked = `10001\r\n${BODY_64K}b\r\n0\r\n\r\n`;
    for (const request of [
      withBody('PUT', '/free/x', `${BODY_64K}b`),
      `PUT /free/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n${chunked}`,
    ]) {
      const before = touched(nodes).reduce((sum, count) => sum + count, 0);
      const answer = await send(request);
      assert.equal(`${answer.status} ${errorOf(answer)}`, '502 node_broke_off');
      assert.equal(touched(nodes).reduce((sum, count) => sum + count, 0) - before, 1);
    }
  });

  it('a body that is still coming when its node fails goes on to the next node from its first byte', async () => {
    const seen: string[] = [];
    let broken = 0;
    const breaks: Script = async (connection) => {
      await connection.readHead();
      await connection.until('a part', () => connection.unread !== '');
      broken += 1;
      connection.reset();
    };
    const keeps = answering((request, connection) => {
      seen.push(request.body.toString());
      connection.write(ok('served'));
    });
    for (let round = 0; round < 30; round += 1) {
      failBut(Math.floor(round / 3) % 3, breaks, keeps);
      const connection = await client();
      const body = Array.from({ length: 40 }, (_, index) => `part ${round}-${index};`);
      connection.write(`PUT /free/x HTTP/1.1\r\nHost: h\r\nContent-Length: ${body.join('').length}\r\n\r\n`);
      for (const part of body) {
        connection.write(part);
        await new Promise((resolve) => setImmediate(resolve));
      }
      const answer = await connection.readAnswer();
      assert.equal(answer.status, 200, `round ${round}: ${answer.body}`);
      assert.equal(seen.pop(), body.join(''));
      assert.deepEqual(seen, []);
      connection.socket.destroy();
    }
    // A round that begins at the good node meets no other.
    assert.ok(broken >= 10, `${broken} attempts were broken off in the middle`);
  });

  it('Expect: 100-continue, HEAD and pipelined requests come out right', async () => {
    const asks = answering(async (request, connection) => {
      if (request.startLine.startsWith('HEAD')) connection.write('HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n');
      else connection.write(ok(request.startLine.split(' ')[1]));
    });
    for (let last = 0; last < 3; last += 1) {
      failBut(last, closesUnanswered, asks);
      const head = await send('HEAD /free/head HTTP/1.1\r\nHost: h\r\n\r\n');
      assert.equal(`${head.status} ${fieldOf(head.fields, 'content-length')}`, '200 7');
      const connection = await client();
      connection.write(get('/free/1'), withBody('PUT', '/free/2', 'two'), get('/free/3'));
      for (const path of ['/free/1', '/free/2', '/free/3']) {
        assert.equal((await connection.readAnswer()).body.toString(), path);
      }
      failBut(last, FAILURES['resets behind the head']!, async (one) => {
        const message = await one.readHead();
        one.write('HTTP/1.1 100 Continue\r\n\r\n');
        const { body } = await one.readBody(message);
        one.write(ok(body.toString()));
      });
      const expecting = await client();
      expecting.write('PUT /free/x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n');
      await expecting.until('100', () => expecting.unread.includes('100 Continue\r\n\r\n'));
      expecting.write('body');
      const answer = await expecting.readAnswer();
      assert.equal(`${answer.status} ${answer.body}`, '200 body');
    }
  });

  it('an answer that has begun is broken off and never begun again', async () => {
    for (const node of nodes) {
      node.restart(async (connection) => {
        await connection.readRequest();
        connection.write('HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart');
        connection.reset();
      });
    }
    const connection = await client();
    connection.write(get('/free/x'));
    await assert.rejects(connection.readAnswer());
    assert.equal(
      touched(nodes).reduce((sum, count) => sum + count, 0),
      1,
    );
  });

  it('a node that stays silent is replaced once, and the second is 504', async () => {
    let silent = 0;
    const staysSilent: Script = async (connection) => {
      await connection.readRequest();
      silent += 1;
    };
    for (const node of nodes) node.restart(staysSilent);
    const answer = await send(get('/slow/x'));
    assert.equal(`${answer.status} ${errorOf(answer)}`, '504 node_timeout');
    assert.equal(silent, 2);
    assert.equal((await send(withBody('POST', '/slow/x', 'hello'))).status, 504);
    assert.equal(silent, 3, 'a POST is not repeated');
    // Two that close at once and one that is silent: two others are left for the rest.
    nodes[0]?.restart(staysSilent);
    nodes[1]?.restart(answering(ok('served')));
    nodes[2]?.restart(closesUnanswered);
    for (let start = 0; start < 3; start += 1) {
      assert.equal((await send(withBody('PUT', '/slow/x', 'hello'))).body.toString(), 'served');
    }
  });

  it('a client that leaves takes its request with it, and no other node is asked', async () => {
    let arrived = 0;
    for (const node of nodes) {
      node.restart(async (connection) => {
        await connection.readRequest();
        arrived += 1;
        await connection.done();
      });
    }
    const connection = await client();
    connection.write(get('/slow/x'));
    await waitUntil('the node has it', () => arrived === 1);
    connection.socket.destroy();
    await waitUntil('nothing is under way', () => gateway.gateway.parts.forwarder.inFlight === 0);
    assert.equal(arrived, 1);
    assert.deepEqual(
      touched(nodes).reduce((sum, count) => sum + count, 0),
      1,
    );
  });

  it('kept connections that all prove dead do not exhaust the nodes', async () => {
    const once: Script = async (connection, index) => {
      await connection.readRequest();
      connection.write(ok('first'));
      await connection.readRequest();
      // The first connection dies with the second request; later ones serve it.
      if (index === 0) connection.reset();
      else connection.write(ok('again'));
    };
    for (const node of nodes) node.restart(once);
    for (let each = 0; each < 3; each += 1) assert.equal((await send(get('/free/x'))).body.toString(), 'first');
    const answer = await send(get('/free/x'));
    assert.equal(answer.status, 200);
    const used = touched(nodes);
    assert.ok(used.filter((count) => count > 1).length === 1, `one node was asked anew: ${used}`);
    // Of the only node of a service: the same node, anew.
    nodes[1]?.restart(once);
    for (const node of [nodes[0], nodes[2]]) node?.restart(closesUnanswered);
    for (let each = 0; each < 4; each += 1) assert.equal((await send(get('/half/x'))).status, 200);
  });

  it('an upgrade goes on to another node until one answers; on the bound service it does not', async () => {
    const handshake = (path: string) =>
      `GET ${path} HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n`;
    const upgrades: Script = async (connection) => {
      await connection.readHead();
      connection.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhi');
      await connection.until('bytes', () => connection.unread.includes('over'));
      connection.end('bye');
    };
    for (let last = 0; last < 3; last += 1) {
      for (const script of [closesUnanswered, FAILURES['resets at the first byte']!]) {
        failBut(last, script, upgrades);
        const connection = await client();
        connection.write(handshake('/free/x'));
        await connection.until('hi', () => connection.unread.endsWith('hi'));
        assert.match(connection.unread, /^HTTP\/1\.1 101 /);
        connection.write('over');
        await connection.until('bye', () => connection.unread.endsWith('hibye'));
      }
    }
    nodes[1]?.restart(upgrades);
    for (let start = 0; start < 2; start += 1) {
      const connection = await client();
      connection.write(handshake('/half/x'));
      await connection.until('hi', () => connection.unread.endsWith('hi'));
    }
    for (const node of nodes) node.restart(closesUnanswered);
    const nobody = await send(handshake('/free/x'));
    assert.equal(`${nobody.status} ${errorOf(nobody)}`, '503 no_node_available');
    for (const node of home) node.restart(closesUnanswered);
    const bound = await send(handshake('/bound/x'));
    assert.equal(`${bound.status} ${errorOf(bound)}`, '502 node_broke_off');
    assert.deepEqual(touched(home).sort(), [0, 1]);
  });
});

describe('when nodes have as many requests as they may have', () => {
  const nodes = [new RawNode(), new RawNode(), new RawNode()];
  let stores: StoreSetup;
  let gateway: GatewayFixture;

  before(async () => {
    for (const node of nodes) await node.start();
    stores = await openStores('embedded');
    const [first, second, third] = nodes;
    gateway = await startGateway({
      stores,
      nodes: [],
      config: 'health: { interval: 1h, failures: 1000000 }\nlimits: { connectionsPerNode: 1 }\n',
      services: `services:
  - { id: free, pathPrefix: /free, affinity: none, healthPath: null, nodes: [
      { id: f1, baseUrl: "${first!.baseUrl}" }, { id: f2, baseUrl: "${second!.baseUrl}" } ] }
  - { id: bound, pathPrefix: /bound, healthPath: null, nodes: [ { id: b1, baseUrl: "${third!.baseUrl}" } ] }`,
    });
  });
  after(async () => {
    await gateway?.stop();
    await stores?.close();
    for (const node of nodes) await node.stop();
  });

  it('a request goes to the one that has room, and is 503 overloaded when none has', async () => {
    const release: (() => void)[] = [];
    for (const node of nodes) {
      node.restart(answering((_, connection) => void release.push(() => connection.write(ok()))));
    }
    for (const upgrade of ['', 'Connection: Upgrade\r\nUpgrade: echo\r\n']) {
      const held: RawConnection[] = [];
      const open = async (path: string) => {
        const client = await connectRaw(gateway.port);
        client.write(`GET ${path} HTTP/1.1\r\nHost: h\r\n${upgrade}\r\n`);
        return client;
      };
      for (const [index, path] of ['/free/1', '/free/2', '/bound/1'].entries()) {
        held.push(await open(path));
        await waitUntil('it is at a node', () => release.length === index + 1);
      }
      for (const path of ['/free/3', '/bound/2']) {
        const client = await open(path);
        const answer = await client.readAnswer();
        assert.match(answer.body.toString(), /"error":"overloaded"/);
        assert.equal(answer.status, 503);
        client.socket.destroy();
      }
      for (const each of release.splice(0)) each();
      const served = [];
      for (const client of held) {
        served.push(fieldOf((await client.readAnswer()).fields, 'x-gateway-node'));
        client.socket.destroy();
      }
      assert.deepEqual(served.sort(), ['b1', 'f1', 'f2']);
      await waitUntil('the places are free', () =>
        [...gateway.gateway.parts.forwarder.options.connections.inFlight.values()].every((count) => count === 0),
      );
    }
  });
});

/** A port of which it is known that nobody listens there: it was given out and closed. */
async function freePort(): Promise<number> {
  const server = net.createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as net.AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}
