/** Sessions that other software keeps in Redis: a string, a hash field, or a place in a JSON document. */
import type { RedisResolverOptions } from '../config/options.ts';
import type { Logger } from '../observe/log.ts';
import { RedisReplyError, type RedisStore, type ValueWithTtl } from '../stores/redis.ts';
import type { Clock } from '../support/clock.ts';
import { asIdentifier, parseJsonDigits, readPath } from '../support/json-digits.ts';
import { readUtf8 } from '../support/utf8.ts';
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
    const { value, remainingMs } = await this.#read(key);
    if (value === null) return undefined;
    const userId = this.#userIdIn(value);
    return userId === undefined ? undefined : { userId, remainingMs };
  }

  async #read(key: string): Promise<ValueWithTtl> {
    const { field } = this.#options;
    try {
      return await (field === null ? this.#redis.getBufferWithTtl(key) : this.#redis.hgetBufferWithTtl(key, field));
    } catch (error) {
      if (!(error instanceof RedisReplyError)) throw error;
      this.#report(error.code);
      return { value: null, remainingMs: null };
    }
  }

  #userIdIn(value: Buffer): string | undefined {
    const { jsonPath } = this.#options;
    const text = readUtf8(value);
    if (text === undefined) {
      this.#report('not UTF-8');
      return undefined;
    }
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
