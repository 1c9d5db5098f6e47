/**
 * The connection to a Redis: one server, a cluster, or through sentinels. Every command is bounded in time, nothing is
 * queued while the connection is away, and a server that stopped answering is left alone for a moment. What the keys
 * mean is not known here.
 */
import { type RedisOptions as ClientOptions, Cluster, Redis, ReplyError } from 'ioredis';
import type { RedisOptions } from '../config/options.ts';
import { describeError, type Logger } from '../observe/log.ts';
import type { Clock } from '../support/clock.ts';
import { CircuitBreaker } from './circuit-breaker.ts';
import { StoreUnavailable } from './store-unavailable.ts';

/** After a timeout nobody asks for so long. */
const BREAK_MS = 1_000;
/** Longest wait of a start for the first connection; the gateway starts without it all the same. */
const FIRST_CONNECT_MS = 1_000;
const CONNECT_TIMEOUT_MS = 2_000;
const LONGEST_RETRY_MS = 2_000;
/** A connection on which so many commands in a row timed out is dropped and made anew. */
const TIMEOUTS_TO_RECONNECT = 3;

/** The server answered with an error that is about the key, such as WRONGTYPE: it is there, and it said no. */
export class RedisReplyError extends Error {
  /** First word of the reply. */
  readonly code: string;

  constructor(cause: Error) {
    super(cause.message, { cause });
    this.name = 'RedisReplyError';
    this.code = cause.message.split(' ')[0] ?? '';
  }
}

/** Replies that tell of the server or of the gateway's rights, not of the key. */
const UNAVAILABLE = new Set([
  'NOPERM',
  'NOAUTH',
  'WRONGPASS',
  'LOADING',
  'READONLY',
  'MOVED',
  'ASK',
  'CLUSTERDOWN',
  'MASTERDOWN',
  'BUSY',
  'OOM',
  'TRYAGAIN',
  'MISCONF',
  'NOREPLICAS',
]);

type Client = Redis | Cluster;
/** Replies are read as RESP2 has them, whatever the protocol. */
type PlainOptions = Omit<ClientOptions, 'replyMapping'>;

export class RedisStore {
  readonly #options: RedisOptions;
  readonly #logger: Logger;
  readonly #label: string;
  readonly #breaker: CircuitBreaker;
  readonly #client: Client;
  readonly #subscribers: Client[] = [];
  #timeouts = 0;
  #reported: string | undefined;
  #stopped = false;

  /** `label` tells one connection from another in the log. Nothing is connected before `start`. */
  constructor(options: RedisOptions, logger: Logger, clock: Clock, label: string) {
    this.#options = options;
    this.#logger = logger;
    this.#label = label;
    this.#breaker = new CircuitBreaker(BREAK_MS, clock);
    this.#client = this.#connect();
  }

