/**
 * From token to user: local cache, then the gateway's own stores, then the resolvers, in order. Failing to ask is
 * never taken for the answer "nobody".
 */
import { createHash } from 'node:crypto';
import { GatewayError } from '../errors.ts';
import { describeError, type Logger, maskToken } from '../observe/log.ts';
import type { Counter, Metrics } from '../observe/metrics.ts';
import type { Clock } from '../support/clock.ts';
import { Lru } from '../support/lru.ts';
import type { TokenResolver, TokenStore } from './token-store.ts';

/** How long a cached user id is believed. */
const HIT_FRESH_MS = 10_000;
/** How long "nobody" is believed. */
const MISS_FRESH_MS = 1_000;
/** A longer token is cached under its hash. How long a token may be at all is for limits.header to say. */
const MAX_KEY_LENGTH = 512;
/** Tokens of logins that the durable store does not have yet; of more than this the oldest are forgotten. */
const MAX_UNSAVED = 10_000;

export interface TokenServiceOptions {
  /** Asked in order; a login's token is kept in all of them. The last one is the durable one. */
  readonly stores: readonly TokenStore[];
  readonly resolvers: readonly TokenResolver[];
  /** True = another gateway may have a login to store yet: that a token is not known is no proof that it is nobody's. */
  readonly settling: () => boolean;
  readonly tokenTtlMs: number;
  readonly staleIfErrorMs: number;
  readonly maxEntries: number;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly metrics: Metrics;
}

interface Entry {
  /** null = nobody. */
  readonly userId: string | null;
  readonly loadedAtMs: number;
  /** The token itself is good until then, clock.monotonic(). */
  readonly expiresAtMs: number;
}

/** A look-up under way. */
interface Flight {
  readonly key: string;
  promise: Promise<string | null>;
  /** Set by a login or a logout (null) meanwhile: what this look-up finds is out of date. */
  overtakenBy: { readonly userId: string | null } | undefined;
}

export class TokenService {
  readonly #options: TokenServiceOptions;
  readonly #entries: Lru<string, Entry>;
  readonly #flights = new Map<string, Flight>();
  /** Logins whose token the durable store does not have yet: it would say "nobody". */
  readonly #unsaved = new Lru<string, { readonly userId: string; readonly untilMs: number }>(MAX_UNSAVED);
  readonly #answered: Record<'local' | 'stale' | 'nobody' | 'failed', Counter>;

