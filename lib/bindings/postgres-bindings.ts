/**
 * Bindings in PostgreSQL (table gateway_user_route). The database's unique indexes decide between gateways; caching
 * is not done here.
 */
import { OperatorError } from '../errors.ts';
import type { Binding } from '../model.ts';
import { isOutdatedPlan, type PostgresStore, type Queryable, sqlStateOf } from '../stores/postgres.ts';
import { StoreUnavailable } from '../stores/store-unavailable.ts';
import { type Clock, systemClock } from '../support/clock.ts';
import { unstorable } from '../support/storable-text.ts';
import { normalizeUsername } from '../support/username.ts';
import type { BindingKey, BindingPage, BindingQuery, BindingStore, BindResult } from './binding-store.ts';

const MOST_PER_PAGE = 1_000;
const DEFAULT_PER_PAGE = 100;
const MOST_ATTEMPTS = 8;
const RETRY_MS = 10;
const INT8 = { least: -(2n ** 63n), most: 2n ** 63n - 1n };

const COLUMNS =
  'id::text AS id, service_id, user_id::text AS user_id, username, node_id, epoch::text AS epoch, coalesce(frozen, 0)::int AS frozen';
// Both spellings are lower-cased by PostgreSQL: where its rules differ from JavaScript's (a locale without Unicode,
// the Greek final sigma), the name as it came still finds itself.
const SAME_NAME = 'lower(username) IN (lower($2), lower($3))';
const FIND_BY_ID = `SELECT ${COLUMNS} FROM gateway_user_route WHERE service_id = $1 AND user_id = $2`;
// No ORDER BY ... LIMIT 1: with it the planner walks the primary key until a row fits, which is the whole table for a
// name that nobody has.
const FIND_BY_NAME = `SELECT ${COLUMNS} FROM gateway_user_route WHERE service_id = $1 AND ${SAME_NAME}`;
const FIND_BOTH = `${FIND_BY_ID} UNION SELECT ${COLUMNS} FROM gateway_user_route WHERE service_id = $1 AND lower(username) IN (lower($3), lower($4))`;
// In the order of ids, so that two logins that need the same two rows cannot wait for each other.
const LOCK_BOTH = `SELECT ${COLUMNS} FROM gateway_user_route
  WHERE service_id = $1 AND (user_id = $2 OR lower(username) IN (lower($3), lower($4))) ORDER BY gateway_user_route.id FOR UPDATE`;

interface Row {
  readonly id: string;
  readonly service_id: string;
  readonly user_id: string | null;
  readonly username: string | null;
  readonly node_id: string;
  readonly epoch: string;
  readonly frozen: number;
}

type ColumnKind = 'text' | 'bigint';

/** Somebody else changed the rows between two statements: the whole attempt is made anew. */
class Interrupted extends Error {
  override readonly name = 'Interrupted';
}

export class PostgresBindings implements BindingStore {
  readonly #postgres: PostgresStore;
  readonly #clock: Clock;
  #columnKind: ColumnKind | undefined;

  constructor(postgres: PostgresStore, clock: Clock = systemClock) {
    this.#postgres = postgres;
    this.#clock = clock;
  }

  async findByUserId(serviceId: string, userId: string): Promise<Binding | undefined> {
    if (unstorable(userId) || !(await this.#fitsColumn(userId))) return undefined;
    const [row] = await this.#read(FIND_BY_ID, [serviceId, userId], 'gateway_binding_by_id');
    return row && bindingOf(row);
  }

  async findByUsername(serviceId: string, username: string): Promise<Binding | undefined> {
    if (unstorable(username)) return undefined;
    const normalized = normalizeUsername(username);
    const rows = await this.#read(FIND_BY_NAME, [serviceId, username, normalized], 'gateway_binding_by_name');
    const row = rows.find((candidate) => normalizeUsername(candidate.username ?? '') === normalized) ?? rows[0];
    return row && bindingOf(row);
  }

  async bindIfAbsent(serviceId: string, userId: string, username: string | null, nodeId: string): Promise<BindResult> {
    await this.#checkStorable(userId, username);
    const values = [serviceId, userId, username, username === null ? null : normalizeUsername(username)];
    const found = await this.#read(FIND_BOTH, values, 'gateway_binding_by_both');
    const settled = alreadyBound(found, userId, username);
    if (settled) return settled;
    return this.#write(async (client) => {
      const { rows } = await client.query<Row>(LOCK_BOTH, values, { name: 'gateway_binding_lock' });
      return alreadyBound(rows, userId, username) ?? bind(client, rows, { serviceId, userId, username, nodeId });
    });
  }

