/**
 * The last resort for errors that nobody caught: says which of them the process may outlive. What ended with them has
 * been lost all the same; each one is a fault of the program and is logged as such.
 */
import type { Logger } from '../observe/log.ts';

/** What a connection reports when its other end leaves; it concerns no other connection. */
const CONNECTION_CODES = new Set(['ECONNRESET', 'ECONNABORTED', 'EPIPE', 'ETIMEDOUT', 'ENOTCONN', 'ECANCELED']);

/**
 * A promise that nobody waited for, or a connection that nobody listened to, must not cut all other users: these are
 * logged. Any other uncaught exception may have left something half done: `onFatal` is called, which ends the process.
 */
export function watchUnhandledErrors(logger: Logger, onFatal: () => void): void {
  process.on('unhandledRejection', (reason) => {
    logger.error('unhandled_rejection', { stack: stackOf(reason) });
  });
  process.on('uncaughtException', (error: NodeJS.ErrnoException) => {
    if (isConnectionError(error)) {
      logger.error('unhandled_connection_error', { stack: stackOf(error) });
      return;
    }
    logger.error('uncaught_exception', { stack: stackOf(error) });
    onFatal();
  });
}

function isConnectionError(error: NodeJS.ErrnoException): boolean {
  return error instanceof Error && error.syscall !== undefined && CONNECTION_CODES.has(error.code ?? '');
}

function stackOf(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}
