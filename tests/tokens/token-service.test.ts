import assert from 'node:assert/strict';
import { beforeEach, describe, it } from 'node:test';
import { silentLogger } from '../../lib/observe/log.ts';
import { Metrics } from '../../lib/observe/metrics.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { TokenService } from '../../lib/tokens/token-service.ts';
import type { ResolvedToken, TokenResolver, TokenStore } from '../../lib/tokens/token-store.ts';
import { FakeClock } from '../support/fake-clock.ts';

/** A store whose answers the test gives, now or later. */
class ScriptedStore implements TokenStore {
  readonly name: 'redis' | 'postgres';
  readonly tokens = new Map<string, string>();
  readonly saved: { token: string; userId: string; ttlMs: number }[] = [];
  finds = 0;
  failing = false;
  /** Set = find waits for it. */
  gate: Promise<void> | undefined;

  constructor(name: 'redis' | 'postgres' = 'redis') {
    this.name = name;
  }

  async find(realm: string, token: string): Promise<string | undefined> {
    this.finds += 1;
    const answer = this.tokens.get(`${realm}:${token}`);
    const { failing } = this;
    await this.gate;
    if (failing) throw new StoreUnavailable('redis', new Error('away'));
    return answer;
  }

  async save(realm: string, token: string, userId: string, ttlMs: number): Promise<void> {
    if (this.failing) throw new StoreUnavailable('redis', new Error('away'));
    this.saved.push({ token, userId, ttlMs });
    this.tokens.set(`${realm}:${token}`, userId);
  }

  async remove(realm: string, token: string): Promise<void> {
    this.tokens.delete(`${realm}:${token}`);
  }
}

function resolver(answer: () => ResolvedToken | undefined, name = 'jwt'): TokenResolver & { calls: number } {
  return {
    name,
    calls: 0,
    async resolve() {
      this.calls += 1;
      return answer();
    },
  };
}

function gate(): { promise: Promise<void>; open: () => void } {
  let open = (): void => undefined;
  const promise = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { promise, open };
}

