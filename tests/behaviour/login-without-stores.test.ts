/** Logins while the stores fail or stall: the node's answer is released all the same, and the user is bound later. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import * as net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import { Client } from 'pg';
import { BackendNode, loginSuccess, newToken, sendJson, userIdOf } from '../support/backend-node.ts';
import { counterOf } from '../support/counter-of.ts';
import { type GatewayFixture, type StoreKind, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import { createDatabase, type PostgresServer, startPostgres } from '../support/postgres-server.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { TcpGate } from '../support/tcp-gate.ts';
import { waitUntil } from '../support/wait-until.ts';

const LOGIN = '/js/a/auth/login';

for (const kind of ['postgres', 'postgres+redis'] satisfies StoreKind[]) {
  describe(`a login on the ${kind} store`, () => {
    const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
    let postgres: PostgresServer;
    let databaseUrl: string;
    let redis: RedisServer | undefined;
    let gate: TcpGate;
    let dataDir: string;
    let gateway: GatewayFixture;

    before(async () => {
      for (const node of nodes) await node.start();
      postgres = await startPostgres();
      databaseUrl = (await createDatabase(postgres.url)).url;
      redis = kind === 'postgres' ? undefined : await startRedis();
      dataDir = await mkdtemp(join(tmpdir(), 'sticky-gateway-'));
    });
    after(async () => {
      await redis?.stop();
      await postgres?.dispose();
      await rm(dataDir, { recursive: true, force: true });
      for (const node of nodes) await node.stop();
    });
    beforeEach(async () => {
      for (const node of nodes) {
        node.journal.length = 0;
        node.loginAnswer = undefined;
      }
      gate = await TcpGate.open(postgres.port);
      const url = new URL(databaseUrl);
      url.port = String(gate.port);
      const stores: StoreSetup = {
        kind,
        dataDir,
        postgresUrl: url.href,
        redisUrl: redis?.url ?? null,
        close: () => Promise.resolve(),
      };
      gateway = await startGateway({ stores, nodes, config: 'registry: { pollInterval: 1h }' });
    });
    afterEach(async () => {
      await gateway.stop();
      await gate.close();
    });

    async function nodeInRow(userId: string): Promise<string | undefined> {
      const client = new Client({ connectionString: databaseUrl });
      await client.connect();
      const { rows } = await client.query('SELECT node_id FROM gateway_user_route WHERE user_id = $1', [userId]);
      await client.end();
      return rows[0]?.node_id;
    }

    it('gets the answer of its node while PostgreSQL is away, and is bound to that node when it is back', async () => {
      await postgres.stop();
      const sent = JSON.stringify(loginSuccess('alice'));
      for (const node of nodes) node.loginAnswer = (_, response) => sendJson(response, JSON.parse(sent));
      const answer = await gateway.login('alice');
      assert.equal(answer.status, 200);
      assert.equal(answer.text, sent);
      assert.ok(counterOf(gateway, 'gateway_logins_total{result="bind_failed"}') >= 1);
      assert.equal(gateway.events('login_bind_failed')[0]?.['user'], userIdOf('alice'));
      const { token } = answer.json()['data'] as { token: string };
      const refused = await gateway.get('/js/a/notes', token);
      assert.equal(`${refused.status} ${refused.json()['error']}`, '503 directory_unavailable');
      await postgres.start();
      const home = await waitUntil('the binding', () => nodeInRow(userIdOf('alice')), 15_000);
      assert.equal(home, answer.headers['x-gateway-node']);
      await waitUntil('alice to be served', async () => (await gateway.get('/js/a/notes', token)).status === 200);
      for (const node of nodes) assert.equal(node.withToken(token).length, node.id === home ? 1 : 0, node.id);
    });

    it('keeps the binding that a user had when their login went elsewhere in the meantime', async () => {
      const token = await gateway.tokenOf('bob');
      const home = await nodeInRow(userIdOf('bob'));
      await gateway.stop();
      await redis?.command('FLUSHALL');
      const stores: StoreSetup = {
        kind,
        dataDir,
        postgresUrl: databaseUrl,
        redisUrl: redis?.url ?? null,
        close: () => Promise.resolve(),
      };
      gateway = await startGateway({ stores, nodes, config: 'registry: { pollInterval: 1h }' });
      await postgres.stop();
      const again: string[] = [];
      for (let turn = 0; turn < 3; turn += 1) {
        const answer = await gateway.login('bob');
        assert.equal(answer.status, 200);
        again.push((answer.json()['data'] as { token: string }).token);
      }
      await postgres.start();
      for (const each of [token, ...again]) {
        const answer = await waitUntil(
          'bob to be served',
          async () => {
            const got = await gateway.get('/js/a/notes', each);
            assert.ok(got.status === 200 || got.status === 503, got.text);
            return got.status === 200 && got;
          },
          15_000,
        );
        assert.equal(answer.headers['x-gateway-node'], home);
      }
      assert.equal(await nodeInRow(userIdOf('bob')), home);
    });

    it('waits no longer than a moment for a PostgreSQL that falls silent, and is bound all the same', async () => {
      for (const node of nodes) {
        node.loginAnswer = (username, response) => {
          // From here on no byte reaches PostgreSQL, so the bind stalls.
          gate.silence();
          sendJson(response, loginSuccess(username));
        };
      }
      const startedMs = performance.now();
      const answer = await gateway.login('carol');
      const tookMs = performance.now() - startedMs;
      assert.equal(answer.status, 200);
      assert.ok(tookMs < 3_500, `it took ${Math.round(tookMs)} ms`);
      const slow = counterOf(gateway, 'gateway_logins_total{result="bind_timeout"}');
      assert.ok(slow + counterOf(gateway, 'gateway_logins_total{result="bind_failed"}') >= 1);
      assert.equal(await nodeInRow(userIdOf('carol')), undefined);
      gate.unsilence();
      const home = await waitUntil('the binding', () => nodeInRow(userIdOf('carol')), 15_000);
      assert.equal(home, answer.headers['x-gateway-node']);
    });

    it('reaches no node when its client has left before it was known where it belongs', async () => {
      gate.silence();
      const body = JSON.stringify({ username: 'early-leaver' });
      const lines = () => gateway.events('request').length;
      const linesBefore = lines();
      const login = net.connect(gateway.port, '127.0.0.1');
      login.write(`POST ${LOGIN} HTTP/1.1\r\nHost: demo\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
      const plain = net.connect(gateway.port, '127.0.0.1');
      plain.write(`GET /js/a/notes HTTP/1.1\r\nHost: demo\r\nx-token: ${newToken()}\r\n\r\n`);
      await waitUntil('both to be looked up', () => counterOf(gateway, 'gateway_requests_in_flight') === 2);
      login.destroy();
      plain.destroy();
      await waitUntil('the gateway to notice', () => lines() === linesBefore + 2);
      gate.unsilence();
      await waitUntil('the look-ups to be over', async () => {
        const found = await gateway.gateway.parts.bindings
          .findByUsername('demo', 'early-leaver')
          .catch(() => undefined);
        return found !== undefined;
      });
      await gateway.get('/js/a/last');
      const paths = nodes.flatMap((node) => node.journal.map((entry) => entry.path));
      assert.deepEqual(paths, ['/js/a/last']);
      await waitUntil('nothing to be under way', () => gateway.gateway.parts.forwarder.inFlight === 0, 2_000);
    });
  });
}
