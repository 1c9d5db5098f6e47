/**
 * Nodes are killed and started again under load, at a stateless and a bound service of one gateway: on the first nobody
 * notices while a node is alive, on the second everyone waits for their own node. No POST arrives twice on either.
 */
import assert from 'node:assert/strict';
import * as http from 'node:http';
import { after, before, describe, it } from 'node:test';
import { BackendNode } from '../support/backend-node.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import { type Answer, call } from '../support/http-client.ts';
import { Seeded } from '../support/seeded.ts';
import { waitUntil } from '../support/wait-until.ts';

const CLIENTS = 12;
const KILLS = 24;

describe('nodes killed and started again under load', () => {
  const free = ['f1', 'f2', 'f3'].map((id) => new BackendNode(id));
  const home = ['n1', 'n2'].map((id) => new BackendNode(id));
  let stores: StoreSetup;
  let gateway: GatewayFixture;
  const agent = new http.Agent({ keepAlive: true });

  before(async () => {
    for (const node of [...free, ...home]) await node.start();
    stores = await openStores('embedded');
    const list = (nodes: readonly BackendNode[]) =>
      nodes.map((node) => `      - { id: ${node.id}, baseUrl: "${node.baseUrl}" }`).join('\n');
    gateway = await startGateway({
      stores,
      nodes: [],
      services: `services:
  - id: free
    pathPrefix: /free
    affinity: none
    healthPath: /health
    nodes:
${list(free)}
  - id: demo
    pathPrefix: /js/a
    loginPath: /auth/login
    healthPath: /health
    nodes:
${list(home)}`,
    });
  });
  after(async () => {
    agent.destroy();
    await gateway?.stop();
    await stores?.close();
    for (const node of [...free, ...home]) await node.stop();
  });

  it('idempotent requests of the stateless service never fail, bound ones never stray, and no POST comes twice', async () => {
    const random = new Seeded(4_071);
    const tokens = new Map<string, string>();
    for (const name of ['alice', 'bob', 'carol', 'dave']) tokens.set(name, await gateway.tokenOf(name));
    const homes = new Map<string, string | undefined>();
    for (const [name, token] of tokens) {
      homes.set(name, (await gateway.get('/js/a/me', token)).headers['x-gateway-node'] as string);
    }
    assert.equal(new Set(homes.values()).size, 2, 'both nodes have users');
    let running = true;
    let sent = 0;
    const freeStatuses = new Map<string, number>();
    const boundErrors = new Map<string, number>();
    const note = (counts: Map<string, number>, key: string) => counts.set(key, (counts.get(key) ?? 0) + 1);
    const errorOf = (answer: Answer) => (answer.status === 200 ? '' : ` ${answer.json()['error']}`);

    async function useFree(method: string): Promise<void> {
      sent += 1;
      const answer = await call(gateway.port, '/free/x', {
        method,
        agent,
        headers: { 'X-Id': `${method}-${sent}`, ...(method === 'GET' ? {} : { 'Content-Length': 5 }) },
        ...(method === 'GET' ? {} : { body: 'hello' }),
      });
      note(freeStatuses, `${method} ${answer.status}${errorOf(answer)}`);
    }

    async function useBound(method: string): Promise<void> {
      sent += 1;
      const name = random.pick([...tokens.keys()]);
      const answer = await call(gateway.port, '/js/a/x', {
        method,
        agent,
        headers: {
          'X-Id': `${method}-${sent}`,
          'x-token': tokens.get(name),
          ...(method === 'GET' ? {} : { 'Content-Length': 5 }),
        },
        ...(method === 'GET' ? {} : { body: 'hello' }),
      });
      assert.equal(answer.headers['x-gateway-node'], homes.get(name), `${name}: ${answer.status}`);
      if (answer.status !== 200) note(boundErrors, `${answer.status}${errorOf(answer)}`);
    }

    const rounds = new Array<number>(CLIENTS).fill(0);
    const clients = rounds.map(async (_, index) => {
      while (running) {
        rounds[index] = (rounds[index] ?? 0) + 1;
        const method = random.pick(['GET', 'PUT', 'POST']);
        await (random.oneIn(3) ? useBound(method) : useFree(method));
        await new Promise((resolve) => setImmediate(resolve));
      }
    });
    /** Every request that is under way now is over, and some came after it. */
    const pause = async () => {
      const before = [...rounds];
      await waitUntil('all clients go on', () => rounds.every((round, index) => round > (before[index] ?? 0) + 1));
    };
    for (let kill = 0; kill < KILLS; kill += 1) {
      // No request lives to see all of the free nodes dead: between two changes all that were under way end.
      const [first, second, away] = [random.pick(free), random.pick(free), random.pick(home)];
      await first.stop();
      if (random.oneIn(2)) await away.stop();
      await pause();
      if (second !== first) {
        await second.stop();
        await pause();
        await second.start();
      }
      await first.start();
      if (!away.listening) await away.start();
      await pause();
    }
    running = false;
    await Promise.all(clients);

    for (const key of freeStatuses.keys()) {
      // A POST whose node was killed with it on the way is the one thing that may fail: nobody knows what was done.
      if (!key.startsWith('POST')) assert.match(key, / 200$/, JSON.stringify([...freeStatuses]));
      else assert.match(key, / (200|502 node_broke_off)$/, JSON.stringify([...freeStatuses]));
    }
    assert.ok((freeStatuses.get('GET 200') ?? 0) > 100 && (freeStatuses.get('PUT 200') ?? 0) > 100);
    for (const key of boundErrors.keys()) assert.match(key, /^50[23] node_(down|unreachable|broke_off)$/);
    assert.ok(boundErrors.size > 0, 'the users of a killed node noticed');
    const posts = [...free, ...home].flatMap((node) =>
      node.journal
        .filter(({ method, path }) => method === 'POST' && path.endsWith('/x'))
        .map(({ headers }) => headers['x-id']),
    );
    assert.equal(new Set(posts).size, posts.length, 'every POST arrived at most once');
    for (const [name, token] of tokens) {
      for (const node of home) if (node.id !== homes.get(name)) assert.deepEqual(node.withToken(token), []);
    }
    const retried = gateway.events('request').filter(({ attempts }) => Number(attempts) > 1);
    assert.ok(
      retried.some(({ service }) => service === 'free'),
      'some were sent to another node',
    );
  });
});
