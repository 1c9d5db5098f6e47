/** Smooth weighted round robin: shares by weight, spread evenly over time. Weight 0 gets nothing. */
import type { Selectable, Selector } from './selector.ts';

interface Standing {
  /** What the node is owed, in units of weight; negative after it was picked. */
  current: number;
  accepted: boolean;
}

/**
 * The algorithm of nginx (commit 52327e0627f4, "smooth weighted round-robin balancing"): each pick adds every
 * node's weight to its current value, takes the node with the largest (the first of equals), and subtracts the
 * total from it. 3:2:1 gives A B A C B A.
 *
 * Where nginx differs: when the total changes because a node came, went, was refused or reweighted, current values
 * are scaled along. Else the debt of a light node from the time of a heavy one would starve it for many rounds.
 */
export class SmoothWeighted<T extends Selectable> implements Selector<T> {
  readonly #standings = new Map<string, Standing>();
  /** The standings of `#nodes`, in its order, so that a pick does no look-ups. */
  #row: Standing[] = [];
  #nodes: readonly T[] = [];
  #lastTotal = 0;

  next(nodes: readonly T[], accepts: (node: T) => boolean): T | undefined {
    if (nodes !== this.#nodes) this.#lineUp(nodes);
    const total = this.#review(nodes, accepts);
    if (total === 0) return undefined;
    if (this.#lastTotal !== 0 && total !== this.#lastTotal) this.#scale(total / this.#lastTotal);
    this.#lastTotal = total;
    return this.#pick(nodes, total);
  }

  retain(ids: ReadonlySet<string>): void {
    for (const id of this.#standings.keys()) {
      if (!ids.has(id)) this.#standings.delete(id);
    }
    this.#nodes = [];
  }

  keep(): () => void {
    const currents = [...this.#standings].map(([id, { current }]) => [id, current] as const);
    const lastTotal = this.#lastTotal;
    return () => {
      for (const standing of this.#standings.values()) standing.current = 0;
      for (const [id, current] of currents) {
        const standing = this.#standings.get(id);
        if (standing) standing.current = current;
      }
      this.#lastTotal = lastTotal;
    };
  }

  #lineUp(nodes: readonly T[]): void {
    this.#nodes = nodes;
    this.#row = nodes.map((node) => {
      const known = this.#standings.get(node.id);
      if (known) return known;
      const standing = { current: 0, accepted: false };
      this.#standings.set(node.id, standing);
      return standing;
    });
  }

  /** Asks about each node once; returns the total weight of those accepted. */
  #review(nodes: readonly T[], accepts: (node: T) => boolean): number {
    let total = 0;
    for (let index = 0; index < nodes.length; index += 1) {
      const node = nodes[index];
      const standing = this.#row[index];
      if (node === undefined || standing === undefined) continue;
      standing.accepted = node.weight > 0 && accepts(node);
      if (standing.accepted) total += node.weight;
    }
    return total;
  }

  #scale(factor: number): void {
    for (const standing of this.#standings.values()) standing.current *= factor;
  }

  #pick(nodes: readonly T[], total: number): T | undefined {
    let best: T | undefined;
    let bestStanding: Standing | undefined;
    for (let index = 0; index < nodes.length; index += 1) {
      const node = nodes[index];
      const standing = this.#row[index];
      if (node === undefined || standing === undefined || !standing.accepted) continue;
      standing.current += node.weight;
      if (bestStanding !== undefined && standing.current <= bestStanding.current) continue;
      best = node;
      bestStanding = standing;
    }
    if (bestStanding !== undefined) bestStanding.current -= total;
    return best;
  }
}
