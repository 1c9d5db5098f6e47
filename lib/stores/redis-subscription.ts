/**
 * One channel of Redis, on one connection after another: whatever goes wrong, the connection is given up and the next one
 * begins afresh, so that a subscription is never silently lost. What was published meanwhile is; the caller is told.
 */
import type { Redis } from 'ioredis';
import type { RedisOptions } from '../config/options.ts';
import { Backoff } from '../support/backoff.ts';
import type { Clock, Timer } from '../support/clock.ts';
import { makeSubscriber } from './redis-clients.ts';

/** So often a subscription proves that its connection is alive. */
const HEARTBEAT_MS = 10_000;
const FIRST_RETRY_MS = 100;
const LONGEST_RETRY_MS = 2_000;

export interface RedisSubscriptionOptions {
  readonly options: RedisOptions;
  readonly clock: Clock;
  readonly channel: string;
  onMessage(message: string): void;
  onReady(): void;
  onError(error: unknown): void;
}

export class RedisSubscription {
  readonly #options: RedisSubscriptionOptions;
  readonly #backoff = new Backoff({ firstMs: FIRST_RETRY_MS, mostMs: LONGEST_RETRY_MS });
  #attempts = 0;
  #client: Redis | undefined;
  #timer: Timer | undefined;
  #stopped = false;

  constructor(options: RedisSubscriptionOptions) {
    this.#options = options;
  }

  /** Called once. */
  start(): void {
    this.#listen();
  }

  /** For good. Idempotent. */
  stop(): void {
    this.#stopped = true;
    this.#timer?.cancel();
    this.#client?.disconnect();
  }

  #listen(): void {
    const { channel, onMessage, onError } = this.#options;
    const client = makeSubscriber(this.#options.options, this.#attempts);
    this.#attempts += 1;
    this.#client = client;
    client.on('error', onError);
    client.on('message', (_channel: string, message: string) => onMessage(message));
    client.once('ready', () => {
      client.subscribe(channel).then(
        () => this.#inForce(client),
        (error: unknown) => this.#giveUp(client, error),
      );
    });
    client.once('end', () => this.#startAgain());
    // A failure has been an 'error' event by then, which says more, and 'end' follows.
    client.connect().catch(() => undefined);
  }

  #inForce(client: Redis): void {
    if (this.#stopped) return;
    this.#backoff.reset();
    this.#options.onReady();
    this.#beat(client);
  }

  /** A peer that vanished sends nothing, and neither does a quiet channel: only an answer tells them apart. */
  #beat(client: Redis): void {
    this.#timer = this.#options.clock.after(HEARTBEAT_MS, () => {
      client.ping().then(
        () => client === this.#client && this.#beat(client),
        (error: unknown) => this.#giveUp(client, error),
      );
    });
  }

  #giveUp(client: Redis, error: unknown): void {
    this.#options.onError(error);
    client.disconnect();
  }

  #startAgain(): void {
    this.#timer?.cancel();
    if (!this.#stopped) this.#timer = this.#options.clock.after(this.#backoff.nextMs(), () => this.#listen());
  }
}
