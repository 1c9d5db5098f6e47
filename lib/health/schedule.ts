/** When an address is probed next: pure arithmetic over settings and counts. It starts no timers. */
import type { HealthOptions } from '../config/options.ts';
import type { Service } from '../model.ts';

/** How often an address is probed. `jitter` is the share by which each delay is shifted, 0 to 0.5. */
export type ProbePlan =
  | { readonly kind: 'interval'; readonly intervalMs: number; readonly jitter: number }
  | { readonly kind: 'tiers'; readonly tiers: HealthOptions['tiers']; readonly jitter: number };

/** Results of probes in a row; one of the two is 0. Passive observations are not among them. */
export interface ProbeRow {
  readonly successesInRow: number;
  readonly failuresInRow: number;
}

/** Longest wait for the first probe of a new address. */
const FIRST_PROBE_WITHIN_MS = 1_000;

/**
 * Spec §9: services that bind users are probed every interval, because their users must not wait minutes; stateless
 * ones in tiers, unless the service itself names an interval, which then holds as it is.
 */
export function planFor(service: Pick<Service, 'affinity' | 'health'>, options: HealthOptions): ProbePlan {
  const { intervalMs, tiers } = service.health;
  const jitter = service.health.jitter ?? options.jitter;
  if (service.affinity === 'user' || intervalMs !== null) {
    return { kind: 'interval', intervalMs: intervalMs ?? options.intervalMs, jitter };
  }
  return {
    kind: 'tiers',
    jitter,
    tiers: {
      regularMs: tiers.regularMs ?? options.tiers.regularMs,
      stableMs: tiers.stableMs ?? options.tiers.stableMs,
      degradedMs: tiers.degradedMs ?? options.tiers.degradedMs,
      stableAfter: tiers.stableAfter ?? options.tiers.stableAfter,
      degradedAfter: tiers.degradedAfter ?? options.tiers.degradedAfter,
    },
  };
}

/** The plan that probes more often; for an address that several services share. */
export function tighterPlan(one: ProbePlan, other: ProbePlan): ProbePlan {
  return regularMs(other) < regularMs(one) ? other : one;
}

/** The delay of the plan before any row of results has formed, without jitter. */
export function regularMs(plan: ProbePlan): number {
  return plan.kind === 'interval' ? plan.intervalMs : plan.tiers.regularMs;
}

/** Delay of the first probe: soon, but spread, so that a start does not hit every node at once. `random`: [0, 1). */
export function firstDelayMs(plan: ProbePlan, random: () => number): number {
  return random() * Math.min(regularMs(plan), FIRST_PROBE_WITHIN_MS);
}

/** Delay from the end of one probe to the start of the next. `random`: [0, 1). */
export function nextDelayMs(plan: ProbePlan, row: ProbeRow, random: () => number): number {
  return tierMs(plan, row) * (1 + plan.jitter * (2 * random() - 1));
}

function tierMs(plan: ProbePlan, row: ProbeRow): number {
  if (plan.kind === 'interval') return plan.intervalMs;
  if (row.successesInRow >= plan.tiers.stableAfter) return plan.tiers.stableMs;
  if (row.failuresInRow >= plan.tiers.degradedAfter) return plan.tiers.degradedMs;
  return plan.tiers.regularMs;
}
