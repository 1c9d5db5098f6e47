/** Smooth weighted round robin: shares by weight, spread evenly over time. Weight 0 gets nothing. */
import type { Selectable, Selector } from './selector.ts';
import { weigh } from './weigh.ts';

/**
 * The algorithm of nginx (commit 52327e0627f4, "smooth weighted round-robin balancing"): each pick adds every
 * node's weight to its current value, takes the node with the largest (the first of equals), and subtracts the
 * total from it. 3:2:1 gives A B A C B A.
 *
 * Where nginx differs: when the total changes because a node came, went, was refused or reweighted, current values
 * are scaled along. Else the debt of a light node from the time of a heavy one would starve it for many rounds.
 */
export class SmoothWeighted<T extends Selectable> implements Selector<T> {
  /** What nodes are owed that are not in `#nodes` at the moment, in units of weight; negative after a pick. */
  readonly #aside = new Map<string, number>();
  /** The same of `#nodes`, in its order, so that a pick does no look-ups. */
  #owed = new Float64Array(0);
  /** Weights in the pick under way, 0 = not accepted. */
  #weights = new Float64Array(0);
  #nodes: readonly T[] = [];
  #lastTotal = 0;

  next(nodes: readonly T[], accepts: (node: T) => boolean): T | undefined {
    if (nodes !== this.#nodes) this.#lineUp(nodes);
    const total = weigh(nodes, accepts, this.#weights);
    if (total === 0) return undefined;
    if (this.#lastTotal !== 0 && total !== this.#lastTotal) this.#scale(total / this.#lastTotal);
    this.#lastTotal = total;
    return nodes[pick(this.#owed, this.#weights, total)];
  }

  retain(ids: ReadonlySet<string>): void {
    this.#lineUp([]);
    for (const id of this.#aside.keys()) {
      if (!ids.has(id)) this.#aside.delete(id);
    }
  }

  keep(): () => void {
    const aside = [...this.#aside];
    const owed = this.#owed.slice();
    const nodes = this.#nodes;
    const lastTotal = this.#lastTotal;
    return () => {
      this.#lineUp(nodes);
      this.#aside.clear();
      for (const [id, value] of aside) this.#aside.set(id, value);
      this.#owed = owed;
      this.#lastTotal = lastTotal;
    };
  }

  #lineUp(nodes: readonly T[]): void {
    this.#nodes.forEach((node, index) => {
      this.#aside.set(node.id, this.#owed[index] ?? 0);
    });
    this.#nodes = nodes;
    this.#owed = Float64Array.from(nodes, (node) => this.#aside.get(node.id) ?? 0);
    this.#weights = new Float64Array(nodes.length);
    for (const node of nodes) this.#aside.delete(node.id);
  }

  #scale(factor: number): void {
    for (const [id, owed] of this.#aside) this.#aside.set(id, owed * factor);
    this.#owed = this.#owed.map((owed) => owed * factor);
  }
}

/** The index of the node picked; one at least has a weight. */
function pick(owed: Float64Array, weights: Float64Array, total: number): number {
  let best = 0;
  let most = Number.NEGATIVE_INFINITY;
  for (let index = 0; index < owed.length; index += 1) {
    const weight = weights[index] ?? 0;
    if (weight === 0) continue;
    const now = (owed[index] ?? 0) + weight;
    owed[index] = now;
    if (now <= most) continue;
    best = index;
    most = now;
  }
  owed[best] = most - total;
  return best;
}
