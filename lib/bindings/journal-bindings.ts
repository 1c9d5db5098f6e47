/**
 * The contract of BindingStore over the embedded journal: decides who wins in memory, in one tick, and answers when
 * the decision is on disk. How it gets there is the business of journal.ts.
 */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { GatewayError } from '../errors.ts';
import type { Binding } from '../model.ts';
import { normalizeUsername } from '../support/username.ts';
import type { BindingKey, BindingPage, BindingQuery, BindingStore, BindResult } from './binding-store.ts';
import type { BindingRow, RowValues, ServiceBindings } from './binding-table.ts';
import type { Change, Journal } from './journal.ts';
import type { Operation, PutBinding } from './journal-record.ts';

const DEFAULT_LIMIT = 100;
const MAX_LIMIT = 1_000;
/** Rows looked at in one turn of the event loop. */
const SCAN_ROWS = 20_000;

/** A row to be imported; at least one of userId and username is set. */
export interface NewBinding {
  readonly userId: string | null;
  readonly username: string | null;
  readonly nodeId: string;
}

export class JournalBindings implements BindingStore {
  readonly #journal: Journal;

  constructor(journal: Journal) {
    this.#journal = journal;
  }

  findByUserId(serviceId: string, userId: string): Promise<Binding | undefined> {
    return this.#read(idKey(serviceId, userId), serviceId, (service) => service.byUserId(userId));
  }

  findByUsername(serviceId: string, username: string): Promise<Binding | undefined> {
    return this.#read(nameKey(serviceId, username), serviceId, (service) => service.byUsername(username));
  }

  async bindIfAbsent(serviceId: string, userId: string, username: string | null, nodeId: string): Promise<BindResult> {
    const service = this.#journal.bindings.service(serviceId);
    return this.#journal.change(
      () => rowKeys(serviceId, userId, username, [service.byUserId(userId), named(service, username)]),
      () => this.#bind(service, userId, username, nodeId),
    );
  }

  async move(serviceId: string, userId: string, nodeId: string): Promise<Binding> {
    const service = this.#journal.bindings.service(serviceId);
    return this.#changeRow(service, userId, (row) => {
      if (!row) return this.#create(service, { userId, username: null, nodeId }, 0);
      if (row.node.nodeId === nodeId) return unchanged(toBinding(serviceId, row));
      return update(serviceId, row, { nodeId, epoch: row.epoch + 1 });
    });
  }

  async remove(serviceId: string, userId: string): Promise<Binding | undefined> {
    const service = this.#journal.bindings.service(serviceId);
    return this.#changeRow(service, userId, (row): Change<Binding | undefined> => {
      if (!row) return unchanged(undefined);
      return { operations: [['-', serviceId, row.id, row.epoch]], result: toBinding(serviceId, row) };
    });
  }

  async setFrozen(serviceId: string, userId: string, frozen: boolean): Promise<Binding | undefined> {
    const service = this.#journal.bindings.service(serviceId);
    return this.#changeRow(service, userId, (row): Change<Binding | undefined> => {
      if (!row) return unchanged(undefined);
      return row.frozen === frozen ? unchanged(toBinding(serviceId, row)) : update(serviceId, row, { frozen });
    });
  }

  /**
   * Makes the rows whose user id and username are both unbound and leaves the others alone. Durable, all or none, when
   * it resolves with the number of rows made. For imports; a batch of 1,000 is a good size.
   */
  async insertAbsent(serviceId: string, rows: readonly NewBinding[]): Promise<number> {
    const service = this.#journal.bindings.service(serviceId);
    return this.#journal.change(
      () => rows.flatMap(({ userId, username }) => rowKeys(serviceId, userId, username, [])),
      () => {
        const taken = new Set<string>();
        const operations: Operation[] = [];
        for (const row of rows) {
          const known = row.userId !== null && service.byUserId(row.userId);
          if (known || named(service, row.username)) continue;
          const keys = rowKeys(serviceId, row.userId, row.username, []);
          if (keys.some((key) => taken.has(key))) continue;
          for (const key of keys) taken.add(key);
          operations.push(...this.#create(service, row, 0).operations);
        }
        return { operations, result: operations.length };
      },
    );
  }

  /** Includes bindings that are just being written. */
  async countByNode(serviceId: string): Promise<ReadonlyMap<string, number>> {
    return this.#journal.bindings.find(serviceId)?.countByNode() ?? new Map();
  }

  /** Throws GatewayError `bad_request` for an `after` that is not the `next` of a page. */
  async list(serviceId: string, query: BindingQuery): Promise<BindingPage> {
    const limit = Math.min(MAX_LIMIT, Math.max(1, query.limit ?? DEFAULT_LIMIT));
    let afterId = parsePosition(query.after);
    await this.#journal.barrier();
    const service = this.#journal.bindings.find(serviceId);
    if (!service) return { bindings: [], next: null };
    if (query.userId !== undefined || query.username !== undefined) return findOne(service, query, afterId);
    const found: BindingRow[] = [];
    for (;;) {
      const rows = service.rowsAfter(afterId, query.nodeId === undefined ? limit + 1 : SCAN_ROWS);
      for (const row of rows) {
        if (query.nodeId === undefined || row.node.nodeId === query.nodeId) found.push(row);
        if (found.length > limit) return page(serviceId, found, limit);
      }
      const last = rows.at(-1);
      if (!last || query.nodeId === undefined) return page(serviceId, found, limit);
      afterId = last.id;
      await nextTurn();
    }
  }

  #read(
    key: string,
    serviceId: string,
    find: (service: ServiceBindings) => BindingRow | undefined,
  ): Promise<Binding | undefined> {
    return this.#journal.read([key], () => {
      const service = this.#journal.bindings.find(serviceId);
      const row = service && find(service);
      return row && toBinding(serviceId, row);
    });
  }

  #changeRow<T>(
    service: ServiceBindings,
    userId: string,
    decide: (row: BindingRow | undefined) => Change<T>,
  ): Promise<T> {
    const { serviceId } = service;
    return this.#journal.change(
      () => rowKeys(serviceId, userId, null, [service.byUserId(userId)]),
      () => decide(service.byUserId(userId)),
    );
  }

  /** The table in binding-store.ts. */
  #bind(service: ServiceBindings, userId: string, username: string | null, nodeId: string): Change<BindResult> {
    const { serviceId } = service;
    const own = service.byUserId(userId);
    const holder = named(service, username);
    const other = holder === own ? undefined : holder;
    const takesOver = other !== undefined && other.userId === null;
    if (!own && other && takesOver) {
      const { operations, result } = update(serviceId, other, { userId, username });
      return { operations, result: outcome(result) };
    }
    const voided: BindingKey[] = [];
    const operations: Operation[] = [];
    if (other) {
      voided.push(voidName(serviceId, other.username));
      if (takesOver) operations.push(['-', serviceId, other.id, other.epoch]);
      else operations.push(...update(serviceId, other, { username: null }).operations);
    }
    if (!own) {
      const made = this.#create(service, { userId, username, nodeId }, other?.epoch ?? 0);
      operations.push(...made.operations);
      return { operations, result: outcome(made.result, { created: true, voided }) };
    }
    if (username === null || own.username === username) return unchanged(outcome(toBinding(serviceId, own)));
    if (own.username !== null && holder !== own) voided.push(voidName(serviceId, own.username));
    const conflict = takesOver && other.node.nodeId !== own.node.nodeId;
    // For whoever looks up the name this is a move, so the epoch has to be above the one known under that name.
    const epoch = conflict ? Math.max(own.epoch, other.epoch + 1) : own.epoch;
    const renamed = update(serviceId, own, { username, epoch });
    operations.push(...renamed.operations);
    return { operations, result: outcome(renamed.result, { conflict, voided }) };
  }

  /** A new row above every epoch removed in the service and above `epoch`. */
  #create(service: ServiceBindings, { userId, username, nodeId }: NewBinding, epoch: number): Change<Binding> {
    const values = {
      userId,
      username,
      nodeId,
      epoch: Math.max(service.epochFloor, epoch) + 1,
      frozen: false,
    };
    return {
      operations: [put(service.serviceId, this.#journal.bindings.takeRowId(), values)],
      result: { serviceId: service.serviceId, ...values },
    };
  }
}

