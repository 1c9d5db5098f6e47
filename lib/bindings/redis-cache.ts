/** The cache of bindings that gateways share in Redis, and the channel on which they tell each other of changes. */
import type { Binding } from '../model.ts';
import type { Logger } from '../observe/log.ts';
import { RedisReplyError, type RedisStore, type ValueWithTtl } from '../stores/redis.ts';
import { CHANGES_CHANNEL, nameRouteKey, userRouteKey } from '../stores/redis-keys.ts';
import type { Clock } from '../support/clock.ts';
import { normalizeUsername } from '../support/username.ts';
import type { BindingChange, BindingKey } from './binding-store.ts';
import type { SharedBinding, SharedBindingCache } from './shared-bindings.ts';

/** `nodeId epoch`, followed by ` frozen` for a frozen one. */
const VALUE = /^([A-Za-z0-9._-]{1,64}) (\d{1,15})( frozen)?$/;

/**
 * KEYS[1] the key; ARGV value, epoch, TTL in ms. A higher epoch is never replaced by a lower one; what VALUE does not
 * match has no epoch.
 */
const WRITE = `
local current = redis.call('GET', KEYS[1])
if current then
  local epoch = string.match(current, '^[%w._-]+ (%d+)$') or string.match(current, '^[%w._-]+ (%d+) frozen$')
  if epoch and #epoch < 16 and tonumber(epoch) > tonumber(ARGV[2]) then return 0 end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return 1`;

/** Unreadable values of one kind of key are reported so often at most. */
const REPORT_EVERY_MS = 60_000;

export class RedisBindingCache implements SharedBindingCache {
  readonly #redis: RedisStore;
  readonly #ttlMs: number;
  readonly #logger: Logger;
  readonly #clock: Clock;
  readonly #reportedAtMs = { id: Number.NEGATIVE_INFINITY, name: Number.NEGATIVE_INFINITY };

  constructor(redis: RedisStore, ttlMs: number, logger: Logger, clock: Clock) {
    this.#redis = redis;
    this.#ttlMs = ttlMs;
    this.#logger = logger;
    this.#clock = clock;
  }

  /** Undefined = a miss, also for a value that cannot be read, which is removed. Rejects with StoreUnavailable. */
  async find(key: BindingKey): Promise<SharedBinding | undefined> {
    const name = redisKey(key);
    let stored: ValueWithTtl;
    try {
      stored = await this.#redis.getBufferWithTtl(name);
    } catch (error) {
      if (!(error instanceof RedisReplyError)) throw error;
      return this.#repair(name, key, error.code);
    }
    const { value, remainingMs } = stored;
    if (value === null) return undefined;
    const found = VALUE.exec(value.toString('latin1'));
    if (!found?.[1]) return this.#repair(name, key, 'unreadable');
    return { nodeId: found[1], epoch: Number(found[2]), frozen: found[3] !== undefined, remainingMs };
  }

  /** Writes the binding under its user id and its name, unless a later epoch is there. */
  async write(binding: Binding): Promise<void> {
    const value = `${binding.nodeId} ${binding.epoch}${binding.frozen ? ' frozen' : ''}`;
    const keys = [
      ...(binding.userId === null ? [] : [userRouteKey(binding.serviceId, binding.userId)]),
      ...(binding.username === null ? [] : [nameRouteKey(binding.serviceId, normalizeUsername(binding.username))]),
    ];
    const args = [value, String(binding.epoch), String(this.#ttlMs)];
    await Promise.all(keys.map((key) => this.#writeOne(key, args)));
  }

  async drop(keys: readonly BindingKey[]): Promise<void> {
    if (keys.length > 0) await this.#redis.del(...keys.map(redisKey));
  }

  /** Tells every gateway, this one too, that what it has cached of these keys is void. */
  async announce(keys: readonly BindingKey[]): Promise<void> {
    await this.#redis.publish(CHANGES_CHANNEL, JSON.stringify({ keys }));
  }

  /** `onGap`: changes may have been missed before now. */
  listen(onChange: (change: BindingChange) => void, onGap: () => void): void {
    this.#redis.subscribe(
      CHANGES_CHANNEL,
      (message) => {
        const change = readChange(message);
        if (change) onChange(change);
        else onGap();
      },
      onGap,
    );
  }

  async #writeOne(key: string, args: readonly string[]): Promise<void> {
    try {
      await this.#redis.evalScript(WRITE, key, args);
    } catch (error) {
      if (!(error instanceof RedisReplyError)) throw error;
      // Something that is not a string stands there.
      await this.#redis.del(key);
      await this.#redis.evalScript(WRITE, key, args);
    }
  }

  async #repair(name: string, key: BindingKey, fault: string): Promise<undefined> {
    const now = this.#clock.monotonic();
    if (now - this.#reportedAtMs[key.kind] >= REPORT_EVERY_MS) {
      this.#reportedAtMs[key.kind] = now;
      this.#logger.warn('redis_binding_unreadable', { service: key.serviceId, kind: key.kind, fault });
    }
    await this.#redis.del(name);
    return undefined;
  }
}

function redisKey(key: BindingKey): string {
  return key.kind === 'id' ? userRouteKey(key.serviceId, key.userId) : nameRouteKey(key.serviceId, key.username);
}

/** Undefined = not understood. */
function readChange(message: string): BindingChange | undefined {
  let parsed: unknown;
  try {
    parsed = JSON.parse(message);
  } catch {
    // Somebody else's message on the channel; the caller forgets everything, which is always right.
    return undefined;
  }
  if (typeof parsed !== 'object' || parsed === null || !('keys' in parsed) || !Array.isArray(parsed.keys))
    return undefined;
  const keys = parsed.keys.filter(isBindingKey);
  return keys.length === parsed.keys.length ? { keys } : undefined;
}

function isBindingKey(value: unknown): value is BindingKey {
  if (typeof value !== 'object' || value === null || !('kind' in value) || !('serviceId' in value)) return false;
  if (typeof value.serviceId !== 'string') return false;
  if (value.kind === 'id') return 'userId' in value && typeof value.userId === 'string';
  return value.kind === 'name' && 'username' in value && typeof value.username === 'string';
}
