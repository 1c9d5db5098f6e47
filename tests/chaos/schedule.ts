/** What goes wrong in a run and when: drawn from a seed alone, so that the seed brings it back. Carried out in chaos.ts. */
import type { Fault } from '../support/fault-proxy.ts';
import { Seeded } from '../support/seeded.ts';

export type StoreName = 'postgres' | 'redis';

export type Action =
  | { readonly kind: 'move'; readonly user: number; readonly node: number }
  | { readonly kind: 'unbind'; readonly user: number }
  | { readonly kind: 'kill-gateway' | 'end-gateway'; readonly gateway: number; readonly forMs: number }
  | { readonly kind: 'kill-postgres' | 'kill-redis'; readonly forMs: number }
  | { readonly kind: 'kill-node'; readonly node: number; readonly forMs: number }
  | {
      readonly kind: 'fault';
      readonly store: StoreName;
      readonly gateway: number;
      readonly fault: Fault;
      readonly forMs: number;
    };

export interface Event {
  readonly atMs: number;
  readonly action: Action;
}

export interface Extent {
  readonly seconds: number;
  readonly users: number;
  readonly nodes: number;
  readonly gateways: number;
}

/** Moves and removals come on average so often. */
const MOVE_EVERY_MS = 60;
const FAULT_EVERY_MS = 900;
const FAULTS: readonly Fault[] = ['hold', 'black-hole', 'half-open', 'half-open-new', 'reset', 'refuse'];

export function makeSchedule(seed: number, extent: Extent): Event[] {
  const random = new Seeded(seed);
  const events: Event[] = [];
  const add = (everyMs: number, draw: () => Action) => {
    for (let atMs = random.below(2 * everyMs); atMs < extent.seconds * 1_000; atMs += 1 + random.below(2 * everyMs)) {
      events.push({ atMs, action: draw() });
    }
  };
  add(MOVE_EVERY_MS, () => drawMove(random, extent));
  add(FAULT_EVERY_MS, () => drawFault(random, extent));
  return events.sort((a, b) => a.atMs - b.atMs);
}

function drawMove(random: Seeded, extent: Extent): Action {
  const user = random.below(extent.users);
  if (random.oneIn(10)) return { kind: 'unbind', user };
  return { kind: 'move', user, node: random.below(extent.nodes) };
}

function drawFault(random: Seeded, extent: Extent): Action {
  const forMs = 100 + random.below(random.oneIn(4) ? 6_000 : 1_500);
  const gateway = random.below(extent.gateways);
  switch (random.below(10)) {
    case 0:
      return { kind: 'kill-gateway', gateway, forMs };
    case 1:
      return { kind: 'end-gateway', gateway, forMs };
    case 2:
      return { kind: 'kill-postgres', forMs };
    case 3:
      return { kind: 'kill-redis', forMs };
    case 4:
      return { kind: 'kill-node', node: random.below(extent.nodes), forMs };
    default:
      return {
        kind: 'fault',
        store: random.oneIn(2) ? 'postgres' : 'redis',
        gateway,
        fault: random.pick(FAULTS),
        forMs,
      };
  }
}

export function describeAction(action: Action): string {
  const { kind, ...rest } = action;
  return [kind, ...Object.values(rest)].join(' ');
}
