#!/usr/bin/env node
/** The command: reads its arguments, starts what they ask for, and turns the outcome into an exit code. */
import cluster from 'node:cluster';
import * as fs from 'node:fs';
import { parseArgs } from 'node:util';
import { ConfigError, readConfigFile } from '../lib/config/load.ts';
import type { GatewayOptions } from '../lib/config/options.ts';
import { OperatorError } from '../lib/errors.ts';
import { BufferedSink } from '../lib/observe/buffered-sink.ts';
import { describeError, LineLogger } from '../lib/observe/log.ts';
import { checkFiles } from '../lib/process/check-files.ts';
import { takeInheritedSockets } from '../lib/process/inherited-sockets.ts';
import { takeNotifier } from '../lib/process/notify.ts';
import { findPackageFile } from '../lib/process/package-file.ts';
import { runUntilSignal } from '../lib/process/shutdown.ts';
import { watchUnhandledErrors } from '../lib/process/unhandled-errors.ts';
import { migrate } from '../lib/stores/migrate.ts';
import { PostgresStore } from '../lib/stores/postgres.ts';
import { StoreUnavailable } from '../lib/stores/store-unavailable.ts';
import { systemClock } from '../lib/support/clock.ts';
import { Gateway } from './compose.ts';
import { countWorkers, Primary } from './primary.ts';
import { runWorker } from './worker.ts';

const HELP = `sticky-gateway: binds each user to one node and never sends them to another

  sticky-gateway [serve] --config gateway.yaml   run the gateway
  sticky-gateway check --config gateway.yaml     check the file, print every mistake
  sticky-gateway migrate --config gateway.yaml   bring the PostgreSQL schema up to date
  sticky-gateway --version | --help

Exit codes: 0 done, 1 it failed, 2 the command line is wrong.
Signals: SIGTERM and SIGINT finish what runs and stop, a second one stops at once; SIGHUP reads the file again.
`;

const EXIT_FAILED = 1;
const EXIT_USAGE = 2;

class UsageError extends Error {}

interface Arguments {
  readonly command: string;
  readonly config: string;
}

async function main(argv: readonly string[]): Promise<number> {
  const parsed = readArguments(argv);
  if (parsed === undefined) return 0;
  switch (parsed.command) {
    case 'serve':
      return serve(parsed.config);
    case 'check':
      return check(parsed.config);
    case 'migrate':
      return migrateSchema(parsed.config);
    default:
      throw new UsageError(`there is no command '${parsed.command}' (serve, check, migrate)`);
  }
}

/** Undefined = help or version was asked for and printed. */
function readArguments(argv: readonly string[]): Arguments | undefined {
  let parsed: ReturnType<typeof parse>;
  try {
    parsed = parse(argv);
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
  const { values, positionals } = parsed;
  if (values.help) {
    process.stdout.write(HELP);
    return undefined;
  }
  if (values.version) {
    process.stdout.write(`${readVersion()}\n`);
    return undefined;
  }
  const [command = 'serve', ...rest] = positionals;
  if (values.config === undefined) {
    const file = positionals.find((word) => /\.ya?ml$/.test(word));
    throw new UsageError(`--config FILE is missing${file === undefined ? '' : `: write --config ${file}`}`);
  }
  if (rest.length > 0) throw new UsageError(`what is '${rest[0]}' for? One command at a time`);
  return { command, config: values.config };
}

function parse(argv: readonly string[]) {
  return parseArgs({
    args: [...argv],
    allowPositionals: true,
    options: {
      config: { type: 'string', short: 'c' },
      help: { type: 'boolean', short: 'h' },
      version: { type: 'boolean', short: 'v' },
    },
  });
}

function readVersion(): string {
  return (JSON.parse(fs.readFileSync(findPackageFile('package.json'), 'utf8')) as { version: string }).version;
}

async function check(config: string): Promise<number> {
  const problems = checkFiles(await readConfigFile(config, process.env));
  if (problems.length > 0) throw new OperatorError(problems.join('\n'));
  process.stdout.write(`${config}: no mistakes found\n`);
  return 0;
}

async function migrateSchema(config: string): Promise<number> {
  const options = await readConfigFile(config, process.env);
  if (!options.store.postgres)
    throw new OperatorError(`${config}: store.postgres is not set: there is nothing to migrate`);
  const postgres = new PostgresStore(options.store.postgres, makeLogger(options).logger, systemClock);
  try {
    await migrate(postgres);
  } finally {
    await postgres.stop();
  }
  process.stdout.write('the schema is up to date\n');
  return 0;
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

function report(error: unknown): number {
  if (error instanceof UsageError) {
    process.stderr.write(`sticky-gateway: ${error.message}\n\n${HELP}`);
    return EXIT_USAGE;
  }
  // Each mistake stands on its own line, as compilers print them.
  if (error instanceof ConfigError) process.stderr.write(`${error.message}\n`);
  else if (error instanceof StoreUnavailable) process.stderr.write(`sticky-gateway: ${describeError(error)}\n`);
  else if (error instanceof OperatorError) process.stderr.write(`sticky-gateway: ${error.message}\n`);
  else process.stderr.write(`sticky-gateway: unexpected: ${error instanceof Error ? error.stack : String(error)}\n`);
  return EXIT_FAILED;
}

process.exitCode = await (cluster.isWorker ? runWorker() : main(process.argv.slice(2))).catch(report);
// Sockets of clients that linger must not keep a process alive that has done its work.
process.exit();
