/** Sessions that other software keeps in Redis: a string, a hash field, or a place in a JSON document. */
import type { RedisResolverOptions } from '../config/options.ts';
import type { Logger } from '../observe/log.ts';
import { RedisReplyError, type RedisStore } from '../stores/redis.ts';
import type { Clock } from '../support/clock.ts';
import { asIdentifier, parseJsonDigits, readPath } from '../support/json-digits.ts';
import type { ResolvedToken, TokenResolver } from './token-store.ts';

const REPORT_EVERY_MS = 60_000;

export class RedisSessionResolver implements TokenResolver {
  readonly name = 'redis';
  readonly #options: RedisResolverOptions;
  readonly #redis: RedisStore;
  readonly #clock: Clock;
  readonly #logger: Logger;
  #reportedAtMs = Number.NEGATIVE_INFINITY;

  constructor(options: RedisResolverOptions, redis: RedisStore, clock: Clock, logger: Logger) {
    this.#options = options;
    this.#redis = redis;
    this.#clock = clock;
    this.#logger = logger;
  }

  async resolve(token: string): Promise<ResolvedToken | undefined> {
    const key = this.#options.key.replaceAll('{token}', () => token);
    const value = await this.#read(key);
    if (value === null) return undefined;
    const userId = this.#userIdIn(value.toString('utf8'));
    if (userId === undefined) return undefined;
    const leftMs = await this.#redis.pttl(key);
    if (leftMs === -2) return undefined;
    return { userId, remainingMs: leftMs < 0 ? null : leftMs };
  }

  async #read(key: string): Promise<Buffer | null> {
    const { field } = this.#options;
    try {
      return await (field === null ? this.#redis.getBuffer(key) : this.#redis.hgetBuffer(key, field));
    } catch (error) {
      if (!(error instanceof RedisReplyError)) throw error;
      this.#report(error.code);
      return null;
    }
  }

  #userIdIn(text: string): string | undefined {
    const { jsonPath } = this.#options;
    if (jsonPath === null) return asIdentifier(text);
    try {
      return asIdentifier(readPath(parseJsonDigits(text), jsonPath));
    } catch (error) {
      this.#report((error as Error).message);
      return undefined;
    }
  }

  #report(fault: string): void {
    const now = this.#clock.monotonic();
    if (now - this.#reportedAtMs < REPORT_EVERY_MS) return;
    this.#reportedAtMs = now;
    this.#logger.warn('redis_session_unreadable', { key: this.#options.key, fault });
  }
}
