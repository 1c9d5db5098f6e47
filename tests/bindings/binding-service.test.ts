import assert from 'node:assert/strict';
import { beforeEach, describe, it } from 'node:test';
import {
  BindingService,
  type CachedBinding,
  keysOf,
  type SharedBindingCache,
} from '../../lib/bindings/binding-service.ts';
import type { BindingKey, BindingPage, BindingStore, BindResult } from '../../lib/bindings/binding-store.ts';
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

  async find(key: BindingKey): Promise<CachedBinding | undefined> {
    this.finds += 1;
    this.#mayFail();
    return this.entries.get(JSON.stringify(key));
  }
  async write(value: Binding): Promise<void> {
    this.#mayFail();
    for (const key of keysOf(value))
      this.entries.set(JSON.stringify(key), { nodeId: value.nodeId, epoch: value.epoch, frozen: value.frozen });
  }
  async drop(keys: readonly BindingKey[]): Promise<void> {
    this.#mayFail();
    for (const key of keys) this.entries.delete(JSON.stringify(key));
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

const ID: BindingKey = { kind: 'id', serviceId: 's', userId: '1' };
const NAME: BindingKey = { kind: 'name', serviceId: 's', username: 'alice' };

describe('BindingService', () => {
  let clock: FakeClock;
  let store: OneRowStore;
  let shared: MapCache;
  let service: BindingService;

  beforeEach(() => {
    clock = new FakeClock();
    store = new OneRowStore();
    shared = new MapCache();
    service = make(shared);
  });

  function make(cache: SharedBindingCache | null): BindingService {
    return new BindingService({
      store,
      shared: cache,
      ttlMs: 10_000,
      staleIfErrorMs: 300_000,
      maxEntries: 100,
      clock,
      logger: silentLogger,
      metrics: new Metrics(),
    });
  }

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

  it('takes changes made elsewhere to the shared cache too', async () => {
    store.row = binding('n1');
    await service.findByUserId('s', '1');
    await settle();
    store.row = binding('n2', 2);
    service.changedElsewhere({ keys: [ID, NAME] });
    assert.equal(await nodeOf(), 'n2');
  });
});
