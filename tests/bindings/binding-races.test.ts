/**
 * Two gateways, one store and one shared cache, of which every command takes effect and is answered at a moment that
 * chance picks. Whatever the order was: when all news has arrived, both gateways say what the store says.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { keysOf } from '../../lib/bindings/binding-keys.ts';
import { BindingService, type CachedBinding, type SharedBindingCache } from '../../lib/bindings/binding-service.ts';
import type {
  BindingChange,
  BindingKey,
  BindingPage,
  BindingStore,
  BindResult,
} from '../../lib/bindings/binding-store.ts';
import type { Binding } from '../../lib/model.ts';
import { silentLogger } from '../../lib/observe/log.ts';
import { Metrics } from '../../lib/observe/metrics.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { Seeded } from '../support/seeded.ts';

const RUNS = 400;
const STEPS = 25;
const USERS = ['1', '2'];
const NAMES = ['alice', 'bob'];
const SHARED_TTL_MS = 600_000;
const NODES = ['n1', 'n2', 'n3'];

/** What waits to happen: in order within a lane, in any order between lanes. */
class Lanes {
  readonly #random: Seeded;
  readonly #lanes = new Map<string, (() => void)[]>();
  #sequence = 0;

  constructor(random: Seeded) {
    this.#random = random;
  }

  push(lane: string, task: () => void): void {
    this.#lanes.set(lane, [...(this.#lanes.get(lane) ?? []), task]);
  }

  /** A command on a connection of its own. */
  alone(): string {
    this.#sequence += 1;
    return `alone ${this.#sequence}`;
  }

  /** Takes effect when its turn comes, and is answered at a later turn of `replies`. */
  command<T>(commands: string, replies: string, effect: () => T): Promise<T> {
    return new Promise((resolve, reject) => {
      this.push(commands, () => {
        try {
          const value = effect();
          this.push(replies, () => resolve(value));
        } catch (error) {
          this.push(replies, () => reject(error));
        }
      });
    });
  }

  async step(): Promise<boolean> {
    await new Promise(setImmediate);
    const waiting = [...this.#lanes].filter(([, tasks]) => tasks.length > 0);
    if (waiting.length === 0) return false;
    this.#random.pick(waiting)[1].shift()?.();
    return true;
  }
}

/** The table of binding-store.ts for rows that have a user id, and the triggers' news of it. */
class Rows {
  readonly #rows = new Map<string, Binding>();
  readonly #notify: (change: BindingChange) => void;
  #floor = 0;

  constructor(notify: (change: BindingChange) => void) {
    this.#notify = notify;
  }

  byUserId(userId: string): Binding | undefined {
    return this.#rows.get(userId);
  }

