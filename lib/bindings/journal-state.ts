/**
 * What the journal says, in memory: bindings, tokens and the registry document; how one operation changes it, how to
 * take that back, and the operations that would make all of it again. It does no I/O.
 */
import type { BindingRow, ServiceBindings } from './binding-table.ts';
import { BindingTable } from './binding-table.ts';
import type { Operation, PutBinding, RegistryDocument } from './journal-record.ts';

export interface TokenEntry {
  readonly userId: string;
  /** Epoch milliseconds. */
  readonly expiresAtMs: number;
}

export class JournalState {
  readonly bindings = new BindingTable();
  /** By SHA-256 of realm and token. */
  readonly tokens = new Map<string, TokenEntry>();
  #registry: RegistryDocument | null = null;

  get registry(): RegistryDocument | null {
    return this.#registry;
  }

  /** Operations a compacted journal would hold, but for the few of every service. */
  get live(): number {
    return this.bindings.size + this.tokens.size + 1;
  }

  apply(operation: Operation): void {
    switch (operation[0]) {
      case 'b': {
        const [, serviceId, id, userId, username, nodeId, epoch, frozen] = operation;
        this.bindings.raiseNextRowId(id + 1);
        this.bindings.service(serviceId).put(id, { userId, username, nodeId, epoch, frozen: frozen === 1 });
        return;
      }
      case '-': {
        const service = this.bindings.service(operation[1]);
        service.delete(operation[2]);
        service.raiseFloor(operation[3]);
        return;
      }
      case 'f':
        this.bindings.service(operation[1]).raiseFloor(operation[2]);
        return;
      case 'n':
        this.bindings.raiseNextRowId(operation[1]);
        return;
      case 't':
        this.tokens.set(operation[1], { userId: operation[2], expiresAtMs: operation[3] });
        return;
      case 'x':
        this.tokens.delete(operation[1]);
        return;
      case 'r':
        this.#registry = operation[1];
    }
  }

  /** What undoes `operation`; asked for before it is applied. undefined = nothing to undo. */
  inverse(operation: Operation): Operation | undefined {
    switch (operation[0]) {
      case 'b':
      case '-': {
        const [, serviceId, id] = operation;
        const row = this.bindings.find(serviceId)?.row(id);
        if (row) return putBinding(serviceId, row);
        return operation[0] === 'b' ? ['-', serviceId, id, 0] : undefined;
      }
      case 't':
      case 'x': {
        const entry = this.tokens.get(operation[1]);
        if (entry) return ['t', operation[1], entry.userId, entry.expiresAtMs];
        return operation[0] === 't' ? ['x', operation[1]] : undefined;
      }
      case 'r':
        return ['r', this.#registry];
      default:
        // Floors and row ids only rise, and one that is too high does no harm.
        return undefined;
    }
  }

  /**
   * All of it as operations, in slices of at most `sliceSize`. The state may change between two slices: read again
   * and followed by the operations that were applied meanwhile, they still come to the same state.
   */
  *slices(sliceSize: number, nowMs: number): Generator<Operation[]> {
    yield [['n', this.bindings.nextRowId], ...(this.#registry ? [['r', this.#registry] as const] : [])];
    for (const service of this.bindings.services()) {
      if (service.epochFloor > 0) yield [['f', service.serviceId, service.epochFloor]];
      yield* bindingSlices(service, sliceSize);
    }
    let slice: Operation[] = [];
    for (const [hash, { userId, expiresAtMs }] of this.tokens) {
      if (expiresAtMs <= nowMs) continue;
      slice.push(['t', hash, userId, expiresAtMs]);
      if (slice.length === sliceSize) {
        yield slice;
        slice = [];
      }
    }
    if (slice.length > 0) yield slice;
  }
}

function* bindingSlices(service: ServiceBindings, sliceSize: number): Generator<Operation[]> {
  let afterId = 0;
  for (;;) {
    const rows = service.rowsAfter(afterId, sliceSize);
    const last = rows.at(-1);
    if (!last) return;
    afterId = last.id;
    yield rows.map((row) => putBinding(service.serviceId, row));
  }
}

export function putBinding(serviceId: string, row: BindingRow): PutBinding {
  return ['b', serviceId, row.id, row.userId, row.username, row.node.nodeId, row.epoch, row.frozen ? 1 : 0];
}
