/** The ways to a Redis besides a plain server: a cluster, a master behind sentinels, and replies that refuse. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { RedisBindingCache } from '../../lib/bindings/redis-cache.ts';
import type { RedisTarget } from '../../lib/config/options.ts';
import { LineLogger } from '../../lib/observe/log.ts';
import { RedisReplyError, RedisStore } from '../../lib/stores/redis.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { systemClock } from '../../lib/support/clock.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { freePort, type RedisServer, startRedis } from '../support/redis-server.ts';
import { waitUntil } from '../support/wait-until.ts';

const lines: string[] = [];
const logger = new LineLogger({ level: 'debug', format: 'json' }, { write: (line) => void lines.push(line) });
const TIMEOUT_MS = 200;

describe('a Redis', () => {
  let folder: string;
  const servers: RedisServer[] = [];
  const stores: RedisStore[] = [];

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'sticky-redis-clients-'));
  });
  after(async () => {
    for (const store of stores) store.stop();
    for (const server of servers) await server.stop();
    await rm(folder, { recursive: true, force: true });
  });

  async function run(...args: string[]): Promise<RedisServer> {
    const server = await startRedis({ args });
    servers.push(server);
    return server;
  }

  async function open(target: RedisTarget, label: string, clock = systemClock): Promise<RedisStore> {
    const store = new RedisStore({ target, timeoutMs: TIMEOUT_MS }, logger, clock, label);
    stores.push(store);
    await store.start();
    return store;
  }

  const works = (store: RedisStore) =>
    store.get('k').then(
      () => true,
      () => false,
    );

  it('that is a cluster serves bindings, tells of gaps, survives silence, and fails within the timeout', async () => {
    const server = await run(
      ...['--cluster-enabled', 'yes', '--cluster-config-file', join(folder, 'nodes.conf')],
      // The default for the bus is the port plus 10000, which may be none.
      ...['--cluster-announce-ip', '127.0.0.1', '--cluster-port', String(await freePort())],
    );
    await server.command('CLUSTER', 'ADDSLOTSRANGE', '0', '16383');
    await waitUntil('the cluster', async () => (await server.command('CLUSTER', 'INFO')).includes('cluster_state:ok'));
    const clock = new FakeClock();
    const store = await open({ kind: 'cluster', nodes: [server.url] }, 'cluster', clock);
    const cache = new RedisBindingCache(store, 60_000, logger, clock);
    await cache.write({ serviceId: 's', userId: '1', username: 'alice', nodeId: 'n1', epoch: 1, frozen: false });
    const id = { kind: 'id', serviceId: 's', userId: '1' } as const;
    const name = { kind: 'name', serviceId: 's', username: 'alice' } as const;
    assert.equal((await cache.find(id))?.nodeId, 'n1');
    assert.equal((await cache.find(name))?.nodeId, 'n1');

    let gaps = 0;
    const changes: unknown[] = [];
    cache.listen(
      (change) => changes.push(change),
      () => {
        gaps += 1;
      },
    );
    await waitUntil('the subscription', () => gaps === 1);
    await server.command('CLIENT', 'KILL', 'TYPE', 'pubsub');
    await waitUntil('the gap to be told', () => {
      clock.advance(100);
      return gaps === 2;
    });
    await cache.announce([id]);
    await waitUntil('the change', () => changes.length === 1);
    // Keys of two slots: each is deleted by a command of its own.
    await cache.drop([id, name]);
    assert.equal(await cache.find(id), undefined);

    server.pause();
    for (let second = 0; second < 4; second += 1) {
      await assert.rejects(store.get('k'), StoreUnavailable);
      clock.advance(1_000);
    }
    server.resume();
    await waitUntil('the cluster to be asked again', () => {
      clock.advance(1_000);
      return works(store);
    });

    await server.kill();
    for (let turn = 0; turn < 20; turn += 1) {
      clock.advance(1_000);
      const startedAt = performance.now();
      await assert.rejects(store.get('k'), StoreUnavailable);
      assert.ok(performance.now() - startedAt < 2 * TIMEOUT_MS, 'retries of the client stay within the timeout');
    }
  });

  it('behind sentinels is found by its name, with the password and database of the first URL', async () => {
    const master = await run('--requirepass', 'hunter2');
    const config = join(folder, 'sentinel.conf');
    await writeFile(config, `sentinel monitor main 127.0.0.1 ${master.port} 1\nsentinel auth-pass main hunter2\n`);
    const sentinel = await startSentinel(config);
    try {
      const url = `redis://:hunter2@127.0.0.1:${sentinel.port}/3`;
      const store = await open({ kind: 'sentinel', sentinels: [url], name: 'main' }, 'sentinel');
      await store.set('k', 'v', 60_000);
      assert.equal(await store.get('k'), 'v');
      const plain = await open({ kind: 'single', url: `redis://:hunter2@127.0.0.1:${master.port}/3` }, 'single');
      assert.equal(await plain.get('k'), 'v', 'it is in database 3 of the master');
      const messages: string[] = [];
      let ready = 0;
      store.subscribe(
        'c',
        (message) => messages.push(message),
        () => {
          ready += 1;
        },
      );
      await waitUntil('the subscription', () => ready === 1);
      await store.publish('c', 'hello');
      await waitUntil('the message', () => messages.length === 1);
      const unknown = await open({ kind: 'sentinel', sentinels: [url], name: 'nobody' }, 'unknown');
      await assert.rejects(unknown.get('k'), StoreUnavailable);
    } finally {
      await sentinel.stop();
    }
    assert.ok(!lines.join('').includes('hunter2'), 'no password in the log');
  });

  async function startSentinel(config: string): Promise<RedisServer> {
    const server = await startRedis({ config, args: ['--sentinel'] });
    servers.push(server);
    return server;
  }

  it('that refuses a command counts as failing, except for a key of another type', async () => {
    const server = await run('--rename-command', 'GET', '');
    const store = await open({ kind: 'single', url: server.url }, 'refusing');
    await assert.rejects(store.get('k'), StoreUnavailable);
    await server.command('SET', 'text', 'x');
    await assert.rejects(store.hgetBufferWithTtl('text', 'f'), RedisReplyError);
    await assert.rejects(store.evalScript("return redis.call('HGET', KEYS[1], 'f')", 'text', []), RedisReplyError);
    await assert.rejects(store.evalScript('return nonsense', 'text', []), StoreUnavailable);
  });

  it('that became a replica is connected to anew, and fails until it is a master', async () => {
    const server = await run();
    const store = await open({ kind: 'single', url: server.url }, 'failover');
    await server.command('REPLICAOF', '127.0.0.1', '1');
    await assert.rejects(store.set('k', 'v', 1_000), StoreUnavailable);
    await waitUntil('a new connection', async () => !store.connected);
    await server.command('REPLICAOF', 'NO', 'ONE');
    await waitUntil('writes to work', () =>
      store.set('k', 'v', 1_000).then(
        () => true,
        () => false,
      ),
    );
  });

  it('that swallows a burst of commands is left by one new connection, and what comes late reaches nobody', async () => {
    const server = await run();
    const clock = new FakeClock();
    const store = await open({ kind: 'single', url: server.url }, 'burst', clock);
    const warnings: Error[] = [];
    const collect = (warning: Error) => warnings.push(warning);
    process.on('warning', collect);
    try {
      await store.set('a', 'of a', 60_000);
      await store.set('b', 'of b', 60_000);
      server.pause();
      const burst = await Promise.allSettled(Array.from({ length: 100 }, () => store.get('a')));
      assert.ok(burst.every((one) => one.status === 'rejected' && one.reason instanceof StoreUnavailable));
      server.resume();
      clock.advance(1_000);
      // On the same connection, behind the hundred late answers.
      assert.equal(await store.get('b'), 'of b');
      assert.equal((await server.command('INFO', 'stats')).match(/total_connections_received:(\d+)/)?.[1], '3');
      server.pause();
      for (let second = 0; second < 5; second += 1) {
        await assert.rejects(store.get('a'), StoreUnavailable);
        clock.advance(1_000);
      }
      await waitUntil('the silent connection to be given up', () => !store.connected);
      server.resume();
      await waitUntil('the server to be asked again', () => {
        clock.advance(1_000);
        return works(store);
      });
      assert.equal(await store.get('b'), 'of b');
    } finally {
      process.off('warning', collect);
    }
    assert.deepEqual(warnings, []);
  });

  it('starts and stops as often as it is told to, without a word in the log', async () => {
    const server = await run();
    const store = await open({ kind: 'single', url: server.url }, 'twice');
    await store.start();
    store.stop();
    store.stop();
    await waitUntil('the connection to be closed', () => !store.connected);
    await store.start();
    await assert.rejects(store.get('k'), StoreUnavailable, 'stopped for good');
    assert.equal(lines.filter((line) => line.includes('"redis":"twice"')).length, 0);
  });
});
