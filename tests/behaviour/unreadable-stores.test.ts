/** What cannot be looked up is never taken for absent: a token is not anonymous, a user is not new, and 503 says so. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, beforeEach, describe, it } from 'node:test';
import { nameRouteKey, userRouteKey } from '../../lib/stores/redis-keys.ts';
import { BackendNode, newToken, userIdOf } from '../support/backend-node.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import type { Answer } from '../support/http-client.ts';
import { createDatabase, type PostgresServer, startPostgres } from '../support/postgres-server.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { waitUntil } from '../support/wait-until.ts';

function assertRefused(answer: Answer, error: string): void {
  assert.equal(`${answer.status} ${answer.json()['error']}`, `503 ${error}`);
  assert.match(String(answer.headers['retry-after']), /^[1-9]\d*$/);
  assert.equal(answer.headers['x-gateway-node'], undefined);
}

describe('while PostgreSQL and Redis fail', () => {
  const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
  let postgres: PostgresServer;
  let redis: RedisServer;
  let stores: StoreSetup;
  let gateway: GatewayFixture | undefined;

  before(async () => {
    for (const node of nodes) await node.start();
    postgres = await startPostgres();
    redis = await startRedis();
    const dataDir = await mkdtemp(join(tmpdir(), 'sticky-gateway-'));
    const { url } = await createDatabase(postgres.url);
    stores = {
      kind: 'postgres+redis',
      dataDir,
      postgresUrl: url,
      redisUrl: redis.url,
      async close() {
        await redis.stop();
        await postgres.dispose();
        await rm(dataDir, { recursive: true, force: true });
      },
    };
  });
  after(async () => {
    await gateway?.stop();
    await stores?.close();
    for (const node of nodes) await node.stop();
  });
  beforeEach(async () => {
    await gateway?.stop();
    gateway = undefined;
    for (const node of nodes) node.journal.length = 0;
  });

  async function start(config = '', service = ''): Promise<GatewayFixture> {
    gateway = await startGateway({ stores, nodes, config, service });
    return gateway;
  }

  /** A gateway that knows nothing yet, and a user that another one has bound. */
  async function coldWith(username: string, config = '', service = '') {
    const first = await start(config, service);
    const token = await first.tokenOf(username);
    const home = (await first.get('/js/a/notes', token)).headers['x-gateway-node'];
    await first.stop();
    const cold = await start(config, service);
    for (const node of nodes) node.journal.length = 0;
    return { gateway: cold, token, home };
  }

  const forget = (username: string) =>
    redis.command('DEL', userRouteKey('demo', userIdOf(username)), nameRouteKey('demo', username));
  const seen = () => nodes.reduce((sum, node) => sum + node.journal.length, 0);

  async function postgresBack(of: GatewayFixture): Promise<void> {
    await postgres.start();
    await waitUntil('PostgreSQL to be asked again', () =>
      of.gateway.parts.bindings.findByUserId('demo', `nobody-${Math.random()}`).then(
        () => true,
        () => false,
      ),
    );
  }
  async function redisBack(of: GatewayFixture): Promise<void> {
    await redis.start();
    await waitUntil('Redis to be asked again', async () => (await of.get('/js/a/notes', newToken())).status === 200);
  }

  it('a token gets 503 identity_unavailable without either, and no token is served as ever', async () => {
    const cold = await coldWith('alice');
    await redis.kill();
    await postgres.stop();
    for (const token of [cold.token, newToken()]) {
      for (let turn = 0; turn < 3; turn += 1)
        assertRefused(await cold.gateway.get('/js/a/notes', token), 'identity_unavailable');
    }
    assert.equal(seen(), 0, 'no request with a token reached a node');
    const served = new Set<unknown>();
    for (let turn = 0; turn < 3; turn += 1)
      served.add((await cold.gateway.get('/js/a/notes')).headers['x-gateway-node']);
    assert.equal(served.size, 3);
    await postgresBack(cold.gateway);
    await redisBack(cold.gateway);
    assert.equal((await cold.gateway.get('/js/a/notes', cold.token)).headers['x-gateway-node'], cold.home);
  });

  it('an unknown token is not rejected but 503, where unknown tokens are rejected', async () => {
    const cold = await coldWith('bob', 'identity: { unknownToken: reject }');
    assert.equal((await cold.gateway.get('/js/a/notes', newToken())).status, 401);
    await redis.kill();
    assertRefused(await cold.gateway.get('/js/a/notes', newToken()), 'identity_unavailable');
    assert.equal(seen(), 0);
    await redis.start();
  });

  it('a bound user is served without Redis: PostgreSQL knows token and binding', async () => {
    const cold = await coldWith('carol');
    await redis.kill();
    assert.equal((await cold.gateway.get('/js/a/notes', cold.token)).headers['x-gateway-node'], cold.home);
    const token = await cold.gateway.tokenOf('newcomer');
    const home = (await cold.gateway.get('/js/a/notes', token)).headers['x-gateway-node'];
    assert.equal(nodes.find((node) => node.id === home)?.withToken(token).length, 1);
    await redisBack(cold.gateway);
    assert.equal((await cold.gateway.get('/js/a/notes', token)).headers['x-gateway-node'], home);
  });

  it('a bound user is served without PostgreSQL as far as Redis knows', async () => {
    const cold = await coldWith('dave');
    await postgres.stop();
    assert.equal((await cold.gateway.get('/js/a/notes', cold.token)).headers['x-gateway-node'], cold.home);
    await postgresBack(cold.gateway);
  });

  it('a user whose binding nobody can read gets 503 directory_unavailable, never a new place', async () => {
    const cold = await coldWith('erin');
    await forget('erin');
    await postgres.stop();
    for (let turn = 0; turn < 3; turn += 1)
      assertRefused(await cold.gateway.get('/js/a/notes', cold.token), 'directory_unavailable');
    assert.equal(seen(), 0);
    await postgresBack(cold.gateway);
    const back = await cold.gateway.get('/js/a/notes', cold.token);
    assert.equal(back.headers['x-gateway-node'], cold.home, back.text);
  });

  it('a user goes to no default node as long as nobody can say that they have none', async () => {
    const cold = await coldWith('frank');
    const { definition } = cold.gateway.gateway.registry.snapshot!;
    const other = nodes.find((node) => node.id !== cold.home)!.id;
    cold.gateway.gateway.registry.swap(
      { ...definition, services: definition.services.map((service) => ({ ...service, defaultNodeId: other })) },
      { loadedAtMs: Date.now(), stale: false },
    );
    await forget('frank');
    await postgres.stop();
    assertRefused(await cold.gateway.get('/js/a/notes', cold.token), 'directory_unavailable');
    assert.equal(seen(), 0);
    await postgresBack(cold.gateway);
    assert.equal((await cold.gateway.get('/js/a/notes', cold.token)).headers['x-gateway-node'], cold.home);
  });

  it('a known user is served from what is cached', async () => {
    const warm = await start();
    const token = await warm.tokenOf('gina');
    const home = (await warm.get('/js/a/notes', token)).headers['x-gateway-node'];
    await redis.kill();
    await postgres.stop();
    for (let turn = 0; turn < 3; turn += 1)
      assert.equal((await warm.get('/js/a/notes', token)).headers['x-gateway-node'], home);
    await redis.start();
    await postgresBack(warm);
  });
});

describe('while the Redis of a resolver fails', () => {
  it('a token gets 503 identity_unavailable on the embedded store too, unless the gateway gave it out', async () => {
    const nodes = [await new BackendNode('n1').start()];
    const redis = await startRedis();
    const stores = await openStores('embedded');
    const config = `identity: { resolvers: [{ redis: { key: "sess:{token}", redis: { url: "${redis.url}" } } }] }`;
    const gateway = await startGateway({ stores, nodes, config });
    try {
      const token = await gateway.tokenOf('alice');
      const elsewhere = newToken();
      await redis.command('SET', `sess:${elsewhere}`, userIdOf('alice'));
      assert.equal((await gateway.get('/js/a/notes', elsewhere)).headers['x-gateway-node'], 'n1');
      await redis.kill();
      nodes[0]!.journal.length = 0;
      assertRefused(await gateway.get('/js/a/notes', newToken()), 'identity_unavailable');
      assert.equal(nodes[0]!.journal.length, 0);
      assert.equal((await gateway.get('/js/a/notes', token)).status, 200);
      assert.equal((await gateway.get('/js/a/notes')).status, 200);
    } finally {
      await gateway.stop();
      await stores.close();
      await redis.stop();
      for (const node of nodes) await node.stop();
    }
  });
});
