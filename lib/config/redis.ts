/** Checks of how a Redis is reached: one server, a cluster, or through sentinels. */
import type { Field, FieldObject } from './fields.ts';
import { DEFAULTS, type RedisOptions, type RedisTarget } from './options.ts';

export const REDIS_KEYS = ['url', 'cluster', 'sentinels', 'name', 'timeout'];

/** The text is never repeated: it may hold a password. */
export function checkUrl(field: Field, protocols: readonly string[], example: string): string {
  if (field.absent) {
    field.fail(`is missing: such as ${example}`);
    return '';
  }
  const text = field.secret();
  if (text === '') {
    if (field.value === '')
      field.fail(field.fromEnvironment ? `is empty: nothing is in ${field.shown}` : 'must not be empty');
    return text;
  }
  if (!URL.canParse(text) || !protocols.includes(new URL(text).protocol))
    field.fail(`must be a URL such as ${example}`);
  return text;
}

const REDIS_EXAMPLE = 'redis://:password@host:6379/0';

export function checkRedis(field: Field): RedisOptions {
  const redis = field.object(REDIS_KEYS);
  return {
    target: checkRedisTarget(redis),
    timeoutMs: redis.field('timeout').period(DEFAULTS.redis.timeoutMs),
  };
}

function checkRedisTarget(redis: FieldObject): RedisTarget {
  const given = ['url', 'cluster', 'sentinels'].filter((key) => redis.has(key));
  if (given.length !== 1) {
    redis.fail(
      given.length === 0 ? 'needs url, cluster, or sentinels with name' : `has ${given.join(' and ')}: choose one`,
    );
  }
  if (redis.has('name') && !redis.has('sentinels')) redis.field('name').fail('means nothing without sentinels');
  const urls = (key: string) =>
    redis
      .field(key)
      .list('a list of URLs')
      .map((one) => checkUrl(one, ['redis:', 'rediss:'], REDIS_EXAMPLE));
  if (redis.has('cluster')) return { kind: 'cluster', nodes: atLeastOne(redis.field('cluster'), urls('cluster')) };
  if (redis.has('sentinels')) {
    const name = redis.field('name');
    if (name.absent) name.fail('is missing: the name of the master that the sentinels watch');
    return {
      kind: 'sentinel',
      sentinels: atLeastOne(redis.field('sentinels'), urls('sentinels')),
      name: name.filled(''),
    };
  }
  if (!redis.has('url')) return { kind: 'single', url: '' };
  return { kind: 'single', url: checkUrl(redis.field('url'), ['redis:', 'rediss:'], REDIS_EXAMPLE) };
}

function atLeastOne<T>(field: Field, items: readonly T[]): readonly T[] {
  if (items.length === 0 && Array.isArray(field.value)) field.fail('must name at least one');
  return items;
}
