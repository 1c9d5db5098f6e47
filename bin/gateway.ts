#!/usr/bin/env node
/** The command: makes the parts that commands need, runs the one that was asked for, and ends with its exit code. */
import cluster from 'node:cluster';
import { commandTable } from '../lib/cli/commands.ts';
import { runCommandLine } from '../lib/cli/run.ts';
import { readConfigFile } from '../lib/config/load.ts';
import type { GatewayOptions } from '../lib/config/options.ts';
import { OperatorError } from '../lib/errors.ts';
import { BufferedSink } from '../lib/observe/buffered-sink.ts';
import { LineLogger } from '../lib/observe/log.ts';
import { checkFiles } from '../lib/process/check-files.ts';
import { takeInheritedSockets } from '../lib/process/inherited-sockets.ts';
import { takeNotifier } from '../lib/process/notify.ts';
import { readVersion } from '../lib/process/package-file.ts';
import { runUntilSignal } from '../lib/process/shutdown.ts';
import { watchUnhandledErrors } from '../lib/process/unhandled-errors.ts';
import { migrate } from '../lib/stores/migrate.ts';
import { PostgresStore } from '../lib/stores/postgres.ts';
import { systemClock } from '../lib/support/clock.ts';
import { Gateway } from './compose.ts';
import { countWorkers, Primary } from './primary.ts';
import { runWorker } from './worker.ts';

const EXIT_FAILED = 1;

async function migrateSchema(config: string): Promise<void> {
  const options = await readConfigFile(config, process.env);
  if (!options.store.postgres)
    throw new OperatorError(`${config}: store.postgres is not set: there is nothing to migrate`);
  // What the store has to say goes where errors go: stdout is for the result.
  const logger = new LineLogger(options.log, { write: (line) => void process.stderr.write(line) });
  const postgres = new PostgresStore(options.store.postgres, logger, systemClock);
  try {
    await migrate(postgres);
  } finally {
    await postgres.stop();
  }
}

async function serve(config: string): Promise<number> {
  const options = await readConfigFile(config, process.env);
  const { logger, sink } = makeLogger(options);
  process.once('exit', () => sink.flush());
  watchUnhandledErrors(logger, () => {
    sink.flush();
    process.exit(EXIT_FAILED);
  });
  const readOptions = () => readConfigFile(config, process.env);
  const notifier = takeNotifier(process.env, logger);
  const sockets = takeInheritedSockets(process.env, process.pid, options);
  const gateway =
    countWorkers(options) > 1
      ? new Primary(options, logger, sockets, readOptions)
      : new Gateway(options, { logger, clock: systemClock, readOptions, sockets });
  await gateway.start();
  return runUntilSignal({
    gateway,
    logger,
    notifier,
    status: `listening on ${gateway.summary.on.join(', ')}`,
    ...('failed' in gateway ? { failed: gateway.failed } : {}),
    graceMs: options.shutdown.graceMs,
    delayMs: options.shutdown.delayMs,
    clock: systemClock,
    reload: async () => void (await gateway.reload(await readOptions())),
  });
}

function makeLogger(options: GatewayOptions): { logger: LineLogger; sink: BufferedSink } {
  const sink = new BufferedSink(process.stdout.fd);
  return { logger: new LineLogger(options.log, sink), sink };
}

process.exitCode = cluster.isWorker
  ? await runWorker()
  : await runCommandLine({
      argv: process.argv.slice(2),
      commands: commandTable({ serve, migrate: migrateSchema, checkFiles }),
      stdin: () => process.stdin,
      stdout: process.stdout,
      stderr: process.stderr,
      env: process.env,
      clock: systemClock,
      version: readVersion,
    });
// Sockets of clients that linger must not keep a process alive that has done its work.
process.exit();