  async move(serviceId: string, userId: string, nodeId: string): Promise<Binding> {
    await this.#checkStorable(userId, null);
    return this.#write(async (client) => {
      const [row] = await select(client, `${FIND_BY_ID} FOR UPDATE`, [serviceId, userId]);
      if (!row) return bindingOf(await insert(client, { serviceId, userId, username: null, nodeId }, 0));
      if (row.node_id === nodeId) return bindingOf(row);
      return bindingOf(
        await one(
          client,
          `UPDATE gateway_user_route SET node_id = $2, epoch = epoch + 1 WHERE id = $1 RETURNING ${COLUMNS}`,
          [row.id, nodeId],
        ),
      );
    });
  }

  async remove(serviceId: string, userId: string): Promise<Binding | undefined> {
    if (unstorable(userId) || !(await this.#fitsColumn(userId))) return undefined;
    return this.#write(async (client) => {
      const [row] = await select(
        client,
        `DELETE FROM gateway_user_route WHERE service_id = $1 AND user_id = $2 RETURNING ${COLUMNS}`,
        [serviceId, userId],
      );
      return row && bindingOf(row);
    });
  }

  async setFrozen(serviceId: string, userId: string, frozen: boolean): Promise<Binding | undefined> {
    if (unstorable(userId) || !(await this.#fitsColumn(userId))) return undefined;
    return this.#write(async (client) => {
      const [row] = await select(
        client,
        `UPDATE gateway_user_route SET frozen = $3 WHERE service_id = $1 AND user_id = $2 RETURNING ${COLUMNS}`,
        [serviceId, userId, frozen ? 1 : 0],
      );
      return row && bindingOf(row);
    });
  }

  async countByNode(serviceId: string): Promise<ReadonlyMap<string, number>> {
    const { rows } = await this.#postgres.query<{ node_id: string; users: string }>(
      'SELECT node_id, count(*)::text AS users FROM gateway_user_route WHERE service_id = $1 GROUP BY node_id',
      [serviceId],
      { name: 'gateway_binding_count' },
    );
    return new Map(rows.map((row) => [row.node_id, Number(row.users)]));
  }

  /** Ordered by the row's number; `after` is the last number of the previous page. */
  async list(serviceId: string, query: BindingQuery): Promise<BindingPage> {
    const conditions = ['service_id = $1'];
    const values: unknown[] = [serviceId];
    const use = (value: unknown): string => `$${values.push(value)}`;
    if (query.userId !== undefined) {
      if (unstorable(query.userId) || !(await this.#fitsColumn(query.userId))) return EMPTY_PAGE;
      conditions.push(`user_id = ${use(query.userId)}`);
    }
    if (query.username !== undefined) {
      if (unstorable(query.username)) return EMPTY_PAGE;
      conditions.push(
        `lower(username) IN (lower(${use(query.username)}), lower(${use(normalizeUsername(query.username))}))`,
      );
    }
    if (query.nodeId !== undefined) conditions.push(`node_id = ${use(query.nodeId)}`);
    if (query.after !== undefined) {
      if (!isInt8(query.after))
        throw new OperatorError(`'${query.after.slice(0, 40)}' is not the next of a page of bindings`);
      conditions.push(`gateway_user_route.id > ${use(query.after)}::bigint`);
    }
    // Few rows have the id or the name; `+ 0` keeps the planner from looking for them along the primary key.
    const order = query.userId === undefined && query.username === undefined ? '' : ' + 0';
    const limit = Math.min(MOST_PER_PAGE, Math.max(1, Math.floor(query.limit ?? DEFAULT_PER_PAGE)));
    // One row more than asked for tells whether there is a next page.
    const rows = await select(
      this.#postgres,
      `SELECT ${COLUMNS} FROM gateway_user_route WHERE ${conditions.join(' AND ')}
       ORDER BY gateway_user_route.id${order} LIMIT ${use(limit + 1)}`,
      values,
    );
    const page = rows.slice(0, limit);
    return { bindings: page.map(bindingOf), next: rows.length > limit ? (page.at(-1)?.id ?? null) : null };
  }

  /** One read outside of a transaction. */
  #read(text: string, values: readonly unknown[], name: string): Promise<Row[]> {
    return this.#attempt(async () => (await this.#postgres.query<Row>(text, values, { name })).rows);
  }

  /** Runs `work` in a transaction, anew when another gateway came in between. */
  #write<T>(work: (client: Queryable) => Promise<T>): Promise<T> {
    return this.#attempt(() => this.#postgres.transaction(work));
  }

  async #attempt<T>(work: () => Promise<T>): Promise<T> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await work();
      } catch (error) {
        const outdated = isOutdatedPlan(error);
        if (!outdated && !isInterruption(error)) throw translate(error);
        if (attempt >= MOST_ATTEMPTS) throw outdated ? error : new StoreUnavailable('postgres', error);
        if (outdated) {
          // Perhaps the column is no longer what it was. The next connection knows, so there is nothing to wait for.
          this.#columnKind = undefined;
          continue;
        }
      }
      await new Promise<void>((resolve) => {
        this.#clock.after(Math.random() * RETRY_MS * attempt, resolve);
      });
    }
  }

  async #checkStorable(userId: string, username: string | null): Promise<void> {
    const mistake = unstorable(userId);
    if (mistake) throw new OperatorError(`a user id cannot be stored: ${mistake}`);
    const nameMistake = username === null ? undefined : unstorable(username);
    if (nameMistake) throw new OperatorError(`a username cannot be stored: ${nameMistake}`);
    if (await this.#fitsColumn(userId)) return;
    throw new OperatorError(
      `the user id '${userId.slice(0, 40)}' is not a number, but gateway_user_route.user_id is a bigint column: ` +
        'ALTER TABLE gateway_user_route ALTER COLUMN user_id TYPE varchar(256)',
    );
  }

  /** A bigint column holds only what comes back as the same digits: '007' would be found as '7'. */
  async #fitsColumn(userId: string): Promise<boolean> {
    this.#columnKind ??= await this.#readColumnKind();
    return this.#columnKind === 'text' || isInt8(userId);
  }

  async #readColumnKind(): Promise<ColumnKind> {
    const { rows } = await this.#postgres.query<{ type: string }>(
      `SELECT format_type(atttypid, NULL) AS type FROM pg_attribute
       WHERE attrelid = to_regclass('gateway_user_route') AND attname = 'user_id' AND NOT attisdropped`,
    );
    return ['bigint', 'integer', 'numeric'].includes(rows[0]?.type ?? '') ? 'bigint' : 'text';
  }
}

