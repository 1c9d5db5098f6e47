/** Gathers log lines for a moment and writes them in one go. What a line says, and how bad it is, it does not know. */
import * as fs from 'node:fs';
import { type Clock, systemClock, type Timer } from '../support/clock.ts';
import type { LineSink } from './log.ts';

const FLUSH_MS = 20;
const FLUSH_BYTES = 65_536;

export class BufferedSink implements LineSink {
  readonly #fileDescriptor: number;
  readonly #pieceBytes: number;
  #pending = '';
  readonly #clock: Clock;
  #timer: Timer | undefined;
  /** Lines that could not be written: a closed pipe, a full disk. */
  lost = 0;

  /**
   * `pieceBytes`: most bytes of one write; every piece ends with a line. For processes that share a pipe, which takes
   * up to 4,096 bytes (PIPE_BUF) as a whole and may mix larger ones.
   */
  constructor(fileDescriptor: number, clock: Clock = systemClock, pieceBytes: number = Number.POSITIVE_INFINITY) {
    this.#fileDescriptor = fileDescriptor;
    this.#pieceBytes = pieceBytes;
    this.#clock = clock;
  }

  write(line: string): void {
    this.#pending += line;
    if (this.#pending.length > FLUSH_BYTES) this.flush();
    else this.#timer ??= this.#clock.after(FLUSH_MS, () => this.flush());
  }

  /** Writes what is pending, synchronously: nothing is lost when the process ends right after. */
  flush(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
    if (this.#pending === '') return;
    let rest = Buffer.from(this.#pending);
    this.#pending = '';
    for (let waits = 0; rest.length > 0 && waits < MOST_WAITS; ) {
      try {
        const piece = rest.subarray(0, endOfPiece(rest, this.#pieceBytes));
        rest = rest.subarray(fs.writeSync(this.#fileDescriptor, piece));
      } catch (error) {
        // A pipe whose reader is slow: wait a moment instead of losing lines, but not for ever.
        if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') break;
        Atomics.wait(SLEEP, 0, 0, 5);
        waits += 1;
      }
    }
    for (const byte of rest) if (byte === LINE_FEED) this.lost += 1;
  }
}

const MOST_WAITS = 40;
const LINE_FEED = 10;
const SLEEP = new Int32Array(new SharedArrayBuffer(4));

/** Where the last line that fits ends; a line that is longer than a piece goes alone. */
function endOfPiece(bytes: Buffer, most: number): number {
  if (bytes.length <= most) return bytes.length;
  const fitting = bytes.lastIndexOf(LINE_FEED, most - 1);
  if (fitting >= 0) return fitting + 1;
  const end = bytes.indexOf(LINE_FEED);
  return end < 0 ? bytes.length : end + 1;
}
