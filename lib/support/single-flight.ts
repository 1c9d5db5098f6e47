/** Concurrent calls for one key share one execution. Nothing is kept after it settled. */

export class SingleFlight<T> {
  readonly #flights = new Map<string, Promise<T>>();

  /** Number of keys in flight. */
  get size(): number {
    return this.#flights.size;
  }

  /** Joins the flight of `key` or starts one with `work`. A rejection reaches every caller. */
  run(key: string, work: () => Promise<T>): Promise<T> {
    const running = this.#flights.get(key);
    if (running) return running;
    const flight = work().finally(() => {
      if (this.#flights.get(key) === flight) this.#flights.delete(key);
    });
    this.#flights.set(key, flight);
    return flight;
  }

  /** Later callers start afresh; those already waiting keep their flight. */
  forget(key: string): void {
    this.#flights.delete(key);
  }
}
