import assert from 'node:assert/strict';
import { beforeEach, describe, it } from 'node:test';
import { keysOf } from '../../lib/bindings/binding-keys.ts';
import { BindingService, type CachedBinding, type SharedBindingCache } from '../../lib/bindings/binding-service.ts';
import type { BindingKey, BindingPage, BindingStore, BindResult } from '../../lib/bindings/binding-store.ts';
import type { SharedBinding } from '../../lib/bindings/shared-bindings.ts';
import type { Binding } from '../../lib/model.ts';
import { silentLogger } from '../../lib/observe/log.ts';
import { Metrics } from '../../lib/observe/metrics.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { FakeClock } from '../support/fake-clock.ts';

function binding(nodeId: string, epoch = 1, more: Partial<Binding> = {}): Binding {
  return { serviceId: 's', userId: '1', username: 'alice', nodeId, epoch, frozen: false, ...more };
}

/** A look-up's answer is taken when it begins and given when the gate opens: as a slow store does. */
class Gate {
  #open: () => void = () => undefined;
  readonly promise = new Promise<void>((resolve) => {
    this.#open = resolve;
  });

  open(): void {
    this.#open();
  }
}

/** One row, which the test changes as it likes. */
class OneRowStore implements BindingStore {
  row: Binding | undefined;
  result: BindResult | undefined;
  failing = false;
  gate: Gate | undefined;
  finds = 0;

  async #answer<T>(value: T): Promise<T> {
    const { failing } = this;
    await this.gate?.promise;
    if (failing) throw new StoreUnavailable('postgres', new Error('away'));
    return value;
  }

  findByUserId(): Promise<Binding | undefined> {
    this.finds += 1;
    return this.#answer(this.row);
  }
  findByUsername(): Promise<Binding | undefined> {
    this.finds += 1;
    return this.#answer(this.row);
  }
  bindIfAbsent(_service: string, _userId: string, _name: string | null, nodeId: string): Promise<BindResult> {
    this.row ??= binding(nodeId);
    return this.#answer(this.result ?? { binding: this.row, created: true, conflict: false, voided: [] });
  }
  move(_service: string, _userId: string, nodeId: string): Promise<Binding> {
    this.row = binding(nodeId, (this.row?.epoch ?? 0) + 1);
    return this.#answer(this.row);
  }
  remove(): Promise<Binding | undefined> {
    const { row } = this;
    this.row = undefined;
    return this.#answer(row);
  }
  setFrozen(_service: string, _userId: string, frozen: boolean): Promise<Binding | undefined> {
    if (this.row) this.row = { ...this.row, frozen };
    return this.#answer(this.row);
  }
  countByNode(): Promise<ReadonlyMap<string, number>> {
    return this.#answer(new Map());
  }
  list(): Promise<BindingPage> {
    return this.#answer({ bindings: [], next: null });
  }
}

class MapCache implements SharedBindingCache {
  readonly entries = new Map<string, CachedBinding>();
  readonly announced: BindingKey[] = [];
  failing = false;
  finds = 0;
  /** A drop takes effect when it begins, and is answered when the gate opens. */
  dropGate: Gate | undefined;
  /** As for the store: the answer is taken at the beginning and given when the gate opens. */
  findGate: Gate | undefined;

  remainingMs: number | null = SHARED_TTL_MS;

  async find(key: BindingKey): Promise<SharedBinding | undefined> {
    this.finds += 1;
    this.#mayFail();
    const found = this.entries.get(JSON.stringify(key));
    const { remainingMs } = this;
    await this.findGate?.promise;
    return found && { ...found, remainingMs };
  }
  async write(value: Binding): Promise<void> {
    this.#mayFail();
    for (const key of keysOf(value))
      this.entries.set(JSON.stringify(key), { nodeId: value.nodeId, epoch: value.epoch, frozen: value.frozen });
  }
  async drop(keys: readonly BindingKey[]): Promise<void> {
    this.#mayFail();
    for (const key of keys) this.entries.delete(JSON.stringify(key));
    await this.dropGate?.promise;
  }
  async announce(keys: readonly BindingKey[]): Promise<void> {
    this.#mayFail();
    this.announced.push(...keys);
  }
  put(key: BindingKey, value: CachedBinding): void {
    this.entries.set(JSON.stringify(key), value);
  }
  #mayFail(): void {
    if (this.failing) throw new StoreUnavailable('redis', new Error('away'));
  }
}

