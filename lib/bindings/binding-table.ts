/**
 * Bindings in memory, one table per service, indexed by row id, user id and username, with the number of users of
 * each node kept up to date. It holds what it is told; who wins a login is decided in journal-bindings.ts.
 */
import { normalizeUsername } from '../support/username.ts';

/** Shared by all rows of a node: the id is stored once, and the count costs nothing to read. */
export interface NodeUsers {
  readonly nodeId: string;
  count: number;
}

export interface BindingRow {
  /** Counts up over all services and is never given out twice: the order of lists. */
  readonly id: number;
  readonly userId: string | null;
  readonly username: string | null;
  readonly node: NodeUsers;
  readonly epoch: number;
  readonly frozen: boolean;
}

export interface RowValues {
  readonly userId: string | null;
  readonly username: string | null;
  readonly nodeId: string;
  readonly epoch: number;
  readonly frozen: boolean;
}

type MutableRow = { -readonly [Field in keyof BindingRow]: BindingRow[Field] };

export class ServiceBindings {
  readonly serviceId: string;
  /** By row id, ascending. */
  readonly #rows: MutableRow[] = [];
  readonly #byUserId = new Map<string, MutableRow>();
  readonly #byName = new Map<string, MutableRow>();
  readonly #nodes = new Map<string, NodeUsers>();
  #floor = 0;

  constructor(serviceId: string) {
    this.serviceId = serviceId;
  }

  get size(): number {
    return this.#rows.length;
  }

  /** Highest epoch of a removed row, 0 = none was. */
  get epochFloor(): number {
    return this.#floor;
  }

  raiseFloor(epoch: number): void {
    if (epoch > this.#floor) this.#floor = epoch;
  }

  byUserId(userId: string): BindingRow | undefined {
    return this.#byUserId.get(userId);
  }

  byUsername(username: string): BindingRow | undefined {
    return this.#byName.get(normalizeUsername(username));
  }

  row(id: number): BindingRow | undefined {
    return this.#at(id);
  }

  /** Up to `limit` rows with an id above `afterId`, ascending. */
  rowsAfter(afterId: number, limit: number): readonly BindingRow[] {
    const start = this.#position(afterId + 1);
    return this.#rows.slice(start, start + limit);
  }

  /** Node id -> users, for nodes with at least one; a copy. */
  countByNode(): Map<string, number> {
    const counts = new Map<string, number>();
    for (const { nodeId, count } of this.#nodes.values()) counts.set(nodeId, count);
    return counts;
  }

  put(id: number, values: RowValues): void {
    const row = this.#at(id);
    const node = this.#enter(values.nodeId);
    if (row) {
      this.#unindex(row);
      row.userId = values.userId;
      row.username = values.username;
      row.node = node;
      row.epoch = values.epoch;
      row.frozen = values.frozen;
      this.#index(row);
      return;
    }
    const added: MutableRow = {
      id,
      userId: values.userId,
      username: values.username,
      node,
      epoch: values.epoch,
      frozen: values.frozen,
    };
    const last = this.#rows.at(-1);
    if (last === undefined || last.id < id) this.#rows.push(added);
    else this.#rows.splice(this.#position(id), 0, added);
    this.#index(added);
  }

  delete(id: number): void {
    const row = this.#at(id);
    if (!row) return;
    this.#unindex(row);
    this.#rows.splice(this.#position(id), 1);
  }

  #index(row: MutableRow): void {
    if (row.userId !== null) this.#byUserId.set(row.userId, row);
    if (row.username !== null) this.#byName.set(normalizeUsername(row.username), row);
  }

  #unindex(row: MutableRow): void {
    // While a compacted journal is read, a name may for some lines be held by two rows: only the holder lets go.
    if (row.userId !== null && this.#byUserId.get(row.userId) === row) this.#byUserId.delete(row.userId);
    if (row.username !== null) {
      const name = normalizeUsername(row.username);
      if (this.#byName.get(name) === row) this.#byName.delete(name);
    }
    row.node.count -= 1;
    if (row.node.count === 0) this.#nodes.delete(row.node.nodeId);
  }

  #enter(nodeId: string): NodeUsers {
    let node = this.#nodes.get(nodeId);
    if (!node) {
      node = { nodeId, count: 0 };
      this.#nodes.set(nodeId, node);
    }
    node.count += 1;
    return node;
  }

  #at(id: number): MutableRow | undefined {
    const row = this.#rows[this.#position(id)];
    return row?.id === id ? row : undefined;
  }

  /** Index of the first row whose id is `id` or more. */
  #position(id: number): number {
    const last = this.#rows.at(-1);
    if (last === undefined || last.id < id) return this.#rows.length;
    let low = 0;
    let high = this.#rows.length - 1;
    while (low < high) {
      const middle = (low + high) >>> 1;
      const row = this.#rows[middle];
      if (row !== undefined && row.id < id) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

export class BindingTable {
  readonly #services = new Map<string, ServiceBindings>();
  #nextRowId = 1;

  /** Number of rows in all services. */
  get size(): number {
    let size = 0;
    for (const service of this.#services.values()) size += service.size;
    return size;
  }

  get nextRowId(): number {
    return this.#nextRowId;
  }

  /** No id below `id` is given out from now on. */
  raiseNextRowId(id: number): void {
    if (id > this.#nextRowId) this.#nextRowId = id;
  }

  takeRowId(): number {
    const id = this.#nextRowId;
    this.#nextRowId += 1;
    return id;
  }

  services(): IterableIterator<ServiceBindings> {
    return this.#services.values();
  }

  /** The table of a service; made when it is first asked for. */
  service(serviceId: string): ServiceBindings {
    let service = this.#services.get(serviceId);
    if (!service) {
      service = new ServiceBindings(serviceId);
      this.#services.set(serviceId, service);
    }
    return service;
  }

  /** The table of a service that may hold none. */
  find(serviceId: string): ServiceBindings | undefined {
    return this.#services.get(serviceId);
  }
}
