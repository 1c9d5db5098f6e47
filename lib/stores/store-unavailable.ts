/** A store did not answer, as opposed to answering "no". What could not be read is never taken for absent. */

export class StoreUnavailable extends Error {
  readonly store: 'postgres' | 'redis' | 'journal';

  constructor(store: 'postgres' | 'redis' | 'journal', cause: unknown) {
    super(`${store} is not available`, { cause });
    this.name = 'StoreUnavailable';
    this.store = store;
  }
}
