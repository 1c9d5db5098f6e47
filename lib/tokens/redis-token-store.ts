/** The gateway's tokens in Redis: `gateway:token:{realm}:{token}` -> user id. */
import type { Logger } from '../observe/log.ts';
import { RedisReplyError, type RedisStore } from '../stores/redis.ts';
import { tokenKey } from '../stores/redis-keys.ts';
import { asIdentifier } from '../support/json-digits.ts';
import { readUtf8 } from '../support/utf8.ts';
import type { TokenStore } from './token-store.ts';

export class RedisTokenStore implements TokenStore {
  readonly name = 'redis';
  readonly #redis: RedisStore;
  readonly #logger: Logger | undefined;
  #reported = false;

  /** `logger`: told once of a value that is no user id. */
  constructor(redis: RedisStore, logger?: Logger) {
    this.#redis = redis;
    this.#logger = logger;
  }

  /** What cannot be a user id is nobody, and is removed: others write these keys too. */
  async find(realm: string, token: string): Promise<string | undefined> {
    const key = tokenKey(realm, token);
    let value: Buffer | null;
    try {
      value = await this.#redis.getBuffer(key);
    } catch (error) {
      if (!(error instanceof RedisReplyError)) throw error;
      return this.#repair(key, realm, error.code);
    }
    if (value === null) return undefined;
    return asIdentifier(readUtf8(value)) ?? this.#repair(key, realm, 'no user id');
  }

  save(realm: string, token: string, userId: string, ttlMs: number): Promise<void> {
    return this.#redis.set(tokenKey(realm, token), userId, ttlMs);
  }

  remove(realm: string, token: string): Promise<void> {
    return this.#redis.del(tokenKey(realm, token));
  }

  async #repair(key: string, realm: string, fault: string): Promise<undefined> {
    if (!this.#reported) this.#logger?.warn('redis_token_unreadable', { realm, fault });
    this.#reported = true;
    await this.#redis.del(key);
    return undefined;
  }
}
