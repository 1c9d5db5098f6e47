/** What every selector by weight begins with: which nodes take part in a choice, and how much they weigh together. */
import type { Selectable } from './selector.ts';

/**
 * Asks about each node once and writes its weight into `weights`, 0 for one that is refused; `weights` is as long as
 * `nodes`. Returns the total.
 */
export function weigh<T extends Selectable>(
  nodes: readonly T[],
  accepts: (node: T) => boolean,
  weights: Float64Array,
): number {
  let total = 0;
  for (let index = 0; index < nodes.length; index += 1) {
    const node = nodes[index];
    const weight = node !== undefined && node.weight > 0 && accepts(node) ? node.weight : 0;
    weights[index] = weight;
    total += weight;
  }
  return total;
}
