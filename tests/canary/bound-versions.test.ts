/** Where a user is bound: the first version of the route wherever it is cached, and no answer rather than a wrong one. */
import assert from 'node:assert/strict';
import { beforeEach, describe, it } from 'node:test';
import { BoundVersions } from '../../lib/canary/bound-versions.ts';
import { planRoute } from '../../lib/canary/route-plan.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { routeOf } from './routes.ts';

const VERSIONS = planRoute(routeOf({ weights: { v1: 1, v2: 1, v3: 1 } })).bound;

/** Services that hold the user, those of them that are cached, and those that cannot be asked. */
class Bindings {
  readonly bound = new Set<string>();
  readonly local = new Set<string>();
  readonly failing = new Set<string>();
  readonly asked: string[] = [];

  cachedByUserId(serviceId: string): object | undefined {
    return this.local.has(serviceId) ? {} : undefined;
  }

  async findByUserId(serviceId: string): Promise<{ binding: object | undefined }> {
    this.asked.push(serviceId);
    if (this.failing.has(serviceId)) throw new Error(`${serviceId} cannot be read`);
    if (!this.bound.has(serviceId)) return { binding: undefined };
    this.local.add(serviceId);
    return { binding: {} };
  }

  findByUsername(serviceId: string): Promise<{ binding: object | undefined }> {
    return this.findByUserId(serviceId);
  }
}

describe('the version in which a user is bound', () => {
  let bindings: Bindings;
  let clock: FakeClock;
  let versions: BoundVersions;
  const find = async () => (await versions.find(VERSIONS, 'u'))?.id;
  const cached = () => versions.cached(VERSIONS, 'u')?.id;

  beforeEach(() => {
    bindings = new Bindings();
    clock = new FakeClock();
    versions = new BoundVersions({ bindings, ttlMs: 10_000, staleIfErrorMs: 60_000, maxEntries: 100, clock });
  });

  it('is the first one of the route, and no later one is asked', async () => {
    bindings.bound.add('s-v1').add('s-v2');
    assert.equal(await find(), 'v1');
    assert.deepEqual(bindings.asked, ['s-v1']);
    assert.equal(cached(), 'v1');
  });

  it('is not a later one only because that one is cached', async () => {
    bindings.bound.add('s-v1').add('s-v2');
    bindings.local.add('s-v2');
    assert.equal(cached(), undefined, 'v1 must be asked');
    assert.equal(await find(), 'v1');
  });

  it('is known without asking once the earlier ones have said no, for as long as that is believed', async () => {
    bindings.bound.add('s-v3');
    assert.equal(await find(), 'v3');
    assert.equal(cached(), 'v3');
    clock.advance(9_999);
    assert.equal(cached(), 'v3');
    clock.advance(1);
    assert.equal(cached(), undefined);
  });

  it('is asked again after news of the user, and after a time without news', async () => {
    bindings.bound.add('s-v2');
    await find();
    versions.changed({ keys: [{ kind: 'id', serviceId: 's-v1', userId: 'other' }] });
    versions.changed({ keys: [{ kind: 'name', serviceId: 's-v1', username: 'u' }] });
    assert.equal(cached(), 'v2');
    versions.changed({ keys: [{ kind: 'id', serviceId: 's-v1', userId: 'u' }] });
    assert.equal(cached(), undefined);
    clock.advance(1);
    await find();
    assert.equal(cached(), 'v2');
    clock.advance(1);
    versions.expireAll();
    assert.equal(cached(), undefined);
    assert.equal(await find(), 'v2');
    assert.equal(cached(), 'v2');
  });

  it('is the one bound by this gateway a moment ago, whatever was found before', async () => {
    bindings.bound.add('s-v2');
    await find();
    bindings.bound.add('s-v1');
    bindings.local.add('s-v1');
    assert.equal(cached(), 'v1');
  });

  it('is none only when every version was asked just now', async () => {
    assert.equal(await find(), undefined);
    assert.deepEqual(bindings.asked, ['s-v1', 's-v2', 's-v3']);
    assert.equal(cached(), undefined);
    bindings.bound.add('s-v2');
    assert.equal(await find(), 'v2');
  });

  it('is not guessed when an earlier version cannot be read, even if a later one is cached', async () => {
    bindings.bound.add('s-v2');
    bindings.local.add('s-v2');
    bindings.failing.add('s-v1');
    await assert.rejects(find(), /s-v1 cannot be read/);
  });

  it('is still served from what is known while the store is away, but nobody is declared unbound', async () => {
    bindings.bound.add('s-v2');
    await find();
    bindings.failing.add('s-v1');
    clock.advance(59_999);
    assert.equal(await find(), 'v2');
    bindings.bound.delete('s-v2');
    await assert.rejects(find(), /s-v1 cannot be read/);
    bindings.bound.add('s-v2');
    clock.advance(1);
    await assert.rejects(find(), /s-v1 cannot be read/, 'past staleIfError');
  });

  it('is looked for by the name as each service reads it', async () => {
    const asked: string[] = [];
    const byName = new BoundVersions({
      bindings: {
        cachedByUserId: () => undefined,
        findByUserId: async () => ({ binding: undefined }),
        findByUsername: async (serviceId, username) => {
          asked.push(`${serviceId} ${username}`);
          return { binding: username === 'name-v2' ? {} : undefined };
        },
      },
      ttlMs: 1,
      staleIfErrorMs: 1,
      maxEntries: 1,
      clock,
    });
    const found = await byName.findByUsername(VERSIONS, ({ id }) => `name-${id}`);
    assert.equal(found?.id, 'v2');
    assert.deepEqual(asked, ['s-v1 name-v1', 's-v2 name-v2']);
    assert.equal(await byName.findByUsername(VERSIONS, () => 'x'), undefined);
  });

  it('says where else a user lives, who is not bound where they logged in', async () => {
    const other = async (serviceId: string) => (await versions.findOther(VERSIONS, serviceId, 'u'))?.id;
    assert.equal(await other('s-v1'), undefined);
    bindings.bound.add('s-v2');
    assert.equal(await other('s-v1'), 'v2');
    assert.equal(await other('s-v2'), undefined);
    bindings.bound.add('s-v1');
    assert.equal(await other('s-v1'), undefined, 'both are homes already');
    bindings.failing.add('s-v1');
    await assert.rejects(other('s-v3'), /s-v1 cannot be read/);
  });
});
