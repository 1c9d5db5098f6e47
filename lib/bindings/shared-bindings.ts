/**
 * The shared cache (Redis) as BindingService uses it: a failure is counted, logged and taken for a miss, and a change
 * that the cache could not be told is told later. What is believed of its answers is decided in binding-service.ts.
 */
import type { Binding } from '../model.ts';
import { describeError, type Logger } from '../observe/log.ts';
import type { Counter, Metrics } from '../observe/metrics.ts';
import type { Clock } from '../support/clock.ts';
import { Lru } from '../support/lru.ts';
import { cacheName } from './binding-keys.ts';
import type { BindingKey } from './binding-store.ts';

/** What the decision needs of a binding. */
export interface CachedBinding {
  readonly nodeId: string;
  readonly epoch: number;
  readonly frozen: boolean;
}

export interface SharedBinding extends CachedBinding {
  /** What is left of its life in the cache; null = not known. */
  readonly remainingMs: number | null;
}

export interface FoundShared {
  readonly binding: CachedBinding;
  /** True = it may be from before a change, and counts only when the store does not answer. */
  readonly doubtful: boolean;
  /** clock.monotonic(): unless it is doubtful, it was in force then. */
  readonly knownAtMs: number;
}

/** The shared cache (Redis). Its failures only cost time, never correctness. */
export interface SharedBindingCache {
  find(key: BindingKey): Promise<SharedBinding | undefined>;
  write(binding: Binding): Promise<void>;
  drop(keys: readonly BindingKey[]): Promise<void>;
  announce(keys: readonly BindingKey[]): Promise<void>;
}

/** More keys than this are not kept for later: then nothing the cache holds is believed for as long as it holds it. */
const MAX_UNTOLD = 10_000;

export interface SharedBindingsOptions {
  readonly cache: SharedBindingCache | null;
  /** clock.monotonic(): the changes made before then have been heard of, and the cache was told. */
  readonly heardUntilMs: () => number;
  /** Longest life of an entry in the cache. */
  readonly ttlMs: number;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly metrics: Metrics;
}

export class SharedBindings {
  readonly #cache: SharedBindingCache | null;
  readonly #heardUntilMs: () => number;
  readonly #ttlMs: number;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #errors: Counter;
  /** clock.monotonic(): what was written before may be from before a change that nobody heard of. */
  #distrustedBeforeMs: number;
  /** Changed while the cache could not be told: what it says of them may be of before. */
  readonly #untold = new Lru<string, BindingKey>(MAX_UNTOLD);

  constructor(options: SharedBindingsOptions) {
    this.#cache = options.cache;
    this.#heardUntilMs = options.heardUntilMs;
    this.#ttlMs = options.ttlMs;
    this.#clock = options.clock;
    this.#distrustedBeforeMs = options.clock.monotonic();
    this.#logger = options.logger;
    this.#errors = options.metrics.counter('gateway_store_errors_total', 'Failed calls to a store', {
      store: 'redis',
      use: 'bindings',
    });
  }

  /** A change may have been missed, or not have reached the cache: what was written before now is in doubt. */
  distrust(): void {
    this.#distrustedBeforeMs = this.#clock.monotonic();
  }

  /** Undefined = a miss, or no answer. Never rejects. */
  async find(key: BindingKey): Promise<FoundShared | undefined> {
    if (!this.#cache) return undefined;
    const isUntold = () => this.#untold.peek(cacheName(key)) !== undefined;
    const before = isUntold();
    const askedAtMs = this.#clock.monotonic();
    const knownAtMs = Math.min(askedAtMs, this.#heardUntilMs());
    try {
      const found = await this.#cache.find(key);
      // A drop that failed while this was under way counts as well.
      const untold = before || isUntold();
      this.tellAgain();
      if (!found || untold) return undefined;
      return { binding: found, doubtful: this.#isDoubtful(found, askedAtMs), knownAtMs };
    } catch (error) {
      this.#failed('debug', error);
      return undefined;
    }
  }

  #isDoubtful({ remainingMs }: SharedBinding, askedAtMs: number): boolean {
    // More than a whole life is left only if another gateway is configured otherwise: its age cannot be told.
    if (remainingMs === null || remainingMs > this.#ttlMs) return true;
    return askedAtMs - (this.#ttlMs - remainingMs) <= this.#distrustedBeforeMs;
  }

  /** Writes back what the store has answered; the command is under way when it returns. */
  write(binding: Binding): void {
    this.#cache?.write(binding).catch((error: unknown) => this.#failed('debug', error));
  }

  /** The command is under way when it returns. */
  drop(keys: readonly BindingKey[]): void {
    this.#cache?.drop(keys).catch((error: unknown) => this.#untellable(keys, error));
  }

  /**
   * Drops what is void, writes the binding (null = none) and announces the change to other gateways, in this order.
   * The binding is only written if `current` still says so after the drop. Never rejects.
   */
  async tell(voided: readonly BindingKey[], binding: Binding | null, current: () => boolean): Promise<void> {
    if (!this.#cache) return;
    try {
      if (voided.length > 0) await this.#cache.drop(voided);
      if (binding && current()) await this.#cache.write(binding);
      if (voided.length > 0) await this.#cache.announce(voided);
    } catch (error) {
      this.#untellable(voided, error);
    }
  }

  /** For when the cache is back: entries of before these changes would lead gateways astray that know nothing of them. */
  tellAgain(): void {
    if (this.#untold.size === 0) return;
    const keys = [...this.#untold.entries()].map(([, key]) => key);
    this.#untold.clear();
    this.drop(keys);
  }

  #untellable(keys: readonly BindingKey[], error: unknown): void {
    this.#failed('warn', error);
    for (const key of keys) this.#untold.set(cacheName(key), key);
    if (this.#untold.size >= MAX_UNTOLD) this.distrust();
  }

  #failed(level: 'debug' | 'warn', error: unknown): void {
    this.#errors.inc();
    this.#logger[level]('binding_cache_failed', { error: describeError(error) });
  }
}
