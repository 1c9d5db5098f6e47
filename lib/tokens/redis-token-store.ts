/** The gateway's tokens in Redis: `gateway:token:{realm}:{token}` -> user id. */
import { RedisReplyError, type RedisStore } from '../stores/redis.ts';
import { tokenKey } from '../stores/redis-keys.ts';
import type { TokenStore } from './token-store.ts';

export class RedisTokenStore implements TokenStore {
  readonly name = 'redis';
  readonly #redis: RedisStore;

  constructor(redis: RedisStore) {
    this.#redis = redis;
  }

  async find(realm: string, token: string): Promise<string | undefined> {
    try {
      const userId = await this.#redis.get(tokenKey(realm, token));
      return userId === null || userId === '' ? undefined : userId;
    } catch (error) {
      // A key of another type is nobody's token.
      if (error instanceof RedisReplyError) return undefined;
      throw error;
    }
  }

  save(realm: string, token: string, userId: string, ttlMs: number): Promise<void> {
    return this.#redis.set(tokenKey(realm, token), userId, ttlMs);
  }

  remove(realm: string, token: string): Promise<void> {
    return this.#redis.del(tokenKey(realm, token));
  }
}
