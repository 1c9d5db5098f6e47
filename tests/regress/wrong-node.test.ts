/** Ways in which a user could reach a node that is not theirs, each through real gateways and stores. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import { type Clock, systemClock } from '../../lib/support/clock.ts';
import { BackendNode, loginSuccess, sendJson } from '../support/backend-node.ts';
import { counterOf } from '../support/counter-of.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import type { Answer } from '../support/http-client.ts';
import { createDatabase, type PostgresServer, runSql, startPostgres } from '../support/postgres-server.ts';
import { connectRaw } from '../support/raw-http.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { TcpGate } from '../support/tcp-gate.ts';
import { waitUntil } from '../support/wait-until.ts';

const PATH = '/js/a/notes';

/** The node that served, or the status and error. */
function outcome(answer: Answer): string {
  return answer.status === 200
    ? String(answer.headers['x-gateway-node'])
    : `${answer.status} ${answer.json()['error']}`;
}

function tokenIn(answer: Answer): string {
  return (answer.json()['data'] as { token: string }).token;
}

function moveBySql(databaseUrl: string, from: string, quietly: boolean): Promise<void> {
  // As a replica no trigger fires: nobody is told.
  const role = quietly ? 'SET session_replication_role = replica;' : '';
  const to = from === 'n1' ? 'n2' : 'n1';
  return runSql(databaseUrl, `${role} UPDATE gateway_user_route SET node_id = '${to}', epoch = epoch + 1`);
}

describe('a user moved while nobody listened', () => {
  const nodes = [new BackendNode('n1'), new BackendNode('n2')];
  let stores: StoreSetup;
  let gateway: GatewayFixture;

  before(async () => {
    for (const node of nodes) await node.start();
  });
  after(async () => {
    for (const node of nodes) await node.stop();
  });
  beforeEach(async () => {
    stores = await openStores('postgres+redis');
  });
  afterEach(async () => {
    await gateway.stop();
    await stores.close();
  });

  it('is sent to the new node by a gateway that starts later, whatever Redis holds', async () => {
    gateway = await startGateway({ stores, nodes });
    const token = await gateway.tokenOf('alice');
    const old = outcome(await gateway.get(PATH, token));
    await gateway.stop();
    await moveBySql(stores.postgresUrl ?? '', old, false);
    gateway = await startGateway({ stores, nodes });
    const home = old === 'n1' ? 'n2' : 'n1';
    assert.equal(outcome(await gateway.get(PATH, token)), home);
    assert.equal(counterOf(gateway, 'gateway_binding_lookups_total{layer="redis"}'), 0);
    assert.equal((await gateway.login('alice')).headers['x-gateway-node'], home);
  });

  it('is found in Redis once the entry is newer than the gateway', async () => {
    gateway = await startGateway({ stores, nodes, config: 'cache: { ttl: 1s }' });
    const token = await gateway.tokenOf('alice');
    const home = outcome(await gateway.get(PATH, token));
    const second = await startGateway({ stores, nodes });
    try {
      // Made before the second gateway, so the first look-up is PostgreSQL's; it renews the entry in Redis.
      assert.equal(outcome(await second.get(PATH, token)), home);
      await new Promise((resolve) => setTimeout(resolve, 20));
      second.gateway.parts.bindings.drop({ keys: [{ kind: 'id', serviceId: 'demo', userId: 'u-alice' }] });
      assert.equal(outcome(await second.get(PATH, token)), home);
      assert.equal(counterOf(second, 'gateway_binding_lookups_total{layer="store"}'), 1);
      assert.equal(counterOf(second, 'gateway_binding_lookups_total{layer="redis"}'), 1);
    } finally {
      await second.stop();
    }
  });

  it('is not sent to the old node for longer than the ttl when the wall clock is set back', async () => {
    let offsetMs = 0;
    const clock: Clock = {
      now: () => systemClock.now() + offsetMs,
      monotonic: () => systemClock.monotonic(),
      after: (delayMs, callback) => systemClock.after(delayMs, callback),
    };
    const alone = { ...stores, kind: 'postgres', redisUrl: null } as const;
    gateway = await startGateway({ stores: alone, nodes, clock, config: 'cache: { ttl: 1s }' });
    const token = await gateway.tokenOf('alice');
    const old = outcome(await gateway.get(PATH, token));
    offsetMs = -3_600_000;
    await moveBySql(stores.postgresUrl ?? '', old, true);
    await new Promise((resolve) => setTimeout(resolve, 1_100));
    assert.equal(outcome(await gateway.get(PATH, token)), old === 'n1' ? 'n2' : 'n1');
  });
});

