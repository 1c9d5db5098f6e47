/** Makes the clients of ioredis for one server, a cluster, or a master behind sentinels. It sends no command itself. */
import { type RedisOptions as ClientOptions, Cluster, Redis } from 'ioredis';
import type { RedisOptions, RedisTarget } from '../config/options.ts';

const CONNECT_TIMEOUT_MS = 2_000;
const LONGEST_RETRY_MS = 2_000;
/** A command sent while the cluster moves a slot is passed on so often at most. */
const MOST_REDIRECTIONS = 3;

export type RedisClient = Redis | Cluster;
/** Replies are read as RESP2 has them, whatever the protocol. */
type PlainOptions = Omit<ClientOptions, 'replyMapping'>;

const retryStrategy = (attempt: number) =>
  Math.min(50 * 2 ** Math.min(attempt, 10), LONGEST_RETRY_MS) * (0.75 + Math.random() / 2);

function commonOptions(timeoutMs: number): PlainOptions {
  return {
    lazyConnect: true,
    commandTimeout: timeoutMs,
    connectTimeout: CONNECT_TIMEOUT_MS,
    // How long a connection that is being closed may linger when the other end does not answer.
    disconnectTimeout: timeoutMs,
    enableOfflineQueue: false,
    maxRetriesPerRequest: 0,
    autoResubscribe: false,
    autoResendUnfulfilledCommands: false,
    retryStrategy,
    // After a failover the old master goes on answering, as a replica.
    reconnectOnError: (error) => error.message.startsWith('READONLY'),
    connectionName: 'sticky-gateway',
    keepAlive: 10_000,
  };
}

/** Reconnects by itself, for ever. */
export function makeClient({ target, timeoutMs }: RedisOptions): RedisClient {
  const common = commonOptions(timeoutMs);
  if (target.kind !== 'cluster') return makeRedis(target, common);
  const { tls, username, password } = settingsOf(target.nodes[0]);
  const cluster = new Cluster(target.nodes.map(endpoint), {
    lazyConnect: true,
    enableOfflineQueue: false,
    clusterRetryStrategy: retryStrategy,
    maxRedirections: MOST_REDIRECTIONS,
    // A command whose node is gone fails at once, instead of using up its timeout with further attempts.
    retryDelayOnFailover: 0,
    slotsRefreshTimeout: CONNECT_TIMEOUT_MS,
    redisOptions: { ...common, ...present({ tls, username, password }) },
  });
  // A node is otherwise connected to by its first command, and the commands beside that one fail.
  cluster.on('+node', (node: Redis) => {
    // The cluster tells of the failure and takes the node away until it is found again.
    if (node.status === 'wait') node.connect().catch(() => undefined);
  });
  return cluster;
}

/**
 * For one subscription, and does not reconnect. In a cluster any node will do, since all of them hear everything:
 * `attempt` chooses it.
 */
export function makeSubscriber({ target, timeoutMs }: RedisOptions, attempt: number): Redis {
  const common = { ...commonOptions(timeoutMs), retryStrategy: null };
  if (target.kind !== 'cluster') return makeRedis(target, { ...common, sentinelRetryStrategy: () => null });
  const url = target.nodes[attempt % target.nodes.length] ?? '';
  return new Redis({ ...common, ...settingsOf(url), ...endpoint(url) });
}

function makeRedis(target: Exclude<RedisTarget, { kind: 'cluster' }>, options: PlainOptions): Redis {
  if (target.kind === 'single') return new Redis(target.url, options);
  const { tls, username, password, db } = settingsOf(target.sentinels[0]);
  return new Redis({
    sentinelRetryStrategy: retryStrategy,
    ...options,
    ...present({ tls, username, password, db }),
    // One URL cannot name two passwords: sentinels and servers share what stands in the first.
    ...present({ sentinelTLS: tls, sentinelUsername: username, sentinelPassword: password }),
    enableTLSForSentinelMode: tls !== undefined,
    sentinelCommandTimeout: CONNECT_TIMEOUT_MS,
    sentinels: target.sentinels.map(endpoint),
    name: target.name,
  });
}

function endpoint(url: string): { host: string; port: number } {
  const { hostname, port } = new URL(url);
  return { host: hostname.replace(/^\[|\]$/g, ''), port: port === '' ? 6379 : Number(port) };
}

/** What a URL says besides the address. */
function settingsOf(url: string | undefined) {
  if (url === undefined) return {};
  const { username, password, protocol, pathname } = new URL(url);
  return present({
    username: username === '' ? undefined : decodeURIComponent(username),
    password: password === '' ? undefined : decodeURIComponent(password),
    tls: protocol === 'rediss:' ? {} : undefined,
    db: /^\/\d+$/.test(pathname) ? Number(pathname.slice(1)) : undefined,
  });
}

/** Without the fields that are not set: to the client `undefined` is a value. */
function present<T extends object>(fields: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as {
    [K in keyof T]?: Exclude<T[K], undefined>;
  };
}
