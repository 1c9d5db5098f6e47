/** The primary process of several: prepares what is done once, starts the workers, and has the admin listener. */
import * as fs from 'node:fs';
import * as os from 'node:os';
import * as path from 'node:path';
import { ApiRelay } from '../lib/admin/api-relay.ts';
import { AdminServer } from '../lib/admin/server.ts';
import type { GatewayOptions } from '../lib/config/options.ts';
import { describeError, type LeveledLogger, type Logger } from '../lib/observe/log.ts';
import { Metrics } from '../lib/observe/metrics.ts';
import { describeProcess } from '../lib/observe/process-metrics.ts';
import { forkWorker } from '../lib/process/fork-worker.ts';
import type { InheritedSockets } from '../lib/process/inherited-sockets.ts';
import { readVersion } from '../lib/process/package-file.ts';
import type { Stoppable } from '../lib/process/shutdown.ts';
import type { WorkerSummary } from '../lib/process/worker-messages.ts';
import { Workers } from '../lib/process/workers.ts';
import { migrate, verifySchema } from '../lib/stores/migrate.ts';
import { PostgresStore } from '../lib/stores/postgres.ts';
import { StoreUnavailable } from '../lib/stores/store-unavailable.ts';
import { systemClock } from '../lib/support/clock.ts';
import { logListening, logReload } from './compose.ts';

/** A timer's longest period; see Primary.start. */
const LONG_MS = 2 ** 31 - 1;

export function countWorkers({ workers }: Pick<GatewayOptions, 'workers'>): number {
  return workers === 'auto' ? os.availableParallelism() : workers;
}

export class Primary implements Stoppable {
  readonly #options: GatewayOptions;
  readonly #logger: Logger & LeveledLogger;
  readonly #workers: Workers;
  readonly #admin: AdminServer | null;
  /** Nobody but this user can enter it. */
  readonly #adminFolder: string | null;
  #schemaReady = false;
  #keepAlive: NodeJS.Timeout | undefined;

  /** `readOptions`: the file as it is now; rejects with OperatorError for one with mistakes. */
  constructor(
    options: GatewayOptions,
    logger: Logger & LeveledLogger,
    sockets: InheritedSockets,
    readOptions: () => Promise<GatewayOptions>,
  ) {
    this.#options = options;
    this.#logger = logger;
    const { listen, allow } = options.admin;
    const adminFolder = listen ? fs.mkdtempSync(path.join(os.tmpdir(), 'sticky-gateway-admin-')) : null;
    this.#adminFolder = adminFolder;
    const metrics = new Metrics();
    describeProcess(metrics, readVersion());
    this.#workers = new Workers({
      adminSocketOf: (place) => (adminFolder === null ? null : path.join(adminFolder, `${place}.sock`)),
      reload: async (dryRun) => {
        const read = await readOptions();
        if (!dryRun) await this.reload(read);
      },
      count: countWorkers(options),
      options: () => (this.#schemaReady ? withoutMigration(options) : options),
      sockets: sockets.listen,
      fork: forkWorker,
      clock: systemClock,
      logger,
      metrics,
    });
    const relay = new ApiRelay(
      () => this.#workers.adminSocket,
      () => this.#workers.refresh(),
      systemClock,
    );
    this.#admin = listen
      ? new AdminServer({
          listen,
          fd: sockets.admin?.fd,
          allow,
          metrics: this.#workers,
          notReady: () => this.#workers.notReady(),
          api: (request, response, address) => relay.handle(request, response, address),
        })
      : null;
  }

  get summary(): WorkerSummary {
    return this.#workers.summary;
  }

  /** Resolves when the workers cannot go on, with the reason. */
  get failed(): Promise<Error> {
    return this.#workers.failed;
  }

  /** Rejects with OperatorError when something an operator can mend is missing; nothing is left running then. */
  async start(): Promise<void> {
    // While dead workers wait to be replaced, nothing else may keep this process alive.
    this.#keepAlive = setInterval(() => undefined, LONG_MS);
    process.once('exit', () => this.#workers.killAll());
    try {
      this.#schemaReady = await this.#prepareSchema();
      const address = await this.#admin?.start();
      await this.#workers.start();
      logListening(this.#workers.summary, address, this.#logger, { workers: countWorkers(this.#options) });
    } catch (error) {
      await this.stop();
      throw error;
    }
  }

  async reload(options: GatewayOptions): Promise<void> {
    // Read before the workers take anything over, in force after they did.
    const takeEffect = this.#admin?.prepareReload();
    await this.#workers.reload(options);
    takeEffect?.();
    this.#logger.setLevel(options.log.level);
    logReload(this.#options, options, this.#logger);
  }

  beginClosing(): void {
    this.#workers.beginClosing();
  }

  stopAccepting(): void {
    this.#workers.stopAccepting();
  }

  drain(graceMs: number): Promise<number> {
    return this.#workers.drain(graceMs);
  }

  async stop(): Promise<void> {
    await this.#workers.stop();
    this.#admin?.stop();
    clearInterval(this.#keepAlive);
    if (this.#adminFolder !== null) fs.rmSync(this.#adminFolder, { recursive: true, force: true });
  }

  /** Once for all workers. False = PostgreSQL does not answer yet: then each of them sees to it when it does. */
  async #prepareSchema(): Promise<boolean> {
    const { postgres: options } = this.#options.store;
    if (!options) return false;
    const postgres = new PostgresStore(options, this.#logger, systemClock);
    try {
      await (options.migrate ? migrate(postgres) : verifySchema(postgres));
      return true;
    } catch (error) {
      if (!(error instanceof StoreUnavailable)) throw error;
      this.#logger.warn('schema_not_prepared', { error: describeError(error) });
      return false;
    } finally {
      await postgres.stop();
    }
  }
}

function withoutMigration(options: GatewayOptions): GatewayOptions {
  const { store } = options;
  return store.postgres
    ? { ...options, store: { ...store, postgres: { ...store.postgres, migrate: false } } }
    : options;
}
