/**
 * Edits of services, nodes and routes: one at a time, each against the truth of its moment, all of it or nothing. How
 * they are stored differs by store; what an edit is lies with the handlers.
 */
import type { RegistryDefinition } from '../model.ts';
import type { AuditEntry } from './audit-log.ts';

export interface EditContext {
  readonly current: RegistryDefinition;
  /** True = the id is in the store, be it in a row that is left out of `current` because it is not sound. */
  readonly isTaken: (kind: 'service' | 'node' | 'route', id: string) => boolean;
  /** Node id -> bound users of the service, now and until the edit is over. */
  readonly countUsers: (serviceId: string) => Promise<ReadonlyMap<string, number>>;
}

export interface Edit<T> {
  /** null = a rehearsal: nothing is stored. */
  readonly next: RegistryDefinition | null;
  readonly result: T;
}

export interface EditOutcome<T> {
  readonly result: T;
  /** False = stored, but this gateway could not read it back yet. */
  readonly inForce: boolean;
}

export interface RegistryEditor {
  /**
   * `entry` is asked for when the edit has been decided, and is stored together with it. Rejects with what `change`
   * rejects with, with AdminError `conflict`, or with StoreUnavailable.
   */
  edit<T>(change: (context: EditContext) => Promise<Edit<T>>, entry: () => AuditEntry): Promise<EditOutcome<T>>;
}
