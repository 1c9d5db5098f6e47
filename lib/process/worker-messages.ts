/** What the primary process and its workers say to each other. It carries nothing. */
import type { GatewayOptions } from '../config/options.ts';
import type { HealthMessage } from '../health/shared-health.ts';
import type { FamilySnapshot } from '../observe/metrics.ts';
import type { InheritedSocket } from './inherited-sockets.ts';

/** What a worker is started with. It reads no configuration file: one that takes a dead one's place is like it. */
export interface WorkerStart {
  /** From 1; stays with the place when the process in it is replaced. */
  readonly place: number;
  readonly options: GatewayOptions;
  /** Descriptors of the primary to listen on, by index of `options.listen`. */
  readonly sockets: readonly (InheritedSocket | null)[];
  /** Path of the Unix socket to answer calls of the admin API on; null = there is no admin listener. */
  readonly adminSocket: string | null;
}

/** What a worker says of itself once it serves. */
export interface WorkerSummary {
  readonly on: readonly string[];
  readonly stores: string;
  readonly services: number;
}

export type Question =
  | { readonly kind: 'metrics' }
  /** Reads all files again; null = they can be used. */
  | { readonly kind: 'prepare'; readonly options: GatewayOptions }
  /** Another worker has changed something for an operator: nothing of before counts any more. */
  | { readonly kind: 'refresh' }
  /** What was prepared takes effect. */
  | { readonly kind: 'commit' }
  /** Answered with the number of requests that were still running. */
  | { readonly kind: 'drain'; readonly graceMs: number };

export type ToWorker =
  | { readonly type: 'start'; readonly start: WorkerStart }
  | { readonly type: 'appoint'; readonly probes: boolean }
  | { readonly type: 'health'; readonly from: number; readonly message: HealthMessage }
  | { readonly type: 'ask'; readonly id: number; readonly question: Question }
  /** To a `reload` with this id. `error`: what an operator is to read. */
  | { readonly type: 'reloaded'; readonly id: number; readonly error: string | null }
  | { readonly type: 'begin-closing' }
  | { readonly type: 'stop-accepting' }
  | { readonly type: 'stop' };

export type FromWorker =
  | { readonly type: 'hello' }
  | { readonly type: 'ready'; readonly summary: WorkerSummary }
  /** The services are loaded: it can answer for all of them. */
  | { readonly type: 'loaded' }
  /** It cannot start; what an operator is to read. */
  | { readonly type: 'failed'; readonly message: string }
  | { readonly type: 'metrics'; readonly families: readonly FamilySnapshot[] }
  /** Somebody asks by the API that all workers read the file again; `dryRun`: that it is checked. */
  | { readonly type: 'reload'; readonly id: number; readonly dryRun: boolean }
  | { readonly type: 'answer'; readonly id: number; readonly value: unknown }
  | { readonly type: 'health'; readonly to: 'prober' | 'others' | number; readonly message: HealthMessage };

/** Both ends are of one program, so the type is all that is looked at; anything else was sent by somebody else. */
export function isWorkerMessage(message: unknown): message is { readonly type: string } {
  return typeof message === 'object' && message !== null && 'type' in message && typeof message.type === 'string';
}
