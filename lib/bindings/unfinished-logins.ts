/**
 * Logins that a node let in while a store was failing: their binding and token are tried again in the background,
 * so that the user is known once the store is back. Nothing here delays an answer.
 */
import { OperatorError } from '../errors.ts';
import { describeError, type Logger } from '../observe/log.ts';
import { StoreUnavailable } from '../stores/store-unavailable.ts';
import type { Clock, Timer } from '../support/clock.ts';

export interface UnfinishedLogin {
  readonly serviceId: string;
  readonly userId: string;
  /** What is left to do, in order; idempotent. */
  readonly steps: readonly (() => Promise<unknown>)[];
}

export interface UnfinishedLoginsOptions {
  readonly clock: Clock;
  readonly logger: Logger;
  /** How long a login is kept, milliseconds. */
  readonly keepMs: number;
}

/** More than this are not kept: a long outage must not eat the memory. */
const MAX_LOGINS = 10_000;
const FIRST_RETRY_MS = 500;
const LONGEST_RETRY_MS = 10_000;
/** After an outage every gateway asks the store again within this time, be it for the registry alone. */
const SETTLE_MS = 6_000;

export class UnfinishedLogins {
  readonly #options: UnfinishedLoginsOptions;
  /** In the order they came. One user may have several: each of their tokens counts. */
  readonly #logins = new Set<{ readonly login: UnfinishedLogin; readonly untilMs: number }>();
  /** How many logins each user has among them. */
  readonly #users = new Map<string, number>();
  #timer: Timer | undefined;
  #delayMs = FIRST_RETRY_MS;
  #settledAtMs = Number.NEGATIVE_INFINITY;
  #retrying = false;
  #stopped = false;

  constructor(options: UnfinishedLoginsOptions) {
    this.#options = options;
  }

  get size(): number {
    return this.#logins.size;
  }

  /**
   * True = a login of this user is still to be finished, or, for some seconds after an outage, may be: by another
   * gateway, of whose logins nothing is known here.
   */
  mayHave(serviceId: string, userId: string): boolean {
    return this.settling || this.#users.has(userKey(serviceId, userId));
  }

  /** True = the store is back for so short a time that other gateways may have logins to finish. */
  get settling(): boolean {
    return this.#options.clock.monotonic() < this.#settledAtMs;
  }

  /** The store that failed is back: no need to wait for the next try. */
  storeIsBack(): void {
    this.#settledAtMs = this.#options.clock.monotonic() + SETTLE_MS;
    this.#delayMs = FIRST_RETRY_MS;
    if (!this.#timer || this.#retrying) return;
    this.#timer.cancel();
    this.#timer = undefined;
    this.#arm(0);
  }

  /** Takes a login over. */
  add(login: UnfinishedLogin): void {
    if (this.#stopped || this.#logins.size >= MAX_LOGINS) {
      this.#forget(login, this.#stopped ? 'stopping' : 'too many');
      return;
    }
    this.#logins.add({ login, untilMs: this.#options.clock.monotonic() + this.#options.keepMs });
    this.#count(login, 1);
    this.#arm();
  }

  stop(): void {
    if (!this.#stopped && this.#logins.size > 0) {
      // They were only in this process.
      this.#options.logger.error('logins_forgotten', { count: this.#logins.size });
    }
    this.#stopped = true;
    this.#timer?.cancel();
    this.#timer = undefined;
  }

  #arm(delayMs = this.#delayMs): void {
    if (this.#timer || this.#stopped) return;
    this.#timer = this.#options.clock.after(delayMs, () => {
      this.#retrying = true;
      this.#retry().finally(() => {
        this.#retrying = false;
        this.#timer = undefined;
        if (this.#logins.size > 0) this.#arm();
      });
    });
  }

  #count({ serviceId, userId }: UnfinishedLogin, change: 1 | -1): void {
    const key = userKey(serviceId, userId);
    const count = (this.#users.get(key) ?? 0) + change;
    if (count === 0) this.#users.delete(key);
    else this.#users.set(key, count);
  }

  async #retry(): Promise<void> {
    let failed = false;
    for (const entry of [...this.#logins]) {
      // What is left has been reported as forgotten, and the stores are closing.
      if (this.#stopped) return;
      const { login } = entry;
      try {
        for (const step of login.steps) await step();
      } catch (error) {
        // What the store can never hold is not tried for ever.
        if (error instanceof OperatorError || this.#options.clock.monotonic() >= entry.untilMs) {
          this.#forget(login, describeError(error));
        } else {
          failed = true;
          this.#options.logger.debug('login_retry_failed', { error: describeError(error) });
          // The store is still away for all. Any other fault is this login's own: nobody waits behind it.
          if (error instanceof StoreUnavailable) break;
          continue;
        }
      }
      this.#logins.delete(entry);
      this.#count(login, -1);
    }
    this.#delayMs = failed ? Math.min(this.#delayMs * 2, LONGEST_RETRY_MS) : FIRST_RETRY_MS;
  }

  #forget(login: UnfinishedLogin, reason: string): void {
    this.#options.logger.error('login_forgotten', { service: login.serviceId, user: login.userId, reason });
  }
}

/** Service ids hold no ':'. */
function userKey(serviceId: string, userId: string): string {
  return `${serviceId}:${userId}`;
}