const EMPTY_PAGE: BindingPage = { bindings: [], next: null };

interface Wanted {
  readonly serviceId: string;
  readonly userId: string;
  readonly username: string | null;
  readonly nodeId: string;
}

/** The answer when nothing has to be written, which is nearly every login. */
function alreadyBound(rows: readonly Row[], userId: string, username: string | null): BindResult | undefined {
  const [row, ...others] = rows;
  if (!row || others.length > 0 || row.user_id !== userId) return undefined;
  if (username !== null && row.username !== username) return undefined;
  return { binding: bindingOf(row), created: false, conflict: false, voided: [] };
}

/** The table of binding-store.ts, on locked rows. */
async function bind(client: Queryable, rows: readonly Row[], wanted: Wanted): Promise<BindResult> {
  const { serviceId, userId, username } = wanted;
  const own = rows.find((row) => row.user_id === userId);
  // At most one in practice; two when PostgreSQL and JavaScript disagree on the lower case of a name.
  const named = rows.filter((row) => row !== own);
  if (!own) {
    const incomplete = named.find((row) => row.user_id === null);
    const voided = await takeNameOff(
      client,
      named.filter((row) => row !== incomplete),
    );
    if (incomplete) {
      return {
        binding: bindingOf(await complete(client, incomplete, wanted)),
        created: false,
        conflict: false,
        voided,
      };
    }
    const row = await insert(client, wanted, highestEpoch(named));
    return { binding: bindingOf(row), created: true, conflict: false, voided };
  }
  const strays = named.filter((row) => row.user_id === null);
  const voided = await takeNameOff(
    client,
    named.filter((row) => row.user_id !== null),
  );
  for (const stray of strays) {
    await client.query('DELETE FROM gateway_user_route WHERE id = $1', [stray.id]);
    voided.push(...nameKeys(stray));
  }
  const conflicts = strays.filter((stray) => stray.node_id !== own.node_id);
  if (username !== null && own.username !== null && normalizeUsername(own.username) !== normalizeUsername(username)) {
    voided.push({ kind: 'name', serviceId, username: normalizeUsername(own.username) });
  }
  // For whoever looks up the name this is a move, so the epoch has to be above the one known under that name.
  const epoch = Math.max(Number(own.epoch), ...conflicts.map((stray) => Number(stray.epoch) + 1));
  const row = await one(
    client,
    `UPDATE gateway_user_route SET username = $2, epoch = $3 WHERE id = $1 RETURNING ${COLUMNS}`,
    [own.id, username ?? own.username, epoch],
  );
  return { binding: bindingOf(row), created: false, conflict: conflicts.length > 0, voided };
}