function unchanged<T>(result: T): Change<T> {
  return { operations: [], result };
}

function outcome(binding: Binding, parts: Partial<BindResult> = {}): BindResult {
  return { binding, created: false, conflict: false, voided: [], ...parts };
}

function update(serviceId: string, row: BindingRow, changed: Partial<RowValues>): Change<Binding> {
  const result = { ...toBinding(serviceId, row), ...changed };
  return { operations: [put(serviceId, row.id, result)], result };
}

function put(serviceId: string, id: number, values: RowValues): PutBinding {
  return ['b', serviceId, id, values.userId, values.username, values.nodeId, values.epoch, values.frozen ? 1 : 0];
}

function toBinding(serviceId: string, row: BindingRow): Binding {
  const { userId, username, node, epoch, frozen } = row;
  return { serviceId, userId, username, nodeId: node.nodeId, epoch, frozen };
}

function named(service: ServiceBindings, username: string | null): BindingRow | undefined {
  return username === null ? undefined : service.byUsername(username);
}

function voidName(serviceId: string, username: string | null): BindingKey {
  return { kind: 'name', serviceId, username: normalizeUsername(username ?? '') };
}

function idKey(serviceId: string, userId: string): string {
  return `i:${serviceId}:${userId}`;
}

function nameKey(serviceId: string, username: string): string {
  return `n:${serviceId}:${normalizeUsername(username)}`;
}

/** The keys of everything a change of these identities and rows can touch. */
function rowKeys(
  serviceId: string,
  userId: string | null,
  username: string | null,
  rows: readonly (BindingRow | undefined)[],
): string[] {
  const keys: string[] = [];
  for (const identity of [{ userId, username }, ...rows]) {
    if (typeof identity?.userId === 'string') keys.push(idKey(serviceId, identity.userId));
    if (typeof identity?.username === 'string') keys.push(nameKey(serviceId, identity.username));
  }
  return keys;
}

function findOne(service: ServiceBindings, query: BindingQuery, afterId: number): BindingPage {
  const row = query.userId === undefined ? named(service, query.username ?? null) : service.byUserId(query.userId);
  const fits =
    row !== undefined &&
    row.id > afterId &&
    (query.username === undefined || named(service, query.username) === row) &&
    (query.nodeId === undefined || row.node.nodeId === query.nodeId);
  return { bindings: fits ? [toBinding(service.serviceId, row)] : [], next: null };
}

/** `found` has up to one row more than the page, which shows that there is a next one. */
function page(serviceId: string, found: readonly BindingRow[], limit: number): BindingPage {
  const rows = found.slice(0, limit);
  const last = rows.at(-1);
  return {
    bindings: rows.map((row) => toBinding(serviceId, row)),
    next: found.length > limit && last ? String(last.id) : null,
  };
}

function parsePosition(after: string | undefined): number {
  if (after === undefined) return 0;
  if (!/^\d{1,15}$/.test(after)) throw new GatewayError('bad_request', 'after is not the next of a page');
  return Number(after);
}