  byName(username: string): Binding | undefined {
    return [...this.#rows.values()].find((row) => row.username === username);
  }

  bind(userId: string, username: string, nodeId: string): BindResult {
    const own = this.#rows.get(userId);
    const named = this.byName(username);
    if (own && named === own) return { binding: own, created: false, conflict: false, voided: [] };
    const voided: BindingKey[] = [];
    if (named) {
      voided.push(...keysOf(named));
      this.#update(named, { ...named, username: null });
    }
    if (!own) {
      const epoch = Math.max(this.#floor, named?.epoch ?? 0) + 1;
      const binding = { serviceId: 's', userId, username, nodeId, epoch, frozen: false };
      this.#rows.set(userId, binding);
      return { binding, created: true, conflict: false, voided };
    }
    voided.push(...keysOf({ ...own, userId: null }));
    return { binding: this.#update(own, { ...own, username }), created: false, conflict: false, voided };
  }

  move(userId: string, nodeId: string): Binding {
    const own = this.#rows.get(userId);
    if (!own) {
      const binding = { serviceId: 's', userId, username: null, nodeId, epoch: this.#floor + 1, frozen: false };
      this.#rows.set(userId, binding);
      return binding;
    }
    return own.nodeId === nodeId ? own : this.#update(own, { ...own, nodeId, epoch: own.epoch + 1 });
  }

  remove(userId: string): Binding | undefined {
    const own = this.#rows.get(userId);
    if (!own) return undefined;
    this.#rows.delete(userId);
    this.#floor = Math.max(this.#floor, own.epoch);
    this.#notify({ keys: keysOf(own), leastEpoch: own.epoch + 1 });
    return own;
  }

  setFrozen(userId: string, frozen: boolean): Binding | undefined {
    const own = this.#rows.get(userId);
    return own && this.#update(own, { ...own, frozen });
  }

  #update(before: Binding, after: Binding): Binding {
    this.#rows.set(after.userId ?? '', after);
    const keys = [...keysOf(after), ...keysOf({ ...before, userId: null })];
    this.#notify({ keys, leastEpoch: after.epoch });
    return after;
  }
}

class World {
  readonly lanes: Lanes;
  readonly rows: Rows;
  readonly gateways: readonly BindingService[];
  readonly #shared = new Map<string, CachedBinding & { readonly writtenAtMs: number }>();
  readonly clock = new FakeClock();
  redisIsAway = false;

  constructor(random: Seeded, withRedis: boolean) {
    this.lanes = new Lanes(random);
    this.rows = new Rows((change) => {
      for (const [index, gateway] of this.gateways.entries()) {
        this.lanes.push(`notify ${index}`, () => gateway.changedElsewhere(change));
      }
    });
    this.gateways = [0, 1].map(
      (index) =>
        new BindingService({
          store: this.#store(),
          shared: withRedis ? this.#cache(index) : null,
          sharedTtlMs: SHARED_TTL_MS,
          ttlMs: 10_000,
          staleIfErrorMs: 300_000,
          maxEntries: 100,
          clock: this.clock,
          logger: silentLogger,
          metrics: new Metrics(),
        }),
    );
  }

  /** Until nothing waits any more. */
  async settle(): Promise<void> {
    while (await this.lanes.step());
  }

  #store(): BindingStore {
    const { lanes, rows } = this;
    const run = <T>(effect: () => T) => lanes.command(lanes.alone(), lanes.alone(), effect);
    return {
      findByUserId: (_service, userId) => run(() => rows.byUserId(userId)),
      findByUsername: (_service, username) => run(() => rows.byName(username)),
      bindIfAbsent: (_service, userId, username, nodeId) => run(() => rows.bind(userId, username ?? '', nodeId)),
      move: (_service, userId, nodeId) => run(() => rows.move(userId, nodeId)),
      remove: (_service, userId) => run(() => rows.remove(userId)),
      setFrozen: (_service, userId, frozen) => run(() => rows.setFrozen(userId, frozen)),
      countByNode: () => Promise.resolve(new Map()),
      list: (): Promise<BindingPage> => Promise.resolve({ bindings: [], next: null }),
    };
  }

  /** One connection: its commands take effect in the order in which they were sent. */
  #cache(index: number): SharedBindingCache {
    const run = <T>(effect: () => T) =>
      this.lanes.command(`redis ${index}`, `redis replies ${index}`, () => {
        if (this.redisIsAway) throw new StoreUnavailable('redis', new Error('away'));
        return effect();
      });
    return {
      find: (key) =>
        run(() => {
          const entry = this.#shared.get(JSON.stringify(key));
          return entry && { ...entry, remainingMs: SHARED_TTL_MS - (this.clock.monotonic() - entry.writtenAtMs) };
        }),
      drop: (keys) => run(() => keys.forEach((key) => void this.#shared.delete(JSON.stringify(key)))),
      write: ({ nodeId, epoch, frozen, ...names }) =>
        run(() => {
          for (const key of keysOf({ nodeId, epoch, frozen, ...names })) {
            const known = this.#shared.get(JSON.stringify(key));
            const writtenAtMs = this.clock.monotonic();
            if (!known || known.epoch <= epoch)
              this.#shared.set(JSON.stringify(key), { nodeId, epoch, frozen, writtenAtMs });
          }
        }),
      announce: (keys) =>
        run(() => {
          for (const [to, gateway] of this.gateways.entries())
            this.lanes.push(`channel ${to}`, () => gateway.drop({ keys }));
        }),
    };
  }
}

function act(random: Seeded, gateway: BindingService): Promise<unknown> {
  const user = random.pick(USERS);
  switch (random.below(8)) {
    case 0:
    case 1:
      return gateway.bind('s', user, random.pick(NAMES), random.pick(NODES));
    case 2:
      return gateway.move('s', user, random.pick(NODES));
    case 3:
      return gateway.remove('s', user);
    case 4:
      return gateway.setFrozen('s', user, random.oneIn(2));
    case 5:
      return gateway.findByUsername('s', random.pick(NAMES));
    default:
      return gateway.findByUserId('s', user);
  }
}

function facts(binding: CachedBinding | undefined): string {
  return binding ? `${binding.nodeId} ${binding.epoch}${binding.frozen ? ' frozen' : ''}` : 'none';
}

/** The look-up of a settled world: answered while its lanes run. */
async function ask(world: World, question: Promise<{ binding: CachedBinding | undefined }>): Promise<string> {
  await world.settle();
  return facts((await question).binding);
}

async function run(seed: number, withRedis: boolean, outage: boolean): Promise<void> {
  const random = new Seeded(seed);
  const world = new World(random, withRedis);
  const epochs = world.gateways.map(() => new Map<string, number>());
  for (let step = 0; step < STEPS; step += 1) {
    if (outage) world.redisIsAway = step > 8 && step < 18;
    void act(random, random.pick(world.gateways)).catch(() => undefined);
    for (let turn = random.below(8); turn > 0; turn -= 1) {
      await world.lanes.step();
      for (const [index, gateway] of world.gateways.entries()) {
        for (const user of USERS) {
          const epoch = gateway.cachedByUserId('s', user)?.epoch;
          if (epoch === undefined) continue;
          assert.ok(epoch >= (epochs[index]?.get(user) ?? 0), `seed ${seed}: gateway ${index} went back to ${epoch}`);
          epochs[index]?.set(user, epoch);
        }
      }
    }
  }
  await world.settle();
  if (outage) {
    // A gateway that finds the shared cache back tells it what it has missed; what others believed until then ends
    // with the ttl.
    for (const gateway of world.gateways) await ask(world, gateway.findByUserId('s', 'somebody else'));
    world.clock.advance(10_000);
  }
  for (const round of ['before', 'after']) {
    for (const [index, gateway] of world.gateways.entries()) {
      for (const user of USERS) {
        const found = await ask(world, gateway.findByUserId('s', user));
        assert.equal(found, facts(world.rows.byUserId(user)), `seed ${seed}, gateway ${index}, user ${user}, ${round}`);
      }
      for (const name of NAMES) {
        const found = await ask(world, gateway.findByUsername('s', name));
        assert.equal(found, facts(world.rows.byName(name)), `seed ${seed}, gateway ${index}, name ${name}, ${round}`);
      }
    }
    world.clock.advance(10_000);
  }
}

describe('BindingService, whatever the order of events', () => {
  it('ends with what the store says, with a shared cache', async () => {
    for (let seed = 0; seed < RUNS; seed += 1) await run(seed, true, false);
  });

  it('ends with what the store says, without one', async () => {
    for (let seed = 0; seed < RUNS; seed += 1) await run(seed, false, false);
  });

  it('ends with what the store says, with a shared cache that was away for a while', async () => {
    for (let seed = 0; seed < RUNS; seed += 1) await run(seed, true, true);
  });
});
