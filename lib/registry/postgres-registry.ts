/**
 * Keeps the registry in step with PostgreSQL: seeds an empty database, loads at start, on notification and on a
 * schedule, and falls back to the last good file when PostgreSQL is away at the start.
 */
import { OperatorError } from '../errors.ts';
import type { RegistryDefinition } from '../model.ts';
import { describeError, type Logger } from '../observe/log.ts';
import type { Metrics } from '../observe/metrics.ts';
import type { PostgresStore } from '../stores/postgres.ts';
import { StoreUnavailable } from '../stores/store-unavailable.ts';
import { Backoff } from '../support/backoff.ts';
import type { Clock, Timer } from '../support/clock.ts';
import type { LastGood } from './last-good.ts';
import { assemble, candidatesOf, type DefinitionChecks, readCandidates, writeRegistry } from './registry-rows.ts';

export {
  type DefinitionChecks,
  writeNode,
  writeRegistry,
  writeRoute,
  writeService,
} from './registry-rows.ts';

/** The channel on which the triggers of the registry's tables tell of changes. */
export const REGISTRY_CHANNEL = 'gateway_registry';

/** Any number, the same in every version: gateways that find the table empty together seed it once. */
const SEED_LOCK = '7236124891002';
const FIRST_RETRY_MS = 100;
const MOST_RETRY_MS = 5_000;

/** Who holds the snapshot. */
export interface RegistryTarget {
  readonly snapshot: { readonly stale: boolean } | undefined;
  swap(definition: RegistryDefinition, meta: { loadedAtMs: number; stale: boolean }): void;
}

export interface LastGoodStore {
  read(): Promise<LastGood | undefined>;
  write(definition: RegistryDefinition, loadedAtMs: number): Promise<void>;
}

export interface PostgresRegistryOptions {
  readonly postgres: PostgresStore;
  readonly target: RegistryTarget;
  /** Written to the database when it has no services. */
  readonly seed: RegistryDefinition;
  readonly checks: DefinitionChecks;
  readonly lastGood: LastGoodStore;
  readonly pollIntervalMs: number;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly metrics?: Metrics;
  /** Runs before the first load and is retried with it: migrate, or verify the schema. */
  readonly prepare?: () => Promise<void>;
}

interface Outcome {
  readonly loaded: boolean;
  readonly error?: unknown;
}

export class PostgresRegistry {
  readonly #options: PostgresRegistryOptions;
  readonly #backoff = new Backoff({ firstMs: FIRST_RETRY_MS, mostMs: MOST_RETRY_MS });
  #running = false;
  #prepared = false;
  #timer: Timer | undefined;
  #current: Promise<Outcome> | undefined;
  #queued: Promise<Outcome> | undefined;
  #content: string | undefined;
  #writtenContent: string | undefined;
  #loadedAtMs: number | undefined;
  #problems = '';
  readonly #count: (result: 'ok' | 'failed') => void;

