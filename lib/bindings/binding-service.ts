/**
 * Bindings as requests see them: local cache, then Redis, then the store, with one query for many misses, and the
 * rule that nothing cached goes back to a lower epoch. The truth is the store's; this file only remembers it.
 */
import { GatewayError } from '../errors.ts';
import type { Binding } from '../model.ts';
import { describeError, type Logger } from '../observe/log.ts';
import type { Counter, Metrics } from '../observe/metrics.ts';
import type { Clock } from '../support/clock.ts';
import { Lru } from '../support/lru.ts';
import { normalizeUsername } from '../support/username.ts';
import type { BindingChange, BindingKey, BindingStore, BindResult } from './binding-store.ts';

/** What the decision needs of a binding. */
export interface CachedBinding {
  readonly nodeId: string;
  readonly epoch: number;
  readonly frozen: boolean;
}

/** The shared cache (Redis). Its failures only cost time, never correctness. */
export interface SharedBindingCache {
  find(key: BindingKey): Promise<CachedBinding | undefined>;
  write(binding: Binding): Promise<void>;
  drop(keys: readonly BindingKey[]): Promise<void>;
  announce(keys: readonly BindingKey[]): Promise<void>;
}

export interface FoundBinding {
  /** undefined = the store says that there is none. */
  readonly binding: CachedBinding | undefined;
  readonly answeredBy: 'local' | 'redis' | 'store' | 'stale';
}

interface Entry extends CachedBinding {
  readonly loadedAtMs: number;
}

interface Flight {
  readonly promise: Promise<FoundBinding>;
  /** True = the key was dropped while the look-up ran: its answer may be old and is not remembered. */
  voided: boolean;
}

export interface BindingServiceOptions {
  readonly store: BindingStore;
  readonly shared: SharedBindingCache | null;
  readonly ttlMs: number;
  readonly staleIfErrorMs: number;
  readonly maxEntries: number;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly metrics: Metrics;
}

export class BindingService {
  readonly #store: BindingStore;
  readonly #shared: SharedBindingCache | null;
  readonly #ttlMs: number;
  readonly #staleIfErrorMs: number;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #entries: Lru<string, Entry>;
  readonly #flights = new Map<string, Flight>();
  readonly #listeners = new Set<(change: BindingChange) => void>();
  readonly #hits: Record<FoundBinding['answeredBy'], Counter>;
  readonly #won: Counter;
  readonly #lost: Counter;
  readonly #failed: Counter;
  readonly #conflicts: Counter;
  readonly #sharedErrors: Counter;