describe('TokenService', () => {
  let clock: FakeClock;
  let first: ScriptedStore;
  let second: ScriptedStore;
  let settling: boolean;

  beforeEach(() => {
    settling = false;
    clock = new FakeClock();
    first = new ScriptedStore('redis');
    second = new ScriptedStore('postgres');
  });

  function service(
    resolvers: readonly TokenResolver[] = [],
    stores: readonly TokenStore[] = [first, second],
  ): TokenService {
    return new TokenService({
      stores,
      resolvers,
      settling: () => settling,
      tokenTtlMs: 86_400_000,
      staleIfErrorMs: 300_000,
      maxEntries: 100,
      clock,
      logger: silentLogger,
      metrics: new Metrics(),
    });
  }

  it('believes a user id for 10 s and "nobody" for 1 s', async () => {
    first.tokens.set('r:t', 'alice');
    const tokens = service();
    assert.equal(tokens.cached('r', 't'), undefined);
    assert.equal(await tokens.resolve('r', 't'), 'alice');
    assert.equal(await tokens.resolve('r', 'none'), null);
    clock.advance(999);
    assert.equal(tokens.cached('r', 'none'), null);
    clock.advance(1);
    assert.equal(tokens.cached('r', 'none'), undefined);
    clock.advance(8_999);
    assert.equal(tokens.cached('r', 't'), 'alice');
    clock.advance(1);
    assert.equal(tokens.cached('r', 't'), undefined);
  });

  it('keeps the realms apart', async () => {
    first.tokens.set('r1:t', 'alice');
    const tokens = service();
    assert.equal(await tokens.resolve('r1', 't'), 'alice');
    assert.equal(await tokens.resolve('r2', 't'), null);
  });

  it('asks the stores in order, then the resolvers, and stops at the first that knows', async () => {
    const jwt = resolver(() => undefined);
    const session = resolver(() => ({ userId: 'carol', remainingMs: null }), 'redis');
    const tokens = service([jwt, session]);
    second.tokens.set('r:t', 'bob');
    assert.equal(await tokens.resolve('r', 't'), 'bob');
    assert.equal(jwt.calls, 0);
    assert.equal(await tokens.resolve('r', 'u'), 'carol');
    assert.deepEqual([jwt.calls, session.calls], [1, 1]);
  });

  it('saves what a resolver found, no longer than the token is good for', async () => {
    const left = [null, 5_000, 999_999_999] as const;
    for (const [index, remainingMs] of left.entries()) {
      const tokens = service([resolver(() => ({ userId: 'alice', remainingMs }))]);
      await tokens.resolve('r', `t${index}`);
    }
    assert.deepEqual(
      first.saved.map((one) => one.ttlMs),
      [86_400_000, 5_000, 86_400_000],
    );
  });

  it('does not believe a cached token beyond its own end', async () => {
    const tokens = service([resolver(() => ({ userId: 'alice', remainingMs: 3_000 }))], []);
    await tokens.resolve('r', 't');
    clock.advance(2_999);
    assert.equal(tokens.cached('r', 't'), 'alice');
    clock.advance(1);
    assert.equal(tokens.cached('r', 't'), undefined);
  });

  it('lets a hundred first uses of a token share one look-up', async () => {
    const wait = gate();
    first.gate = wait.promise;
    first.tokens.set('r:t', 'alice');
    const tokens = service();
    const all = Promise.all(Array.from({ length: 100 }, () => tokens.resolve('r', 't')));
    wait.open();
    assert.deepEqual([...new Set(await all)], ['alice']);
    assert.equal(first.finds, 1);
  });

  it('does not take a failing store for "nobody"', async () => {
    first.failing = true;
    await assert.rejects(service().resolve('r', 't'), { code: 'identity_unavailable' });
    const failing: TokenResolver = { name: 'jwt', resolve: () => Promise.reject(new Error('away')) };
    first.failing = false;
    await assert.rejects(service([failing]).resolve('r', 't'), { code: 'identity_unavailable' });
  });

  it('finds a user in the second store while the first one fails', async () => {
    first.failing = true;
    second.tokens.set('r:t', 'alice');
    assert.equal(await service().resolve('r', 't'), 'alice');
  });

  it('uses what it knew while nobody answers, as long as staleIfError, and nothing beyond', async () => {
    first.tokens.set('r:t', 'alice');
    const tokens = service();
    await tokens.resolve('r', 't');
    first.failing = true;
    clock.advance(299_999);
    assert.equal(await tokens.resolve('r', 't'), 'alice');
    clock.advance(1);
    await assert.rejects(tokens.resolve('r', 't'), { code: 'identity_unavailable' });
  });

  it('does not remember "nobody" as an answer while the stores fail', async () => {
    const tokens = service();
    assert.equal(await tokens.resolve('r', 't'), null);
    first.failing = true;
    clock.advance(1_000);
    await assert.rejects(tokens.resolve('r', 't'), { code: 'identity_unavailable' });
  });

  it("knows a login's token at once, and keeps it in every store", async () => {
    const tokens = service();
    const saved = tokens.remember('r', 't', 'alice');
    assert.equal(tokens.cached('r', 't'), 'alice', 'before the stores have it');
    await saved;
    assert.equal(first.tokens.get('r:t'), 'alice');
    assert.equal(second.tokens.get('r:t'), 'alice');
  });

  it('counts a token as kept when the last, durable store has it, and only then', async () => {
    const tokens = service();
    first.failing = true;
    await tokens.remember('r', 't', 'alice');
    assert.equal(second.tokens.get('r:t'), 'alice');
    first.failing = false;
    second.failing = true;
    await assert.rejects(tokens.remember('r', 'u', 'bob'), StoreUnavailable);
    assert.equal(first.tokens.get('r:u'), 'bob', 'the other one has it all the same');
    assert.equal(tokens.cached('r', 'u'), 'bob', 'and so does this gateway');
  });

  it('does not take a login for nobody while its token could not be stored', async () => {
    const tokens = service();
    second.failing = true;
    first.failing = true;
    await assert.rejects(tokens.remember('r', 't', 'alice'));
    first.failing = false;
    second.failing = false;
    clock.advance(10_000);
    assert.equal(await tokens.resolve('r', 't'), 'alice', 'though both stores say nobody');
    clock.advance(10_000);
    await tokens.remember('r', 't', 'alice');
    await second.remove('r', 't');
    await first.remove('r', 't');
    clock.advance(10_000);
    assert.equal(await tokens.resolve('r', 't'), null, 'once it was stored, the stores have the say');
  });

  it('does not believe in "nobody" while others may have logins to store', async () => {
    const tokens = service();
    second.tokens.set('r:t', 'alice');
    settling = true;
    await assert.rejects(tokens.resolve('r', 'none'), { code: 'identity_unavailable' });
    assert.equal(await tokens.resolve('r', 't'), 'alice', 'who is known is known');
    settling = false;
    assert.equal(await tokens.resolve('r', 'none'), null);
  });

  it('forgets such a login with its logout, and after the life of a token', async () => {
    const tokens = service();
    second.failing = true;
    await assert.rejects(tokens.remember('r', 't', 'alice'));
    await assert.rejects(tokens.remember('r', 'u', 'bob'));
    second.failing = false;
    await tokens.forget('r', 't');
    assert.equal(await tokens.resolve('r', 't'), null);
    first.tokens.clear();
    clock.advance(86_399_999);
    assert.equal(await tokens.resolve('r', 'u'), 'bob');
    clock.advance(10_000);
    assert.equal(await tokens.resolve('r', 'u'), null);
  });

  it('is not told "nobody" by a look-up that began before the login', async () => {
    const wait = gate();
    first.gate = wait.promise;
    const tokens = service();
    const early = tokens.resolve('r', 't');
    await tokens.remember('r', 't', 'alice');
    wait.open();
    assert.equal(await early, 'alice');
    assert.equal(tokens.cached('r', 't'), 'alice');
  });

  it('is not told an old user by a look-up that began before the login', async () => {
    const wait = gate();
    first.gate = wait.promise;
    first.tokens.set('r:t', 'old');
    const tokens = service();
    const early = tokens.resolve('r', 't');
    await tokens.remember('r', 't', 'new');
    wait.open();
    assert.equal(await early, 'new');
    assert.equal(tokens.cached('r', 't'), 'new');
  });

  it('forgets a token everywhere, also from a look-up under way', async () => {
    first.tokens.set('r:t', 'alice');
    const wait = gate();
    first.gate = wait.promise;
    const tokens = service();
    const early = tokens.resolve('r', 't');
    await tokens.forget('r', 't');
    wait.open();
    assert.equal(await early, null);
    assert.equal(tokens.cached('r', 't'), undefined);
    assert.equal(first.tokens.size, 0);
  });

  it('keeps and looks up tokens of any length, and tells long ones apart', async () => {
    for (const length of [512, 513, 5_000]) {
      const tokens = service();
      const alices = `${'x'.repeat(length - 1)}a`;
      const bobs = `${'x'.repeat(length - 1)}b`;
      await tokens.remember('r', alices, 'alice');
      await tokens.remember('r', bobs, 'bob');
      assert.equal(tokens.cached('r', alices), 'alice');
      assert.equal(tokens.cached('r', bobs), 'bob');
      assert.equal(tokens.cached('other', bobs), undefined);
      clock.advance(10_000);
      assert.equal(await tokens.resolve('r', alices), 'alice');
      assert.equal(await service().resolve('r', bobs), 'bob');
    }
  });

  it('does not mind that a resolved token cannot be saved, and saves none that has ended', async () => {
    first.failing = true;
    second.failing = true;
    assert.equal(await service([resolver(() => ({ userId: 'alice', remainingMs: null }))]).resolve('r', 't'), 'alice');
    first.failing = false;
    assert.equal(await service([resolver(() => ({ userId: 'alice', remainingMs: 0 }))]).resolve('r', 't'), 'alice');
    assert.equal(first.saved.length, 0);
  });

  it('saves nothing of a look-up that a logout or another login overtook', async () => {
    const wait = gate();
    const jwt: TokenResolver = {
      name: 'jwt',
      async resolve() {
        await wait.promise;
        return { userId: 'old', remainingMs: null };
      },
    };
    const tokens = service([jwt]);
    const early = [tokens.resolve('r', 't'), tokens.resolve('r', 'u')];
    await new Promise((resolve) => setImmediate(resolve));
    await tokens.forget('r', 't');
    await tokens.remember('r', 'u', 'new');
    wait.open();
    assert.deepEqual(await Promise.all(early), [null, 'new']);
    await new Promise((resolve) => setImmediate(resolve));
    assert.deepEqual([...first.tokens], [['r:u', 'new']]);
    assert.deepEqual([...second.tokens], [['r:u', 'new']]);
  });

  it("knows a login's token for the look-up that it overtook, even after the cache has dropped it", async () => {
    const wait = gate();
    first.gate = wait.promise;
    const tokens = service([], [first]);
    const early = tokens.resolve('r', 't');
    await tokens.remember('r', 't', 'alice');
    for (let index = 0; index < 100; index += 1) await tokens.remember('r', `other-${index}`, 'bob');
    assert.equal(tokens.cached('r', 't'), undefined, 'dropped');
    wait.open();
    assert.equal(await early, 'alice');
  });

  it('answers an overtaken look-up with what came last', async () => {
    const wait = gate();
    first.gate = wait.promise;
    const tokens = service();
    const early = tokens.resolve('r', 't');
    await tokens.forget('r', 't');
    await tokens.remember('r', 't', 'alice');
    wait.open();
    assert.equal(await early, 'alice');
  });

  it('does not fail a look-up that a login overtook because a store failed', async () => {
    const wait = gate();
    first.gate = wait.promise;
    first.failing = true;
    const tokens = service();
    const early = tokens.resolve('r', 't');
    await tokens.remember('r', 't', 'alice');
    wait.open();
    assert.equal(await early, 'alice');
  });

  it('finds nobody where nobody is to be asked', async () => {
    assert.equal(await service([], []).resolve('r', 't'), null);
  });

  it('believes an entry for its ten seconds, whatever happens to the wall clock', async () => {
    const tokens = service();
    await tokens.remember('r', 't', 'alice');
    clock.setWall(-3_600_000);
    assert.equal(tokens.cached('r', 't'), 'alice');
    clock.advance(9_999);
    assert.equal(tokens.cached('r', 't'), 'alice');
    clock.advance(1);
    assert.equal(tokens.cached('r', 't'), undefined);
  });
});
