/**
 * Import into PostgreSQL in one transaction: rows are staged in a temporary table as they come, which nobody has to
 * wait for, checked against each other, and then inserted in slices where nobody is bound yet.
 */
import type { PostgresStore, Queryable } from '../stores/postgres.ts';
import {
  type BindingImporter,
  ImportBusy,
  type ImportFault,
  type ImportOutcome,
  type ImportRow,
  MOST_FAULTS,
} from './binding-import.ts';

/** Of one statement. */
const STATEMENT_TIMEOUT_MS = 60_000;
/** Rows of one INSERT. */
const SLICE_ROWS = 1_000;
/** So many new rows change what a good plan is. */
const MANY_ROWS = 10_000;
/** Any number, the same in every version: one import at a time over all gateways, as two could wait for each other. */
const IMPORT_LOCK = '7236124891004';

/** One user with two nodes, one name with two users; a row without an id may later turn out to be the one with it. */
const CLASHES = `
  SELECT line, message, count(*) OVER () AS total FROM (
    SELECT line, format('user ''%s'' stands on line %s already, with node %s instead of %s', user_id, first_line, first_node, node_id) AS message
    FROM (SELECT *, first_value(line) OVER w AS first_line, first_value(node_id) OVER w AS first_node
          FROM gateway_import WHERE user_id IS NOT NULL WINDOW w AS (PARTITION BY user_id ORDER BY line)) AS by_id
    WHERE node_id <> first_node
    UNION ALL
    SELECT line, format('username ''%s'' stands on line %s already, with another %s', username, first_line,
      CASE WHEN node_id <> first_node THEN 'node' ELSE 'user id' END)
    FROM (SELECT *, first_value(line) OVER w AS first_line, first_value(node_id) OVER w AS first_node,
            first_value(user_id) OVER w AS first_user
          FROM gateway_import WHERE username IS NOT NULL WINDOW w AS (PARTITION BY lower(username) ORDER BY line)) AS by_name
    WHERE (user_id IS NULL OR first_user IS NULL OR user_id <> first_user)
      AND (node_id <> first_node OR user_id <> first_user)
    UNION ALL
    SELECT line, format('the user id ''%s'' is not a number, but gateway_user_route.user_id is a bigint column', left(user_id, 40))
    FROM gateway_import WHERE $1 AND user_id IS NOT NULL AND NOT CASE WHEN user_id ~ '^(0|-?[1-9][0-9]{0,18})$'
      THEN user_id::numeric BETWEEN -9223372036854775808 AND 9223372036854775807 ELSE false END
  ) AS faults ORDER BY line LIMIT ${MOST_FAULTS}`;

export class PostgresImport implements BindingImporter {
  readonly #postgres: PostgresStore;

  constructor(postgres: PostgresStore) {
    this.#postgres = postgres;
  }

  async run(
    serviceId: string,
    batches: AsyncIterable<readonly ImportRow[]>,
    mayWrite: () => boolean,
  ): Promise<ImportOutcome> {
    // After an outage one call at a time tries PostgreSQL. It must not be this one: the others would wait for its file.
    await this.#postgres.query('SELECT 1');
    return this.#postgres.transaction(
      async (client) => {
        const rows = await stage(client, batches);
        const idType = await userIdType(client);
        const { rows: found } = await client.query<{ line: number; message: string; total: string }>(CLASHES, [
          idType === 'bigint',
        ]);
        const faults = found.map(({ line, message }): ImportFault => ({ line, message }));
        const faultCount = Number(found[0]?.total ?? 0);
        if (faultCount > 0) return { inserted: 0, faults, faultCount };
        const inserted = mayWrite()
          ? await insertStaged(client, serviceId, rows, idType)
          : await countAbsent(client, serviceId, idType);
        return { inserted, faults, faultCount };
      },
      { timeoutMs: STATEMENT_TIMEOUT_MS },
    );
  }
}

/** Resolves with the number of rows. */
async function stage(client: Queryable, batches: AsyncIterable<readonly ImportRow[]>): Promise<number> {
  const { rows } = await client.query<{ free: boolean }>(`SELECT pg_try_advisory_xact_lock(${IMPORT_LOCK}) AS free`);
  if (!rows[0]?.free) throw new ImportBusy('another import is under way');
  await client.query(
    `CREATE TEMPORARY TABLE gateway_import (place integer PRIMARY KEY, line integer NOT NULL, user_id text, username text,
       node_id text NOT NULL) ON COMMIT DROP`,
  );
  let count = 0;
  for await (const batch of batches) {
    await client.query(
      `INSERT INTO gateway_import (place, line, user_id, username, node_id)
       SELECT * FROM unnest($1::integer[], $2::integer[], $3::text[], $4::text[], $5::text[])`,
      [
        batch.map((_row, index) => count + index),
        batch.map((row) => row.line),
        batch.map((row) => row.userId),
        batch.map((row) => row.username),
        batch.map((row) => row.nodeId),
      ],
    );
    count += batch.length;
  }
  return count;
}

async function insertStaged(client: Queryable, serviceId: string, rows: number, idType: string): Promise<number> {
  let inserted = 0;
  for (let from = 0; from < rows; from += SLICE_ROWS) {
    const { rowCount } = await client.query(
      `INSERT INTO gateway_user_route (service_id, user_id, username, node_id)
       SELECT $1, user_id::${idType}, username, node_id FROM gateway_import WHERE place >= $2 AND place < $3 ORDER BY place
       ON CONFLICT DO NOTHING`,
      [serviceId, from, from + SLICE_ROWS],
    );
    inserted += rowCount;
  }
  // Else plans go by what the table was, until the server finds the time to look.
  if (inserted > MANY_ROWS) await client.query('ANALYZE gateway_user_route');
  return inserted;
}

/** What an insertion would do, without the locks that it takes: of rows of one person the first counts. */
async function countAbsent(client: Queryable, serviceId: string, idType: string): Promise<number> {
  const { rows } = await client.query<{ absent: string }>(
    `SELECT count(*)::text AS absent FROM (
       SELECT row_number() OVER (PARTITION BY user_id ORDER BY place) AS id_turn, user_id,
         row_number() OVER (PARTITION BY lower(username) ORDER BY place) AS name_turn, username
       FROM gateway_import) AS i
     WHERE (user_id IS NULL OR id_turn = 1) AND (username IS NULL OR name_turn = 1)
       AND NOT EXISTS (SELECT FROM gateway_user_route r WHERE r.service_id = $1 AND r.user_id = i.user_id::${idType})
       AND NOT EXISTS (SELECT FROM gateway_user_route r WHERE r.service_id = $1 AND lower(r.username) = lower(i.username))`,
    [serviceId],
  );
  return Number(rows[0]?.absent ?? 0);
}

/** An older gateway's table has numbers. */
async function userIdType(client: Queryable): Promise<'bigint' | 'varchar'> {
  const { rows } = await client.query<{ type: string }>(
    `SELECT format_type(atttypid, NULL) AS type FROM pg_attribute
     WHERE attrelid = to_regclass('gateway_user_route') AND attname = 'user_id' AND NOT attisdropped`,
  );
  return ['bigint', 'integer', 'numeric'].includes(rows[0]?.type ?? '') ? 'bigint' : 'varchar';
}