  constructor(options: BindingServiceOptions) {
    this.#store = options.store;
    this.#shared = options.shared;
    this.#ttlMs = options.ttlMs;
    this.#staleIfErrorMs = options.staleIfErrorMs;
    this.#clock = options.clock;
    this.#logger = options.logger;
    this.#entries = new Lru(options.maxEntries);
    const hits = (layer: string) =>
      options.metrics.counter('gateway_binding_lookups_total', 'Bindings found or not, by who answered', {
        layer,
      });
    this.#hits = { local: hits('local'), redis: hits('redis'), store: hits('store'), stale: hits('stale') };
    const binds = (result: string) =>
      options.metrics.counter('gateway_binds_total', 'Logins bound: won = a new row, lost = one was there', {
        result,
      });
    this.#won = binds('won');
    this.#lost = binds('lost');
    this.#failed = binds('failed');
    this.#conflicts = options.metrics.counter(
      'gateway_binding_conflicts_total',
      'User-id and username rows of one person that named different nodes',
    );
    this.#sharedErrors = options.metrics.counter('gateway_store_errors_total', 'Failed calls to a store', {
      store: 'redis',
      use: 'bindings',
    });
  }

  /** The binding from the local cache if it is younger than the ttl; no I/O, for the hot path. */
  cachedByUserId(serviceId: string, userId: string): CachedBinding | undefined {
    const entry = this.#entries.get(`${serviceId}:i:${userId}`);
    if (entry === undefined || this.#clock.now() - entry.loadedAtMs >= this.#ttlMs) return undefined;
    this.#hits.local.inc();
    return entry;
  }

  /** Rejects with GatewayError `directory_unavailable` when nobody who could know answers. */
  findByUserId(serviceId: string, userId: string): Promise<FoundBinding> {
    return this.#find({ kind: 'id', serviceId, userId });
  }

  findByUsername(serviceId: string, username: string): Promise<FoundBinding> {
    return this.#find({ kind: 'name', serviceId, username: normalizeUsername(username) });
  }

  /**
   * Binds at a successful login. Resolves when the binding is durable in the store and the shared cache has been
   * told (or has failed within its own timeout).
   */
  async bind(serviceId: string, userId: string, username: string | null, nodeId: string): Promise<BindResult> {
    let result: BindResult;
    try {
      result = await this.#store.bindIfAbsent(serviceId, userId, username, nodeId);
    } catch (error) {
      this.#failed.inc();
      throw error;
    }
    (result.created ? this.#won : this.#lost).inc();
    if (result.conflict) {
      this.#conflicts.inc();
      this.#logger.warn('binding_conflict', {
        service: serviceId,
        user: userId,
        node: result.binding.nodeId,
      });
    }
    await this.#publish(result.binding, result.voided);
    return result;
  }

  /** Binds or moves by an operator's hand; takes effect on this gateway before it resolves. */
  async move(serviceId: string, userId: string, nodeId: string): Promise<Binding> {
    const binding = await this.#store.move(serviceId, userId, nodeId);
    await this.#publish(binding, keysOf(binding));
    return binding;
  }

  /** Resolves with the binding removed, or undefined if there was none. */
  async remove(serviceId: string, userId: string): Promise<Binding | undefined> {
    const binding = await this.#store.remove(serviceId, userId);
    const keys: BindingKey[] = binding ? keysOf(binding) : [{ kind: 'id', serviceId, userId }];
    this.drop(binding ? { keys, leastEpoch: binding.epoch + 1 } : { keys });
    await this.#tellShared(keys, null);
    return binding;
  }

  async setFrozen(serviceId: string, userId: string, frozen: boolean): Promise<Binding | undefined> {
    const binding = await this.#store.setFrozen(serviceId, userId, frozen);
    if (binding) await this.#publish(binding, keysOf(binding));
    return binding;
  }

  /** Forgets what is cached of these keys; a look-up under way is not remembered. Tunnels listen to it too. */
  drop(change: BindingChange): void {
    for (const key of change.keys) {
      const name = cacheName(key);
      // What is left behind is too old to be used; it only keeps a shared entry of before the change from being believed.
      // A name may pass to a row with a lower epoch, so this holds for ids alone.
      if (change.leastEpoch === undefined || key.kind === 'name') this.#entries.delete(name);
      else
        this.#entries.set(name, {
          nodeId: '',
          epoch: change.leastEpoch,
          frozen: false,
          loadedAtMs: Number.NEGATIVE_INFINITY,
        });
      const flight = this.#flights.get(name);
      if (flight) {
        flight.voided = true;
        this.#flights.delete(name);
      }
    }
    for (const listener of this.#listeners) listener(change);
  }

  /** A change made elsewhere, past this gateway: what is cached here and in the shared cache is void. */
  changedElsewhere(change: BindingChange): void {
    this.drop(change);
    this.#shared?.drop(change.keys).catch((error: unknown) => {
      this.#sharedErrors.inc();
      this.#logger.warn('binding_cache_failed', { error: describeError(error) });
    });
  }

  /**
   * Makes every entry stale, as after a lost listener connection: a change may have been missed. The entries stay
   * for `staleIfError` and for their epochs.
   */
  expireAll(): void {
    const now = this.#clock.now();
    const expired: [string, Entry][] = [];
    for (const [name, entry] of this.#entries.entries()) {
      if (now - entry.loadedAtMs < this.#ttlMs) expired.push([name, { ...entry, loadedAtMs: now - this.#ttlMs }]);
    }
    for (const [name, entry] of expired) this.#entries.set(name, entry);
    for (const flight of this.#flights.values()) flight.voided = true;
    this.#flights.clear();
  }

  /** Hears of every drop: the caller ends what depends on an old decision. Returns the way to stop. */
  onChange(listener: (change: BindingChange) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #find(key: BindingKey): Promise<FoundBinding> {
    const name = cacheName(key);
    const entry = this.#entries.get(name);
    if (entry && this.#clock.now() - entry.loadedAtMs < this.#ttlMs) {
      this.#hits.local.inc();
      return Promise.resolve({ binding: entry, answeredBy: 'local' });
    }
    const running = this.#flights.get(name);
    if (running) return running.promise;
    const flight: Flight = {
      promise: this.#lookUp(key, name, () => flight.voided).finally(() => {
        if (this.#flights.get(name) === flight) this.#flights.delete(name);
      }),
      voided: false,
    };
    this.#flights.set(name, flight);
    return flight.promise;
  }

  async #lookUp(key: BindingKey, name: string, voided: () => boolean): Promise<FoundBinding> {
    const shared = await this.#findShared(key);
    const known = this.#entries.peek(name);
    // A shared entry below a known epoch is a leftover of before the move: only the store can tell.
    if (shared && shared.epoch >= (known?.epoch ?? 0)) {
      if (!voided()) this.#remember(name, shared);
      this.#hits.redis.inc();
      return { binding: shared, answeredBy: 'redis' };
    }
    let binding: Binding | undefined;
    try {
      binding =
        key.kind === 'id'
          ? await this.#store.findByUserId(key.serviceId, key.userId)
          : await this.#store.findByUsername(key.serviceId, key.username);
    } catch (error) {
      return this.#stale(name, error);
    }
    this.#hits.store.inc();
    if (binding === undefined) {
      if (!voided()) this.#entries.delete(name);
      return { binding: undefined, answeredBy: 'store' };
    }
    if (!voided()) {
      this.#remember(name, binding);
      this.#writeBack(binding);
    }
    return { binding, answeredBy: 'store' };
  }

  async #findShared(key: BindingKey): Promise<CachedBinding | undefined> {
    if (!this.#shared) return undefined;
    try {
      return await this.#shared.find(key);
    } catch (error) {
      this.#sharedErrors.inc();
      this.#logger.debug('binding_cache_failed', { error: describeError(error) });
      return undefined;
    }
  }

  /** The store did not answer: what is known may be used for a while, and nothing is ever made up. */
  #stale(name: string, error: unknown): FoundBinding {
    const entry = this.#entries.get(name);
    if (entry && this.#clock.now() - entry.loadedAtMs < this.#staleIfErrorMs) {
      this.#hits.stale.inc();
      return { binding: entry, answeredBy: 'stale' };
    }
    throw new GatewayError('directory_unavailable', 'the directory of users cannot be read at the moment', {
      cause: error,
    });
  }

  #remember(name: string, binding: CachedBinding): void {
    const known = this.#entries.peek(name);
    if (known && known.epoch > binding.epoch) return;
    this.#entries.set(name, {
      nodeId: binding.nodeId,
      epoch: binding.epoch,
      frozen: binding.frozen,
      loadedAtMs: this.#clock.now(),
    });
  }

  #writeBack(binding: Binding): void {
    this.#shared?.write(binding).catch((error: unknown) => {
      this.#sharedErrors.inc();
      this.#logger.debug('binding_cache_failed', { error: describeError(error) });
    });
  }

  async #publish(binding: Binding, voided: readonly BindingKey[]): Promise<void> {
    if (voided.length > 0) this.drop({ keys: voided });
    for (const key of keysOf(binding)) this.#remember(cacheName(key), binding);
    await this.#tellShared(voided, binding);
  }

  async #tellShared(voided: readonly BindingKey[], binding: Binding | null): Promise<void> {
    if (!this.#shared) return;
    try {
      if (voided.length > 0) await this.#shared.drop(voided);
      if (binding) await this.#shared.write(binding);
      if (voided.length > 0) await this.#shared.announce(voided);
    } catch (error) {
      this.#sharedErrors.inc();
      this.#logger.warn('binding_cache_failed', { error: describeError(error) });
    }
  }
}

/** The keys under which a binding is cached. */
export function keysOf(binding: Binding): BindingKey[] {
  const keys: BindingKey[] = [];
  if (binding.userId !== null) keys.push({ kind: 'id', serviceId: binding.serviceId, userId: binding.userId });
  if (binding.username !== null) {
    keys.push({ kind: 'name', serviceId: binding.serviceId, username: normalizeUsername(binding.username) });
  }
  return keys;
}

// Service ids hold no ':', so the names cannot collide.
function cacheName(key: BindingKey): string {
  return key.kind === 'id' ? `${key.serviceId}:i:${key.userId}` : `${key.serviceId}:n:${key.username}`;
}
