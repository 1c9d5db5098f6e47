/**
 * Hears PostgreSQL's notifications on a connection of its own and comes back by itself when that is lost. A
 * notification is only a hint: what it means is decided by whoever is told.
 */
import { Socket } from 'node:net';
import { Client, escapeIdentifier } from 'pg';
import type { PostgresOptions } from '../config/options.ts';
import { describeError, type Logger } from '../observe/log.ts';
import { Backoff } from '../support/backoff.ts';
import { type Clock, systemClock, type Timer } from '../support/clock.ts';
import { connectionSettings } from './postgres.ts';

/** So often a listener proves that its connection is alive, unless it is told to do so more often. */
const HEARTBEAT_MS = 10_000;
const FIRST_RETRY_MS = 100;
const MOST_RETRY_MS = 5_000;

export interface PostgresListenerOptions {
  readonly postgres: PostgresOptions;
  readonly channels: readonly string[];
  readonly onMessage: (channel: string, payload: string) => void;
  /**
   * LISTEN is in force (again): whatever changed before may have been missed, so caches are dropped and the registry
   * is read. Also called for the first connection.
   */
  readonly onReconnect: () => void;
  /** The connection is lost, or could not be made: from now on changes are missed. */
  readonly onLost?: () => void;
  readonly logger: Logger;
  readonly clock?: Clock;
  /** Time between two proofs that the connection is alive, milliseconds; default 10,000. */
  readonly heartbeatMs?: number;
}

export class PostgresListener {
  readonly #options: PostgresListenerOptions;
  readonly #clock: Clock;
  readonly #backoff = new Backoff({ firstMs: FIRST_RETRY_MS, mostMs: MOST_RETRY_MS });
  readonly #heartbeatMs: number;
  #heardUntilMs = Number.NEGATIVE_INFINITY;
  #running = false;
  #connected = false;
  #connection: Connection | undefined;
  #timer: Timer | undefined;

  constructor(options: PostgresListenerOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#heartbeatMs = options.heartbeatMs ?? HEARTBEAT_MS;
  }

  /** True while LISTEN is in force, as far as is known. */
  get connected(): boolean {
    return this.#connected;
  }

  /**
   * Clock.monotonic: what was notified before then, since the last `onReconnect`, has been heard. Of later notifications
   * nothing is certain: the connection may have been silent ever since without a word.
   */
  get heardUntilMs(): number {
    return this.#heardUntilMs;
  }

  /** Begins to connect and returns at once. Idempotent. */
  start(): void {
    if (this.#running) return;
    this.#running = true;
    this.#connect();
  }

  /** Idempotent. No callback comes after it. */
  stop(): void {
    this.#running = false;
    this.#drop();
  }

  #connect(): void {
    const connection = openConnection(this.#options.postgres);
    this.#connection = connection;
    const { client } = connection;
    // Both can come, and more than once; only the first about the present connection counts.
    client.on('error', (error) => this.#lost(connection, error));
    client.on('end', () => this.#lost(connection, new Error('the connection was closed')));
    client.on('notification', ({ channel, payload }) => {
      if (this.#connection === connection) this.#options.onMessage(channel, payload ?? '');
    });
    this.#listen(connection).catch((error: unknown) => this.#lost(connection, error));
  }

  async #listen(connection: Connection): Promise<void> {
    await connection.client.connect();
    const channels = this.#options.channels.map((channel) => `LISTEN ${escapeIdentifier(channel)}`);
    await this.#ask(connection, channels.join(';'));
    if (this.#connection !== connection) return;
    this.#backoff.reset();
    this.#connected = true;
    this.#options.logger.info('postgres_listening', { channels: this.#options.channels });
    this.#scheduleHeartbeat(connection);
    this.#options.onReconnect();
  }

  /** A connection whose peer vanished stays silent for ever: only an unanswered question shows it. */
  #scheduleHeartbeat(connection: Connection): void {
    this.#timer = this.#clock.after(this.#heartbeatMs, () => {
      this.#ask(connection, 'SELECT 1').then(
        () => {
          if (this.#connection === connection) this.#scheduleHeartbeat(connection);
        },
        (error: unknown) => this.#lost(connection, error),
      );
    });
  }

  #ask(connection: Connection, text: string): Promise<void> {
    const askedAtMs = this.#clock.monotonic();
    return new Promise((resolve, reject) => {
      const { queryTimeoutMs } = this.#options.postgres;
      const timer = this.#clock.after(queryTimeoutMs, () => reject(new Error(`no answer within ${queryTimeoutMs} ms`)));
      connection.client.query(text).then(
        () => {
          timer.cancel();
          // PostgreSQL sends the notifications of before on the same connection ahead of its answer.
          if (this.#connection === connection) this.#heardUntilMs = askedAtMs;
          resolve();
        },
        (error: unknown) => {
          timer.cancel();
          reject(error);
        },
      );
    });
  }

  #lost(connection: Connection, error: unknown): void {
    if (this.#connection !== connection) return;
    this.#drop();
    this.#options.onLost?.();
    const retryInMs = Math.round(this.#backoff.nextMs());
    this.#options.logger.warn('postgres_listener_lost', { error: describeError(error), retryInMs });
    this.#timer = this.#clock.after(retryInMs, () => this.#connect());
  }

  #drop(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
    this.#connected = false;
    const connection = this.#connection;
    this.#connection = undefined;
    // Nothing is worth waiting for: the server ends the session when the socket closes.
    connection?.socket.destroy();
  }
}

interface Connection {
  readonly client: Client;
  readonly socket: Socket;
}

function openConnection(options: PostgresOptions): Connection {
  const socket = new Socket();
  return { client: new Client({ ...connectionSettings(options), stream: () => socket }), socket };
}