async function takeNameOff(client: Queryable, rows: readonly Row[]): Promise<BindingKey[]> {
  const voided: BindingKey[] = [];
  for (const row of rows) {
    await client.query('UPDATE gateway_user_route SET username = NULL WHERE id = $1', [row.id]);
    voided.push(...nameKeys(row));
    if (row.user_id !== null) voided.push({ kind: 'id', serviceId: row.service_id, userId: row.user_id });
  }
  return voided;
}

function complete(client: Queryable, row: Row, wanted: Wanted): Promise<Row> {
  return one(client, `UPDATE gateway_user_route SET user_id = $2, username = $3 WHERE id = $1 RETURNING ${COLUMNS}`, [
    row.id,
    wanted.userId,
    wanted.username ?? row.username,
  ]);
}

/** `aboveEpoch`: the new row's epoch is higher; the table's trigger raises it above all removed ones besides. */
async function insert(client: Queryable, wanted: Wanted, aboveEpoch: number): Promise<Row> {
  return one(
    client,
    `INSERT INTO gateway_user_route (service_id, user_id, username, node_id, epoch) VALUES ($1, $2, $3, $4, $5)
     ON CONFLICT DO NOTHING RETURNING ${COLUMNS}`,
    [wanted.serviceId, wanted.userId, wanted.username, wanted.nodeId, aboveEpoch + 1],
  );
}

async function one(client: Queryable, text: string, values: readonly unknown[]): Promise<Row> {
  const [row] = await select(client, text, values);
  if (!row) throw new Interrupted('another gateway came in between');
  return row;
}

async function select(client: Queryable, text: string, values: readonly unknown[]): Promise<Row[]> {
  return (await client.query<Row>(text, values)).rows;
}

/** Too long for the column, not a number in its range, or bytes that the database's encoding cannot hold. */
function translate(error: unknown): unknown {
  return ['22001', '22003', '22P02', '22021', '22P05'].includes(sqlStateOf(error) ?? '')
    ? new OperatorError('gateway_user_route cannot hold this user id, username or node id', { cause: error })
    : error;
}

/** Lost a race, a deadlock or a serialization failure: nothing was written, and the next attempt sees the winner. */
function isInterruption(error: unknown): boolean {
  if (error instanceof Interrupted) return true;
  const state = sqlStateOf(error);
  return state === '23505' || state === '40P01' || state === '40001';
}

function highestEpoch(rows: readonly Row[]): number {
  return Math.max(0, ...rows.map((row) => Number(row.epoch)));
}

function nameKeys(row: Row): BindingKey[] {
  if (row.username === null) return [];
  return [{ kind: 'name', serviceId: row.service_id, username: normalizeUsername(row.username) }];
}

function bindingOf(row: Row): Binding {
  return {
    serviceId: row.service_id,
    userId: row.user_id,
    username: row.username,
    nodeId: row.node_id,
    epoch: Number(row.epoch),
    frozen: row.frozen !== 0,
  };
}

function isInt8(text: string): boolean {
  if (!/^(0|-?[1-9][0-9]{0,18})$/.test(text)) return false;
  const value = BigInt(text);
  return value >= INT8.least && value <= INT8.most;
}
