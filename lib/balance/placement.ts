/**
 * Which node a user without a binding gets, and which one serves a request without a user. It makes no bindings
 * and never looks at users who have one.
 */
import { GatewayError } from '../errors.ts';
import type { Node, Service, Snapshot } from '../model.ts';
import { describeError, type Logger } from '../observe/log.ts';
import type { Clock } from '../support/clock.ts';
import { SingleFlight } from '../support/single-flight.ts';
import { RoundRobin } from './round-robin.ts';
import { SmoothWeighted } from './smooth-weighted.ts';

/** What placement needs of health. */
export interface NodeHealth {
  /** Not DOWN. */
  isUsable(healthKey: string): boolean;
}

/** What placement needs of the bindings. */
export interface BindingCounts {
  /** Node id -> number of bindings, for nodes with at least one. */
  countByNode(serviceId: string): Promise<ReadonlyMap<string, number>>;
}

export interface PlacementOptions {
  readonly health: NodeHealth;
  readonly counts: BindingCounts;
  readonly clock: Clock;
  readonly logger: Logger;
}

type Counted =
  | { readonly ok: true; readonly counts: ReadonlyMap<string, number> }
  | { readonly ok: false; readonly error: unknown };

/** Long-lived state of one service. */
class ServiceState {
  readonly anonymous = new RoundRobin<Node>();
  readonly turns = new RoundRobin<Node>();
  readonly weighted = new SmoothWeighted<Node>();
  /** Candidates handed out and not given back. */
  readonly reserved = new Map<string, number>();
  /** Given back as bound since the last count began: no count is known to have them. */
  readonly settled = new Map<string, number>();
  counted: Counted | null = null;
  countedAtMs = 0;
}

/** Chooses a node and reserves a place on it; `counts` null = not known or not needed. Throws GatewayError. */
type Place = (service: Service, counts: ReadonlyMap<string, number> | null) => Node;

/** Counts are read again after this. */
const COUNTS_FRESH_MS = 1_000;

export class Placement {
  readonly #health: NodeHealth;
  readonly #counts: BindingCounts;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #states = new Map<string, ServiceState>();
  readonly #counting = new SingleFlight<Counted>();

  constructor(options: PlacementOptions) {
    this.#health = options.health;
    this.#counts = options.counts;
    this.#clock = options.clock;
    this.#logger = options.logger;
  }

  /**
   * The node for a user without a binding, by the service's policy, among nodes that are enabled, not draining, not
   * DOWN and not full. The place is reserved: call `release` exactly once when the login is over. Answers without
   * waiting unless bindings must be counted (least-users, or a node with maxUsers).
   *
   * Throws (or rejects with) GatewayError `no_node_available`, `no_capacity` if all that are usable are full, or
   * `directory_unavailable` if maxUsers is to be kept and the bindings cannot be counted.
   */
  choose(service: Service): Node | Promise<Node> {
    return this.#choose(service, this.#place);
  }

  /** What `choose` would say now; no place is reserved and nobody's turn is taken. Throws and rejects like it. */
  preview(service: Service): Node | Promise<Node> {
    return this.#choose(service, this.#placeForShow);
  }

  #choose(service: Service, place: Place): Node | Promise<Node> {
    if (service.placement !== 'least-users' && !this.#isLimited(service)) return place(service, null);
    return this.#chooseCounted(service, place);
  }

