/** Small snapshots and services for the tests of health and balance. */
import { DEFAULTS } from '../../lib/config/options.ts';
import type { NodeDefinition, Service, ServiceDefinition, Snapshot } from '../../lib/model.ts';
import { buildSnapshot } from '../../lib/registry/snapshot.ts';

export type NodeSketch = Partial<NodeDefinition> & { readonly id: string };
export type ServiceSketch = Partial<Omit<ServiceDefinition, 'nodes'>> & {
  readonly id: string;
  readonly nodes: readonly NodeSketch[];
};

/** A node without a base URL gets one of its own. */
export function snapshotOf(...services: readonly ServiceSketch[]): Snapshot {
  const definition = {
    services: services.map((service) => ({
      ...DEFAULTS.service,
      pathPrefix: `/${service.id}`,
      healthPath: '/health',
      ...service,
      nodes: service.nodes.map((node) => ({ ...DEFAULTS.node, baseUrl: `http://${node.id}:80`, ...node })),
    })),
    routes: [],
  };
  return buildSnapshot(definition, { version: 1, loadedAtMs: 0, stale: false });
}

export function serviceOf(service: ServiceSketch): Service {
  return snapshotOf(service).services.get(service.id)!;
}

/** mulberry32: a seeded [0, 1), so that a failing run can be repeated. */
export function seededRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