describe("a node's old address", () => {
  const node = new BackendNode('n1');
  const moved = new BackendNode('n1');
  let stores: StoreSetup;
  let gateway: GatewayFixture;

  before(async () => {
    await node.start();
    await moved.start();
    stores = await openStores('postgres');
    gateway = await startGateway({ stores, nodes: [node] });
  });
  after(async () => {
    await gateway.stop();
    await stores.close();
    await node.stop();
    await moved.stop();
  });

  it('is not opened again for all by a request that began before the change', async () => {
    const token = await gateway.tokenOf('alice');
    await gateway.get(PATH, token);
    const client = await connectRaw(gateway.port);
    const body = JSON.stringify({ username: 'alice' });
    const head = `POST /js/a/auth/login HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n`;
    client.write(head + body.slice(0, 5));
    await waitUntil(
      'the login to wait for its body',
      () => gateway.gateway.parts.listeners.length > 0 && inFlight() > 0,
    );
    await runSql(stores.postgresUrl ?? '', `UPDATE gateway_node SET base_url = '${moved.baseUrl}' WHERE id = 'n1'`);
    await waitUntil(
      'the new address',
      () => gateway.gateway.registry.snapshot?.nodes.get('n1')?.baseUrl === moved.baseUrl,
    );
    client.write(body.slice(5));
    assert.equal((await client.readAnswer()).status, 200);
    client.reset();
    const seen = node.journal.length;
    for (let turn = 0; turn < 3; turn += 1) assert.equal((await gateway.get(PATH, token)).status, 200);
    assert.equal(node.journal.length, seen, 'nothing goes to the old address any more');
    assert.equal(moved.withToken(token).length, 3);
  });

  function inFlight(): number {
    return Number(/^gateway_requests_in_flight (\d+)$/m.exec(gateway.gateway.metrics.render())?.[1] ?? Number.NaN);
  }
});

describe('a token that the gateway could take for nobody', () => {
  const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
  let stores: StoreSetup;
  let gateway: GatewayFixture;

  before(async () => {
    for (const node of nodes) await node.start();
    stores = await openStores('embedded');
  });
  after(async () => {
    await stores.close();
    for (const node of nodes) await node.stop();
  });
  afterEach(() => gateway.stop());

  it('may be as long as a head may be', async () => {
    gateway = await startGateway({ stores, nodes });
    const token = `eyJ${'a'.repeat(12_000)}`;
    for (const node of nodes) {
      node.loginAnswer = (name, response) => sendJson(response, loginSuccess(name, undefined, token));
    }
    const home = (await gateway.login('long')).headers['x-gateway-node'];
    for (const node of nodes) node.loginAnswer = undefined;
    for (let turn = 0; turn < 4; turn += 1) assert.equal(outcome(await gateway.get(PATH, token)), home);
  });

  it('may stand in the second Cookie field, or behind an empty one', async () => {
    gateway = await startGateway({ stores, nodes, config: 'identity: { token: { header: null, cookie: sid } }' });
    const token = await gateway.tokenOf('cookie');
    const home = (await gateway.get(PATH, undefined, { cookie: `sid=${token}` })).headers['x-gateway-node'];
    for (const fields of [`Cookie: a=b\r\nCookie: sid=${token}`, `Cookie: \r\ncookie: c=d; sid=${token}`]) {
      for (let turn = 0; turn < 3; turn += 1) {
        const client = await connectRaw(gateway.port);
        client.write(`GET ${PATH} HTTP/1.1\r\nHost: h\r\n${fields}\r\n\r\n`);
        const answer = await client.readAnswer();
        assert.deepEqual(
          answer.fields.filter(([name]) => name.toLowerCase() === 'x-gateway-node').map(([, value]) => value),
          [home],
        );
        client.reset();
      }
    }
  });
});