  /** Takes a place on `node` without choosing, for example on a default node. */
  reserve(node: Node): void {
    addTo(this.#stateOf(node.serviceId).reserved, node.id, 1);
  }

  /** Gives a place back. `bound` false = the user was certainly not bound there, so the place is free at once. */
  release(node: Node, bound = true): void {
    const state = this.#stateOf(node.serviceId);
    if (!state.reserved.has(node.id)) return;
    addTo(state.reserved, node.id, -1);
    if (bound) addTo(state.settled, node.id, 1);
  }

  /** Round robin over enabled, not draining, not DOWN nodes. Throws GatewayError `no_node_available`. */
  anonymous(service: Service): Node {
    const node = this.#stateOf(service.id).anonymous.next(service.nodes, this.#isOpen);
    if (!node) throw noNodeAvailable(service);
    return node;
  }

  /** What `anonymous` would say now; nobody's turn is taken. */
  previewAnonymous(service: Service): Node {
    const restore = this.#stateOf(service.id).anonymous.keep();
    try {
      return this.anonymous(service);
    } finally {
      restore();
    }
  }

  /** Forgets services and nodes that are gone; call on every snapshot swap. */
  update(snapshot: Snapshot): void {
    for (const [serviceId, state] of this.#states) {
      const service = snapshot.services.get(serviceId);
      if (!service) {
        this.#states.delete(serviceId);
        continue;
      }
      state.weighted.retain(new Set(service.nodesById.keys()));
      for (const nodeId of state.settled.keys()) {
        if (!service.nodesById.has(nodeId)) state.settled.delete(nodeId);
      }
    }
  }

  readonly #isOpen = (node: Node): boolean => node.enabled && !node.draining && this.#health.isUsable(node.healthKey);

  #isLimited(service: Service): boolean {
    return service.nodes.some((node) => node.maxUsers !== null && this.#isOpen(node));
  }

  async #chooseCounted(service: Service, place: Place): Promise<Node> {
    if (!service.nodes.some(this.#isOpen)) throw noNodeAvailable(service);
    const counted = await this.#count(service.id);
    if (counted.ok) return place(service, counted.counts);
    // Asked now and not before the wait: a node with a limit may have come up meanwhile.
    if (!this.#isLimited(service)) return place(service, null);
    throw new GatewayError('directory_unavailable', 'bound users cannot be counted at the moment', {
      cause: counted.error,
    });
  }

  /** Chooses and reserves in one go, so that parallel logins see each other. `counts` null = not known or needed. */
  readonly #place: Place = (service, counts) => {
    const state = this.#stateOf(service.id);
    const loadOf = (node: Node): number =>
      (counts?.get(node.id) ?? 0) + (state.reserved.get(node.id) ?? 0) + (state.settled.get(node.id) ?? 0);
    const hasRoom = (node: Node): boolean => counts === null || node.maxUsers === null || loadOf(node) < node.maxUsers;
    const isCandidate = (node: Node): boolean => this.#isOpen(node) && hasRoom(node);
    const node = this.#pick(service, state, isCandidate, counts === null ? null : loadOf);
    if (!node) throw this.#refusal(service);
    this.reserve(node);
    return node;
  };

  /** As `#place`, and all of it undone in the same tick. */
  readonly #placeForShow: Place = (service, counts) => {
    const { turns, weighted } = this.#stateOf(service.id);
    const restore = [turns.keep(), weighted.keep()];
    try {
      const node = this.#place(service, counts);
      this.release(node, false);
      return node;
    } finally {
      for (const one of restore) one();
    }
  };

  #pick(
    service: Service,
    state: ServiceState,
    isCandidate: (node: Node) => boolean,
    loadOf: ((node: Node) => number) | null,
  ): Node | undefined {
    const { nodes } = service;
    if (service.placement === 'weighted') return state.weighted.next(nodes, isCandidate);
    if (service.placement === 'round-robin' || loadOf === null) return state.turns.next(nodes, isCandidate);
    const least = Math.min(...nodes.filter(isCandidate).map(loadOf));
    // In turn among equals, so that a start with empty nodes does not begin with the same node every time.
    return state.turns.next(nodes, (node) => isCandidate(node) && loadOf(node) === least);
  }

  #refusal(service: Service): GatewayError {
    const takesUsers = (node: Node): boolean =>
      this.#isOpen(node) && (service.placement !== 'weighted' || node.weight > 0);
    return service.nodes.some(takesUsers)
      ? new GatewayError('no_capacity', `every usable node of service '${service.id}' is full`)
      : noNodeAvailable(service);
  }

  /** Counts not older than COUNTS_FRESH_MS; a failure is kept as long, so that logins do not storm a failing store. */
  async #count(serviceId: string): Promise<Counted> {
    const state = this.#stateOf(serviceId);
    if (state.counted && this.#clock.monotonic() - state.countedAtMs < COUNTS_FRESH_MS) return state.counted;
    return this.#counting.run(serviceId, () => this.#readCounts(serviceId, state));
  }

  async #readCounts(serviceId: string, state: ServiceState): Promise<Counted> {
    // What settles while the count runs may or may not be in it, and stays added to be safe; what settled before is.
    const settledBefore = new Map(state.settled);
    const counted = await this.#counts.countByNode(serviceId).then(
      (counts): Counted => ({ ok: true, counts }),
      (error: unknown): Counted => ({ ok: false, error }),
    );
    if (counted.ok) {
      for (const [nodeId, count] of settledBefore) addTo(state.settled, nodeId, -count);
    } else {
      this.#logger.warn('placement_count_failed', { serviceId, error: describeError(counted.error) });
    }
    state.counted = counted;
    state.countedAtMs = this.#clock.monotonic();
    return counted;
  }

  #stateOf(serviceId: string): ServiceState {
    let state = this.#states.get(serviceId);
    if (!state) {
      state = new ServiceState();
      this.#states.set(serviceId, state);
    }
    return state;
  }
}

function noNodeAvailable(service: Service): GatewayError {
  return new GatewayError('no_node_available', `no node of service '${service.id}' can take requests`);
}

function addTo(counts: Map<string, number>, key: string, by: number): void {
  const sum = (counts.get(key) ?? 0) + by;
  if (sum > 0) counts.set(key, sum);
  else counts.delete(key);
}
