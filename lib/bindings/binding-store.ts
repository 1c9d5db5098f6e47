/**
 * The contract of the stores that hold bindings: PostgreSQL and the embedded journal. One suite of tests runs
 * against both. Caching is not done here.
 *
 * Two identities: **the user id is the identity, the username is a hint**. `bindIfAbsent(service, U, N, node)`,
 * with rowU = the row with user id U, and rowN = the row whose username equals N (normalizeUsername):
 *
 * | rowU | rowN | result |
 * |---|---|---|
 * | – | – | a new row (U, N, node) |
 * | yes | – or the same row | rowU keeps its node; its username becomes N |
 * | – | without a user id | rowN is completed with U and keeps its node |
 * | – | of another user id | N is taken off rowN; a new row (U, N, node) |
 * | yes | without a user id | rowU keeps its node and gets the name N; rowN is removed; `conflict` if the nodes differed |
 * | yes | of another user id | N is taken off rowN; rowU keeps its node and gets the name N |
 *
 * N = null leaves names alone. A binding that is made after another one was removed gets an epoch above every
 * epoch removed before, so that no cache mistakes an old decision for a newer one.
 */
import type { Binding } from '../model.ts';

export interface BindResult {
  /** The binding in force, whoever made it. */
  readonly binding: Binding;
  /** True = this call made the row. */
  readonly created: boolean;
  /** True = a user-id row and a username row of one person named different nodes; the user-id row won. */
  readonly conflict: boolean;
  /** Other identities whose cached bindings are void now: old names, names and ids taken off other rows. */
  readonly voided: readonly BindingKey[];
}

/** What a cached binding is found by. `username` is normalized. */
export type BindingKey =
  | { readonly kind: 'id'; readonly serviceId: string; readonly userId: string }
  | { readonly kind: 'name'; readonly serviceId: string; readonly username: string };

export interface BindingQuery {
  readonly userId?: string;
  readonly username?: string;
  readonly nodeId?: string;
  /** 1 to 1000; default 100. */
  readonly limit?: number;
  /** The `next` of the previous page. */
  readonly after?: string;
}

export interface BindingPage {
  readonly bindings: readonly Binding[];
  /** null = the last page. */
  readonly next: string | null;
}

/**
 * Every method rejects with StoreUnavailable when the store cannot answer, and with an OperatorError when the
 * store can never hold the value (a user id that is not a number, in a bigint column).
 */
export interface BindingStore {
  findByUserId(serviceId: string, userId: string): Promise<Binding | undefined>;
  /** `username` is compared through normalizeUsername. */
  findByUsername(serviceId: string, username: string): Promise<Binding | undefined>;
  /** Durable when it resolves. See the table above. */
  bindIfAbsent(serviceId: string, userId: string, username: string | null, nodeId: string): Promise<BindResult>;
  /** Binds or moves. The epoch rises if the node changes; moving to the same node changes nothing. */
  move(serviceId: string, userId: string, nodeId: string): Promise<Binding>;
  /** Resolves with the binding removed, or undefined if there was none. */
  remove(serviceId: string, userId: string): Promise<Binding | undefined>;
  /** Raises no epoch. Resolves with undefined if there is no such binding. */
  setFrozen(serviceId: string, userId: string, frozen: boolean): Promise<Binding | undefined>;
  /** Node id -> number of bindings, for nodes with at least one. */
  countByNode(serviceId: string): Promise<ReadonlyMap<string, number>>;
  /** In a stable order; `after` continues it. */
  list(serviceId: string, query: BindingQuery): Promise<BindingPage>;
}

/** A change of a binding that came from elsewhere (NOTIFY, the Redis channel): a hint to drop what is cached. */
export interface BindingChange {
  readonly keys: readonly BindingKey[];
  /** An entry of these ids with a lower epoch is from before the change; undefined = not known. */
  readonly leastEpoch?: number;
}