  constructor(options: PostgresRegistryOptions) {
    this.#options = options;
    const { metrics, clock } = options;
    const loads = (result: string) =>
      metrics?.counter('gateway_registry_loads_total', 'Reads of the registry from PostgreSQL', { result });
    const counters = { ok: loads('ok'), failed: loads('failed') };
    this.#count = (result) => counters[result]?.inc();
    const ageSeconds = () => (this.#loadedAtMs === undefined ? Number.NaN : (clock.now() - this.#loadedAtMs) / 1_000);
    metrics?.gauge('gateway_snapshot_age_seconds', 'Time since the registry was last read', {}, ageSeconds, 'max');
  }

  /** When the definition in force was last read from PostgreSQL, epoch milliseconds; undefined = never. */
  get loadedAtMs(): number | undefined {
    return this.#loadedAtMs;
  }

  /**
   * Resolves when the first load is in force, or when PostgreSQL does not answer: then with the last good snapshot
   * (marked stale) or none, while the first load is retried. Rejects when PostgreSQL answers but cannot be used.
   * Idempotent.
   */
  async start(): Promise<void> {
    if (this.#running) return;
    this.#running = true;
    const { loaded, error } = await this.#request();
    if (!this.#running) return;
    if (loaded) {
      this.#schedulePoll();
    } else if (error instanceof StoreUnavailable) {
      await this.#useLastGood();
      if (this.#running) this.#retryLater();
    } else {
      this.#running = false;
      throw error instanceof OperatorError
        ? error
        : new OperatorError(`the registry cannot be read from PostgreSQL: ${describeError(error)}`, {
            cause: error,
          });
    }
  }

  /** Idempotent. A load under way changes nothing any more. */
  stop(): void {
    this.#running = false;
    this.#timer?.cancel();
    this.#timer = undefined;
  }

  /**
   * Reads the registry; of calls that come while a load runs all share the one after it, so that each sees what was
   * committed before it was called. Resolves with false when the load failed (logged, counted, the snapshot stays).
   */
  async reload(): Promise<boolean> {
    return (await this.#request()).loaded;
  }

  #request(): Promise<Outcome> {
    if (this.#queued) return this.#queued;
    if (!this.#current) return this.#begin();
    this.#queued = this.#current.then(() => this.#begin());
    return this.#queued;
  }

  #begin(): Promise<Outcome> {
    this.#queued = undefined;
    const load = this.#tryLoad().finally(() => {
      if (this.#current === load) this.#current = undefined;
    });
    this.#current = load;
    return load;
  }

  async #tryLoad(): Promise<Outcome> {
    try {
      await this.#prepareOnce();
      await this.#load();
      this.#backoff.reset();
      return { loaded: true };
    } catch (error) {
      this.#count('failed');
      this.#options.logger.warn('registry_load_failed', { error: describeError(error) });
      return { loaded: false, error };
    }
  }

  async #prepareOnce(): Promise<void> {
    if (this.#prepared) return;
    await this.#options.prepare?.();
    await this.#seed();
    this.#prepared = true;
  }

  async #seed(): Promise<void> {
    const { postgres, seed, logger } = this.#options;
    if (seed.services.length === 0 && seed.routes.length === 0) return;
    const isEmpty = 'SELECT NOT EXISTS (SELECT FROM gateway_service) AS empty';
    if (!(await postgres.query<{ empty: boolean }>(isEmpty)).rows[0]?.empty) return;
    await postgres.transaction(async (client) => {
      await client.query(`SELECT pg_advisory_xact_lock(${SEED_LOCK})`);
      if (!(await client.query<{ empty: boolean }>(isEmpty)).rows[0]?.empty) return;
      await writeRegistry(client, seed);
      logger.info('registry_seeded', { services: seed.services.length, routes: seed.routes.length });
    });
  }

  async #load(): Promise<void> {
    const { postgres, target, clock, checks } = this.#options;
    // The time before the read: what is committed while it runs may not be in it.
    const loadedAtMs = clock.now();
    const { definition, problems } = assemble(await readCandidates(postgres), checks);
    if (!this.#running) return;
    this.#report(problems);
    const content = JSON.stringify(definition);
    if (content !== this.#content || target.snapshot === undefined || target.snapshot.stale) {
      target.swap(definition, { loadedAtMs, stale: false });
      this.#content = content;
    }
    this.#loadedAtMs = loadedAtMs;
    this.#count('ok');
    await this.#keepLastGood(definition, content, loadedAtMs);
  }

  /** Loud, but once: a row that stays wrong is not logged at every poll. */
  #report(problems: readonly string[]): void {
    const text = problems.join('\n');
    if (text === this.#problems) return;
    this.#problems = text;
    if (problems.length === 0) this.#options.logger.info('registry_sound');
    for (const problem of problems) this.#options.logger.error('registry_row_invalid', { problem });
  }

  async #keepLastGood(definition: RegistryDefinition, content: string, loadedAtMs: number): Promise<void> {
    if (content === this.#writtenContent) return;
    try {
      await this.#options.lastGood.write(definition, loadedAtMs);
      this.#writtenContent = content;
    } catch (error) {
      // It is needed only by a later start; this gateway has the definition.
      this.#options.logger.warn('registry_last_good_not_written', { error: describeError(error) });
    }
  }

  async #useLastGood(): Promise<void> {
    const { lastGood, target, logger, checks } = this.#options;
    let found: LastGood | undefined;
    try {
      found = await lastGood.read();
    } catch (error) {
      logger.error('registry_last_good_unreadable', { error: describeError(error) });
    }
    // A notification may have loaded the truth in the meantime.
    if (!found || !this.#running || target.snapshot !== undefined) return;
    const { definition, problems } = assemble(candidatesOf(found.definition), checks);
    this.#report(problems);
    this.#loadedAtMs = found.loadedAtMs;
    target.swap(definition, { loadedAtMs: found.loadedAtMs, stale: true });
    logger.warn('registry_stale', { loadedAt: new Date(found.loadedAtMs).toISOString() });
  }

  #retryLater(): void {
    this.#timer = this.#options.clock.after(this.#backoff.nextMs(), () => {
      this.reload().then((loaded) => {
        if (!this.#running) return;
        if (loaded) this.#schedulePoll();
        else this.#retryLater();
      });
    });
  }

  #schedulePoll(): void {
    this.#timer = this.#options.clock.after(this.#options.pollIntervalMs, () => {
      this.reload().then(() => {
        if (this.#running) this.#schedulePoll();
      });
    });
  }
}
