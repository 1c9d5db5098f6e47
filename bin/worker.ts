/** A worker process: a gateway without an admin listener that does what the primary says. */
import cluster from 'node:cluster';
import { OperatorError } from '../lib/errors.ts';
import { BufferedSink } from '../lib/observe/buffered-sink.ts';
import { describeError, LineLogger } from '../lib/observe/log.ts';
import { watchUnhandledErrors } from '../lib/process/unhandled-errors.ts';
import { WorkerLink } from '../lib/process/worker-link.ts';
import { type FromWorker, isWorkerMessage, type ToWorker } from '../lib/process/worker-messages.ts';
import { StoreUnavailable } from '../lib/stores/store-unavailable.ts';
import { systemClock } from '../lib/support/clock.ts';
import { Gateway } from './compose.ts';

/** So large a write to a pipe is not mixed with those of other processes (PIPE_BUF). */
const PIECE_BYTES = 4_096;
const EXIT_FAILED = 1;

/** Resolves with the exit code. */
export async function runWorker(): Promise<number> {
  // A Ctrl-C and some supervisors signal all processes of a service: the primary says what is to be done.
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.on(signal, () => undefined);
  // Node ends a worker whose primary is gone. A message that cannot be sent any more is followed by that.
  const send = (message: FromWorker) => {
    if (process.connected) process.send?.(message, undefined, {}, () => undefined);
  };
  const link = new WorkerLink({ send, clock: systemClock });
  process.on('message', (message) => {
    if (isWorkerMessage(message)) link.receive(message as ToWorker);
  });
  link.hello();
  const { place, options, sockets, adminSocket } = await link.started;
  const sink = new BufferedSink(process.stdout.fd, systemClock, PIECE_BYTES);
  const logger = new LineLogger(options.log, sink, { worker: place });
  process.once('exit', () => sink.flush());
  watchUnhandledErrors(logger, () => {
    sink.flush();
    process.exit(EXIT_FAILED);
  });
  const gateway = new Gateway(options, {
    logger,
    clock: systemClock,
    healthChannel: link.health,
    adminSocket,
    reload: (dryRun) => link.requestReload(dryRun),
    sockets: { listen: sockets, admin: null },
  });
  const unsubscribe = gateway.registry.subscribe(() => {
    unsubscribe();
    link.loaded();
  });
  link.attach({
    beginClosing: () => gateway.beginClosing(),
    stopAccepting: () => gateway.stopAccepting(),
    drain: (graceMs) => gateway.drain(graceMs),
    stop: () => gateway.stop(),
    refresh: () => gateway.refresh(),
    prepareReload: (read) => gateway.prepareReload(read),
    appoint: (probes) => gateway.appoint(probes),
    receiveHealth: (from, message) => gateway.receiveHealth(from, message),
    collectMetrics: () => gateway.metrics.collect(),
  });
  try {
    await gateway.start();
  } catch (error) {
    link.failed(explain(error));
    await disconnected();
    return EXIT_FAILED;
  }
  link.ready(gateway.summary);
  await link.stopped;
  await disconnected();
  return 0;
}

function explain(error: unknown): string {
  if (error instanceof StoreUnavailable) return describeError(error);
  if (error instanceof OperatorError) return error.message;
  return `unexpected: ${error instanceof Error ? error.stack : String(error)}`;
}

/** Until the last message is sent: the end of the process would lose it. */
function disconnected(): Promise<void> {
  return new Promise((resolve) => {
    if (!cluster.worker?.isConnected()) return resolve();
    process.once('disconnect', () => resolve());
    cluster.worker.disconnect();
  });
}
