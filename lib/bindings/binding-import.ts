/**
 * The contract of taking in many bindings at once: all of a file or nothing, users that are bound already keep their
 * node. Reading files and checking single rows is the caller's duty.
 */

export interface ImportRow {
  /** Where it stands in the file, from 1. */
  readonly line: number;
  /** At least one of userId and username is set. */
  readonly userId: string | null;
  readonly username: string | null;
  readonly nodeId: string;
}

export interface ImportFault {
  readonly line: number;
  readonly message: string;
}

export interface ImportOutcome {
  /** Rows that became bindings, or would; the others were bound already. 0 if there are faults. */
  readonly inserted: number;
  /** The first of what no single row shows: one user with two nodes, ids that the store cannot hold. */
  readonly faults: readonly ImportFault[];
  readonly faultCount: number;
}

export interface BindingImporter {
  /**
   * Takes rows batch by batch, as fast as it can store them. When the last one is there, `mayWrite` is asked: false =
   * look for faults only, write nothing. Rejects with what `batches` rejects with, or StoreUnavailable; nothing is
   * written then.
   */
  run(serviceId: string, batches: AsyncIterable<readonly ImportRow[]>, mayWrite: () => boolean): Promise<ImportOutcome>;
}

/** Faults that are told; the rest is counted. */
export const MOST_FAULTS = 1_000;

/** Another import is under way. */
export class ImportBusy extends Error {
  override readonly name = 'ImportBusy';
}
