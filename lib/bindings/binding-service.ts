/**
 * Bindings as requests see them: local cache, then Redis, then the store, with one query for many misses, and the
 * rule that nothing cached goes back to a lower epoch. The truth is the store's; this file only remembers it.
 */
import { GatewayError } from '../errors.ts';
import type { Binding } from '../model.ts';
import type { Logger } from '../observe/log.ts';
import type { Counter, Metrics } from '../observe/metrics.ts';
import type { Clock } from '../support/clock.ts';
import { Lru } from '../support/lru.ts';
import { normalizeUsername } from '../support/username.ts';
import { cacheName, keysOf } from './binding-keys.ts';
import type { BindingChange, BindingKey, BindingStore, BindResult } from './binding-store.ts';
import { type CachedBinding, type SharedBindingCache, SharedBindings } from './shared-bindings.ts';

export type { CachedBinding, SharedBindingCache };

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
  /** True = the key was dropped or bound while the look-up ran: its answer may be old and is not remembered. */
  voided: boolean;
}

/** A change of this gateway under way in the store. */
interface Write {
  /** Of its user's id. */
  readonly name: string;
  /** Highest epoch of which news came in meanwhile: only a result above it is certainly later. */
  newsEpoch: number;
}

export interface BindingServiceOptions {
  readonly store: BindingStore;
  readonly shared: SharedBindingCache | null;
  /** Longest life of an entry in the shared cache. */
  readonly sharedTtlMs: number;
  /**
   * clock.monotonic(): changes made elsewhere before then have been heard of. Absent = always now, for when nothing is
   * changed elsewhere.
   */
  readonly heardUntilMs?: () => number;
  readonly ttlMs: number;
  readonly staleIfErrorMs: number;
  readonly maxEntries: number;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly metrics: Metrics;
}

export class BindingService {
  readonly #store: BindingStore;
  readonly #shared: SharedBindings;
  readonly #ttlMs: number;
  readonly #staleIfErrorMs: number;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #entries: Lru<string, Entry>;
  readonly #flights = new Map<string, Flight>();
  readonly #writes = new Set<Write>();
  readonly #listeners = new Set<(change: BindingChange) => void>();
  readonly #hits: Record<FoundBinding['answeredBy'], Counter>;
  readonly #won: Counter;
  readonly #lost: Counter;
  readonly #failed: Counter;
  readonly #conflicts: Counter;

