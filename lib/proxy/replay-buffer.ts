/** A copy of what has been sent of one request's body, for as long as that is little. It sends nothing. */

/** Longest body that may be sent again (spec §10). */
export const REPLAY_BYTES = 65_536;

const NOTHING = Buffer.alloc(0);

export class ReplayBuffer {
  readonly #limitBytes: number;
  #copy: Buffer = NOTHING;
  #length = 0;
  #whole = true;

  /** A body of more than `limitBytes` is not kept at all; 0 = none is. */
  constructor(limitBytes: number = REPLAY_BYTES) {
    this.#limitBytes = limitBytes;
  }

  /** True = `bytes` is all that was sent so far. */
  get whole(): boolean {
    return this.#whole;
  }

  /** In the order sent. What was taken stays as it is when more is kept. */
  get bytes(): Buffer {
    return this.#copy.subarray(0, this.#length);
  }

  /** Copied, because a chunk of few bytes may hold on to all that came with it. */
  keep(chunk: Buffer): void {
    if (!this.#whole) return;
    const length = this.#length + chunk.length;
    if (length > this.#limitBytes) {
      this.drop();
      return;
    }
    if (length > this.#copy.length) this.#grow(length);
    chunk.copy(this.#copy, this.#length);
    this.#length = length;
  }

  /** Nothing will be sent again. */
  drop(): void {
    this.#whole = false;
    this.#copy = NOTHING;
    this.#length = 0;
  }

  #grow(least: number): void {
    const larger = Buffer.allocUnsafe(Math.min(this.#limitBytes, Math.max(least, 2 * this.#copy.length)));
    this.#copy.copy(larger, 0, 0, this.#length);
    this.#copy = larger;
  }
}
