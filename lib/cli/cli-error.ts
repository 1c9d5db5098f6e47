/** What commands throw: a command line that is wrong, and work that failed. How either is shown is decided in run.ts. */

/** Exit code 2. `command`: whose help to point to; empty = that of the whole program. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
  readonly command: string;

  constructor(message: string, command = '') {
    super(message);
    this.command = command;
  }
}

export interface FailureParts {
  /** For scripts: the API's own code where it gave one. */
  readonly code: string;
  readonly message: string;
  /** What to do about it. */
  readonly hint?: string | undefined;
  /** Told with --json only, beside the message. */
  readonly details?: Readonly<Record<string, unknown>>;
  /** Shown to people before the message, one on a line. */
  readonly lines?: readonly string[];
  readonly cause?: unknown;
}

/** Exit code 1. Never carries a token. */
export class CommandFailure extends Error {
  override readonly name = 'CommandFailure';
  readonly code: string;
  readonly hint: string | undefined;
  readonly details: Readonly<Record<string, unknown>>;
  readonly lines: readonly string[];

  constructor({ code, message, hint, details = {}, lines = [], cause }: FailureParts) {
    super(message, cause === undefined ? undefined : { cause });
    this.code = code;
    this.hint = hint;
    this.details = details;
    this.lines = lines;
  }
}

/** Whoever reads our output has gone, as `head` does: nothing is left to do. Exit code 0. */
export class ReaderGone extends Error {
  override readonly name = 'ReaderGone';
}
