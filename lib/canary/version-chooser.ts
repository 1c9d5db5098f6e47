/**
 * Picks a version of a route: by an explicit rule, or by weight. Where a user is bound comes in between and is
 * asked in bound-versions.ts.
 */
import { GatewayError } from '../errors.ts';
import type { Route, Service, Snapshot } from '../model.ts';
import { type PlannedVersion, planRoute, type RoutePlan } from './route-plan.ts';
import type { RuledRequest } from './rules.ts';
import { isAmong, shareOf } from './shares.ts';

/** Gives versions their turns by weight; keeps its state by version. */
export interface VersionTurns {
  next(versions: readonly PlannedVersion[], accepts: (version: PlannedVersion) => boolean): PlannedVersion | undefined;
  retain(names: ReadonlySet<string>): void;
  /** Returns the way back to the state of now. */
  keep(): () => void;
}

export interface VersionChooserOptions {
  /** New turns for a route. */
  readonly turns: () => VersionTurns;
  /** Not DOWN. */
  readonly isUsable: (healthKey: string) => boolean;
  /** [0, 1). */
  readonly random?: () => number;
}

const anyVersion = (): boolean => true;

export class VersionChooser {
  readonly #turns: () => VersionTurns;
  readonly #isUsable: (healthKey: string) => boolean;
  readonly #random: () => number;
  /** By the snapshot's route: a plan goes with its snapshot. */
  readonly #plans = new WeakMap<Route, RoutePlan>();
  readonly #turnsOf = new Map<string, VersionTurns>();

  constructor(options: VersionChooserOptions) {
    this.#turns = options.turns;
    this.#isUsable = options.isUsable;
    this.#random = options.random ?? Math.random;
  }

  planOf(route: Route): RoutePlan {
    let plan = this.#plans.get(route);
    if (!plan) {
      plan = planRoute(route);
      this.#plans.set(route, plan);
    }
    return plan;
  }

  /** The version of the first explicit rule that matches. */
  byRule(plan: RoutePlan, request: RuledRequest): PlannedVersion | undefined {
    for (const { test, version } of plan.rules) if (test(request)) return version;
    return undefined;
  }

  /**
   * The version of a user without a binding. `subject`: the user id, or the normalized username at a login; null =
   * nobody, who draws anew each time. With `fallback` only versions with a usable node count, as long as there is one.
   * Throws GatewayError `service_disabled` when every version is switched off, `no_node_available` when none of those
   * left has a weight.
   */
  byWeight(plan: RoutePlan, subject: string | null): PlannedVersion {
    const version = plan.route.fallback ? this.#amongUsable(plan, subject) : this.#draw(plan, subject, anyVersion);
    if (version) return version;
    throw plan.versions.length === 0
      ? new GatewayError('service_disabled', 'every version behind this path is switched off')
      : new GatewayError('no_node_available', 'no version behind this path takes requests by weight');
  }

  /** What `byWeight` would say now; no version's turn is taken. */
  preview(plan: RoutePlan, subject: string | null): PlannedVersion {
    const restore = this.#turnsFor(plan.route.id).keep();
    try {
      return this.byWeight(plan, subject);
    } finally {
      restore();
    }
  }

  /** Forgets routes and versions that are gone; the others keep their turns. */
  update(snapshot: Snapshot): void {
    for (const [routeId, turns] of this.#turnsOf) {
      const route = snapshot.routes.get(routeId);
      if (route) turns.retain(new Set(route.versions.map(({ version }) => version)));
      else this.#turnsOf.delete(routeId);
    }
  }

  #amongUsable(plan: RoutePlan, subject: string | null): PlannedVersion | undefined {
    const hasUsableNode = ({ service }: PlannedVersion) => this.#hasUsableNode(service);
    return (
      this.#draw(plan, subject, hasUsableNode) ??
      plan.standIns.find(hasUsableNode) ??
      this.#draw(plan, subject, anyVersion)
    );
  }

  #hasUsableNode(service: Service): boolean {
    return (
      service.enabled && service.nodes.some((node) => node.enabled && !node.draining && this.#isUsable(node.healthKey))
    );
  }

  #draw(
    plan: RoutePlan,
    subject: string | null,
    accepts: (version: PlannedVersion) => boolean,
  ): PlannedVersion | undefined {
    const { id } = plan.route;
    for (const { percent, version } of plan.weightRules) {
      if (!accepts(version)) continue;
      const taken = subject === null ? this.#random() * 100 < percent : isAmong(id, version.id, percent, subject);
      if (taken) return version;
    }
    return subject === null
      ? this.#turnsFor(id).next(plan.shares, accepts)
      : shareOf(id, plan.shares, subject, accepts);
  }

  #turnsFor(routeId: string): VersionTurns {
    let turns = this.#turnsOf.get(routeId);
    if (!turns) {
      turns = this.#turns();
      this.#turnsOf.set(routeId, turns);
    }
    return turns;
  }
}
