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

  find(realm: string, token: string): Promise<string | undefined> {
    const hash = tokenHash(realm, token);
    return this.#journal.read([pendingKey(hash)], () => {
      const entry = this.#journal.tokens.get(hash);
      return entry !== undefined && entry.expiresAtMs > this.#clock.now() ? entry.userId : undefined;
    });
  }

  save(realm: string, token: string, userId: string, ttlMs: number): Promise<void> {
    const hash = tokenHash(realm, token);
    return this.#journal.change(
      () => [pendingKey(hash)],
      () => ({ operations: [['t', hash, userId, this.#clock.now() + ttlMs]], result: undefined }),
    );
  }

  remove(realm: string, token: string): Promise<void> {
    const hash = tokenHash(realm, token);
    return this.#journal.change(
      () => [pendingKey(hash)],
      () => ({ operations: this.#journal.tokens.has(hash) ? [['x', hash]] : [], result: undefined }),
    );
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
      if (expiresAtMs <= now && !this.#journal.isPending(pendingKey(hash))) this.#journal.tokens.delete(hash);
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
