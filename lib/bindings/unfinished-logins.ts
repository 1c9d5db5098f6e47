/**
 * Logins that a node let in while a store was failing: their binding and token are tried again in the background,
 * so that the user is known once the store is back. Nothing here delays an answer.
 */
import { describeError, type Logger } from '../observe/log.ts';
import type { Clock, Timer } from '../support/clock.ts';

export interface UnfinishedLogin {
  readonly serviceId: string;
  readonly userId: string;
  /** Both are idempotent. Undefined = done already. */
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

export class UnfinishedLogins {
  readonly #options: UnfinishedLoginsOptions;
  readonly #logins = new Map<string, { login: UnfinishedLogin; untilMs: number }>();
  #timer: Timer | undefined;
  #delayMs = FIRST_RETRY_MS;
  #stopped = false;

  constructor(options: UnfinishedLoginsOptions) {
    this.#options = options;
  }

  get size(): number {
    return this.#logins.size;
  }

  /** Takes a login over. A later login of the same user replaces an earlier one's steps. */
  add(login: UnfinishedLogin): void {
    const key = `${login.serviceId}:${login.userId}`;
    if (this.#stopped || (this.#logins.size >= MAX_LOGINS && !this.#logins.has(key))) {
      this.#options.logger.error('login_forgotten', { service: login.serviceId, user: login.userId });
      return;
    }
    this.#logins.set(key, { login, untilMs: this.#options.clock.now() + this.#options.keepMs });
    this.#arm();
  }

  stop(): void {
    this.#stopped = true;
    this.#timer?.cancel();
    this.#timer = undefined;
  }

  #arm(): void {
    if (this.#timer || this.#stopped) return;
    this.#timer = this.#options.clock.after(this.#delayMs, () => {
      this.#retry().finally(() => {
        this.#timer = undefined;
        if (this.#logins.size > 0) this.#arm();
      });
    });
  }

  async #retry(): Promise<void> {
    for (const [key, entry] of [...this.#logins]) {
      const { login } = entry;
      try {
        for (const step of login.steps) await step();
      } catch (error) {
        if (this.#options.clock.now() < entry.untilMs) {
          // One failure speaks for all: the store is still away.
          this.#delayMs = Math.min(this.#delayMs * 2, LONGEST_RETRY_MS);
          this.#options.logger.debug('login_retry_failed', { error: describeError(error) });
          return;
        }
        this.#options.logger.error('login_forgotten', { service: login.serviceId, user: login.userId });
      }
      if (this.#logins.get(key) === entry) this.#logins.delete(key);
    }
    this.#delayMs = FIRST_RETRY_MS;
  }
}
