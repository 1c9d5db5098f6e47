/**
 * Tokens of Sa-Token (Java), read from its Redis: `{keyPrefix}{tokenName}:{loginType}:token:{token}` -> login id. Only
 * read, never written: writing would keep idle sessions alive.
 */
import type { SaTokenResolverOptions } from '../config/options.ts';
import type { Logger } from '../observe/log.ts';
import { RedisReplyError, type RedisStore, type ValueWithTtl } from '../stores/redis.ts';
import type { Clock } from '../support/clock.ts';
import { decodeLoginId } from './sa-token-codec.ts';
import type { ResolvedToken, TokenResolver } from './token-store.ts';

/** Values that stand for "not logged in" where the login id would be: -1 to -7 (NotLoginException). */
const SENTINEL = /^-[1-7]$/;
const REPORT_EVERY_MS = 60_000;
const NOTHING: ValueWithTtl = { value: null, remainingMs: null };

export class SaTokenResolver implements TokenResolver {
  readonly name = 'saToken';
  readonly #options: SaTokenResolverOptions;
  readonly #redis: RedisStore;
  readonly #clock: Clock;
  readonly #logger: Logger;
  #reportedAtMs = Number.NEGATIVE_INFINITY;

  constructor(options: SaTokenResolverOptions, redis: RedisStore, clock: Clock, logger: Logger) {
    this.#options = options;
    this.#redis = redis;
    this.#clock = clock;
    this.#logger = logger;
  }

  async resolve(token: string): Promise<ResolvedToken | undefined> {
    for (const loginType of this.#options.loginTypes) {
      const resolved = await this.#resolveType(loginType, token);
      if (resolved) return resolved;
    }
    return undefined;
  }

  async #resolveType(loginType: string, token: string): Promise<ResolvedToken | undefined> {
    const { keyPrefix, tokenName, codec, loginTypes, activeTimeoutSeconds, dynamicActiveTimeout } = this.#options;
    const base = `${keyPrefix}${tokenName}:${loginType}`;
    const key = `${base}:token:${token}`;
    const checksActivity = activeTimeoutSeconds !== null || dynamicActiveTimeout;
    const found = await this.#read(() => this.#redis.getBufferWithTtl(key), NOTHING);
    if (found.value === null) return undefined;
    const loginId = decodeLoginId(found.value, codec);
    if (loginId === undefined) {
      this.#report('the value is not a login id in this codec');
      return undefined;
    }
    if (loginId === '' || SENTINEL.test(loginId)) return undefined;
    if (checksActivity && (await this.#isFrozen(`${base}:last-active:${token}`))) return undefined;
    // Ids of two login types may be equal without being the same user.
    const userId = loginTypes.length > 1 ? `${loginType}:${loginId}` : loginId;
    return { userId, remainingMs: found.remainingMs };
  }

  /** Frozen by inactivity: the rule of StpLogic, in whole seconds. */
  async #isFrozen(key: string): Promise<boolean> {
    const value = await this.#read(() => this.#redis.getBuffer(key), null);
    if (value === null) return true;
    const found = /^(\d+)(?:,(-?\d+))?$/.exec(value.toString('latin1'));
    // The library would fail here; a gateway that only routes lets the node decide.
    if (!found) return false;
    const { activeTimeoutSeconds, dynamicActiveTimeout } = this.#options;
    const own = dynamicActiveTimeout && found[2] !== undefined ? Number(found[2]) : undefined;
    const allowed = own ?? activeTimeoutSeconds ?? -1;
    if (allowed === -1) return false;
    return allowed - Math.trunc((this.#clock.now() - Number(found[1])) / 1_000) < 0;
  }

  /** `otherwise`: for a key of another type, which is reported. */
  async #read<T>(command: () => Promise<T>, otherwise: T): Promise<T> {
    try {
      return await command();
    } catch (error) {
      if (!(error instanceof RedisReplyError)) throw error;
      this.#report(`the key is of another type (${error.code})`);
      return otherwise;
    }
  }

  #report(fault: string): void {
    const now = this.#clock.monotonic();
    if (now - this.#reportedAtMs < REPORT_EVERY_MS) return;
    this.#reportedAtMs = now;
    this.#logger.warn('sa_token_unreadable', {
      tokenName: this.#options.tokenName,
      codec: this.#options.codec,
      fault,
    });
  }
}