  /** Begins to connect, and waits a moment for it; never rejects, since a gateway must start without its Redis. */
  async start(): Promise<void> {
    // A failure has been an 'error' event by then, which says more.
    const connected = this.#client.connect().catch(() => undefined);
    let timer: NodeJS.Timeout | undefined;
    const patience = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, FIRST_CONNECT_MS);
    });
    await Promise.race([connected, patience]);
    clearTimeout(timer);
  }

  stop(): void {
    this.#stopped = true;
    this.#client.disconnect();
    for (const subscriber of this.#subscribers) subscriber.disconnect();
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

  /** Several GETs sent together; one by one, because a cluster keeps the keys apart. */
  getBuffers(keys: readonly string[]): Promise<(Buffer | null)[]> {
    return this.#run(() => Promise.all(keys.map((key) => this.#client.getBuffer(key))));
  }

  hgetBuffer(key: string, field: string): Promise<Buffer | null> {
    return this.#run(() => this.#client.hgetBuffer(key, field));
  }

  /** Milliseconds left; -1 = the key does not expire, -2 = there is none. */
  pttl(key: string): Promise<number> {
    return this.#run(() => this.#client.pttl(key));
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
    const subscriber = this.#connect();
    this.#subscribers.push(subscriber);
    subscriber.on('message', (from: string, message: string) => {
      if (from === channel) onMessage(message);
    });
    subscriber.on('ready', () => {
      subscriber.subscribe(channel).then(onReady, (error: unknown) => this.#report(error));
    });
    subscriber.connect().catch(() => undefined);
  }

  async #run<T>(command: () => Promise<T>): Promise<T> {
    if (!this.connected) throw new StoreUnavailable('redis', new Error('not connected'));
    const permit = this.#breaker.ask();
    if (!permit) throw new StoreUnavailable('redis', new Error('did not answer a moment ago'));
    try {
      const reply = await command();
      permit.succeeded();
      this.#timeouts = 0;
      this.#reported = undefined;
      return reply;
    } catch (error) {
      if (error instanceof ReplyError) {
        permit.succeeded();
        const reply = new RedisReplyError(error as Error);
        if (!UNAVAILABLE.has(reply.code)) throw reply;
      } else {
        permit.failed();
        this.#noteTimeout();
      }
      this.#report(error);
      throw new StoreUnavailable('redis', error);
    }
  }

  #noteTimeout(): void {
    this.#timeouts += 1;
    if (this.#timeouts < TIMEOUTS_TO_RECONNECT || this.#stopped) return;
    this.#timeouts = 0;
    // The other end may be gone without a word; a new connection finds out.
    if (this.#client instanceof Redis) this.#client.disconnect(true);
  }

  /** Once for each kind of failure, until it works again. */
  #report(error: unknown): void {
    if (this.#stopped) return;
    const text = describeError(error);
    if (text === this.#reported) return;
    this.#reported = text;
    this.#logger.warn('redis_failed', { redis: this.#label, error: text });
  }

  #connect(): Client {
    const client = makeClient(this.#options);
    // Without a listener an error of the connection would end the process; it reconnects by itself.
    client.on('error', (error: unknown) => this.#report(error));
    return client;
  }
}

function makeClient({ target, timeoutMs }: RedisOptions): Client {
  const retryStrategy = (attempt: number) =>
    Math.min(50 * 2 ** Math.min(attempt, 10), LONGEST_RETRY_MS) * (0.75 + Math.random() / 2);
  const common: PlainOptions = {
    lazyConnect: true,
    commandTimeout: timeoutMs,
    connectTimeout: CONNECT_TIMEOUT_MS,
    enableOfflineQueue: false,
    maxRetriesPerRequest: 0,
    autoResubscribe: false,
    autoResendUnfulfilledCommands: false,
    retryStrategy,
    connectionName: 'sticky-gateway',
    keepAlive: 10_000,
  };
  switch (target.kind) {
    case 'single':
      return new Redis(target.url, common);
    case 'sentinel':
      return new Redis({
        ...common,
        sentinels: target.sentinels.map(endpoint),
        name: target.name,
        sentinelRetryStrategy: retryStrategy,
      });
    case 'cluster':
      return new Cluster(target.nodes.map(endpoint), {
        lazyConnect: true,
        enableOfflineQueue: false,
        clusterRetryStrategy: retryStrategy,
        maxRedirections: 3,
        slotsRefreshTimeout: CONNECT_TIMEOUT_MS,
        redisOptions: { ...common, ...credentials(target.nodes[0]) },
      });
  }
}

function endpoint(url: string): { host: string; port: number } {
  const { hostname, port } = new URL(url);
  return { host: hostname, port: port === '' ? 6379 : Number(port) };
}

function credentials(url: string | undefined): PlainOptions {
  if (url === undefined) return {};
  const { username, password, protocol } = new URL(url);
  return {
    ...(username === '' ? {} : { username: decodeURIComponent(username) }),
    ...(password === '' ? {} : { password: decodeURIComponent(password) }),
    ...(protocol === 'rediss:' ? { tls: {} } : {}),
  };
}
