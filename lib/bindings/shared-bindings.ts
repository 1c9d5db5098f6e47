/**
 * The shared cache (Redis) as BindingService uses it: a failure is counted, logged and taken for a miss, and a change
 * that the cache could not be told is told later. What is believed of its answers is decided in binding-service.ts.
 */
import type { Binding } from '../model.ts';
import { describeError, type Logger } from '../observe/log.ts';
import type { Counter, Metrics } from '../observe/metrics.ts';
import { Lru } from '../support/lru.ts';
import { cacheName } from './binding-keys.ts';
import type { BindingKey } from './binding-store.ts';

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

/** More keys than this are not kept for later; the entries of others end with their TTL. */
const MAX_UNTOLD = 10_000;

export class SharedBindings {
  readonly #cache: SharedBindingCache | null;
  readonly #logger: Logger;
  readonly #errors: Counter;
  /** Changed while the cache could not be told: what it says of them may be of before. */
  readonly #untold = new Lru<string, BindingKey>(MAX_UNTOLD);

  constructor(cache: SharedBindingCache | null, logger: Logger, metrics: Metrics) {
    this.#cache = cache;
    this.#logger = logger;
    this.#errors = metrics.counter('gateway_store_errors_total', 'Failed calls to a store', {
      store: 'redis',
      use: 'bindings',
    });
  }

  /** Undefined = a miss, or no answer. Never rejects. */
  async find(key: BindingKey): Promise<CachedBinding | undefined> {
    if (!this.#cache) return undefined;
    const isUntold = () => this.#untold.peek(cacheName(key)) !== undefined;
    const before = isUntold();
    try {
      const found = await this.#cache.find(key);
      // A drop that failed while this was under way counts as well.
      const doubted = before || isUntold();
      this.tellAgain();
      return doubted ? undefined : found;
    } catch (error) {
      this.#failed('debug', error);
      return undefined;
    }
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
  }

  #failed(level: 'debug' | 'warn', error: unknown): void {
    this.#errors.inc();
    this.#logger[level]('binding_cache_failed', { error: describeError(error) });
  }
}
