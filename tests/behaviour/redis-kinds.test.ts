/** Whole gateways on a Redis Cluster and on a master behind sentinels: cached there, told of changes, and back after a loss. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, describe, it } from 'node:test';
import { Gateway } from '../../bin/compose.ts';
import { loadConfig } from '../../lib/config/load.ts';
import { LineLogger } from '../../lib/observe/log.ts';
import { systemClock } from '../../lib/support/clock.ts';
import { BackendNode, newToken, userIdOf } from '../support/backend-node.ts';
import { counterOf } from '../support/counter-of.ts';
import { configText, GatewayFixture, openStores, type StoreSetup } from '../support/gateway-fixture.ts';
import { runSql } from '../support/postgres-server.ts';
import { freePort, type RedisServer, startRedis } from '../support/redis-server.ts';
import { waitUntil } from '../support/wait-until.ts';

const PATH = '/js/a/notes';

interface RedisKind {
  /** YAML of store.redis. */
  readonly yaml: string;
  /** Those that hold the data. */
  readonly servers: readonly RedisServer[];
}

describe('gateways that share', () => {
  const nodes = [new BackendNode('n1'), new BackendNode('n2')];
  const cleanUps: (() => Promise<unknown>)[] = [];
  let folder: string;
  let stores: StoreSetup;

  before(async () => {
    for (const node of nodes) await node.start();
    folder = await mkdtemp(join(tmpdir(), 'sticky-redis-kinds-'));
    stores = await openStores('postgres');
  });
  afterEach(async () => {
    for (const cleanUp of cleanUps.splice(0).reverse()) await cleanUp();
  });
  after(async () => {
    await stores?.close();
    await rm(folder, { recursive: true, force: true });
    for (const node of nodes) await node.stop();
  });

  async function run(options: Parameters<typeof startRedis>[0]): Promise<RedisServer> {
    const server = await startRedis(options);
    cleanUps.push(() => server.stop());
    return server;
  }

  async function start(yaml: string, name: string): Promise<GatewayFixture> {
    const text = configText({
      stores: { ...stores, dataDir: join(folder, name), redisUrl: 'redis://placeholder' },
      nodes,
    });
    assert.match(text, /redis: \{ url: "[^"]*" \}/);
    const loaded = loadConfig(text.replace(/redis: \{ url: "[^"]*" \}/, `redis: ${yaml}`), 'test.yaml', {});
    assert.ok('options' in loaded, JSON.stringify(loaded));
    const lines: string[] = [];
    const logger = new LineLogger({ level: 'debug', format: 'json' }, { write: (line) => void lines.push(line) });
    const gateway = new Gateway(loaded.options, { logger, clock: systemClock });
    await gateway.start();
    cleanUps.push(() => gateway.stop());
    return new GatewayFixture(gateway, lines);
  }

  async function cluster(): Promise<RedisKind> {
    const servers: RedisServer[] = [];
    for (let index = 0; index < 3; index += 1) {
      const files = ['--cluster-config-file', join(folder, `nodes-${index}-${Math.random()}.conf`)];
      const ports = ['--cluster-announce-ip', '127.0.0.1', '--cluster-port', String(await freePort())];
      servers.push(await run({ args: ['--cluster-enabled', 'yes', ...files, ...ports] }));
    }
    const bounds = [0, 5_461, 10_923, 16_384];
    for (const [index, server] of servers.entries()) {
      const last = (bounds[index + 1] ?? 0) - 1;
      await server.command('CLUSTER', 'ADDSLOTSRANGE', String(bounds[index]), String(last));
      await server.command('CLUSTER', 'SET-CONFIG-EPOCH', String(index + 1));
    }
    const [first, ...others] = servers as [RedisServer, ...RedisServer[]];
    for (const other of others) {
      const bus = /@(\d+)/.exec(await other.command('CLUSTER', 'NODES'))?.[1] ?? '';
      await first.command('CLUSTER', 'MEET', '127.0.0.1', String(other.port), bus);
    }
    for (const server of servers) {
      await waitUntil('the cluster', async () => {
        const info = await server.command('CLUSTER', 'INFO');
        const ranges = (await server.command('CLUSTER', 'SLOTS')).startsWith('*3');
        return ranges && info.includes('cluster_state:ok') && info.includes('cluster_known_nodes:3');
      });
    }
    const urls = servers.map(({ url }) => JSON.stringify(url));
    return { yaml: `{ cluster: [${urls.join(', ')}], timeout: 1s }`, servers };
  }

  async function sentinels(): Promise<RedisKind> {
    const master = await run({ args: ['--requirepass', 'word'] });
    const urls: string[] = [];
    for (let index = 0; index < 2; index += 1) {
      const config = join(folder, `sentinel-${index}-${master.port}.conf`);
      await writeFile(config, `sentinel monitor main 127.0.0.1 ${master.port} 2\nsentinel auth-pass main word\n`);
      urls.push(JSON.stringify(`redis://:word@127.0.0.1:${(await run({ config, args: ['--sentinel'] })).port}`));
    }
    return { yaml: `{ sentinels: [${urls.join(', ')}], name: main, timeout: 1s }`, servers: [master] };
  }

  /** Both gateways are, each with its commands; the subscription is on one server only. */
  async function connected(server: RedisServer): Promise<boolean> {
    const clients = (await server.command('CLIENT', 'LIST')).split('\n');
    return clients.filter((line) => line.includes('name=sticky-gateway') && line.includes(' sub=0 ')).length >= 2;
  }

  const kinds: [string, () => Promise<RedisKind>][] = [
    ['a Redis Cluster of three', cluster],
    ['a Redis behind two sentinels', sentinels],
  ];
  for (const [title, open] of kinds) {
    it(`${title} bind, find, move, lose it and find it again`, async () => {
      const { yaml, servers } = await open();
      const name = title.replaceAll(' ', '-').toLowerCase();
      const first = await start(yaml, `${name}-1`);
      const second = await start(yaml, `${name}-2`);
      if (servers.length > 1) {
        for (const server of servers) await waitUntil('both gateways on every server', async () => connected(server));
      }
      // Several users: in a cluster their keys lie on several servers.
      const users: { name: string; token: string; home: string }[] = [];
      for (let index = 0; index < 12; index += 1) {
        const user = `${name}-${index}`;
        const token = await first.tokenOf(user);
        const home = String((await first.get(PATH, token)).headers['x-gateway-node']);
        users.push({ name: user, token, home });
        assert.equal((await second.get(PATH, token)).headers['x-gateway-node'], home);
      }
      assert.equal(counterOf(second, 'gateway_token_lookups_total{by="redis"}'), users.length);
      assert.equal(counterOf(second, 'gateway_binding_lookups_total{layer="redis"}'), users.length);

      for (const user of users) {
        user.home = user.home === 'n1' ? 'n2' : 'n1';
        await first.gateway.parts.bindings.move('demo', userIdOf(user.name), user.home);
        assert.equal((await first.get(PATH, user.token)).headers['x-gateway-node'], user.home);
        await waitUntil('the other gateway to hear of it', async () => {
          return (await second.get(PATH, user.token)).headers['x-gateway-node'] === user.home;
        });
      }

      for (const server of servers) await server.kill();
      const third = await start(yaml, `${name}-3`);
      for (const user of users) {
        assert.equal((await third.get(PATH, user.token)).headers['x-gateway-node'], user.home, user.name);
      }
      assert.equal((await third.get(PATH, newToken())).json()['error'], 'identity_unavailable');
      if (servers.length > 1) return;
      await servers[0]?.start();
      await waitUntil('an unknown token to be nobody again', async () => {
        return (await third.get(PATH, newToken())).status === 200;
      });
      await runSql(stores.postgresUrl ?? '', 'DELETE FROM gateway_token');
      const token = await third.tokenOf(`${name}-0`);
      assert.equal((await first.get(PATH, token)).headers['x-gateway-node'], users[0]?.home);
    });
  }
});
