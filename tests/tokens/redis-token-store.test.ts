/** The gateway's own token keys, which others write too: what they must not be able to say. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { LineLogger, silentLogger } from '../../lib/observe/log.ts';
import { RedisStore } from '../../lib/stores/redis.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { RedisSessionResolver } from '../../lib/tokens/redis-session.ts';
import { RedisTokenStore } from '../../lib/tokens/redis-token-store.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';

describe('RedisTokenStore', () => {
  const clock = new FakeClock();
  let server: RedisServer;
  let redis: RedisStore;

  before(async () => {
    server = await startRedis();
    redis = new RedisStore({ target: { kind: 'single', url: server.url }, timeoutMs: 1_000 }, silentLogger, clock, 't');
    await redis.start();
  });
  after(async () => {
    redis?.stop();
    await server?.stop();
  });

  const exists = async (key: string) => (await server.command('EXISTS', key)) === ':1\r\n';

  it('takes what can be no user id for nobody, removes it, and says so once', async () => {
    const lines: string[] = [];
    const logger = new LineLogger({ level: 'debug', format: 'json' }, { write: (line) => void lines.push(line) });
    const store = new RedisTokenStore(redis, logger);
    const values: readonly (string | Buffer)[] = ['', 'a\nb', 'x'.repeat(257), Buffer.from('ff31', 'hex')];
    for (const value of values) {
      await server.command('SET', 'gateway:token:realm:secret', value);
      assert.equal(await store.find('realm', 'secret'), undefined, String(value));
      assert.equal(await exists('gateway:token:realm:secret'), false, `${value} is gone`);
    }
    await server.command('HSET', 'gateway:token:realm:secret', 'a', 'b');
    assert.equal(await store.find('realm', 'secret'), undefined);
    assert.equal(await exists('gateway:token:realm:secret'), false);
    assert.equal(lines.length, 1);
    assert.ok(!lines[0]?.includes('secret'), 'no token in the log');
  });

  it('keeps a user id of any script and 19 digits as it is', async () => {
    const store = new RedisTokenStore(redis);
    for (const userId of ['9007199254740993', '用户', 'sys_user:1', ' 1', 'x'.repeat(256)]) {
      await store.save('realm', 't', userId, 60_000);
      assert.equal(await store.find('realm', 't'), userId);
    }
  });

  it('gives a token its life, and takes another save for the newer one', async () => {
    const store = new RedisTokenStore(redis);
    await store.save('realm', 'life', 'alice', 60_000);
    await store.save('realm', 'life', 'bob', 5_000);
    assert.equal(await store.find('realm', 'life'), 'bob');
    const left = Number((await server.command('PTTL', 'gateway:token:realm:life')).slice(1));
    assert.ok(left > 0 && left <= 5_000, `${left} ms`);
  });

  it('does not take a refusal for nobody', async () => {
    await server.command('ACL', 'SETUSER', 'none', 'on', '>pw', '~elsewhere:*', '+@all');
    const url = `redis://none:pw@127.0.0.1:${server.port}`;
    const refused = new RedisStore({ target: { kind: 'single', url }, timeoutMs: 1_000 }, silentLogger, clock, 'none');
    await refused.start();
    try {
      await assert.rejects(new RedisTokenStore(refused).find('realm', 't'), StoreUnavailable);
    } finally {
      refused.stop();
    }
  });

  it('and the sessions of others do not make one user of all bytes that are no text', async () => {
    const lines: string[] = [];
    const logger = new LineLogger({ level: 'debug', format: 'json' }, { write: (line) => void lines.push(line) });
    const options = { type: 'redis', redis: null, key: 'sess:{token}', field: null, jsonPath: null } as const;
    const sessions = new RedisSessionResolver(options, redis, clock, logger);
    await server.command('SET', 'sess:a', Buffer.from('ff', 'hex'));
    await server.command('SET', 'sess:b', Buffer.from('fe', 'hex'));
    assert.equal(await sessions.resolve('a'), undefined);
    assert.equal(await sessions.resolve('b'), undefined);
    assert.equal(lines.length, 1, 'told once');
  });
});
