/** Time as a dependency, so that tests turn the hands themselves. Every timer of the program goes through it. */

export interface Timer {
  /** Idempotent. */
  cancel(): void;
}

export interface Clock {
  /** Wall clock, epoch milliseconds. */
  now(): number;
  /** Never goes back; milliseconds since an arbitrary start, with fractions. */
  monotonic(): number;
  /** Runs `callback` once after `delayMs`. The timer alone does not keep the process alive. */
  after(delayMs: number, callback: () => void): Timer;
}

export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  after(delayMs, callback) {
    const timer = setTimeout(callback, delayMs);
    timer.unref();
    return { cancel: () => clearTimeout(timer) };
  },
};
