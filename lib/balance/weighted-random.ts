/** A random node, by weight; keeps no state. Weight 0 gets nothing. */
import type { Selectable, Selector } from './selector.ts';

export class WeightedRandom<T extends Selectable> implements Selector<T> {
  readonly #random: () => number;

  /** `random`: [0, 1). */
  constructor(random: () => number = Math.random) {
    this.#random = random;
  }

  /** One pass (reservoir sampling): a node replaces the choice so far with the probability weight / weight so far. */
  next(nodes: readonly T[], accepts: (node: T) => boolean): T | undefined {
    let chosen: T | undefined;
    let weightSoFar = 0;
    for (const node of nodes) {
      if (node.weight <= 0 || !accepts(node)) continue;
      weightSoFar += node.weight;
      if (chosen === undefined || this.#random() * weightSoFar < node.weight) chosen = node;
    }
    return chosen;
  }

  retain(): void {
    // Nothing is remembered.
  }

  keep(): () => void {
    return () => undefined;
  }
}
