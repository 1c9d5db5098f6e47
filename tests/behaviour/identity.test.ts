/** Who a request is from: the first token in the configured order, the peer's own address, and nothing the client claims. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import * as http from 'node:http';
import * as net from 'node:net';
import { after, before, describe, it } from 'node:test';
import { BackendNode, type JournalEntry } from '../support/backend-node.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import { type Answer, call } from '../support/http-client.ts';
import { waitUntil } from '../support/wait-until.ts';

const IDENTITY = 'identity: { token: { header: x-token, cookie: session, query: token } }';

let requests = 0;

/** A path that no other request has. */
function freshPath(): string {
  requests += 1;
  return `/js/a/notes/${requests}`;
}

/** Sends bytes as they are and resolves with all that comes back until the server closes. */
async function sendRaw(port: number, text: string): Promise<string> {
  const socket = net.connect(port, '127.0.0.1');
  let answer = '';
  socket.setEncoding('utf8').on('data', (chunk: string) => {
    answer += chunk;
  });
  socket.write(text);
  await once(socket, 'close');
  return answer;
}

describe('who a request is from', () => {
  const nodes = [new BackendNode('n1'), new BackendNode('n2')];
  const opened: StoreSetup[] = [];
  const gateways: GatewayFixture[] = [];
  let gateway: GatewayFixture;
  let behindProxy: GatewayFixture;
  let alice: string;
  let bob: string;
  let aliceHome: string;
  let bobHome: string;

  async function start(config: string): Promise<GatewayFixture> {
    const stores = await openStores('embedded');
    opened.push(stores);
    const started = await startGateway({ stores, nodes, config: `${IDENTITY}\n${config}` });
    gateways.push(started);
    return started;
  }

  before(async () => {
    for (const node of nodes) await node.start();
    gateway = await start('');
    behindProxy = await start('trustedProxies: ["127.0.0.1/32", "10.0.0.0/8"]');
    alice = await gateway.tokenOf('alice');
    bob = await gateway.tokenOf('bob');
    aliceHome = String((await gateway.get('/js/a/notes', alice)).headers['x-gateway-node']);
    bobHome = String((await gateway.get('/js/a/notes', bob)).headers['x-gateway-node']);
    assert.notEqual(aliceHome, bobHome);
  });
  after(async () => {
    for (const started of gateways) await started.stop();
    for (const stores of opened) await stores.close();
    for (const node of nodes) await node.stop();
  });

  const nodeOf = (answer: Answer) => String(answer.headers['x-gateway-node']);

  function seenBy(nodeId: string, path: string): JournalEntry {
    const entries = nodes.flatMap((node) =>
      node.journal.filter((entry) => entry.path.split('?')[0] === path).map((entry) => ({ node, entry })),
    );
    assert.deepEqual(
      entries.map(({ node }) => node.id),
      [nodeId],
    );
    return entries[0]!.entry;
  }

  function accessLine(of: GatewayFixture, path: string): Promise<Record<string, unknown>> {
    return waitUntil(`the access line of ${path}`, () =>
      of.events('request').find((line) => String(line['path']).split('?')[0] === path),
    );
  }

  it('is not for the client to say: its X-Gateway-* fields never reach a node', async () => {
    const path = freshPath();
    const answer = await call(gateway.port, path, {
      headers: [
        ...['Host', 'demo', 'X-Gateway-Epoch', '77', 'x-token', alice, 'x-gateway-node', bobHome],
        ...['X-GATEWAY-VERSION', 'v9', 'X-Gateway-User', 'root', 'X-Gateway-Epoch', '78', 'Accept', '*/*'],
      ],
    });
    assert.equal(nodeOf(answer), aliceHome);
    const { rawHeaders } = seenBy(aliceHome, path);
    const internal = rawHeaders.filter((_, index) => /^x-gateway-/i.test(rawHeaders[index - (index % 2)] ?? ''));
    assert.deepEqual(internal, ['X-Gateway-Epoch', '1']);
  });

  it('is nobody when only X-Gateway-* fields say so', async () => {
    const path = freshPath();
    await call(gateway.port, path, { headers: { 'X-Gateway-Epoch': '77', 'X-Gateway-Node': aliceHome } });
    const line = await accessLine(gateway, path);
    assert.equal(line['decision'], 'anonymous');
    const { rawHeaders } = seenBy(String(line['node']), path);
    assert.ok(!rawHeaders.some((text) => /^x-gateway-/i.test(text)), rawHeaders.join(' '));
  });

  for (const first of ['alice', 'bob'] as const) {
    it(`is the first of two x-token lines: ${first}`, async () => {
      const path = freshPath();
      const [one, two] = first === 'alice' ? [alice, bob] : [bob, alice];
      const home = first === 'alice' ? aliceHome : bobHome;
      const answer = await sendRaw(
        gateway.port,
        `GET ${path} HTTP/1.1\r\nHost: demo\r\nX-Token: ${one}\r\nx-token: ${two}\r\nConnection: close\r\n\r\n`,
      );
      assert.match(answer, new RegExp(`^HTTP/1.1 200 [\\s\\S]*\r\nX-Gateway-Node: ${home}\r\n`));
      const { rawHeaders } = seenBy(home, path);
      const tokens = rawHeaders.filter((_, index) => /^x-token$/i.test(rawHeaders[index - 1] ?? ''));
      assert.deepEqual(tokens, [one, two], 'both lines go on, apart and in order');
      assert.equal((await accessLine(gateway, path))['user'], `u-${first}`);
    });
  }

  it('is read from header, cookie and query, in this order', async () => {
    const cookie = (token: string) => ({ Cookie: `a=b; session=${token}; c=d` });
    const ask = async (token: string | undefined, headers: Record<string, string>, query: string) =>
      nodeOf(await gateway.get(`/js/a/notes${query}`, token, headers));
    assert.equal(await ask(alice, cookie(bob), `?token=${bob}`), aliceHome, 'header before cookie and query');
    assert.equal(await ask(undefined, cookie(alice), `?token=${bob}`), aliceHome, 'cookie before query');
    assert.equal(await ask(undefined, cookie(bob), `?token=${alice}`), bobHome, 'cookie before query');
    assert.equal(await ask(undefined, {}, `?a=b&token=${bob}&token=${alice}`), bobHome, 'the first in the query');
    assert.equal(await ask('', {}, `?token=${bob}`), bobHome, 'an empty header is none');
  });

  it('shows no query token in the access log, however it is written, and passes it on to the node', async () => {
    for (const name of ['token', '%74oken', 't%6Fken']) {
      const path = freshPath();
      const answer = await gateway.get(`${path}?first=1&${name}=${alice}&token=${bob}&last=2`);
      assert.equal(nodeOf(answer), aliceHome, name);
      assert.equal(seenBy(aliceHome, path).path, `${path}?first=1&${name}=${alice}&token=${bob}&last=2`);
      assert.equal((await accessLine(gateway, path))['path'], `${path}?first=1&${name}=***&token=***&last=2`);
    }
    for (const token of [alice, bob]) assert.ok(!gateway.lines.some((line) => line.includes(token)));
  });

  /** From 127.0.0.2 when `from` says so: on Linux the whole of 127/8 is the loopback interface. */
  function ask(of: GatewayFixture, path: string, from: string, forwardedFor: readonly string[]): Promise<Answer> {
    const headers = ['Host', 'demo', 'x-token', alice, ...forwardedFor.flatMap((value) => ['X-Forwarded-For', value])];
    return call(of.port, path, { headers, agent: new http.Agent({ localAddress: from } as http.AgentOptions) });
  }

  it('is at the address of the peer when nobody is trusted', async () => {
    for (const from of ['127.0.0.1', '127.0.0.2']) {
      const path = freshPath();
      await ask(gateway, path, from, ['203.0.113.9', '127.0.0.1']);
      assert.equal((await accessLine(gateway, path))['client'], from);
      assert.equal(seenBy(aliceHome, path).headers['x-forwarded-for'], from, 'what the client wrote is replaced');
    }
  });

  it('is at the address of the peer when that is not one of the trusted proxies', async () => {
    const token = await behindProxy.tokenOf('alice');
    const path = freshPath();
    const headers = ['Host', 'demo', 'x-token', token, 'X-Forwarded-For', '127.0.0.1'];
    const agent = new http.Agent({ localAddress: '127.0.0.2' } as http.AgentOptions);
    const answer = await call(behindProxy.port, path, { headers, agent });
    assert.equal((await accessLine(behindProxy, path))['client'], '127.0.0.2');
    assert.equal(seenBy(nodeOf(answer), path).headers['x-forwarded-for'], '127.0.0.2');
  });

  it('is at the right-most untrusted hop behind a trusted proxy', async () => {
    const cases: [readonly string[], string][] = [
      [['203.0.113.9'], '203.0.113.9'],
      [['127.0.0.1, 203.0.113.9'], '203.0.113.9'],
      [['198.51.100.1, 203.0.113.9, 10.1.2.3'], '203.0.113.9'],
      [['198.51.100.1', '203.0.113.9, 127.0.0.1'], '203.0.113.9'],
      [['198.51.100.1, not-an-address, 10.1.2.3'], '10.1.2.3'],
      [[], '127.0.0.1'],
    ];
    for (const [forwardedFor, expected] of cases) {
      const path = freshPath();
      const answer = await ask(behindProxy, path, '127.0.0.1', forwardedFor);
      assert.equal((await accessLine(behindProxy, path))['client'], expected, forwardedFor.join(' | '));
      const sentOn = seenBy(nodeOf(answer), path).headers['x-forwarded-for'];
      assert.equal(sentOn, [...forwardedFor, '127.0.0.1'].join(', '), 'the peer is appended');
    }
  });

  it('is let in or not by the true address, whatever it claims', async () => {
    const closed = await start('allow: ["203.0.113.0/24"]');
    const refused = await ask(closed, freshPath(), '127.0.0.1', ['203.0.113.9']);
    assert.equal(`${refused.status} ${refused.json()['error']}`, '403 ip_not_allowed');
    const proxied = await start('allow: ["203.0.113.0/24"]\ntrustedProxies: ["127.0.0.1/32"]');
    assert.equal((await ask(proxied, freshPath(), '127.0.0.1', ['203.0.113.9'])).status, 200);
    assert.equal((await ask(proxied, freshPath(), '127.0.0.1', ['203.0.113.9, 192.0.2.1'])).status, 403);
    assert.equal((await ask(proxied, freshPath(), '127.0.0.2', ['203.0.113.9'])).status, 403);
  });
});
