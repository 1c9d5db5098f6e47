/**
 * The pool of connections to PostgreSQL: deadlines, transactions, and the difference between "PostgreSQL does not
 * answer" (StoreUnavailable) and "PostgreSQL answered with an error" (passed through). It knows no tables.
 */
import { Socket } from 'node:net';
import { Client, DatabaseError, Pool, type PoolClient } from 'pg';
import type { PostgresOptions } from '../config/options.ts';
import { OperatorError } from '../errors.ts';
import { describeError, type Logger } from '../observe/log.ts';
import type { Counter, Histogram, Metrics } from '../observe/metrics.ts';
import { type Clock, systemClock } from '../support/clock.ts';
import { CircuitBreaker, type Permit } from './circuit-breaker.ts';
import { StoreUnavailable } from './store-unavailable.ts';

/** After a failure PostgreSQL is left alone for so long; then one call at a time tries it. */
const BREAKER_OPEN_MS = 1_000;
const IDLE_CONNECTION_MS = 30_000;
const KEEP_ALIVE_DELAY_MS = 10_000;

export interface QueryOptions {
  /** Name of the prepared statement: the same text for a name, always. */
  readonly name?: string;
}

export interface QueryRows<Row> {
  readonly rows: Row[];
  /** Rows returned or changed. */
  readonly rowCount: number;
}

/** What runs SQL: the store itself, or one transaction of it. */
export interface Queryable {
  query<Row extends object = Record<string, unknown>>(
    text: string,
    values?: readonly unknown[],
    options?: QueryOptions,
  ): Promise<QueryRows<Row>>;
}

export interface TransactionOptions {
  /** Deadline of each statement instead of `queryTimeoutMs`, for bulk work. */
  readonly timeoutMs?: number;
}

/** The SQLSTATE of an error that PostgreSQL answered with (`23505`), or undefined for every other error. */
export function sqlStateOf(error: unknown): string | undefined {
  return error instanceof DatabaseError ? error.code : undefined;
}

/** The settings every connection shares, the listener's too. */
export function connectionSettings(options: PostgresOptions): {
  connectionString: string;
  application_name: string;
  connectionTimeoutMillis: number;
  keepAlive: true;
  keepAliveInitialDelayMillis: number;
} {
  return {
    connectionString: options.url,
    application_name: 'sticky-gateway',
    connectionTimeoutMillis: options.connectTimeoutMs,
    keepAlive: true,
    keepAliveInitialDelayMillis: KEEP_ALIVE_DELAY_MS,
  };
}

export class PostgresStore implements Queryable {
  readonly #options: PostgresOptions;
  readonly #logger: Logger;
  readonly #clock: Clock;
  readonly #breaker: CircuitBreaker;
  readonly #errors: Counter | undefined;
  readonly #latency: Histogram | undefined;
  readonly #sockets = new Set<Socket>();
  readonly #connectedAtMs = new WeakMap<PoolClient, number>();
  #silentAtMs = Number.NEGATIVE_INFINITY;
  readonly #onAvailable: (() => void)[] = [];
  #pool: Pool | undefined;

