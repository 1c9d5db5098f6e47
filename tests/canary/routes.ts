/** Routes as a snapshot has them, for the tests of canaries. */
import type { Affinity, Route, RouteRule, Snapshot } from '../../lib/model.ts';
import { buildSnapshot } from '../../lib/registry/snapshot.ts';
import { snapshotOf } from '../balance/services.ts';

export interface RouteSketch {
  readonly id?: string;
  /** Name -> weight. */
  readonly weights: Readonly<Record<string, number>>;
  readonly disabled?: readonly string[];
  readonly rules?: readonly RouteRule[];
  readonly fallback?: boolean;
  readonly affinity?: Affinity;
  /** Of single versions. */
  readonly affinities?: Readonly<Record<string, Affinity>>;
}

/** Version v has the service `s-v` with the node `n-v`. */
export function routeSnapshot(sketch: RouteSketch): Snapshot {
  const names = Object.keys(sketch.weights);
  const { definition } = snapshotOf(
    ...names.map((name) => ({
      id: `s-${name}`,
      pathPrefix: null,
      affinity: sketch.affinities?.[name] ?? sketch.affinity ?? ('user' as const),
      nodes: [{ id: `n-${name}` }],
    })),
  );
  const route = {
    id: sketch.id ?? 'api',
    pathPrefix: '/api',
    enabled: true,
    fallback: sketch.fallback ?? false,
    versions: names.map((name) => ({
      version: name,
      service: `s-${name}`,
      weight: sketch.weights[name] ?? 0,
      enabled: !sketch.disabled?.includes(name),
    })),
    rules: sketch.rules ?? [],
  };
  return buildSnapshot({ ...definition, routes: [route] }, { version: 1, loadedAtMs: 0, stale: false });
}

export function routeOf(sketch: RouteSketch): Route {
  const [route] = routeSnapshot(sketch).routes.values();
  return route!;
}

/** Ids as they come: Java longs, one after the other. */
export function userIds(count: number): string[] {
  return Array.from({ length: count }, (_, index) => String(1_790_000_000_000_000_000n + BigInt(index)));
}
