/** Shows on stderr how far a file has come. It stands in nobody's way: what is not shown is not waited for. */
import type { Clock } from '../support/clock.ts';
import type { CommandOptions, Invocation } from './command.ts';
import type { Output } from './output.ts';

export const PROGRESS_OPTION: CommandOptions = {
  progress: { type: 'boolean', help: 'show progress on stderr where it is no terminal too' },
};

const EVERY_MS = 500;
/** Where lines cannot be written over, fewer of them. */
const EVERY_LINE_MS = 5_000;

export class Progress {
  rows = 0;
  readonly #err: Output | null;
  readonly #what: string;
  readonly #clock: Clock;
  readonly #startedMs: number;
  #shownMs: number;
  #shown = false;

  /** `quiet` = rows are counted, and nothing is shown. */
  constructor(invocation: Pick<Invocation, 'err' | 'flag' | 'clock'>, what: string, quiet = false) {
    const { err, flag, clock } = invocation;
    this.#err = flag('progress') || (err.isTerminal && !quiet) ? err : null;
    this.#what = what;
    this.#clock = clock;
    this.#startedMs = clock.monotonic();
    this.#shownMs = this.#startedMs;
  }

  /** Lines in a piece of a file. */
  take(chunk: Uint8Array): void {
    for (let at = chunk.indexOf(10); at !== -1; at = chunk.indexOf(10, at + 1)) this.rows += 1;
    const nowMs = this.#clock.monotonic();
    if (nowMs - this.#shownMs < (this.#err?.isTerminal ? EVERY_MS : EVERY_LINE_MS)) return;
    this.#shownMs = nowMs;
    this.#show(false);
  }

  end(): void {
    this.#show(true);
  }

  #show(last: boolean): void {
    if (!this.#err || (last && !this.#shown && !this.#err.isTerminal && this.rows === 0)) return;
    this.#shown = true;
    const seconds = Math.max(0.001, (this.#clock.monotonic() - this.#startedMs) / 1_000);
    const rate = Math.round(this.rows / seconds);
    const text = `${this.#what}: ${grouped(this.rows)} rows, ${grouped(rate)} rows/s, ${seconds.toFixed(1)} s`;
    this.#err.stream.write(this.#err.isTerminal ? `\r\u001b[K${text}${last ? '\n' : ''}` : `${text}\n`);
  }
}

/** 1,000,000 */
export function grouped(count: number): string {
  return count.toLocaleString('en-US');
}
