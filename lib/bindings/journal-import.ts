/**
 * Import into the embedded store. Rows are held in memory, where they will be anyway; a file of up to PART_ROWS rows is
 * one commit, a larger one is written in parts of that size, between which others get their turn. A crash between two
 * parts leaves the first ones, and the same import again completes them.
 */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { normalizeUsername } from '../support/username.ts';
import {
  type BindingImporter,
  ImportBusy,
  type ImportFault,
  type ImportOutcome,
  type ImportRow,
  MOST_FAULTS,
} from './binding-import.ts';
import type { BindingStore } from './binding-store.ts';
import type { JournalBindings } from './journal-bindings.ts';

const PART_ROWS = 20_000;
/** Rows looked at in one turn of the event loop. */
const SLICE_ROWS = 1_000;

export class JournalImport implements BindingImporter {
  readonly #bindings: Pick<JournalBindings, 'insertAbsent'> & Pick<BindingStore, 'findByUserId' | 'findByUsername'>;
  #busy = false;

  constructor(bindings: Pick<JournalBindings, 'insertAbsent'> & Pick<BindingStore, 'findByUserId' | 'findByUsername'>) {
    this.#bindings = bindings;
  }

  async run(
    serviceId: string,
    batches: AsyncIterable<readonly ImportRow[]>,
    mayWrite: () => boolean,
  ): Promise<ImportOutcome> {
    if (this.#busy) throw new ImportBusy('another import is under way');
    this.#busy = true;
    try {
      const { rows, faults, faultCount } = await stage(batches);
      if (faultCount > 0) return { inserted: 0, faults, faultCount };
      const inserted = mayWrite() ? await this.#insert(serviceId, rows) : await this.#countAbsent(serviceId, rows);
      return { inserted, faults, faultCount };
    } finally {
      this.#busy = false;
    }
  }

  async #insert(serviceId: string, rows: readonly ImportRow[]): Promise<number> {
    let inserted = 0;
    for (let from = 0; from < rows.length; from += PART_ROWS) {
      inserted += await this.#bindings.insertAbsent(serviceId, rows.slice(from, from + PART_ROWS));
      await nextTurn();
    }
    return inserted;
  }

  async #countAbsent(serviceId: string, rows: readonly ImportRow[]): Promise<number> {
    let absent = 0;
    for (const [index, { userId, username }] of rows.entries()) {
      if (index % SLICE_ROWS === 0) await nextTurn();
      const known =
        (userId !== null && (await this.#bindings.findByUserId(serviceId, userId))) ||
        (username !== null && (await this.#bindings.findByUsername(serviceId, username)));
      if (!known) absent += 1;
    }
    return absent;
  }
}

/** The rows without the indexes that were needed to check them. */
async function stage(
  batches: AsyncIterable<readonly ImportRow[]>,
): Promise<Pick<StagedRows, 'rows' | 'faults' | 'faultCount'>> {
  const staged = new StagedRows();
  for await (const batch of batches) {
    for (const row of batch) staged.add(row);
  }
  const { rows, faults, faultCount } = staged;
  return { rows, faults, faultCount };
}

/** Rows so far, without those that say what an earlier one said, and what is wrong among them. */
class StagedRows {
  readonly rows: ImportRow[] = [];
  readonly faults: ImportFault[] = [];
  faultCount = 0;
  readonly #byId = new Map<string, ImportRow>();
  readonly #byName = new Map<string, ImportRow>();

  add(row: ImportRow): void {
    const sameId = row.userId === null ? undefined : this.#byId.get(row.userId);
    const name = row.username === null ? null : normalizeUsername(row.username);
    const sameName = name === null ? undefined : this.#byName.get(name);
    if (sameId && sameId.nodeId !== row.nodeId) {
      this.#fail(
        row,
        `user '${row.userId}' stands on line ${sameId.line} already, with node ${sameId.nodeId} instead of ${row.nodeId}`,
      );
    }
    if (sameName && sameName !== sameId) this.#checkName(row, sameName);
    if (row.userId !== null && !sameId) this.#byId.set(row.userId, row);
    if (name !== null && !sameName) this.#byName.set(name, row);
    if (!sameId && !sameName) this.rows.push(row);
  }

  #checkName(row: ImportRow, first: ImportRow): void {
    const otherNode = first.nodeId !== row.nodeId;
    const otherUser = row.userId !== null && first.userId !== null && row.userId !== first.userId;
    if (!otherNode && !otherUser) return;
    this.#fail(
      row,
      `username '${row.username}' stands on line ${first.line} already, with another ${otherNode ? 'node' : 'user id'}`,
    );
  }

  #fail(row: ImportRow, message: string): void {
    this.faultCount += 1;
    if (this.faults.length < MOST_FAULTS) this.faults.push({ line: row.line, message });
  }
}
