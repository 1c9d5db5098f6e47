/**
 * Picks the node for one request of a stateless service, and another one when that fails: the order of choice among
 * the service's nodes, by the service's own selector. It sends nothing and keeps no health of its own.
 */
import { GatewayError } from '../errors.ts';
import type { Balance, Node, Service, Snapshot } from '../model.ts';
import { createSelector } from './create-selector.ts';
import type { Selector } from './selector.ts';

/** What the choice needs of health. */
export interface BalancerHealth {
  /** Counts up with each change: what was read at the same number still holds. */
  version(): number;
  /** UNKNOWN for an address that is not watched. */
  stateOf(healthKey: string): 'UNKNOWN' | 'UP' | 'DOWN';
  /** False until the first observation of any kind. */
  wasChecked(healthKey: string): boolean;
  /** Probes those never checked; calls that overlap share the probes. Never rejects. */
  probeUnknown(nodes: readonly Node[]): Promise<void>;
}

/** Long-lived state of one service. */
interface Balancing {
  readonly balance: Balance;
  readonly selector: Selector<Node>;
  /** The nodes of `service` that were UP at `version` of health. */
  up: readonly Node[];
  service: Service | null;
  version: number;
}

/** Their selectors go through the whole list for each choice, and asking for the health of each would cost most of it. */
const SCANNING: ReadonlySet<Balance> = new Set(['weighted', 'random']);

const anyNode = () => true;

export class StatelessBalancer {
  readonly #health: BalancerHealth;
  readonly #balancing = new Map<string, Balancing>();

  constructor(health: BalancerHealth) {
    this.#health = health;
  }

  /**
   * Among the nodes that are switched on and not draining, those that are UP. If there is none, the never-probed ones
   * are probed at once and those found UP are taken; then those of which nobody can say yet (UNKNOWN); then those that
   * are DOWN all the same, since a late answer beats a sure refusal. Answers without waiting while any is UP.
   *
   * Throws, or rejects with, GatewayError `no_node_available`.
   */
  choose(service: Service, hashKey: string): Node | Promise<Node> {
    const node = this.#nextUp(service, hashKey);
    if (node) return node;
    return service.nodes.some(this.#isNew) ? this.#probeThenChoose(service, hashKey) : this.#makeDo(service, hashKey);
  }

  /** Like `choose`, but without those `tried` and without waiting; `fit` = none that is DOWN. Undefined = none left. */
  another(service: Service, hashKey: string, tried: readonly Node[], fit: boolean): Node | undefined {
    const { selector } = this.#of(service);
    const next = (accepts: (node: Node) => boolean) =>
      selector.next(service.nodes, (node) => accepts(node) && !tried.includes(node), hashKey);
    return next(this.#isUp) ?? next(this.#isUsable) ?? (fit ? undefined : next(isOpen));
  }

  /** What `choose` would say without a probe; nobody's turn is taken. */
  preview(service: Service, hashKey: string): Node {
    const restore = this.#of(service).selector.keep();
    try {
      return this.#nextUp(service, hashKey) ?? this.#makeDo(service, hashKey);
    } finally {
      restore();
    }
  }

  /** Forgets services and nodes that are gone; the rest keep their turn. */
  update(snapshot: Snapshot): void {
    for (const [serviceId, { selector }] of this.#balancing) {
      const service = snapshot.services.get(serviceId);
      if (service) selector.retain(new Set(service.nodesById.keys()));
      else this.#balancing.delete(serviceId);
    }
  }

  readonly #isUp = (node: Node): boolean => isOpen(node) && this.#health.stateOf(node.healthKey) === 'UP';

  readonly #isUsable = (node: Node): boolean => isOpen(node) && this.#health.stateOf(node.healthKey) !== 'DOWN';

  readonly #isNew = (node: Node): boolean =>
    isOpen(node) && node.weight > 0 && !this.#health.wasChecked(node.healthKey);

  async #probeThenChoose(service: Service, hashKey: string): Promise<Node> {
    await this.#health.probeUnknown(service.nodes.filter(this.#isNew));
    return this.#nextUp(service, hashKey) ?? this.#makeDo(service, hashKey);
  }

  #nextUp(service: Service, hashKey: string): Node | undefined {
    const balancing = this.#of(service);
    const { selector, balance } = balancing;
    if (!SCANNING.has(balance)) return selector.next(service.nodes, this.#isUp, hashKey);
    const version = this.#health.version();
    if (balancing.service !== service || balancing.version !== version) {
      balancing.up = service.nodes.filter(this.#isUp);
      balancing.service = service;
      balancing.version = version;
    }
    return selector.next(balancing.up, anyNode);
  }

  /** No node is known to be well. */
  #makeDo(service: Service, hashKey: string): Node {
    const { selector } = this.#of(service);
    const node = selector.next(service.nodes, this.#isUsable, hashKey) ?? selector.next(service.nodes, isOpen, hashKey);
    if (!node) throw new GatewayError('no_node_available', `no node of service '${service.id}' can take requests`);
    return node;
  }

  #of(service: Service): Balancing {
    const known = this.#balancing.get(service.id);
    if (known?.balance === service.balance) return known;
    const { balance } = service;
    const fresh = { balance, selector: createSelector<Node>(balance), up: [], service: null, version: 0 };
    this.#balancing.set(service.id, fresh);
    return fresh;
  }
}

function isOpen(node: Node): boolean {
  return node.enabled && !node.draining;
}
