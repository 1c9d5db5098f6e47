/**
 * What a route's definition comes down to for requests: the versions that are switched on, with their services, and who
 * gets a share. Made once for each route of a snapshot.
 */
import type { Route, Service } from '../model.ts';
import { compileRule, type RuleTest } from './rules.ts';
import type { Share } from './shares.ts';

export interface PlannedVersion extends Share {
  readonly service: Service;
}

export interface RoutePlan {
  readonly route: Route;
  /** Those switched on, in the order of the route. */
  readonly versions: readonly PlannedVersion[];
  /** Those of them whose service binds users. */
  readonly bound: readonly PlannedVersion[];
  readonly rules: readonly { readonly test: RuleTest; readonly version: PlannedVersion }[];
  /** Percent of the users that no rule before has taken. */
  readonly weightRules: readonly { readonly percent: number; readonly version: PlannedVersion }[];
  /** Who divides up, by weight, what the weight rules leave. */
  readonly shares: readonly PlannedVersion[];
  /** Who may stand in for a version without a usable node: those that get users by weight at all. */
  readonly standIns: readonly PlannedVersion[];
  /** The version that everybody gets whom no rule sends elsewhere; null = it depends on the user. */
  readonly only: PlannedVersion | null;
}

export function planRoute(route: Route): RoutePlan {
  const services = new Map(route.services.map((service) => [service.id, service]));
  const versions = route.versions.flatMap(({ version, service: serviceId, weight, enabled }): PlannedVersion[] => {
    const service = services.get(serviceId);
    return service && enabled ? [{ id: version, weight, service }] : [];
  });
  const byName = new Map(versions.map((version) => [version.id, version]));
  const bound = versions.filter(({ service }) => service.affinity === 'user');
  const rules: { test: RuleTest; version: PlannedVersion }[] = [];
  const weightRules: { percent: number; version: PlannedVersion }[] = [];
  for (const rule of route.rules) {
    // A rule for a version that is switched off matches nobody: its users go on to the next rule.
    const version = byName.get(rule.version);
    if (!version) continue;
    if (rule.type === 'weight') weightRules.push({ percent: rule.value, version });
    else rules.push({ test: compileRule(rule), version });
  }
  const shares = sharesOf(route, versions, new Set(weightRules.map(({ version }) => version.id)));
  const standIns = versions.filter(
    (one) => shares.includes(one) || weightRules.some(({ version, percent }) => version === one && percent > 0),
  );
  const only = onlyOf(route, versions, bound, shares);
  return { route, versions, bound, rules, weightRules, shares, standIns, only };
}

/**
 * A weight rule says how much its version gets, so that version's own weight does not count as well: 10 percent is not
 * to become 19. Only when nobody else is left it does.
 */
function sharesOf(
  route: Route,
  versions: readonly PlannedVersion[],
  ruled: ReadonlySet<string>,
): readonly PlannedVersion[] {
  const weighty = versions.filter(({ weight }) => weight > 0);
  const others = weighty.filter(({ id }) => !ruled.has(id));
  if (others.length > 0) return others;
  // A route with one version needs no weight.
  return weighty.length > 0 || route.versions.length > 1 ? weighty : versions.map((one) => ({ ...one, weight: 1 }));
}

function onlyOf(
  route: Route,
  versions: readonly PlannedVersion[],
  bound: readonly PlannedVersion[],
  shares: readonly PlannedVersion[],
): PlannedVersion | null {
  const [share] = shares;
  if (!share || shares.length > 1) return null;
  if (versions.length === 1) return share;
  // The others may have users of their own, a rule's percentage, or the duty to stand in.
  const mayHaveUsers = bound.length > 0 || route.fallback || route.rules.some(({ type }) => type === 'weight');
  return mayHaveUsers ? null : share;
}
