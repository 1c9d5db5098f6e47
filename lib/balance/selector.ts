/**
 * The contract of everything that picks one node out of several. A selector yields candidates and keeps its own
 * state by node id; whether a candidate may be used is the caller's to say. It knows nothing of health.
 */

export interface Selectable {
  readonly id: string;
  /** 0 or more. */
  readonly weight: number;
}

export interface Selector<T extends Selectable> {
  /**
   * The next node among those that `accepts` agrees to, or undefined if it agrees to none. `accepts` is called at
   * most once per node and must have no side effects. A node that is not in the list counts as refused. Give the same
   * array each time until something changes: what a selector builds for an array it keeps. Only consistent hashing reads `key`.
   */
  next(nodes: readonly T[], accepts: (node: T) => boolean, key?: string): T | undefined;
  /** Forgets the state of nodes that are not among `ids`. */
  retain(ids: ReadonlySet<string>): void;
  /** Returns the way back to the state of now: for a look at whose turn it would be, within one tick. */
  keep(): () => void;
}
