/**
 * The connection to a Redis: one server, a cluster, or through sentinels. Every command is bounded in time, nothing is
 * queued while the connection is away, and a server that stopped answering is left alone for a moment. What the keys
 * mean is not known here.
 */
import { ReplyError } from 'ioredis';
import type { RedisOptions } from '../config/options.ts';
import { describeError, type Logger } from '../observe/log.ts';
import type { Histogram, Metrics } from '../observe/metrics.ts';
import type { Clock, Timer } from '../support/clock.ts';
import { CircuitBreaker } from './circuit-breaker.ts';
import { makeClient, type RedisClient } from './redis-clients.ts';
import { RedisSubscription } from './redis-subscription.ts';
import { StoreUnavailable } from './store-unavailable.ts';

/** After a timeout nobody asks for so long. */
const BREAK_MS = 1_000;
/** Longest wait of a start for the first connection; the gateway starts without it all the same. */
const FIRST_CONNECT_MS = 1_000;
/** A connection on which nothing was answered for so long is dropped and made anew. */
const SILENCE_MS = 2_000;
/** Scripts of Redis before 7 wrap the word in another error. */
const ABOUT_THE_KEY = /\bWRONGTYPE\b/;

/**
 * The key holds another type than the command is for. It is the one reply that says something about the key; all others
 * (NOPERM, LOADING, READONLY, a proxy's ERR) say that it could not be looked up.
 */
export class RedisReplyError extends Error {
  /** First word of the reply. */
  readonly code: string;

  constructor(cause: Error) {
    super(cause.message, { cause });
    this.name = 'RedisReplyError';
    this.code = cause.message.split(' ')[0] ?? '';
  }
}

/** A value and how long it lives: milliseconds, null = for ever or not known. */
export interface ValueWithTtl {
  readonly value: Buffer | null;
  readonly remainingMs: number | null;
}

export class RedisStore {
  readonly #options: RedisOptions;
  readonly #logger: Logger;
  readonly #clock: Clock;
  readonly #label: string;
  readonly #breaker: CircuitBreaker;
  readonly #latency: Histogram | undefined;
  readonly #client: RedisClient;
  readonly #subscriptions: RedisSubscription[] = [];
  #silentSinceMs: number | undefined;
  #reported: string | undefined;
  #started = false;
  #stopped = false;

