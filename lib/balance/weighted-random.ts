/** A random node, by weight; remembers none of its choices. Weight 0 gets nothing. */
import type { Selectable, Selector } from './selector.ts';
import { weigh } from './weigh.ts';

export class WeightedRandom<T extends Selectable> implements Selector<T> {
  readonly #random: () => number;
  /** Room for the weights in one choice. */
  #weights = new Float64Array(0);

  /** `random`: [0, 1). */
  constructor(random: () => number = Math.random) {
    this.#random = random;
  }

  next(nodes: readonly T[], accepts: (node: T) => boolean): T | undefined {
    if (this.#weights.length !== nodes.length) this.#weights = new Float64Array(nodes.length);
    const total = weigh(nodes, accepts, this.#weights);
    if (total === 0) return undefined;
    let left = this.#random() * total;
    let chosen: T | undefined;
    // The last one with a weight also gets what rounding leaves over.
    for (let index = 0; index < nodes.length; index += 1) {
      const weight = this.#weights[index] ?? 0;
      if (weight === 0) continue;
      chosen = nodes[index];
      left -= weight;
      if (left < 0) break;
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