const SHARED_TTL_MS = 600_000;
const ID: BindingKey = { kind: 'id', serviceId: 's', userId: '1' };
const NAME: BindingKey = { kind: 'name', serviceId: 's', username: 'alice' };

describe('BindingService', () => {
  let clock: FakeClock;
  let store: OneRowStore;
  let shared: MapCache;
  let service: BindingService;
  let metrics: Metrics;

  beforeEach(() => {
    metrics = new Metrics();
    clock = new FakeClock();
    store = new OneRowStore();
    shared = new MapCache();
    service = make(shared);
    // What is in the shared cache was written after the start.
    clock.advance(1);
  });

  function make(cache: SharedBindingCache | null): BindingService {
    return new BindingService({
      store,
      shared: cache,
      sharedTtlMs: SHARED_TTL_MS,
      ttlMs: 10_000,
      staleIfErrorMs: 300_000,
      maxEntries: 100,
      clock,
      logger: silentLogger,
      metrics,
    });
  }

  /** Sums the counters of one name, or reads one series. */
  const count = (series: string) =>
    Number(new RegExp(`^${series.replaceAll(/[{}"]/g, '\\$&')} (\\d+)$`, 'm').exec(metrics.render())?.[1]);
  const settle = () => new Promise((resolve) => setImmediate(resolve));
  const nodeOf = async () => (await service.findByUserId('s', '1')).binding?.nodeId;

  it('asks the local cache, then the shared one, then the store, and remembers what it found', async () => {
    store.row = binding('n1');
    assert.deepEqual([(await service.findByUserId('s', '1')).answeredBy, store.finds], ['store', 1]);
    assert.equal((await service.findByUserId('s', '1')).answeredBy, 'local');
    assert.equal(service.cachedByUserId('s', '1')?.nodeId, 'n1');
    await settle();
    assert.equal(shared.entries.get(JSON.stringify(ID))?.nodeId, 'n1', 'written back');
    clock.advance(10_000);
    assert.equal(service.cachedByUserId('s', '1'), undefined);
    assert.equal((await service.findByUserId('s', '1')).answeredBy, 'redis');
    assert.equal(store.finds, 1);
  });

  it('compares usernames in one form', async () => {
    store.row = binding('n1');
    await service.findByUsername('s', 'ALICE');
    assert.equal((await service.findByUsername('s', 'Alice')).answeredBy, 'local');
    assert.equal(store.finds, 1);
  });

  it('does not remember that there is no binding', async () => {
    assert.deepEqual(await service.findByUserId('s', '1'), { binding: undefined, answeredBy: 'store' });
    store.row = binding('n1');
    assert.equal(await nodeOf(), 'n1');
  });

  it('lets a hundred misses of one key share one query', async () => {
    store.row = binding('n1');
    store.gate = new Gate();
    const all = Promise.all(Array.from({ length: 100 }, nodeOf));
    await settle();
    store.gate.open();
    assert.deepEqual([...new Set(await all)], ['n1']);
    assert.equal(store.finds, 1);
  });

  it('works without a shared cache', async () => {
    service = make(null);
    store.row = binding('n1');
    assert.equal((await service.findByUserId('s', '1')).answeredBy, 'store');
    await service.move('s', '1', 'n2');
    assert.equal(service.cachedByUserId('s', '1')?.nodeId, 'n2');
    await service.remove('s', '1');
    assert.equal(await nodeOf(), undefined);
    service.changedElsewhere({ keys: [ID] });
  });

  it('takes a failing shared cache for a miss', async () => {
    shared.failing = true;
    store.row = binding('n1');
    assert.equal((await service.findByUserId('s', '1')).answeredBy, 'store');
    await service.bind('s', '1', 'alice', 'n1');
    await service.move('s', '1', 'n2');
    service.changedElsewhere({ keys: [ID] });
    await settle();
    assert.equal(await nodeOf(), 'n2');
  });

  describe('while the store is away', () => {
    it('uses what it knows, as long as staleIfError, and makes nothing up', async () => {
      store.row = binding('n1');
      service = make(null);
      await service.findByUserId('s', '1');
      store.failing = true;
      clock.advance(299_999);
      assert.deepEqual((await service.findByUserId('s', '1')).answeredBy, 'stale');
      clock.advance(1);
      await assert.rejects(service.findByUserId('s', '1'), { code: 'directory_unavailable' });
      await assert.rejects(service.findByUserId('s', '2'), { code: 'directory_unavailable' });
      store.failing = false;
      assert.equal(await nodeOf(), 'n1');
    });

    it('believes the shared cache', async () => {
      store.failing = true;
      shared.put(ID, { nodeId: 'n1', epoch: 1, frozen: false });
      assert.equal((await service.findByUserId('s', '1')).answeredBy, 'redis');
    });

    it('tells of a login that could not be bound', async () => {
      store.failing = true;
      await assert.rejects(service.bind('s', '1', 'alice', 'n1'), StoreUnavailable);
    });
  });

  describe('never goes back', () => {
    it('to a shared entry of before a move', async () => {
      store.row = binding('n1');
      await service.findByUserId('s', '1');
      await service.move('s', '1', 'n2');
      shared.put(ID, { nodeId: 'n1', epoch: 1, frozen: false });
      clock.advance(10_000);
      assert.deepEqual(await service.findByUserId('s', '1'), { binding: binding('n2', 2), answeredBy: 'store' });
    });

    it('to what a look-up saw before a move that happened meanwhile', async () => {
      store.row = binding('n1');
      store.gate = new Gate();
      const early = service.findByUserId('s', '1');
      await settle();
      const { gate } = store;
      store.gate = undefined;
      await service.move('s', '1', 'n2');
      gate.open();
      await early;
      assert.equal(service.cachedByUserId('s', '1')?.nodeId, 'n2');
      assert.equal(shared.entries.get(JSON.stringify(ID))?.nodeId, 'n2');
    });

    it('to what a look-up saw before the binding was removed meanwhile', async () => {
      store.row = binding('n1');
      store.gate = new Gate();
      const early = service.findByUserId('s', '1');
      await settle();
      const { gate } = store;
      store.gate = undefined;
      await service.remove('s', '1');
      gate.open();
      await early;
      assert.equal(service.cachedByUserId('s', '1'), undefined);
      assert.equal(await nodeOf(), undefined);
    });

    it('to a shared entry of before a change made elsewhere, however old the entry looks', async () => {
      store.row = binding('n2', 2);
      service.drop({ keys: [ID], leastEpoch: 2 });
      shared.put(ID, { nodeId: 'n1', epoch: 1, frozen: false });
      assert.equal(await nodeOf(), 'n2');
      assert.equal(service.cachedByUserId('s', '1')?.epoch, 2);
    });

    it('and makes nothing of the mark such a change leaves while the store is away', async () => {
      service.drop({ keys: [ID], leastEpoch: 2 });
      store.failing = true;
      await assert.rejects(service.findByUserId('s', '1'), { code: 'directory_unavailable' });
    });

    it('but a name may pass to a binding with a lower epoch', async () => {
      store.row = binding('n2', 1);
      service.drop({ keys: [NAME], leastEpoch: 9 });
      assert.equal((await service.findByUsername('s', 'alice')).binding?.nodeId, 'n2');
      assert.equal((await service.findByUsername('s', 'alice')).answeredBy, 'local');
    });
  });

  it('makes everything stale after news may have been missed, and keeps the epochs', async () => {
    store.row = binding('n1', 3);
    await service.findByUserId('s', '1');
    service.expireAll();
    assert.equal(service.cachedByUserId('s', '1'), undefined);
    shared.put(ID, { nodeId: 'n0', epoch: 2, frozen: false });
    assert.equal(await nodeOf(), 'n1');
    store.gate = new Gate();
    clock.advance(10_000);
    shared.entries.clear();
    const early = nodeOf();
    await settle();
    service.expireAll();
    store.gate.open();
    assert.equal(await early, 'n1');
    assert.equal(service.cachedByUserId('s', '1'), undefined, 'a look-up of before the gap is not remembered');
    service.expireAll();
    store.failing = true;
    store.gate = undefined;
    shared.entries.clear();
    assert.equal((await service.findByUserId('s', '1')).answeredBy, 'stale');
  });

  it('drops what a login voided, everywhere, before it tells of the new binding', async () => {
    const old: BindingKey = { kind: 'name', serviceId: 's', username: 'old' };
    shared.put(old, { nodeId: 'n9', epoch: 7, frozen: false });
    store.result = { binding: binding('n1', 1), created: false, conflict: true, voided: [old, NAME] };
    const heard: (readonly BindingKey[])[] = [];
    const stop = service.onChange((change) => heard.push(change.keys));
    await service.bind('s', '1', 'alice', 'n1');
    assert.deepEqual(heard, [[old, NAME]]);
    assert.deepEqual(shared.announced, [old, NAME]);
    assert.equal(shared.entries.has(JSON.stringify(old)), false);
    assert.equal(shared.entries.get(JSON.stringify(NAME))?.nodeId, 'n1');
    assert.equal((await service.findByUsername('s', 'alice')).answeredBy, 'local');
    stop();
    service.drop({ keys: [ID] });
    assert.equal(heard.length, 1, 'no more is heard');
  });

  it('freezes and thaws at once', async () => {
    store.row = binding('n1');
    await service.setFrozen('s', '1', true);
    assert.equal(service.cachedByUserId('s', '1')?.frozen, true);
    await service.setFrozen('s', '1', false);
    assert.equal(service.cachedByUserId('s', '1')?.frozen, false);
    store.row = undefined;
    service.drop({ keys: [ID] });
    assert.equal(await service.setFrozen('s', '1', true), undefined);
  });

  it('removes what is not there without a word, and bindings with one identity by that one', async () => {
    assert.equal(await service.remove('s', '1'), undefined);
    assert.deepEqual(keysOf(binding('n1', 1, { userId: null })), [NAME]);
    assert.deepEqual(keysOf(binding('n1', 1, { username: null })), [ID]);
  });

  it('takes changes made elsewhere to the shared cache too, before it tells anybody here', async () => {
    store.row = binding('n1');
    await service.findByUserId('s', '1');
    await settle();
    store.row = binding('n2', 2);
    const seen: Promise<string | undefined>[] = [];
    service.onChange(() => seen.push(nodeOf()));
    service.changedElsewhere({ keys: [ID, NAME] });
    assert.deepEqual(await Promise.all(seen), ['n2']);
  });

  it('counts who answered and what became of logins', async () => {
    const layer = (name: string) => count(`gateway_binding_lookups_total{layer="${name}"}`);
    const result = (name: string) => count(`gateway_binds_total{result="${name}"}`);
    await service.bind('s', '1', 'alice', 'n1');
    store.result = { binding: binding('n1'), created: false, conflict: true, voided: [] };
    await service.bind('s', '1', 'alice', 'n1');
    store.failing = true;
    await assert.rejects(service.bind('s', '1', 'alice', 'n1'));
    assert.deepEqual([result('won'), result('lost'), result('failed')], [1, 1, 1]);
    assert.equal(count('gateway_binding_conflicts_total'), 1);
    await service.findByUserId('s', '1');
    service.cachedByUserId('s', '1');
    service.cachedByUserId('s', 'nobody');
    clock.advance(10_000);
    await service.findByUserId('s', '1');
    shared.failing = true;
    clock.advance(10_000);
    await service.findByUserId('s', '1');
    store.failing = false;
    await service.findByUserId('s', '1');
    assert.deepEqual(['local', 'redis', 'stale', 'store'].map(layer), [2, 1, 1, 1]);
    await settle();
    assert.equal(count('gateway_store_errors_total{store="redis",use="bindings"}'), 3, 'two look-ups, one write');
  });

  describe('while another change comes in between', () => {
    /** Begins with the store's answer taken but not given; the returned function gives it. */
    function hold(): () => void {
      const gate = new Gate();
      store.gate = gate;
      return () => {
        store.gate = undefined;
        gate.open();
      };
    }
    const sharedNode = () => shared.entries.get(JSON.stringify(ID))?.nodeId;

    it('keeps the new binding of a login when a look-up before it found none', async () => {
      const answer = hold();
      const early = service.findByUserId('s', '1');
      const earlyName = service.findByUsername('s', 'alice');
      await settle();
      store.gate = undefined;
      await service.bind('s', '1', 'alice', 'n1');
      answer();
      assert.equal((await early).binding, undefined);
      assert.equal((await earlyName).binding, undefined);
      assert.equal(service.cachedByUserId('s', '1')?.nodeId, 'n1');
      assert.equal((await service.findByUsername('s', 'alice')).answeredBy, 'local');
    });

    it('gives a login its own look-up after a drop, not the one under way', async () => {
      store.row = binding('n1');
      const answer = hold();
      const early = nodeOf();
      await settle();
      service.drop({ keys: [ID], leastEpoch: 2 });
      store.row = binding('n2', 2);
      store.gate = undefined;
      assert.equal(await nodeOf(), 'n2');
      answer();
      assert.equal(await early, 'n1', 'it had asked before');
      assert.equal(service.cachedByUserId('s', '1')?.nodeId, 'n2');
      assert.equal(store.finds, 2);
    });

    for (const [news, leastEpoch] of [
      ['of a later epoch', 2],
      ['of the same epoch', 1],
      ['without an epoch', undefined],
    ] as const) {
      it(`does not believe a login's answer that comes after news ${news}`, async () => {
        const answer = hold();
        const login = service.bind('s', '1', 'alice', 'n1');
        await settle();
        service.changedElsewhere(leastEpoch === undefined ? { keys: [ID, NAME] } : { keys: [ID, NAME], leastEpoch });
        answer();
        assert.equal((await login).binding.nodeId, 'n1', 'the node has let the user in all the same');
        assert.equal(service.cachedByUserId('s', '1'), undefined);
        assert.equal(sharedNode(), undefined);
        store.row = binding('n2', 2);
        assert.equal(await nodeOf(), 'n2');
      });
    }

    it('does not believe an answer that comes after a gap in the news', async () => {
      const answer = hold();
      const login = service.bind('s', '1', 'alice', 'n1');
      await settle();
      service.expireAll();
      answer();
      await login;
      assert.equal(service.cachedByUserId('s', '1'), undefined);
      assert.equal(sharedNode(), undefined);
    });

    it('believes an answer that is above the news, and news of others does not matter', async () => {
      store.row = binding('n1', 4);
      const answer = hold();
      const login = service.bind('s', '1', 'alice', 'n1');
      await settle();
      service.drop({ keys: [ID], leastEpoch: 3 });
      service.drop({ keys: [{ kind: 'id', serviceId: 's', userId: '2' }] });
      answer();
      await login;
      assert.equal(service.cachedByUserId('s', '1')?.epoch, 4);
      assert.equal(sharedNode(), 'n1');
    });

    it('ends with the last of two moves that the store answers together', async () => {
      const answer = hold();
      const moves = [service.move('s', '1', 'n1'), service.move('s', '1', 'n2')];
      await settle();
      answer();
      await Promise.all(moves);
      assert.equal(service.cachedByUserId('s', '1')?.nodeId, 'n2');
      assert.equal(sharedNode(), 'n2');
    });

    it('ends thawed when a freeze and a thaw are answered together', async () => {
      store.row = binding('n1');
      const answer = hold();
      const both = [service.setFrozen('s', '1', true), service.setFrozen('s', '1', false)];
      await settle();
      answer();
      await Promise.all(both);
      assert.equal((await service.findByUserId('s', '1')).binding?.frozen, false);
      assert.notEqual(shared.entries.get(JSON.stringify(ID))?.frozen, true);
    });

    it('does not write a move to the shared cache that was overtaken while the old entry was dropped there', async () => {
      shared.dropGate = new Gate();
      const move = service.move('s', '1', 'n1');
      await settle();
      service.drop({ keys: [ID], leastEpoch: 2 });
      shared.dropGate.open();
      await move;
      assert.equal(sharedNode(), undefined);
    });

    it('hands a failure to all who wait for it, and asks anew for the next', async () => {
      store.failing = true;
      const answer = hold();
      const all = Promise.allSettled(Array.from({ length: 100 }, nodeOf));
      await settle();
      answer();
      assert.ok((await all).every((one) => one.status === 'rejected'));
      assert.equal(store.finds, 1);
      store.failing = false;
      store.row = binding('n1');
      assert.equal(await nodeOf(), 'n1');
    });
  });

  describe('keeps what it knows of epochs', () => {
    const old = (nodeId: string, epoch: number) => shared.put(ID, { nodeId, epoch, frozen: false });

    it('when news of an earlier change comes late', async () => {
      store.row = binding('n3', 3);
      await nodeOf();
      service.drop({ keys: [ID], leastEpoch: 2 });
      old('n2', 2);
      assert.equal(await nodeOf(), 'n3');
    });

    it('when news says nothing of the epoch', async () => {
      store.row = binding('n3', 3);
      await nodeOf();
      service.drop({ keys: [ID] });
      old('n2', 2);
      assert.equal(await nodeOf(), 'n3');
    });

    it('when the store answers with a lower one, which is passed on but kept nowhere', async () => {
      store.row = binding('n3', 3);
      await nodeOf();
      await settle();
      clock.advance(10_000);
      shared.entries.clear();
      store.row = binding('n2', 2);
      assert.equal(await nodeOf(), 'n2');
      await settle();
      assert.equal(shared.entries.size, 0);
      assert.equal(service.cachedByUserId('s', '1'), undefined);
    });

    it('when the binding is gone, so that a leftover of it in the shared cache is removed', async () => {
      store.row = binding('n1', 3);
      await nodeOf();
      await settle();
      service.drop({ keys: [ID], leastEpoch: 4 });
      old('n1', 3);
      store.row = undefined;
      assert.equal(await nodeOf(), undefined);
      assert.equal(shared.entries.has(JSON.stringify(ID)), false);
      old('n1', 3);
      assert.equal(await nodeOf(), undefined, 'nor is it believed a second time');
      store.row = binding('n2', 4);
      assert.equal(await nodeOf(), 'n2');
      assert.equal(service.cachedByUserId('s', '1')?.epoch, 4, 'the next binding is above what was removed');
    });

    it('nor an entry that may be from before a change nobody heard of, unless the store is away', async () => {
      const put = (node: string, remainingMs: number | null) => {
        clock.advance(10_000);
        old(node, 1);
        shared.remainingMs = remainingMs;
      };
      service.expireAll();
      store.row = binding('n2', 1);
      const older = SHARED_TTL_MS - 20_000;
      for (const remainingMs of [older, null, SHARED_TTL_MS + 1]) {
        put('n1', remainingMs);
        assert.equal(await nodeOf(), 'n2', String(remainingMs));
        await settle();
        assert.equal(shared.entries.get(JSON.stringify(ID))?.nodeId, 'n2', 'it is replaced');
      }
      put('n3', SHARED_TTL_MS - 1);
      assert.equal(await nodeOf(), 'n3', 'a later entry is believed');
      store.failing = true;
      put('n1', older);
      assert.equal(await nodeOf(), 'n1', 'PostgreSQL is away: better than nothing');
      clock.advance(10_000);
      service.distrustShared();
      shared.entries.clear();
      old('n1', 0);
      assert.equal(await nodeOf(), 'n1', 'the same from the local cache, as the entry is below what is known');
      assert.equal(count('gateway_binding_lookups_total{layer="stale"}'), 1);
    });

    it('when the store says that there is none, without any news', async () => {
      service = make(null);
      store.row = binding('n1', 3);
      await nodeOf();
      clock.advance(10_000);
      store.row = undefined;
      assert.equal(await nodeOf(), undefined);
      store.failing = true;
      await assert.rejects(nodeOf(), { code: 'directory_unavailable' });
      store.failing = false;
      for (let time = 0; time < 3; time += 1) assert.equal(await nodeOf(), undefined);
      store.row = binding('n2', 4);
      await nodeOf();
      assert.equal(service.cachedByUserId('s', '1')?.nodeId, 'n2');
    });
  });

  it('does not believe a late write of another gateway about what the store says is gone', async () => {
    store.row = binding('n1', 3);
    await nodeOf();
    await settle();
    clock.advance(10_000);
    shared.entries.clear();
    store.row = undefined;
    assert.equal(await nodeOf(), undefined);
    shared.put(ID, { nodeId: 'n1', epoch: 3, frozen: false });
    assert.equal(await nodeOf(), undefined);
  });

  it('takes the name of a login from whoever was known by it before', async () => {
    store.row = binding('n9', 9, { userId: '9' });
    await service.findByUsername('s', 'alice');
    store.row = undefined;
    await service.bind('s', '1', 'alice', 'n1');
    assert.deepEqual(
      [(await service.findByUsername('s', 'alice')).binding?.nodeId, service.cachedByUserId('s', '1')?.nodeId],
      ['n1', 'n1'],
    );
  });

  it('follows a name that passed to a binding with a lower epoch, without any news', async () => {
    service = make(null);
    store.row = binding('n9', 9);
    await service.findByUsername('s', 'alice');
    clock.advance(10_000);
    store.row = binding('n1', 1, { userId: '2' });
    assert.equal((await service.findByUsername('s', 'alice')).binding?.nodeId, 'n1');
    assert.equal((await service.findByUsername('s', 'alice')).answeredBy, 'local');
    clock.advance(10_000);
    store.failing = true;
    const found = await service.findByUsername('s', 'alice');
    assert.deepEqual([found.answeredBy, found.binding?.nodeId], ['stale', 'n1']);
    clock.advance(10_000);
    store.failing = false;
    store.row = undefined;
    assert.equal((await service.findByUsername('s', 'alice')).binding, undefined);
    store.failing = true;
    await assert.rejects(service.findByUsername('s', 'alice'), { code: 'directory_unavailable' });
  });

  it('counts time by a clock that nobody sets', async () => {
    service = make(null);
    store.row = binding('n1');
    await nodeOf();
    const monotonic = clock.monotonic();
    clock.now = () => monotonic - 86_400_000;
    clock.advance(10_000);
    assert.equal(service.cachedByUserId('s', '1'), undefined);
  });

  it('lets no gap in the news lengthen the time for which a binding is used without the store', async () => {
    service = make(null);
    store.row = binding('n1');
    await nodeOf();
    clock.advance(9_000);
    service.expireAll();
    service.expireAll();
    store.failing = true;
    clock.advance(289_999);
    assert.equal((await service.findByUserId('s', '1')).answeredBy, 'stale');
    clock.advance(1);
    await assert.rejects(nodeOf(), { code: 'directory_unavailable' });
  });

  describe('after the shared cache was away', () => {
    /** A move of which the shared cache never heard: its old entry is still there when it is back. */
    async function moveUnheard(): Promise<void> {
      shared.put(ID, { nodeId: 'n1', epoch: 1, frozen: false });
      shared.put(NAME, { nodeId: 'n1', epoch: 1, frozen: false });
      shared.failing = true;
      store.row = binding('n1');
      await service.move('s', '1', 'n2');
      shared.failing = false;
    }

    it('drops there what it could not drop, for the sake of gateways that know nothing of the move', async () => {
      await moveUnheard();
      store.row = undefined;
      await service.findByUserId('s', 'somebody else');
      await settle();
      assert.equal(shared.entries.has(JSON.stringify(ID)), false);
      assert.equal(shared.entries.has(JSON.stringify(NAME)), false);
    });

    it('does so as soon as the news is back, too', async () => {
      await moveUnheard();
      service.expireAll();
      await settle();
      assert.equal(shared.entries.size, 0);
    });

    it('does not believe it of what it could not be told, not even at the same epoch', async () => {
      store.row = binding('n1');
      shared.put(NAME, { nodeId: 'n1', epoch: 1, frozen: false });
      shared.failing = true;
      service.changedElsewhere({ keys: [NAME], leastEpoch: 1 });
      await settle();
      shared.failing = false;
      store.row = binding('n1', 1, { frozen: true });
      assert.equal((await service.findByUsername('s', 'alice')).binding?.frozen, true);
    });

    it('does not believe it if it was asked before it could be told', async () => {
      shared.put(NAME, { nodeId: 'n1', epoch: 1, frozen: false });
      shared.failing = true;
      service.changedElsewhere({ keys: [NAME], leastEpoch: 1 });
      await settle();
      shared.failing = false;
      const gate = new Gate();
      shared.findGate = gate;
      store.row = binding('n1', 1, { frozen: true });
      const early = service.findByUsername('s', 'alice');
      shared.findGate = undefined;
      await service.findByUserId('s', 'somebody else');
      gate.open();
      assert.equal((await early).binding?.frozen, true);
    });

    it('does not believe it if it could not be told while it was asked', async () => {
      shared.put(NAME, { nodeId: 'n1', epoch: 1, frozen: false });
      const gate = new Gate();
      shared.findGate = gate;
      const early = service.findByUsername('s', 'alice');
      shared.failing = true;
      service.changedElsewhere({ keys: [NAME], leastEpoch: 1 });
      await settle();
      store.row = binding('n1', 1, { frozen: true });
      gate.open();
      assert.equal((await early).binding?.frozen, true);
    });

    it('tries again when it goes away again', async () => {
      await moveUnheard();
      shared.failing = true;
      service.expireAll();
      await settle();
      assert.equal(shared.entries.size, 2);
      shared.failing = false;
      service.expireAll();
      await settle();
      assert.equal(shared.entries.size, 0);
    });
  });
});