  /** `label` tells one connection from another in the log. Nothing is connected before `start`. */
  constructor(options: RedisOptions, logger: Logger, clock: Clock, label: string, metrics?: Metrics) {
    this.#options = options;
    this.#logger = logger;
    this.#clock = clock;
    this.#label = label;
    this.#breaker = new CircuitBreaker(BREAK_MS, clock);
    this.#latency = metrics?.histogram('gateway_store_duration_seconds', 'Duration of calls to a store', {
      store: 'redis',
    });
    this.#client = makeClient(options);
    // Without a listener an error of the connection would end the process; it reconnects by itself.
    this.#client.on('error', (error: unknown) => this.#report(error));
  }

  /** Begins to connect, and waits a moment for it; never rejects, since a gateway must start without its Redis. */
  async start(): Promise<void> {
    if (this.#started || this.#stopped) return;
    this.#started = true;
    // A failure has been an 'error' event by then, which says more.
    const connected = this.#client.connect().catch(() => undefined);
    // A cluster whose first check fails connects anew, and leaves that promise open for ever.
    const ready = new Promise<void>((resolve) => this.#client.once('ready', () => resolve()));
    let timer: Timer | undefined;
    const patience = new Promise<void>((resolve) => {
      timer = this.#clock.after(FIRST_CONNECT_MS, resolve);
    });
    await Promise.race([connected, ready, patience]);
    timer?.cancel();
  }

  /** For good: a stopped store is not started again. Idempotent. */
  stop(): void {
    if (this.#stopped) return;
    this.#stopped = true;
    this.#client.disconnect();
    for (const subscription of this.#subscriptions) subscription.stop();
  }

  get connected(): boolean {
    return this.#client.status === 'ready';
  }

  /** Rejects, as every method here, with StoreUnavailable, or RedisReplyError for a reply about the key. */
  get(key: string): Promise<string | null> {
    return this.#run(() => this.#client.get(key));
  }

  getBuffer(key: string): Promise<Buffer | null> {
    return this.#run(() => this.#client.getBuffer(key));
  }

  /** In one round trip. A server that lets the gateway read the value only is enough. */
  getBufferWithTtl(key: string): Promise<ValueWithTtl> {
    return this.#run(() => this.#withTtl(key, this.#client.getBuffer(key)));
  }

  /** Like getBufferWithTtl, for one field of a hash. */
  hgetBufferWithTtl(key: string, field: string): Promise<ValueWithTtl> {
    return this.#run(() => this.#withTtl(key, this.#client.hgetBuffer(key, field)));
  }

  async set(key: string, value: string, ttlMs: number): Promise<void> {
    await this.#run(() => this.#client.set(key, value, 'PX', Math.max(1, Math.round(ttlMs))));
  }

  async del(...keys: readonly string[]): Promise<void> {
    await this.#run(() => Promise.all(keys.map((key) => this.#client.del(key))));
  }

  /** Runs a Lua script on one key. */
  evalScript(script: string, key: string, args: readonly string[]): Promise<unknown> {
    return this.#run(() => this.#client.eval(script, 1, key, ...args));
  }

  async publish(channel: string, message: string): Promise<void> {
    await this.#run(() => this.#client.publish(channel, message));
  }

  /**
   * Listens on a connection of its own. `onReady` is called whenever the subscription is in force (again): whatever
   * was published before may have been missed.
   */
  subscribe(channel: string, onMessage: (message: string) => void, onReady: () => void): void {
    const subscription = new RedisSubscription({
      options: this.#options,
      clock: this.#clock,
      channel,
      onMessage,
      onReady,
      onError: (error) => this.#report(error),
    });
    this.#subscriptions.push(subscription);
    if (!this.#stopped) subscription.start();
  }

  async #withTtl(key: string, read: Promise<Buffer | null>): Promise<ValueWithTtl> {
    const [value, leftMs] = await Promise.all([read, this.#client.pttl(key).catch(unknownTtl)]);
    // Expired between the two commands: as good as not found.
    if (leftMs === -2) return { value: null, remainingMs: null };
    return { value, remainingMs: leftMs < 0 ? null : leftMs };
  }

  async #run<T>(command: () => Promise<T>): Promise<T> {
    if (!this.connected) throw new StoreUnavailable('redis', new Error('not connected'));
    const permit = this.#breaker.ask();
    if (!permit) throw new StoreUnavailable('redis', new Error('did not answer a moment ago'));
    const startedMs = this.#clock.monotonic();
    try {
      const reply = await command();
      this.#latency?.observe((this.#clock.monotonic() - startedMs) / 1_000);
      permit.succeeded();
      this.#silentSinceMs = undefined;
      this.#reported = undefined;
      return reply;
    } catch (error) {
      if (isReply(error)) {
        permit.succeeded();
        this.#silentSinceMs = undefined;
        if (ABOUT_THE_KEY.test(error.message)) throw new RedisReplyError(error);
      } else {
        permit.failed();
        this.#noteSilence();
      }
      this.#report(error);
      throw new StoreUnavailable('redis', error);
    }
  }

  /**
   * The other end may be gone without a word, and a new connection finds out. By time, not by number: a burst of
   * commands that time out together is one silence.
   */
  #noteSilence(): void {
    const now = this.#clock.monotonic();
    this.#silentSinceMs ??= now;
    if (now - this.#silentSinceMs < SILENCE_MS || !this.connected || this.#stopped) return;
    this.#silentSinceMs = undefined;
    this.#client.disconnect(true);
  }

  /** Once for each kind of failure, until it works again. */
  #report(error: unknown): void {
    if (this.#stopped) return;
    const text = describeError(error);
    if (text === this.#reported) return;
    this.#reported = text;
    this.#logger.warn('redis_failed', { redis: this.#label, error: text });
  }
}

function isReply(error: unknown): error is Error {
  return error instanceof ReplyError;
}

/** The reply to PTTL may be refused where GET is allowed; anything but a reply is a failure all the same. */
function unknownTtl(error: unknown): number {
  if (isReply(error)) return -1;
  throw error;
}
