/** A clock whose hands the test turns. */
import type { Clock, Timer } from '../../lib/support/clock.ts';

export class FakeClock implements Clock {
  #nowMs: number;
  #wallOffsetMs = 0;
  #sequence = 0;
  readonly #timers = new Map<number, { dueMs: number; callback: () => void }>();

  constructor(startMs = 1_700_000_000_000) {
    this.#nowMs = startMs;
  }

  get pending(): number {
    return this.#timers.size;
  }

  now(): number {
    return this.#nowMs + this.#wallOffsetMs;
  }

  /** Sets the wall clock forward or back, as an operator or NTP may; monotonic time goes on. */
  setWall(byMs: number): void {
    this.#wallOffsetMs += byMs;
  }

  monotonic(): number {
    return this.#nowMs;
  }

  after(delayMs: number, callback: () => void): Timer {
    this.#sequence += 1;
    const id = this.#sequence;
    this.#timers.set(id, { dueMs: this.#nowMs + Math.max(0, delayMs), callback });
    return { cancel: () => void this.#timers.delete(id) };
  }

  /** Fires what falls due, in order, with the clock standing at each due time. */
  advance(byMs: number): void {
    const end = this.#nowMs + byMs;
    for (;;) {
      const next = [...this.#timers]
        .filter(([, t]) => t.dueMs <= end)
        .sort((a, b) => a[1].dueMs - b[1].dueMs || a[0] - b[0])[0];
      if (!next) break;
      const [id, timer] = next;
      this.#timers.delete(id);
      this.#nowMs = timer.dueMs;
      timer.callback();
    }
    this.#nowMs = end;
  }

  /** Like advance, but lets promises settle between timers. */
  async advanceAsync(byMs: number): Promise<void> {
    const end = this.#nowMs + byMs;
    for (;;) {
      await new Promise((resolve) => setImmediate(resolve));
      const next = [...this.#timers]
        .filter(([, t]) => t.dueMs <= end)
        .sort((a, b) => a[1].dueMs - b[1].dueMs || a[0] - b[0])[0];
      if (!next) break;
      const [id, timer] = next;
      this.#timers.delete(id);
      this.#nowMs = timer.dueMs;
      timer.callback();
    }
    this.#nowMs = end;
    await new Promise((resolve) => setImmediate(resolve));
  }
}
