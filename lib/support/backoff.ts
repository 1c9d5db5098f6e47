/** Growing waits between attempts, shifted at random so that many processes do not come back in step. */

export interface BackoffOptions {
  /** First wait, milliseconds. */
  readonly firstMs: number;
  /** Longest wait, milliseconds. */
  readonly mostMs: number;
  /** 0 up to 1, for tests. */
  readonly random?: () => number;
}

export class Backoff {
  readonly #firstMs: number;
  readonly #mostMs: number;
  readonly #random: () => number;
  #attempts = 0;

  constructor(options: BackoffOptions) {
    this.#firstMs = options.firstMs;
    this.#mostMs = options.mostMs;
    this.#random = options.random ?? Math.random;
  }

  /** The wait before the next attempt: doubles each time up to the longest, of which half is random. */
  nextMs(): number {
    const wholeMs = Math.min(this.#mostMs, this.#firstMs * 2 ** Math.min(this.#attempts, 30));
    this.#attempts += 1;
    return wholeMs * (0.5 + this.#random() * 0.5);
  }

  /** After a success the waits start short again. */
  reset(): void {
    this.#attempts = 0;
  }
}