  constructor(options: TokenServiceOptions) {
    this.#options = options;
    this.#entries = new Lru(options.maxEntries);
    this.#answered = {
      local: this.#lookups('local'),
      stale: this.#lookups('stale'),
      nobody: this.#lookups('nobody'),
      failed: this.#lookups('failed'),
    };
  }

  /** User id, null for nobody, undefined = not known here, ask `resolve`. No I/O, for the hot path. */
  cached(realm: string, token: string): string | null | undefined {
    const entry = this.#entries.get(cacheKey(realm, token));
    if (entry === undefined) return undefined;
    const now = this.#options.clock.monotonic();
    const freshMs = entry.userId === null ? MISS_FRESH_MS : HIT_FRESH_MS;
    if (now - entry.loadedAtMs >= freshMs || now >= entry.expiresAtMs) return undefined;
    this.#answered.local.inc();
    return entry.userId;
  }

  /** User id or null for nobody. Rejects with GatewayError `identity_unavailable`. One look-up for many callers. */
  resolve(realm: string, token: string): Promise<string | null> {
    const cached = this.cached(realm, token);
    if (cached !== undefined) return Promise.resolve(cached);
    const key = cacheKey(realm, token);
    const running = this.#flights.get(key);
    if (running) return running.promise;
    const flight: Flight = { key, promise: Promise.resolve(null), overtakenBy: undefined };
    this.#flights.set(key, flight);
    flight.promise = this.#lookUp(realm, token, flight).finally(() => {
      if (this.#flights.get(key) === flight) this.#flights.delete(key);
    });
    return flight.promise;
  }

  /**
   * Keeps a login's token in every store. This gateway knows it at once. Resolves when all stores have settled and the
   * durable one has it; rejects when that has not, and is to be called again.
   */
  async remember(realm: string, token: string, userId: string): Promise<void> {
    const key = cacheKey(realm, token);
    this.#overtake(key, userId);
    this.#keep(key, userId, null);
    const unsaved = { userId, untilMs: this.#options.clock.monotonic() + this.#options.tokenTtlMs };
    this.#unsaved.set(key, unsaved);
    await this.#save(realm, token, userId, this.#options.tokenTtlMs);
    // Not if another login has the same token by now.
    if (this.#unsaved.peek(key) === unsaved) this.#unsaved.delete(key);
  }

  /** Forgets a token here and in every store. */
  async forget(realm: string, token: string): Promise<void> {
    const key = cacheKey(realm, token);
    this.#overtake(key, null);
    this.#entries.delete(key);
    this.#unsaved.delete(key);
    await Promise.all(this.#options.stores.map((store) => store.remove(realm, token)));
  }

  async #lookUp(realm: string, token: string, flight: Flight): Promise<string | null> {
    let failure: unknown;
    for (const store of this.#options.stores) {
      try {
        const userId = await store.find(realm, token);
        if (userId !== undefined) return this.#found(flight, userId, null, store.name);
      } catch (error) {
        failure ??= error;
        this.#failed(store.name, token, error);
      }
    }
    for (const resolver of this.#options.resolvers) {
      try {
        const resolved = await resolver.resolve(token, realm);
        if (resolved === undefined) continue;
        // After a logout the token must not come back into the stores, nor after a login as somebody else's.
        if (!flight.overtakenBy) this.#saveResolved(realm, token, resolved.userId, resolved.remainingMs);
        return this.#found(flight, resolved.userId, resolved.remainingMs, resolver.name);
      } catch (error) {
        failure ??= error;
        this.#failed(resolver.name, token, error);
      }
    }
    if (flight.overtakenBy) return this.#latest(flight.key, flight.overtakenBy.userId);
    const unsaved = this.#unsaved.get(flight.key);
    if (unsaved && this.#options.clock.monotonic() < unsaved.untilMs) {
      return this.#found(flight, unsaved.userId, null, 'local');
    }
    if (this.#options.settling()) failure ??= new Error('other gateways may have logins of an outage to store');
    if (failure !== undefined) return this.#stale(flight.key, failure);
    this.#answered.nobody.inc();
    this.#keep(flight.key, null, null);
    return null;
  }

  #found({ key, overtakenBy }: Flight, userId: string, remainingMs: number | null, by: string): string | null {
    this.#lookups(by).inc();
    if (overtakenBy) return this.#latest(key, overtakenBy.userId);
    this.#keep(key, userId, remainingMs);
    return userId;
  }

  /** What the last login, logout or look-up has left, or else what overtook: the cache may have dropped it by now. */
  #latest(key: string, overtakenBy: string | null): string | null {
    const entry = this.#entries.get(key);
    return entry === undefined ? overtakenBy : entry.userId;
  }

  #stale(key: string, failure: unknown): string {
    const { clock, staleIfErrorMs } = this.#options;
    const entry = this.#entries.get(key);
    const now = clock.now();
    const usable = entry && now - entry.loadedAtMs < staleIfErrorMs && now < entry.expiresAtMs;
    if (usable && entry.userId !== null) {
      this.#answered.stale.inc();
      return entry.userId;
    }
    this.#answered.failed.inc();
    throw new GatewayError('identity_unavailable', 'who this token belongs to cannot be looked up at the moment', {
      cause: failure,
    });
  }

  #keep(key: string, userId: string | null, remainingMs: number | null): void {
    const now = this.#options.clock.monotonic();
    const expiresAtMs = remainingMs === null ? Number.POSITIVE_INFINITY : now + remainingMs;
    this.#entries.set(key, { userId, loadedAtMs: now, expiresAtMs });
  }

  /** Callers from now on start a look-up of their own. */
  #overtake(key: string, userId: string | null): void {
    const flight = this.#flights.get(key);
    if (!flight) return;
    flight.overtakenBy = { userId };
    this.#flights.delete(key);
  }

  async #save(realm: string, token: string, userId: string, ttlMs: number): Promise<void> {
    const results = await Promise.allSettled(
      this.#options.stores.map((store) => store.save(realm, token, userId, ttlMs)),
    );
    for (const [index, result] of results.entries()) {
      if (result.status === 'rejected') this.#failed(this.#options.stores[index]?.name ?? '', token, result.reason);
    }
    const durable = results.at(-1);
    if (durable?.status === 'rejected') throw durable.reason;
  }

  /** The resolver can be asked again, so this is for speed and for its absence only. */
  #saveResolved(realm: string, token: string, userId: string, remainingMs: number | null): void {
    const { tokenTtlMs } = this.#options;
    const ttlMs = remainingMs === null ? tokenTtlMs : Math.min(tokenTtlMs, remainingMs);
    if (ttlMs <= 0) return;
    // Each failure has been counted and logged by then.
    this.#save(realm, token, userId, ttlMs).catch(() => undefined);
  }

  #failed(by: string, token: string, error: unknown): void {
    this.#options.metrics
      .counter('gateway_store_errors_total', 'Failed calls to a store', { store: by, use: 'tokens' })
      .inc();
    this.#options.logger.debug('token_lookup_failed', {
      by,
      token: maskToken(token),
      error: describeError(error),
    });
  }

  #lookups(by: string): Counter {
    return this.#options.metrics.counter('gateway_token_lookups_total', 'Tokens looked up, by who answered', {
      by,
    });
  }
}

/** Realms hold no ':' and no NUL. */
function cacheKey(realm: string, token: string): string {
  if (token.length <= MAX_KEY_LENGTH) return `${realm}:${token}`;
  return `${realm}\0${createHash('sha256').update(token).digest('base64')}`;
}
