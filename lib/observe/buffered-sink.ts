/** Gathers log lines for a moment and writes them in one go. What a line says, and how bad it is, it does not know. */
import * as fs from 'node:fs';
import { type Clock, systemClock, type Timer } from '../support/clock.ts';
import type { LineSink } from './log.ts';

const FLUSH_MS = 20;
const FLUSH_BYTES = 65_536;

export class BufferedSink implements LineSink {
  readonly #fileDescriptor: number;
  #pending = '';
  readonly #clock: Clock;
  #timer: Timer | undefined;
  /** Lines that could not be written: a closed pipe, a full disk. */
  lost = 0;

  constructor(fileDescriptor: number, clock: Clock = systemClock) {
    this.#fileDescriptor = fileDescriptor;
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
    for (let attempt = 0; rest.length > 0 && attempt < MAX_ATTEMPTS; attempt += 1) {
      try {
        rest = rest.subarray(fs.writeSync(this.#fileDescriptor, rest));
      } catch (error) {
        // A pipe whose reader is slow: wait a moment instead of losing lines, but not for ever.
        if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') break;
        Atomics.wait(SLEEP, 0, 0, 5);
      }
    }
    for (const byte of rest) if (byte === LINE_FEED) this.lost += 1;
  }
}

const MAX_ATTEMPTS = 40;
const LINE_FEED = 10;
const SLEEP = new Int32Array(new SharedArrayBuffer(4));
