/** A subscription that is never silently lost, against real servers that refuse it, fall silent, or go away. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { silentLogger } from '../../lib/observe/log.ts';
import { RedisStore } from '../../lib/stores/redis.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { TcpGate } from '../support/tcp-gate.ts';
import { waitUntil } from '../support/wait-until.ts';

const HEARTBEAT_MS = 10_000;

describe('a subscription', () => {
  const clock = new FakeClock();
  const stores: RedisStore[] = [];
  let server: RedisServer;

  before(async () => {
    server = await startRedis();
  });
  after(async () => {
    for (const store of stores) store.stop();
    await server?.stop();
  });

  function listen(url: string, of: FakeClock = clock) {
    const store = new RedisStore({ target: { kind: 'single', url }, timeoutMs: 200 }, silentLogger, of, 'test');
    stores.push(store);
    const heard = { ready: 0, messages: [] as string[], store };
    store.subscribe(
      'news',
      (message) => heard.messages.push(message),
      () => {
        heard.ready += 1;
      },
    );
    return heard;
  }

  const subscribers = async () => (await server.command('PUBSUB', 'NUMSUB', 'news')).trim().split(':').at(-1);

  it('that is refused is tried again until it is allowed', async () => {
    await server.command('ACL', 'SETUSER', 'ears', 'on', '>pw', 'allkeys', 'allchannels', '+@all', '-subscribe');
    const heard = listen(`redis://ears:pw@127.0.0.1:${server.port}`);
    await waitUntil('the refusal to be logged', async () => (await server.command('ACL', 'LOG')).includes('subscribe'));
    assert.equal(heard.ready, 0);
    await server.command('ACL', 'SETUSER', 'ears', '+subscribe');
    await waitUntil('the subscription', () => {
      clock.advance(500);
      return heard.ready === 1;
    });
    await server.command('PUBLISH', 'news', 'hello');
    await waitUntil('the message', () => heard.messages.length === 1);
    heard.store.stop();
  });

  it('on a connection that fell silent is made anew, and says that something may have been missed', async () => {
    const gate = await TcpGate.open(server.port);
    const heard = listen(`redis://127.0.0.1:${gate.port}`);
    try {
      await waitUntil('the subscription', () => heard.ready === 1);
      clock.advance(HEARTBEAT_MS);
      await waitUntil('a heartbeat to be answered', async () =>
        / sub=1 [^\n]*cmd=ping/.test(await server.command('CLIENT', 'LIST', 'TYPE', 'pubsub')),
      );
      assert.equal(heard.ready, 1, 'an answer keeps the connection');
      gate.silence();
      const accepted = gate.accepted;
      await waitUntil('the silence to be noticed', () => {
        clock.advance(HEARTBEAT_MS);
        return gate.accepted > accepted;
      });
      gate.unsilence();
      await waitUntil('the new subscription', () => {
        clock.advance(500);
        return heard.ready === 2;
      });
      await server.command('PUBLISH', 'news', 'again');
      await waitUntil('the message', () => heard.messages.includes('again'));
    } finally {
      heard.store.stop();
      await gate.close();
    }
  });

  it('begins when its server does, and ends with the store at any moment', async () => {
    const own = new FakeClock();
    await server.kill();
    const heard = listen(server.url, own);
    await waitUntil('the next attempt to be due', () => own.pending > 0);
    await server.start();
    await waitUntil('the subscription', () => {
      own.advance(500);
      return heard.ready === 1;
    });
    heard.store.stop();
    heard.store.stop();
    await waitUntil('the server to see it go', async () => (await subscribers()) === '0');
    assert.equal(own.pending, 0, 'no timer is left');
    heard.store.subscribe('news', assert.fail, assert.fail);
    const late = listen(server.url, own);
    late.store.stop();
    await waitUntil('the server to have nobody', async () => (await subscribers()) === '0');
    own.advance(60_000);
    assert.equal(late.ready, 0);
    assert.equal(own.pending, 0);
  });
});
