/**
 * The gateway's tokens in the embedded journal: by SHA-256, so that the data folder holds no token. Reading the token
 * from a request and asking other resolvers is not done here.
 */
import { createHash } from 'node:crypto';
import type { Journal } from '../bindings/journal.ts';
import type { TokenEntry } from '../bindings/journal-state.ts';
import type { Clock, Timer } from '../support/clock.ts';
import type { TokenStore } from './token-store.ts';

const SWEEP_EVERY_MS = 1_000;
/** Entries looked at in one sweep: under a millisecond. */
const SWEEP_ENTRIES = 2_000;

export class JournalTokenStore implements TokenStore {
  readonly name = 'journal';
  readonly #journal: Journal;
  readonly #clock: Clock;
  #sweep: IterableIterator<[string, TokenEntry]> | undefined;
  #timer: Timer | undefined;

  constructor(options: { journal: Journal; clock: Clock }) {
    this.#journal = options.journal;
    this.#clock = options.clock;
  }

  /** Starts to forget expired tokens, a few at a time. Idempotent. */
  start(): void {
    this.#timer ??= this.#clock.after(SWEEP_EVERY_MS, () => {
      this.#timer = undefined;
      this.#sweepSome();
      this.start();
    });
  }

  /** Idempotent. The journal stays open. */
  stop(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
  }

  async find(realm: string, token: string): Promise<string | undefined> {
    const hash = tokenHash(realm, token);
    const keys = [pendingKey(hash)];
    for (let pending = this.#journal.pendingOf(keys); pending; pending = this.#journal.pendingOf(keys)) {
      // After a failed write the memory is as before, and that is the answer.
      await Promise.allSettled([pending]);
    }
    const entry = this.#journal.tokens.get(hash);
    return entry !== undefined && entry.expiresAtMs > this.#clock.now() ? entry.userId : undefined;
  }

  async save(realm: string, token: string, userId: string, ttlMs: number): Promise<void> {
    const hash = tokenHash(realm, token);
    const keys = [pendingKey(hash)];
    await this.#free(keys);
    await this.#journal.commit([['t', hash, userId, this.#clock.now() + ttlMs]], keys);
  }

  async remove(realm: string, token: string): Promise<void> {
    const hash = tokenHash(realm, token);
    const keys = [pendingKey(hash)];
    await this.#free(keys);
    if (this.#journal.tokens.has(hash)) await this.#journal.commit([['x', hash]], keys);
  }

  /** Waits for earlier writes of the same token; rejects if one of them fails. */
  async #free(keys: readonly string[]): Promise<void> {
    for (let pending = this.#journal.pendingOf(keys); pending; pending = this.#journal.pendingOf(keys))
      await pending;
  }

  /** Goes on where the last sweep ended. Nothing is written: a replay leaves expired tokens out by itself. */
  #sweepSome(): void {
    const now = this.#clock.now();
    this.#sweep ??= this.#journal.tokens.entries();
    for (let looked = 0; looked < SWEEP_ENTRIES; looked += 1) {
      const next = this.#sweep.next();
      if (next.done) {
        this.#sweep = undefined;
        return;
      }
      const [hash, { expiresAtMs }] = next.value;
      if (expiresAtMs <= now && !this.#journal.pendingOf([pendingKey(hash)]))
        this.#journal.tokens.delete(hash);
    }
  }
}

/** Realms hold no ':' and no NUL, so two pairs never share a hash. */
function tokenHash(realm: string, token: string): string {
  return createHash('sha256').update(`${realm}\0${token}`).digest('base64url');
}

function pendingKey(hash: string): string {
  return `t:${hash}`;
}
