/**
 * Tokens in PostgreSQL (table gateway_token), for gateways without Redis. Only the SHA-256 of a token is stored, and
 * the database's clock decides when one expires.
 */
import { createHash } from 'node:crypto';
import { OperatorError } from '../errors.ts';
import { describeError, type Logger } from '../observe/log.ts';
import { type PostgresStore, sqlStateOf } from '../stores/postgres.ts';
import { type Clock, systemClock, type Timer } from '../support/clock.ts';
import { unstorable } from '../support/storable-text.ts';
import type { TokenStore } from './token-store.ts';

const PURGE_EVERY_MS = 60_000;
const PURGE_BATCH = 1_000;
/** So many batches a round: a table left full of expired tokens is emptied over many rounds. */
const PURGE_BATCHES = 50;

export interface PostgresTokenStoreOptions {
  readonly postgres: PostgresStore;
  readonly logger: Logger;
  readonly clock?: Clock;
}

export class PostgresTokenStore implements TokenStore {
  readonly name = 'postgres';
  readonly #postgres: PostgresStore;
  readonly #logger: Logger;
  readonly #clock: Clock;
  #timer: Timer | undefined;

  constructor(options: PostgresTokenStoreOptions) {
    this.#postgres = options.postgres;
    this.#logger = options.logger;
    this.#clock = options.clock ?? systemClock;
  }

  /** Begins to remove expired tokens now and then. Idempotent. */
  start(): void {
    if (this.#timer) return;
    this.#schedulePurge();
  }

  /** Idempotent. */
  stop(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
  }

  async find(realm: string, token: string): Promise<string | undefined> {
    const { rows } = await this.#postgres.query<{ user_id: string }>(
      'SELECT user_id FROM gateway_token WHERE realm = $1 AND token_hash = $2 AND expire_time > now()',
      [realm, hashOf(token)],
      { name: 'gateway_token_find' },
    );
    return rows[0]?.user_id;
  }

  /** Rejects with OperatorError for a user id that the column can never hold. */
  async save(realm: string, token: string, userId: string, ttlMs: number): Promise<void> {
    const mistake = unstorable(userId);
    if (mistake) throw new OperatorError(`the user id of a token cannot be stored: ${mistake}`);
    try {
      await this.#postgres.query(
        `INSERT INTO gateway_token (realm, token_hash, user_id, expire_time)
         VALUES ($1, $2, $3, now() + $4::double precision * interval '1 millisecond')
         ON CONFLICT (realm, token_hash) DO UPDATE SET user_id = excluded.user_id, expire_time = excluded.expire_time`,
        [realm, hashOf(token), userId, ttlMs],
        { name: 'gateway_token_save' },
      );
    } catch (error) {
      const state = sqlStateOf(error);
      if (state !== '22001' && state !== '22P05') throw error;
      throw new OperatorError('gateway_token cannot hold this user id', { cause: error });
    }
  }

  async remove(realm: string, token: string): Promise<void> {
    await this.#postgres.query('DELETE FROM gateway_token WHERE realm = $1 AND token_hash = $2', [
      realm,
      hashOf(token),
    ]);
  }

  /**
   * Removes expired tokens in short statements, at most 50 batches of 1,000; rows that another gateway is removing
   * are left to it. Resolves with their number.
   */
  async purge(): Promise<number> {
    let removed = 0;
    for (let batch = 0; batch < PURGE_BATCHES; batch += 1) {
      const { rowCount } = await this.#postgres.query(
        `DELETE FROM gateway_token WHERE (realm, token_hash) IN (
           SELECT realm, token_hash FROM gateway_token WHERE expire_time <= now() LIMIT $1 FOR UPDATE SKIP LOCKED)`,
        [PURGE_BATCH],
      );
      removed += rowCount;
      if (rowCount < PURGE_BATCH) break;
    }
    return removed;
  }

  #schedulePurge(): void {
    const timer = this.#clock.after(PURGE_EVERY_MS, () => {
      this.purge()
        .then(
          (removed) => this.#logger.debug('tokens_purged', { removed }),
          // Expired tokens are never found, so they only take room until the next round.
          (error: unknown) => this.#logger.warn('token_purge_failed', { error: describeError(error) }),
        )
        .finally(() => {
          // Not after a stop, nor beside the timer of a new start.
          if (this.#timer === timer) this.#schedulePurge();
        });
    });
    this.#timer = timer;
  }
}

function hashOf(token: string): string {
  return createHash('sha256').update(token).digest('hex');
}
