/**
 * Keeps callers from asking a store that just failed: for a short while all are turned away, then one at a time may
 * try until one succeeds. It knows nothing of the store.
 */
import type { Clock } from '../support/clock.ts';

/** Handed to a caller that may ask; exactly one of its methods is called, later calls do nothing. */
export interface Permit {
  succeeded(): void;
  failed(): void;
}

export class CircuitBreaker {
  readonly #clock: Clock;
  readonly #openMs: number;
  #failedAtMs: number | undefined;
  #trialRuns = false;

  /** `openMs`: how long after a failure everybody is turned away. */
  constructor(openMs: number, clock: Clock) {
    this.#openMs = openMs;
    this.#clock = clock;
  }

  /** True from a failure until the next success. */
  get tripped(): boolean {
    return this.#failedAtMs !== undefined;
  }

  /** Undefined = do not ask now. */
  ask(): Permit | undefined {
    if (this.#failedAtMs === undefined) return this.#permit(false);
    if (this.#trialRuns || this.#clock.monotonic() - this.#failedAtMs < this.#openMs) return undefined;
    this.#trialRuns = true;
    return this.#permit(true);
  }

  #permit(trial: boolean): Permit {
    let settled = false;
    const settle = (failedAtMs: number | undefined): void => {
      if (settled) return;
      settled = true;
      if (trial) this.#trialRuns = false;
      this.#failedAtMs = failedAtMs;
    };
    return { succeeded: () => settle(undefined), failed: () => settle(this.#clock.monotonic()) };
  }
}
