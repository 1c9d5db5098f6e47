/**
 * Tells systemd how the service is doing (Type=notify, sd_notify(3)). Node has no datagram sockets of the Unix kind, so
 * the program systemd-notify carries the message; the unit therefore needs NotifyAccess=all.
 */
import { spawn } from 'node:child_process';
import type { Logger } from '../observe/log.ts';

export interface Notifier {
  /** Also after a reload; `status` is what `systemctl status` shows. */
  ready(status: string): Promise<void>;
  reloading(): Promise<void>;
  stopping(): Promise<void>;
}

export const silentNotifier: Notifier = {
  ready: async () => undefined,
  reloading: async () => undefined,
  stopping: async () => undefined,
};

/** Takes NOTIFY_SOCKET out of `environment`, so that no child speaks for the service. Without it nothing is sent. */
export function takeNotifier(environment: Record<string, string | undefined>, logger: Logger): Notifier {
  const socket = environment['NOTIFY_SOCKET'];
  delete environment['NOTIFY_SOCKET'];
  return socket === undefined || socket === '' ? silentNotifier : new SystemdNotifier(socket, environment, logger);
}

class SystemdNotifier implements Notifier {
  readonly #environment: Record<string, string | undefined>;
  readonly #logger: Logger;
  /** Messages go out one after another: READY must not overtake RELOADING. */
  #last: Promise<void> = Promise.resolve();

  constructor(socket: string, environment: Record<string, string | undefined>, logger: Logger) {
    this.#environment = { ...environment, NOTIFY_SOCKET: socket };
    this.#logger = logger;
  }

  ready(status: string): Promise<void> {
    return this.#send(['READY=1', `STATUS=${oneLine(status)}`]);
  }

  reloading(): Promise<void> {
    // The clock is the one that systemd reads too: CLOCK_MONOTONIC, in microseconds.
    return this.#send(['RELOADING=1', `MONOTONIC_USEC=${process.hrtime.bigint() / 1_000n}`, 'STATUS=reloading']);
  }

  stopping(): Promise<void> {
    return this.#send(['STOPPING=1', 'STATUS=stopping: finishing what runs']);
  }

  #send(message: readonly string[]): Promise<void> {
    this.#last = this.#last.then(() => this.#spawn(message));
    return this.#last;
  }

  /** Resolves when systemd has it, or when it cannot be told: that is logged, and no reason to stop. */
  #spawn(message: readonly string[]): Promise<void> {
    return new Promise((resolve) => {
      const child = spawn('systemd-notify', [...message], { env: this.#environment, stdio: 'ignore' });
      const failed = (error: string) => {
        this.#logger.warn('systemd_not_told', { message: message[0], error });
        resolve();
      };
      child.once('error', (error) => failed(error.message));
      child.once('exit', (code, signal) => (code === 0 ? resolve() : failed(`it ended with ${signal ?? code}`)));
    });
  }
}

function oneLine(text: string): string {
  return text.replaceAll(/[\r\n]+/g, ' ');
}