  constructor(options: BindingServiceOptions) {
    this.#store = options.store;
    this.#shared = new SharedBindings({
      ...options,
      cache: options.shared,
      ttlMs: options.sharedTtlMs,
      heardUntilMs: options.heardUntilMs ?? (() => options.clock.monotonic()),
    });
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
  }

  /** The binding from the local cache if it is younger than the ttl; no I/O, for the hot path. */
  cachedByUserId(serviceId: string, userId: string): CachedBinding | undefined {
    const entry = this.#entries.get(`${serviceId}:i:${userId}`);
    if (entry === undefined || this.#clock.monotonic() - entry.loadedAtMs >= this.#ttlMs) return undefined;
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
    return this.#write(
      serviceId,
      userId,
      () => this.#bindIfAbsent(serviceId, userId, username, nodeId),
      (result, newsEpoch) => {
        this.#countBind(userId, result);
        return this.#publish(result.binding, { keys: result.voided }, newsEpoch);
      },
    );
  }

  /** Binds or moves by an operator's hand; takes effect on this gateway before it resolves. */
  async move(serviceId: string, userId: string, nodeId: string): Promise<Binding> {
    return this.#write(
      serviceId,
      userId,
      () => this.#store.move(serviceId, userId, nodeId),
      (binding, newsEpoch) => this.#publish(binding, changeOf(binding), newsEpoch),
    );
  }

  /** Resolves with the binding removed, or undefined if there was none. */
  async remove(serviceId: string, userId: string): Promise<Binding | undefined> {
    const binding = await this.#store.remove(serviceId, userId);
    const keys: BindingKey[] = binding ? keysOf(binding) : [{ kind: 'id', serviceId, userId }];
    this.drop(binding ? { keys, leastEpoch: binding.epoch + 1 } : { keys });
    await this.#shared.tell(keys, null, () => false);
    return binding;
  }

  async setFrozen(serviceId: string, userId: string, frozen: boolean): Promise<Binding | undefined> {
    return this.#write(
      serviceId,
      userId,
      () => this.#store.setFrozen(serviceId, userId, frozen),
      async (binding, newsEpoch) => {
        if (binding) await this.#publish(binding, changeOf(binding), newsEpoch);
      },
    );
  }

  /** Forgets what is cached of these keys; a look-up under way is not remembered. Tunnels listen to it too. */
  drop(change: BindingChange): void {
    for (const key of change.keys) {
      const name = cacheName(key);
      // News may come late and out of order: what is known of the epoch is kept.
      this.#forget(key, name, Math.max(change.leastEpoch ?? 0, this.#entries.peek(name)?.epoch ?? 0));
      this.#voidFlight(name);
      for (const write of this.#writes) {
        if (write.name === name) write.newsEpoch = Math.max(write.newsEpoch, change.leastEpoch ?? UNKNOWN_EPOCH);
      }
    }
    for (const listener of this.#listeners) listener(change);
  }

  /** A change made elsewhere, past this gateway: what is cached here and in the shared cache is void. */
  changedElsewhere(change: BindingChange): void {
    // First the shared cache: whoever hears of the drop may look the binding up at once.
    this.#shared.drop(change.keys);
    this.drop(change);
  }

  /**
   * Makes every entry stale, as after a lost listener connection: a change may have been missed. The entries stay
   * for `staleIfError` and for their epochs.
   */
  expireAll(): void {
    const now = this.#clock.monotonic();
    const expired: [string, Entry][] = [];
    for (const [name, entry] of this.#entries.entries()) {
      if (now - entry.loadedAtMs < this.#ttlMs) expired.push([name, { ...entry, loadedAtMs: now - this.#ttlMs }]);
    }
    for (const [name, entry] of expired) this.#entries.set(name, entry);
    for (const flight of this.#flights.values()) flight.voided = true;
    this.#flights.clear();
    for (const write of this.#writes) write.newsEpoch = UNKNOWN_EPOCH;
    this.#shared.tellAgain();
    this.distrustShared();
  }

  /**
   * Changes are not heard of at the moment, or were not until now: the shared cache may hold what was before them. Until
   * all it holds is newer, the store is asked first.
   */
  distrustShared(): void {
    this.#shared.distrust();
  }

  /** Hears of every drop: the caller ends what depends on an old decision. Returns the way to stop. */
  onChange(listener: (change: BindingChange) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #find(key: BindingKey): Promise<FoundBinding> {
    const name = cacheName(key);
    const entry = this.#entries.get(name);
    if (entry && this.#clock.monotonic() - entry.loadedAtMs < this.#ttlMs) {
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
    const shared = await this.#shared.find(key);
    // Since then a change may have been made that nobody has heard of: the ttl counts from there.
    const fresh = shared && !shared.doubtful && this.#clock.monotonic() - shared.knownAtMs < this.#ttlMs;
    if (fresh && this.#isCurrent(name, shared.binding)) {
      return this.#takeShared(name, shared.binding, shared.knownAtMs, voided);
    }
    let binding: Binding | undefined;
    try {
      binding =
        key.kind === 'id'
          ? await this.#store.findByUserId(key.serviceId, key.userId)
          : await this.#store.findByUsername(key.serviceId, key.username);
    } catch (error) {
      if (!shared || voided() || !this.#isCurrent(name, shared.binding)) return this.#stale(name, error);
      return this.#takeShared(name, shared.binding, this.#clock.monotonic(), voided);
    }
    this.#hits.store.inc();
    if (voided()) return { binding, answeredBy: 'store' };
    // Nothing has changed since the store was asked, so its word counts whatever was known.
    if (shared && (!fresh || binding === undefined)) this.#shared.drop([key]);
    if (binding === undefined) this.#forgetRemoved(key, name);
    // A name may have passed to a row with a lower epoch.
    else if (this.#remember(name, binding, key.kind === 'name')) this.#shared.write(binding);
    return { binding, answeredBy: 'store' };
  }

  /** False = a leftover of before a move: only the store can tell. */
  #isCurrent(name: string, binding: CachedBinding): boolean {
    return binding.epoch >= (this.#entries.peek(name)?.epoch ?? 0);
  }

  #takeShared(name: string, binding: CachedBinding, knownAtMs: number, voided: () => boolean): FoundBinding {
    if (!voided()) this.#remember(name, binding, false, knownAtMs);
    this.#hits.redis.inc();
    return { binding, answeredBy: 'redis' };
  }

  /** The store did not answer: what is known may be used for a while, and nothing is ever made up. */
  #stale(name: string, error: unknown): FoundBinding {
    const entry = this.#entries.get(name);
    if (entry && this.#clock.monotonic() - entry.loadedAtMs < this.#staleIfErrorMs) {
      this.#hits.stale.inc();
      return { binding: entry, answeredBy: 'stale' };
    }
    throw new GatewayError('directory_unavailable', 'the directory of users cannot be read at the moment', {
      cause: error,
    });
  }

  /** False = something later is known. `isLatest` true = this is later, whatever the epochs say. */
  #remember(name: string, binding: CachedBinding, isLatest = false, loadedAtMs = this.#clock.monotonic()): boolean {
    const known = this.#entries.peek(name);
    if (!isLatest && known && known.epoch > binding.epoch) return false;
    this.#entries.set(name, {
      nodeId: binding.nodeId,
      epoch: binding.epoch,
      frozen: binding.frozen,
      loadedAtMs,
    });
    return true;
  }

  /**
   * What is left behind of an id is too old to be used; it only keeps a shared entry of before the change from being
   * believed. A name may pass to a row with a lower epoch, so of a name nothing is left.
   */
  #forget(key: BindingKey, name: string, leastEpoch: number): void {
    if (key.kind === 'name' || leastEpoch === 0) this.#entries.delete(name);
    else
      this.#entries.set(name, {
        nodeId: NO_NODE,
        epoch: leastEpoch,
        frozen: false,
        loadedAtMs: Number.NEGATIVE_INFINITY,
      });
  }

  /** The store says that there is none: a later binding gets an epoch above the one that was known. */
  #forgetRemoved(key: BindingKey, name: string): void {
    const known = this.#entries.peek(name);
    if (known && known.nodeId !== NO_NODE) this.#forget(key, name, known.epoch + 1);
  }

  #voidFlight(name: string): void {
    const flight = this.#flights.get(name);
    if (!flight) return;
    flight.voided = true;
    this.#flights.delete(name);
  }

  /** Makes a change in the store, and tells of the result in the tick in which it is known. */
  async #write<T>(
    serviceId: string,
    userId: string,
    change: () => Promise<T>,
    tell: (result: T, newsEpoch: number) => Promise<void>,
  ): Promise<T> {
    const write: Write = { name: cacheName({ kind: 'id', serviceId, userId }), newsEpoch: 0 };
    this.#writes.add(write);
    try {
      const result = await change();
      await tell(result, write.newsEpoch);
      return result;
    } finally {
      this.#writes.delete(write);
    }
  }

  async #bindIfAbsent(serviceId: string, userId: string, username: string | null, nodeId: string): Promise<BindResult> {
    try {
      return await this.#store.bindIfAbsent(serviceId, userId, username, nodeId);
    } catch (error) {
      this.#failed.inc();
      throw error;
    }
  }

  #countBind(userId: string, result: BindResult): void {
    (result.created ? this.#won : this.#lost).inc();
    if (result.conflict) {
      this.#conflicts.inc();
      this.#logger.warn('binding_conflict', {
        service: result.binding.serviceId,
        user: userId,
        node: result.binding.nodeId,
      });
    }
  }

  /**
   * Drops what a change of this gateway voids and adopts its binding, unless the same news, or later news, of this
   * user came in before the store's reply did.
   */
  async #publish(binding: Binding, voided: BindingChange, newsEpoch: number): Promise<void> {
    if (voided.keys.length > 0) this.drop(voided);
    const adopted = binding.epoch > newsEpoch && this.#adopt(binding);
    const known = this.#lastKnown(binding);
    await this.#shared.tell(voided.keys, adopted ? binding : null, () => this.#lastKnown(binding) === known);
  }

  /** False = something later is known. */
  #adopt(binding: Binding): boolean {
    return keysOf(binding).every((key) => {
      const name = cacheName(key);
      // A look-up that began before may not have found it yet.
      this.#voidFlight(name);
      return this.#remember(name, binding, key.kind === 'name');
    });
  }

  /** The entry of the binding's user: another object after every change. */
  #lastKnown({ serviceId, userId }: Binding): Entry | undefined {
    return this.#entries.peek(cacheName({ kind: 'id', serviceId, userId: userId ?? '' }));
  }
}

/** The change that made this binding what it is: cached entries with a lower epoch are of before. */
function changeOf(binding: Binding): BindingChange {
  return { keys: keysOf(binding), leastEpoch: binding.epoch };
}

/** News that say nothing of the epoch: it may be higher than any. */
const UNKNOWN_EPOCH = Number.POSITIVE_INFINITY;

/** Stands where a node id would, in what is left of a binding that was dropped. */
const NO_NODE = '';
