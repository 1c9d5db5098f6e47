/** Picks the node for one request of a stateless service: among the fit ones, by the service's own selector. */
import { GatewayError } from '../errors.ts';
import type { Node, Service, Snapshot } from '../model.ts';
import { createSelector } from './create-selector.ts';
import type { Selector } from './selector.ts';

export class StatelessBalancer {
  readonly #isUsable: (healthKey: string) => boolean;
  readonly #selectors = new Map<string, { balance: string; selector: Selector<Node> }>();

  constructor(health: { isUsable(healthKey: string): boolean }) {
    this.#isUsable = (healthKey) => health.isUsable(healthKey);
  }

  /**
   * The next node that is switched on and not DOWN; when all are DOWN, one of those all the same, since a late answer
   * beats a sure refusal. Throws GatewayError `no_node_available`.
   */
  choose(service: Service, hashKey: string): Node {
    const selector = this.#selectorOf(service);
    const node =
      selector.next(service.nodes, (one) => isOpen(one) && this.#isUsable(one.healthKey), hashKey) ??
      selector.next(service.nodes, isOpen, hashKey);
    if (!node) throw new GatewayError('no_node_available', `no node of service '${service.id}' can take requests`);
    return node;
  }

  /** What `choose` would say now; nobody's turn is taken. */
  preview(service: Service, hashKey: string): Node {
    const restore = this.#selectorOf(service).keep();
    try {
      return this.choose(service, hashKey);
    } finally {
      restore();
    }
  }

  /** Forgets services and nodes that are gone; the rest keep their turn. */
  update(snapshot: Snapshot): void {
    for (const [serviceId, { selector }] of this.#selectors) {
      const service = snapshot.services.get(serviceId);
      if (service) selector.retain(new Set(service.nodesById.keys()));
      else this.#selectors.delete(serviceId);
    }
  }

  #selectorOf(service: Service): Selector<Node> {
    const known = this.#selectors.get(service.id);
    if (known?.balance === service.balance) return known.selector;
    const selector = createSelector<Node>(service.balance);
    this.#selectors.set(service.id, { balance: service.balance, selector });
    return selector;
  }
}

function isOpen(node: Node): boolean {
  return node.enabled && !node.draining;
}
