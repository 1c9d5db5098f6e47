/** What Sa-Token's resolver makes of a Redis that refuses, of several login types, and of the life that is left. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { SaTokenResolverOptions } from '../../lib/config/options.ts';
import { LineLogger } from '../../lib/observe/log.ts';
import { RedisStore } from '../../lib/stores/redis.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { SaTokenResolver } from '../../lib/tokens/sa-token.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';

const lines: string[] = [];
const logger = new LineLogger({ level: 'debug', format: 'json' }, { write: (line) => void lines.push(line) });
const unreadable = () => lines.filter((line) => line.includes('sa_token_unreadable'));

describe('SaTokenResolver', () => {
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

  async function resolver(options: Partial<SaTokenResolverOptions> = {}, credentials = ''): Promise<SaTokenResolver> {
    const url = `redis://${credentials}127.0.0.1:${server.port}`;
    const store = new RedisStore({ target: { kind: 'single', url }, timeoutMs: 1_000 }, logger, clock, 'sa');
    stores.push(store);
    await store.start();
    const defaults: SaTokenResolverOptions = {
      type: 'saToken',
      redis: null,
      tokenName: 'satoken',
      loginTypes: ['login'],
      keyPrefix: '',
      codec: 'auto',
      activeTimeoutSeconds: null,
      dynamicActiveTimeout: false,
    };
    return new SaTokenResolver({ ...defaults, ...options }, store, clock, logger);
  }

  it('tells how long a login is still good for', async () => {
    await server.command('SET', 'satoken:login:token:T1', '10001', 'PX', '60000');
    await server.command('SET', 'satoken:login:token:T2', '10002');
    const sa = await resolver();
    const first = await sa.resolve('T1');
    assert.equal(first?.userId, '10001');
    const left = first?.remainingMs ?? 0;
    assert.ok(left > 30_000 && left <= 60_000, `${left} ms`);
    assert.deepEqual(await sa.resolve('T2'), { userId: '10002', remainingMs: null });
  });

  it('needs no right but GET', async () => {
    await server.command(
      'ACL',
      'SETUSER',
      'reader',
      'on',
      '>pw',
      '~satoken:*',
      '-@all',
      '+get',
      '+@connection',
      '+info',
    );
    await server.command('SET', 'satoken:login:token:R', '7', 'PX', '60000');
    const sa = await resolver({}, 'reader:pw@');
    assert.deepEqual(await sa.resolve('R'), { userId: '7', remainingMs: null }, 'how long is not known');
  });

  it('does not take a refused GET for nobody', async () => {
    await server.command('ACL', 'SETUSER', 'other', 'on', '>pw', '~elsewhere:*', '+@all');
    const sa = await resolver({}, 'other:pw@');
    await assert.rejects(sa.resolve('T1'), StoreUnavailable);
  });

  it('asks the login types in order, and names the type of every id when there are several', async () => {
    await server.command('SET', 'satoken:admin:token:M', '7');
    await server.command('SET', 'satoken:login:token:B', '1');
    await server.command('SET', 'satoken:admin:token:B', '2');
    const sa = await resolver({ loginTypes: ['login', 'admin'] });
    assert.equal((await sa.resolve('M'))?.userId, 'admin:7');
    assert.equal((await sa.resolve('B'))?.userId, 'login:1');
    await server.command('SET', 'satoken:login:token:B', '-4');
    assert.equal((await sa.resolve('B'))?.userId, 'admin:2', 'replaced in one type, logged in to the other');
  });

  it('freezes by the rule of the library to the millisecond', async () => {
    await server.command('SET', 'x-token:act:token:A', '1');
    const sa = await resolver({
      tokenName: 'x-token',
      loginTypes: ['act'],
      activeTimeoutSeconds: 60,
      dynamicActiveTimeout: true,
    });
    const now = clock.now();
    const cases: readonly (readonly [lastActive: string | null, user: string | undefined])[] = [
      [null, undefined],
      [`${now}`, '1'],
      [`${now - 60_500}`, '1'],
      [`${now - 60_999}`, '1'],
      [`${now - 61_000}`, undefined],
      [`${now - 61_999}`, undefined],
      [`${now},5`, '1'],
      [`${now - 7_000},5`, undefined],
      [`${now - 9_000_000},-1`, '1'],
      [`${now + 600_000}`, '1'],
      ['abc', '1'],
    ];
    for (const [lastActive, user] of cases) {
      await server.command('DEL', 'x-token:act:last-active:A');
      if (lastActive !== null) await server.command('SET', 'x-token:act:last-active:A', lastActive);
      assert.equal((await sa.resolve('A'))?.userId, user, `last active ${lastActive}`);
    }
    const dynamicAlone = await resolver({ tokenName: 'x-token', loginTypes: ['act'], dynamicActiveTimeout: true });
    await server.command('SET', 'x-token:act:last-active:A', '1');
    assert.equal((await dynamicAlone.resolve('A'))?.userId, '1', 'no limit is set anywhere');
    await server.command('SET', 'x-token:act:last-active:A', `${now - 7_000},5`);
    const fixed = await resolver({ tokenName: 'x-token', loginTypes: ['act'], activeTimeoutSeconds: 60 });
    assert.equal((await fixed.resolve('A'))?.userId, '1', 'the second field counts with dynamicActiveTimeout only');
  });

  it('warns of what it cannot read once a minute, and never shows the token', async () => {
    const sa = await resolver();
    const before = unreadable().length;
    await server.command('HSET', 'satoken:login:token:secret-hash', 'a', 'b');
    await server.command('SET', 'satoken:login:token:secret-bytes', Buffer.from('fffe01', 'hex'));
    for (let turn = 0; turn < 3; turn += 1) {
      assert.equal(await sa.resolve('secret-hash'), undefined);
      assert.equal(await sa.resolve('secret-bytes'), undefined);
    }
    assert.equal(unreadable().length - before, 1);
    clock.advance(60_000);
    assert.equal(await sa.resolve('secret-bytes'), undefined);
    assert.equal(unreadable().length - before, 2);
    assert.ok(!lines.join('').includes('secret'), 'no token in the log');
  });
});
