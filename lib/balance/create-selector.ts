/** The selector that a stateless service's `balance` names. Users' placement is in placement.ts. */
import type { Balance } from '../model.ts';
import { ConsistentHash } from './consistent-hash.ts';
import { RoundRobin } from './round-robin.ts';
import type { Selectable, Selector } from './selector.ts';
import { SmoothWeighted } from './smooth-weighted.ts';
import { WeightedRandom } from './weighted-random.ts';

/** One selector per service. In all of them weight 0 gets nothing (spec §10). `random`: [0, 1). */
export function createSelector<T extends Selectable>(balance: Balance, random?: () => number): Selector<T> {
  switch (balance) {
    case 'weighted':
      return new SmoothWeighted<T>();
    case 'round-robin':
      return new WeightlessRoundRobin<T>();
    case 'random':
      return new WeightedRandom<T>(random);
    case 'consistent-hash':
      return new ConsistentHash<T>();
  }
}

/** Round robin takes no notice of weights but one: 0 is how an operator takes a node out of the balance. */
class WeightlessRoundRobin<T extends Selectable> extends RoundRobin<T> {
  override next(nodes: readonly T[], accepts: (node: T) => boolean): T | undefined {
    return super.next(nodes, (node) => node.weight > 0 && accepts(node));
  }
}
