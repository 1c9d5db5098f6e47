/**
 * The life of the serving process after its start: signals, and the order in which it winds down. What is to be
 * stopped is the gateway's business.
 */
import { describeError, type Logger } from '../observe/log.ts';
import type { Clock } from '../support/clock.ts';
import { type Notifier, silentNotifier } from './notify.ts';

export interface Stoppable {
  /** From now on not ready; requests are still served. */
  beginClosing(): void;
  /** Takes no more connections and ends each one after its answer. */
  stopAccepting(): void;
  /** Resolves when no request is under way, or after `graceMs`, with the number of those still running. */
  drain(graceMs: number): Promise<number>;
  /** Ends everything; idempotent. */
  stop(): Promise<void>;
}

export interface RunOptions {
  readonly gateway: Stoppable;
  readonly logger: Logger;
  readonly graceMs: number;
  readonly delayMs: number;
  readonly clock: Clock;
  readonly reload: () => Promise<void>;
  /** Resolves when the gateway cannot go on, with the reason. */
  readonly failed?: Promise<Error>;
  readonly notifier?: Notifier;
  /** What the notifier says while all is well. */
  readonly status?: string;
}

/** Resolves with the exit code: 0 when everything was finished in time, 1 when something was cut or it failed. */
export async function runUntilSignal(options: RunOptions): Promise<number> {
  const { gateway, logger, clock, notifier = silentNotifier, status = '' } = options;
  let stopping = false;
  const reload = () => {
    void notifier.reloading();
    options
      .reload()
      .then(
        () => logger.info('reloaded'),
        (error: unknown) => logger.error('reload_refused', { error: describeError(error) }),
      )
      // Refused or not, it serves on.
      .then(() => (stopping ? undefined : notifier.ready(status)));
  };
  process.on('SIGHUP', reload);
  void notifier.ready(status);
  const signal = await Promise.race([nextSignal(), options.failed ?? new Promise<never>(() => undefined)]);
  if (signal instanceof Error) {
    process.off('SIGHUP', reload);
    logger.error('failed', { error: describeError(signal) });
    await gateway.stop();
    return 1;
  }
  stopping = true;
  logger.info('stopping', { signal, graceMs: options.graceMs });
  const again = nextSignal().then(() => 'again' as const);
  void notifier.stopping();
  gateway.beginClosing();
  const finished = windDown(options).then((cut) => ({ cut }));
  const outcome = await Promise.race([again, finished]);
  process.off('SIGHUP', reload);
  if (outcome === 'again') {
    logger.warn('stopped_at_once');
    return 1;
  }
  logger.info('stopped', { cut: outcome.cut, atMs: clock.now() });
  return outcome.cut > 0 ? 1 : 0;
}

async function windDown({ gateway, clock, delayMs, graceMs, logger }: RunOptions): Promise<number> {
  // Balancers in front need a moment to notice that this gateway is not ready any more.
  if (delayMs > 0) await new Promise<void>((resolve) => clock.after(delayMs, resolve));
  gateway.stopAccepting();
  const cut = await gateway.drain(graceMs);
  if (cut > 0) logger.warn('cut', { requests: cut });
  await gateway.stop();
  return cut;
}

function nextSignal(): Promise<NodeJS.Signals> {
  return new Promise((resolve) => {
    const take = (signal: NodeJS.Signals) => {
      process.off('SIGTERM', take);
      process.off('SIGINT', take);
      resolve(signal);
    };
    process.on('SIGTERM', take);
    process.on('SIGINT', take);
  });
}