  /** Throws OperatorError for a URL that is none. Opens no connection. */
  constructor(options: PostgresOptions, logger: Logger, clock: Clock = systemClock, metrics?: Metrics) {
    this.#options = options;
    this.#logger = logger;
    this.#clock = clock;
    this.#breaker = new CircuitBreaker(BREAKER_OPEN_MS, clock);
    const labels = { store: 'postgres', use: 'all' };
    this.#errors = metrics?.counter('gateway_store_errors_total', 'Failed calls to a store', labels);
    this.#latency = metrics?.histogram('gateway_store_duration_seconds', 'Duration of calls to a store', {
      store: 'postgres',
    });
    try {
      // Only to have the URL parsed: a client that is not told to connect opens no socket.
      new Client(connectionSettings(options));
    } catch (error) {
      throw new OperatorError(
        'store.postgres.url is not a PostgreSQL URL (postgres://user:password@host:5432/database)',
        {
          cause: error,
        },
      );
    }
  }

  /** Calls back each time the first answer after a failure comes. */
  onAvailable(listener: () => void): void {
    this.#onAvailable.push(listener);
  }

  /** Connections of the pool: open, and of those idle. */
  get connections(): { readonly open: number; readonly idle: number } {
    return { open: this.#pool?.totalCount ?? 0, idle: this.#pool?.idleCount ?? 0 };
  }

  /** Makes the pool; the first query connects, so an unreachable PostgreSQL does not stop the start. Idempotent. */
  start(): void {
    if (this.#pool) return;
    const { poolSize, queryTimeoutMs } = this.#options;
    const pool = new Pool({
      ...connectionSettings(this.#options),
      max: poolSize,
      idleTimeoutMillis: IDLE_CONNECTION_MS,
      // Shorter than the client's own deadline, so that normally PostgreSQL says itself that it gave up and the
      // connection can be kept. Waits for locks end first: they say nothing about PostgreSQL's health.
      statement_timeout: Math.max(1, Math.floor(queryTimeoutMs * 0.9)),
      lock_timeout: Math.max(1, Math.floor(queryTimeoutMs * 0.8)),
      // A transaction whose gateway was cut off must not keep its rows locked until PostgreSQL notices.
      idle_in_transaction_session_timeout: queryTimeoutMs,
      stream: () => this.#trackedSocket(),
    });
    // Without a listener the loss of an idle connection would end the process. pg has removed the client already.
    pool.on('connect', (client) => this.#connectedAtMs.set(client, this.#clock.monotonic()));
    pool.on('error', (error) => this.#logger.info('postgres_connection_lost', { error: describeError(error) }));
    this.#pool = pool;
  }

  /** Lets running queries end within their deadline and closes all connections. Idempotent. */
  async stop(): Promise<void> {
    const pool = this.#pool;
    if (!pool) return;
    this.#pool = undefined;
    try {
      await this.#within(pool.end(), this.#options.queryTimeoutMs);
    } catch (error) {
      this.#logger.warn('postgres_stop_forced', { error: describeError(error) });
      for (const socket of this.#sockets) socket.destroy();
    }
    // A peer that vanished never acknowledges the end of a connection; the process must not wait for it.
    for (const socket of this.#sockets) socket.destroySoon();
  }

  /**
   * Runs one statement. Rejects with StoreUnavailable when there is no answer within `queryTimeoutMs`, the wait for a
   * free connection included; then the statement may or may not have taken effect. SQL errors pass through.
   */
  async query<Row extends object = Record<string, unknown>>(
    text: string,
    values: readonly unknown[] = [],
    options: QueryOptions = {},
  ): Promise<QueryRows<Row>> {
    const permit = this.#permit();
    const startedAtMs = this.#clock.monotonic();
    try {
      const session = await this.#open(this.#options.queryTimeoutMs);
      const spentMs = this.#clock.monotonic() - startedAtMs;
      try {
        const result = await session.run<Row>(
          text,
          values,
          options,
          Math.max(1, this.#options.queryTimeoutMs - spentMs),
        );
        session.release();
        this.#succeeded(permit);
        return result;
      } catch (error) {
        this.#noteSilence(error);
        session.release(error);
        throw error;
      }
    } catch (error) {
      throw this.#failed(permit, error, false);
    } finally {
      this.#latency?.observe((this.#clock.monotonic() - startedAtMs) / 1_000);
    }
  }

  /**
   * Runs `work` in one transaction (READ COMMITTED) and commits; what `work` throws rolls back and passes through.
   * Rejects with StoreUnavailable like `query`; when that happens to the COMMIT, the outcome is not known.
   */
  async transaction<T>(work: (client: Queryable) => Promise<T>, options: TransactionOptions = {}): Promise<T> {
    const permit = this.#permit();
    const timeoutMs = options.timeoutMs ?? this.#options.queryTimeoutMs;
    let session: Session | undefined;
    try {
      session = await this.#open(this.#options.queryTimeoutMs);
      const result = await this.#runTransaction(session, work, timeoutMs, options.timeoutMs !== undefined);
      session.release();
      this.#succeeded(permit);
      return result;
    } catch (error) {
      if (session) await this.#rollBack(session, error);
      throw this.#failed(permit, error, true);
    }
  }

  async #runTransaction<T>(
    session: Session,
    work: (client: Queryable) => Promise<T>,
    timeoutMs: number,
    ownTimeout: boolean,
  ): Promise<T> {
    await session.run('BEGIN', [], {}, timeoutMs);
    if (ownTimeout) {
      const settings = `SET LOCAL statement_timeout = ${Math.floor(timeoutMs * 0.9)};
        SET LOCAL idle_in_transaction_session_timeout = ${Math.floor(timeoutMs)}`;
      await session.run(settings, [], {}, timeoutMs);
    }
    let over = false;
    const client: Queryable = {
      query: (text, values = [], queryOptions = {}) => {
        if (over) return Promise.reject(new Error('the transaction is over'));
        return session.run(text, values, queryOptions, timeoutMs);
      },
    };
    try {
      const result = await work(client);
      over = true;
      const { command } = await session.run('COMMIT', [], {}, timeoutMs);
      // PostgreSQL answers the COMMIT of a transaction in which a statement failed with a ROLLBACK, not with an error.
      if (command !== 'COMMIT') throw new Error('a statement of the transaction had failed: it was rolled back');
      return result;
    } finally {
      over = true;
    }
  }

  async #rollBack(session: Session, error: unknown): Promise<void> {
    this.#noteSilence(error);
    if (verdictOf(error) === 'silent') return session.release(error);
    try {
      await session.run('ROLLBACK', [], {}, this.#options.queryTimeoutMs);
      session.release(isOutdatedPlan(error) ? error : undefined);
    } catch (rollbackError) {
      // Closing the connection rolls back as well.
      session.release(rollbackError);
    }
  }

  /** Of a statement under way; a wait for a free connection says nothing of the connections. */
  #noteSilence(error: unknown): void {
    if (verdictOf(error) === 'silent') this.#silentAtMs = this.#clock.monotonic();
  }

  #permit(): Permit {
    const permit = this.#pool ? this.#breaker.ask() : undefined;
    if (permit) return permit;
    this.#errors?.inc();
    throw new StoreUnavailable(
      'postgres',
      new Error(this.#pool ? 'it failed a moment ago and is not asked again yet' : 'the store is not started'),
    );
  }

  #succeeded(permit: Permit): void {
    const recovered = this.#breaker.tripped;
    permit.succeeded();
    if (!recovered) return;
    this.#logger.info('postgres_available');
    for (const listener of this.#onAvailable) listener();
  }

  /** Tells the breaker, and turns an error into what the caller gets. */
  #failed(permit: Permit, error: unknown, inTransaction: boolean): unknown {
    const verdict = verdictOf(error);
    if (verdict === 'answer') {
      this.#succeeded(permit);
      return error;
    }
    this.#errors?.inc();
    // In a transaction a wait for a lock can be one hot row's fault; a plain read waits only for a locked table.
    if (verdict === 'silent' || verdict === 'slow' || (verdict === 'locked' && !inTransaction)) {
      if (!this.#breaker.tripped) this.#logger.warn('postgres_unavailable', { error: describeError(error) });
      permit.failed();
    } else {
      this.#succeeded(permit);
    }
    return error instanceof StoreUnavailable ? error : new StoreUnavailable('postgres', error);
  }

  async #open(timeoutMs: number): Promise<Session> {
    const pool = this.#pool;
    if (!pool) throw new StoreUnavailable('postgres', new Error('the store is not started'));
    const startedAtMs = this.#clock.monotonic();
    for (;;) {
      let client: PoolClient;
      try {
        const leftMs = Math.max(1, timeoutMs - (this.#clock.monotonic() - startedAtMs));
        client = await this.#within(pool.connect(), leftMs, (late) => late.release());
      } catch (error) {
        // Whatever keeps a connection from being made (a wrong password too) keeps PostgreSQL from answering.
        throw new StoreUnavailable('postgres', error);
      }
      // What made another connection fall silent may have cut this one off too, and each would cost a time-out.
      if ((this.#connectedAtMs.get(client) ?? 0) >= this.#silentAtMs) {
        return new Session(client, this.#logger, (work, withinMs) => this.#within(work, withinMs));
      }
      client.release(true);
    }
  }

  #trackedSocket(): Socket {
    const socket = new Socket();
    this.#sockets.add(socket);
    socket.once('close', () => this.#sockets.delete(socket));
    return socket;
  }

  /** Settles like `work`, or rejects after `timeoutMs`; a value that comes later is given to `late`. */
  #within<T>(work: Promise<T>, timeoutMs: number, late: (value: T) => void = () => undefined): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      let over = false;
      const timer = this.#clock.after(timeoutMs, () => {
        over = true;
        reject(new Error(`no answer within ${Math.round(timeoutMs)} ms`));
      });
      work.then(
        (value) => {
          timer.cancel();
          if (over) late(value);
          else resolve(value);
        },
        (error: unknown) => {
          timer.cancel();
          reject(error);
        },
      );
    });
  }
}

type Within = <T>(work: Promise<T>, timeoutMs: number) => Promise<T>;

/** One connection while it is out of the pool. */
class Session {
  readonly #client: PoolClient;
  readonly #within: Within;
  readonly #onError: (error: Error) => void;
  #released = false;

  constructor(client: PoolClient, logger: Logger, within: Within) {
    this.#client = client;
    this.#within = within;
    // The statement under way is rejected as well; unheard, the event would end the process.
    this.#onError = (error) => logger.debug('postgres_connection_lost', { error: describeError(error) });
    client.on('error', this.#onError);
  }

  async run<Row extends object = Record<string, unknown>>(
    text: string,
    values: readonly unknown[],
    options: QueryOptions,
    timeoutMs: number,
  ): Promise<QueryRows<Row> & { readonly command: string }> {
    if (this.#released) throw new Error('the connection was given back');
    const config = options.name === undefined ? { text } : { text, name: options.name };
    const result = await this.#within(
      // Without values the simple protocol is used, which alone takes several statements in one text.
      this.#client.query<Row>(values.length === 0 ? config : { ...config, values: [...values] }),
      timeoutMs,
    );
    return { rows: result.rows, rowCount: result.rowCount ?? 0, command: result.command };
  }

  /**
   * Back to the pool, or closed when `error` says that it is not fit for another statement: after a deadline the late
   * answer must never be read as the answer to somebody else's query.
   */
  release(error?: unknown): void {
    if (this.#released) return;
    this.#released = true;
    this.#client.off('error', this.#onError);
    const unfit = error !== undefined && (verdictOf(error) === 'silent' || isOutdatedPlan(error));
    this.#client.release(unfit);
  }
}

/**
 * What an error says: `answer` = PostgreSQL works and refused this statement; `silent` = no answer, the connection is
 * unfit; `slow` and `locked` = it gave up by its own timeouts; `limited` = it lives but takes no writes for now.
 */
type Verdict = 'answer' | 'silent' | 'slow' | 'locked' | 'limited';

function verdictOf(error: unknown): Verdict {
  if (error instanceof StoreUnavailable) return error.cause === undefined ? 'silent' : causeVerdict(error.cause);
  if (error instanceof DatabaseError) return stateVerdict(error.code ?? '');
  // pg reports a lost connection as a plain Error or as one of Node's socket errors; mistakes in our own code and
  // what a transaction's work throws on purpose are of other classes.
  if (!(error instanceof Error) || error instanceof TypeError || error instanceof RangeError) return 'answer';
  if (error instanceof OperatorError || error.name !== 'Error') return 'answer';
  return isConnectionError(error) ? 'silent' : 'answer';
}

function causeVerdict(cause: unknown): Verdict {
  const verdict = cause instanceof DatabaseError ? stateVerdict(cause.code ?? '') : 'silent';
  return verdict === 'answer' ? 'silent' : verdict;
}

/** https://www.postgresql.org/docs/current/errcodes-appendix.html */
function stateVerdict(state: string): Verdict {
  if (state === '57014') return 'slow';
  if (state === '55P03') return 'locked';
  if (state === '25006' || state === '53100') return 'limited';
  return /^(08|53|58|57P)/.test(state) ? 'silent' : 'answer';
}

const CONNECTION_MESSAGES =
  /^(Connection terminated|timeout |no answer within|Client (has encountered|was closed)|Query read timeout|Cannot use a pool)/;

function isConnectionError(error: Error): boolean {
  return (
    ('code' in error && typeof error.code === 'string' && /^E[A-Z_]+$/.test(error.code)) ||
    CONNECTION_MESSAGES.test(error.message)
  );
}

/**
 * True for the errors of a session whose prepared plans no longer fit: a column changed its type (0A000, 42883, and
 * 42804 inside triggers), or a proxy gave the session to somebody else (26000). The connection is replaced, so trying
 * again can help.
 */
export function isOutdatedPlan(error: unknown): boolean {
  const state = sqlStateOf(error);
  return state === '0A000' || state === '26000' || state === '42883' || state === '42804';
}
