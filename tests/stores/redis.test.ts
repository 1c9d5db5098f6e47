/** The Redis client against a real server that is paused, killed, and answers with errors. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { RedisBindingCache } from '../../lib/bindings/redis-cache.ts';
import type { Binding } from '../../lib/model.ts';
import { LineLogger } from '../../lib/observe/log.ts';
import { RedisReplyError, RedisStore } from '../../lib/stores/redis.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { systemClock } from '../../lib/support/clock.ts';
import { RedisSessionResolver } from '../../lib/tokens/redis-session.ts';
import { RedisTokenStore } from '../../lib/tokens/redis-token-store.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { waitUntil } from '../support/wait-until.ts';

const lines: string[] = [];
const logger = new LineLogger({ level: 'debug', format: 'json' }, { write: (line) => void lines.push(line) });

function binding(nodeId: string, epoch: number, frozen = false): Binding {
  return { serviceId: 's', userId: '1', username: 'Alice', nodeId, epoch, frozen };
}

describe('Redis', () => {
  let server: RedisServer;
  let redis: RedisStore;
  const clock = new FakeClock();

  before(async () => {
    server = await startRedis();
    redis = new RedisStore({ target: { kind: 'single', url: server.url }, timeoutMs: 100 }, logger, clock, 'test');
    await redis.start();
  });
  after(async () => {
    redis?.stop();
    await server?.stop();
  });

  it('keeps values, with an expiry', async () => {
    await redis.set('k', 'v', 60_000);
    assert.equal(await redis.get('k'), 'v');
    const { value, remainingMs } = await redis.getBufferWithTtl('k');
    assert.deepEqual(value, Buffer.from('v'));
    assert.ok(remainingMs !== null && remainingMs > 50_000 && remainingMs <= 60_000, `${remainingMs} ms left`);
    assert.deepEqual(await redis.getBufferWithTtl('none'), { value: null, remainingMs: null });
    await server.command('SET', 'ever', 'v');
    assert.deepEqual(await redis.getBufferWithTtl('ever'), { value: Buffer.from('v'), remainingMs: null });
    await redis.del('k', 'none');
    assert.equal(await redis.getBuffer('k'), null);
  });

  it('tells an error about a key from a server that is away', async () => {
    await server.command('HSET', 'hash', 'field', 'value');
    await assert.rejects(
      redis.get('hash'),
      (error: unknown) => error instanceof RedisReplyError && error.code === 'WRONGTYPE',
    );
    assert.deepEqual(await redis.hgetBufferWithTtl('hash', 'field'), {
      value: Buffer.from('value'),
      remainingMs: null,
    });
  });

  it('waits for a silent server once, then asks it no more for a second', async () => {
    server.pause();
    try {
      await assert.rejects(redis.get('k'), StoreUnavailable);
      const before = performance.now();
      for (let count = 0; count < 50; count += 1) await assert.rejects(redis.get('k'), /redis is not available/);
      assert.ok(performance.now() - before < 100, 'fifty refusals took less than one timeout');
    } finally {
      server.resume();
    }
    clock.advance(1_000);
    await waitUntil('Redis does as told', async () => {
      clock.advance(1_000);
      return (await redis.get('k').catch(() => 'failed')) === null;
    });
  });

  it('comes back by itself after the server was killed and started again', async () => {
    await server.kill();
    await waitUntil('Redis does as told', async () => !redis.connected);
    await assert.rejects(redis.get('k'), StoreUnavailable);
    await server.start();
    await waitUntil('Redis does as told', async () => {
      clock.advance(1_000);
      return redis.connected && (await redis.get('k').catch(() => 'failed')) === null;
    });
  });

  it('starts without its server, and says so once', async () => {
    const away = new RedisStore(
      { target: { kind: 'single', url: 'redis://127.0.0.1:1' }, timeoutMs: 50 },
      logger,
      clock,
      'away',
    );
    await away.start();
    await assert.rejects(away.get('k'), StoreUnavailable);
    const told = lines.filter((line) => line.includes('"redis":"away"'));
    assert.equal(told.length, 1, told.join(''));
    away.stop();
  });

  it('takes a server that wants a password for one that is away', async () => {
    const locked = await startRedis({ args: ['--requirepass', 'hunter2'] });
    const store = new RedisStore(
      { target: { kind: 'single', url: `redis://127.0.0.1:${locked.port}` }, timeoutMs: 200 },
      logger,
      systemClock,
      'locked',
    );
    try {
      await store.start();
      await assert.rejects(store.get('k'), StoreUnavailable);
    } finally {
      store.stop();
      await locked.stop();
    }
    assert.ok(!lines.join('').includes('hunter2'), 'no password in the log');
  });

  it('passes messages to those who listen, and says when some may have been missed', async () => {
    const messages: string[] = [];
    let ready = 0;
    redis.subscribe(
      'news',
      (message) => messages.push(message),
      () => {
        ready += 1;
      },
    );
    await waitUntil('Redis does as told', async () => ready === 1);
    await redis.publish('news', 'one');
    await waitUntil('Redis does as told', async () => messages.length === 1);
    await server.command('CLIENT', 'KILL', 'TYPE', 'pubsub');
    await waitUntil('Redis does as told', async () => {
      clock.advance(100);
      return ready === 2;
    });
    await redis.publish('news', 'two');
    await waitUntil('Redis does as told', async () => messages.length === 2);
    assert.deepEqual(messages, ['one', 'two']);
  });

  describe('as the cache of bindings', () => {
    const id = { kind: 'id', serviceId: 's', userId: '1' } as const;
    const name = { kind: 'name', serviceId: 's', username: 'alice' } as const;
    const cache = () => new RedisBindingCache(redis, 600_000, logger, clock);

    it('writes both keys in the form that others read', async () => {
      await cache().write(binding('n1', 3));
      assert.equal(await redis.get('gateway:route:user:s:1'), 'n1 3');
      assert.equal(await redis.get('gateway:route:name:s:alice'), 'n1 3');
      for (const key of [id, name]) {
        const { remainingMs, ...found } = (await cache().find(key)) ?? assert.fail('not found');
        assert.deepEqual(found, { nodeId: 'n1', epoch: 3, frozen: false });
        assert.ok(remainingMs !== null && remainingMs > 0 && remainingMs <= 600_000, String(remainingMs));
      }
      await cache().write(binding('n1', 3, true));
      assert.equal(await redis.get('gateway:route:user:s:1'), 'n1 3 frozen');
      assert.equal((await cache().find(id))?.frozen, true);
      await server.command('PERSIST', 'gateway:route:user:s:1');
      assert.equal((await cache().find(id))?.remainingMs, null);
    });

    it('never replaces a higher epoch by a lower one, but an equal and a lower by a higher', async () => {
      await cache().drop([id, name]);
      await cache().write(binding('n2', 10));
      await cache().write(binding('n1', 9));
      assert.equal((await cache().find(id))?.nodeId, 'n2');
      await cache().write(binding('n3', 10));
      assert.equal((await cache().find(id))?.nodeId, 'n3');
      await cache().write(binding('n1', 11));
      assert.equal((await cache().find(id))?.epoch, 11);
    });

    it('takes what it cannot read for a miss, removes it, and says so once a minute', async () => {
      const own = cache();
      const before = lines.length;
      for (const value of ['', 'n1', 'n1 x', 'n1 1 melted', 'n1  1', '{"node":"n1"}', 'n1 99999999999999999999']) {
        await server.command('SET', 'gateway:route:user:s:1', value);
        assert.equal(await own.find(id), undefined, value);
        assert.equal(await redis.get('gateway:route:user:s:1'), null, `${value} is gone`);
      }
      assert.equal(lines.slice(before).filter((line) => line.includes('redis_binding_unreadable')).length, 1);
      clock.advance(60_000);
      await server.command('HSET', 'gateway:route:user:s:1', 'a', 'b');
      assert.equal(await own.find(id), undefined);
      assert.equal(lines.slice(before).filter((line) => line.includes('redis_binding_unreadable')).length, 2);
      await server.command('SET', 'gateway:route:name:s:alice', 'rubbish');
      assert.equal(await own.find(name), undefined);
      assert.equal(lines.slice(before).filter((line) => line.includes('"kind":"name"')).length, 1, 'by kind of key');
    });

    it('writes over values of another type or form', async () => {
      await server.command('HSET', 'gateway:route:user:s:1', 'a', 'b');
      for (const value of ['rubbish', 'n1 99999999999999999999', 'n1 99 melted', '{"n1"} 99', 'n1 99 frozen ']) {
        await server.command('SET', 'gateway:route:name:s:alice', value);
        await cache().write(binding('n1', 1));
        assert.equal(await redis.get('gateway:route:user:s:1'), 'n1 1');
        assert.equal(await redis.get('gateway:route:name:s:alice'), 'n1 1', `over ${value}`);
      }
      for (const value of ['n-2.x_y 99', 'n2 99 frozen']) {
        await server.command('SET', 'gateway:route:name:s:alice', value);
        await cache().write(binding('n1', 1));
        assert.equal(await redis.get('gateway:route:name:s:alice'), value, `${value} is readable, and later`);
      }
      await cache().drop([id, name]);
    });

    it('writes one key for a binding that has one identity', async () => {
      await cache().drop([id, name]);
      await cache().write({ ...binding('n1', 1), username: null });
      await cache().write({ ...binding('n1', 1), userId: null, username: 'Bob' });
      assert.equal(await cache().find(name), undefined);
      assert.equal((await cache().find({ ...name, username: 'bob' }))?.nodeId, 'n1');
      await cache().drop([]);
    });

    it('announces changes, and takes what it does not understand for "anything may have changed"', async () => {
      const changes: unknown[] = [];
      let gaps = 0;
      cache().listen(
        (change) => changes.push(change),
        () => {
          gaps += 1;
        },
      );
      await waitUntil('Redis does as told', async () => gaps === 1);
      await cache().announce([id, name]);
      await waitUntil('Redis does as told', async () => changes.length === 1);
      assert.deepEqual(changes, [{ keys: [id, name] }]);
      const strange = [
        '?',
        '1',
        'null',
        '{}',
        '{"keys":1}',
        '{"keys":[1]}',
        '{"keys":[{"kind":"id","serviceId":1}]}',
        '{"keys":[{"kind":"id","serviceId":"s"}]}',
        '{"keys":[{"kind":"hat","serviceId":"s"}]}',
      ];
      for (const message of strange) await redis.publish('gateway:changes', message);
      await waitUntil('Redis does as told', async () => gaps === 1 + strange.length);
      assert.equal(changes.length, 1);
    });

    it('passes a failing Redis on', async () => {
      server.pause();
      try {
        await assert.rejects(cache().find(id), StoreUnavailable);
        await assert.rejects(cache().write(binding('n1', 1)), StoreUnavailable);
      } finally {
        server.resume();
      }
      await waitUntil('Redis does as told', async () => {
        clock.advance(1_000);
        return redis.get('k').then(
          () => true,
          () => false,
        );
      });
    });
  });

  describe('as a store of tokens', () => {
    it('keeps them under the key that others read', async () => {
      const store = new RedisTokenStore(redis);
      await store.save('realm', 't:1', '42', 60_000);
      assert.equal(await redis.get('gateway:token:realm:t:1'), '42');
      assert.equal(await store.find('realm', 't:1'), '42');
      assert.equal(await store.find('realm', 't'), undefined);
      await store.remove('realm', 't:1');
      assert.equal(await store.find('realm', 't:1'), undefined);
    });

    it('takes a key of another type, or an empty one, for nobody', async () => {
      const store = new RedisTokenStore(redis);
      await server.command('HSET', 'gateway:token:realm:h', 'a', 'b');
      await server.command('SET', 'gateway:token:realm:e', '');
      assert.equal(await store.find('realm', 'h'), undefined);
      assert.equal(await store.find('realm', 'e'), undefined);
    });
  });

  describe('with the sessions of other software', () => {
    const resolver = (options: { key?: string; field?: string; jsonPath?: string }) =>
      new RedisSessionResolver(
        {
          type: 'redis',
          redis: null,
          key: options.key ?? 'sess:{token}',
          field: options.field ?? null,
          jsonPath: options.jsonPath ?? null,
        },
        redis,
        clock,
        logger,
      );

    it('finds the user in a text, in a field of a hash, and in a JSON document', async () => {
      await server.command('SET', 'sess:a', 'alice');
      await server.command('HSET', 'sess:b', 'uid', 'bob');
      await server.command('SET', 'sess:c', '{"passport":{"user":9007199254740993}}', 'PX', '60000');
      assert.deepEqual(await resolver({}).resolve('a'), { userId: 'alice', remainingMs: null });
      assert.deepEqual(await resolver({ field: 'uid' }).resolve('b'), { userId: 'bob', remainingMs: null });
      const carol = await resolver({ jsonPath: 'passport.user' }).resolve('c');
      assert.equal(carol?.userId, '9007199254740993');
      assert.ok((carol?.remainingMs ?? 0) > 50_000, 'the expiry is known');
    });

    it('finds nobody where there is nobody, or something else', async () => {
      await server.command('SET', 'sess:j', 'not json');
      await server.command('SET', 'sess:e', '');
      assert.equal(await resolver({}).resolve('none'), undefined);
      assert.equal(await resolver({}).resolve('e'), undefined);
      assert.equal(await resolver({}).resolve('b'), undefined, 'a hash is no text');
      assert.equal(await resolver({ jsonPath: 'user' }).resolve('j'), undefined);
      assert.equal(await resolver({ jsonPath: 'user' }).resolve('c'), undefined);
      assert.equal(await resolver({ field: 'other' }).resolve('b'), undefined);
    });

    it('puts the token into the key as it is, whatever it looks like', async () => {
      await server.command('SET', 'x:$&:y', 'dollar');
      assert.equal((await resolver({ key: 'x:{token}:y' }).resolve('$&'))?.userId, 'dollar');
    });

    it('does not take a failing Redis for nobody', async () => {
      await server.kill();
      await waitUntil('Redis does as told', async () => !redis.connected);
      await assert.rejects(resolver({}).resolve('a'), StoreUnavailable);
      await assert.rejects(new RedisTokenStore(redis).find('r', 't'), StoreUnavailable);
    });
  });
});