for (const withRedis of [false, true]) {
  describe(`a login while PostgreSQL is away, ${withRedis ? 'with' : 'without'} Redis`, () => {
    const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
    let postgres: PostgresServer;
    let redis: RedisServer | undefined;
    let gate: TcpGate;
    let dataDir: string;
    let stores: StoreSetup;
    let gateway: GatewayFixture;

    before(async () => {
      for (const node of nodes) await node.start();
      postgres = await startPostgres();
      const database = await createDatabase(postgres.url);
      gate = await TcpGate.open(postgres.port);
      redis = withRedis ? await startRedis() : undefined;
      dataDir = await mkdtemp(join(tmpdir(), 'sticky-gateway-'));
      const url = new URL(database.url);
      url.port = String(gate.port);
      stores = {
        kind: withRedis ? 'postgres+redis' : 'postgres',
        dataDir,
        postgresUrl: url.href,
        redisUrl: redis?.url ?? null,
        close: () => Promise.resolve(),
      };
    });
    after(async () => {
      await redis?.stop();
      await gate.close();
      await postgres.dispose();
      await rm(dataDir, { recursive: true, force: true });
      for (const node of nodes) await node.stop();
    });
    afterEach(async () => {
      await postgres.start();
      await gateway.stop();
    });

    /** Asks until the user is served; what comes before must be a refusal that says to wait. */
    async function firstServer(token: string, user: string, by = gateway): Promise<string> {
      return waitUntil(
        `${user} to be served`,
        async () => {
          const seen = outcome(await by.get(PATH, token));
          assert.match(seen, /^(n\d|503 directory_unavailable|503 identity_unavailable)$/);
          return seen.startsWith('n') && seen;
        },
        20_000,
      );
    }

    it('leads to its node when PostgreSQL is back, also after the local cache has forgotten the token', async () => {
      gateway = await startGateway({ stores, nodes });
      await gateway.tokenOf('bob');
      await postgres.stop();
      const answer = await gateway.login('alice');
      const token = tokenIn(answer);
      await postgres.start();
      const home = answer.headers['x-gateway-node'];
      assert.equal(await firstServer(token, 'alice'), home);
      // Only a durable store counts: neither Redis nor this process may be all that knows the token.
      await gateway.stop();
      await redis?.command('FLUSHALL');
      gateway = await startGateway({ stores, nodes });
      for (let turn = 0; turn < 4; turn += 1) assert.equal(outcome(await gateway.get(PATH, token)), home);
      for (const node of nodes) if (node.id !== home) assert.equal(node.withToken(token).length, 0, node.id);
    });

    it('is not taken for anonymous by another gateway when PostgreSQL is back', async () => {
      gateway = await startGateway({ stores, nodes });
      const second = await startGateway({ stores: { ...stores, dataDir: `${dataDir}-second` }, nodes });
      try {
        await postgres.stop();
        const answer = await gateway.login('grace');
        const token = tokenIn(answer);
        for (const each of [gateway, second]) await each.get(PATH, token);
        await postgres.start();
        const home = answer.headers['x-gateway-node'];
        // From the moment PostgreSQL is back to when the first gateway has stored what it let through.
        assert.equal(await firstServer(token, 'grace', second), home);
        for (const node of nodes) if (node.id !== home) assert.equal(node.withToken(token).length, 0, node.id);
      } finally {
        await second.stop();
        await rm(`${dataDir}-second`, { recursive: true, force: true });
      }
    });

    it('is not overtaken by the default node', async () => {
      gateway = await startGateway({ stores, nodes, service: '    defaultNodeId: n3' });
      await postgres.stop();
      const answers: Answer[] = [];
      for (const name of ['dave', 'erin', 'frank']) answers.push(await gateway.login(name));
      await postgres.start();
      assert.ok(answers.some((answer) => answer.headers['x-gateway-node'] !== 'n3'));
      for (const answer of answers) {
        assert.equal(await firstServer(tokenIn(answer), 'one of three'), answer.headers['x-gateway-node']);
      }
    });
  });
}
