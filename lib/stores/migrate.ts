/**
 * Brings the tables of schema/gateway.sql into a PostgreSQL database, or checks that they are there. What the tables
 * hold is not its business.
 */
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { OperatorError } from '../errors.ts';
import { describeError } from '../observe/log.ts';
import { type PostgresStore, sqlStateOf } from './postgres.ts';
import { StoreUnavailable } from './store-unavailable.ts';

const SCHEMA_FILE = join('schema', 'gateway.sql');
/** Any number, the same in every version: two migrations at once wait for each other. */
const MIGRATION_LOCK = '7236124891001';
/** Building an index on a large table of an older gateway takes its time. */
const MIGRATION_TIMEOUT_MS = 600_000;
const LOCK_TIMEOUT_MS = 30_000;

/** What the program reads and writes; the rest of the schema may differ. */
const REQUIRED_COLUMNS: Readonly<Record<string, readonly string[]>> = {
  gateway_service: ['id', 'name', 'path_prefix', 'login_path', 'health_path', 'default_node_id', 'enabled', 'options'],
  gateway_node: ['id', 'service_id', 'name', 'base_url', 'enabled', 'draining', 'weight', 'max_users', 'remark'],
  gateway_user_route: ['id', 'service_id', 'user_id', 'username', 'node_id', 'epoch', 'frozen'],
  gateway_route: ['id', 'path_prefix', 'enabled', 'config'],
  gateway_token: ['realm', 'token_hash', 'user_id', 'expire_time'],
  gateway_audit: [
    'id',
    'time',
    'actor',
    'address',
    'action',
    'target',
    'outcome',
    'before',
    'after',
    'reason',
    'request_id',
  ],
  gateway_epoch: ['single', 'floor'],
};

/**
 * Runs the schema file in one transaction; all of it or nothing takes effect. Rejects with StoreUnavailable when
 * PostgreSQL does not answer and with OperatorError when it refuses (permissions, data that break a unique index).
 */
export async function migrate(postgres: PostgresStore): Promise<void> {
  const schema = readFileSync(findSchemaFile(), 'utf8');
  postgres.start();
  try {
    await postgres.transaction(
      async (client) => {
        // Another gateway may be building an index under this lock: its wait has no limit but the statement's.
        await client.query('SET LOCAL lock_timeout = 0');
        await client.query(`SELECT pg_advisory_xact_lock(${MIGRATION_LOCK})`);
        await client.query(`SET LOCAL lock_timeout = ${LOCK_TIMEOUT_MS}`);
        await client.query(schema);
      },
      { timeoutMs: MIGRATION_TIMEOUT_MS },
    );
  } catch (error) {
    if (error instanceof StoreUnavailable) throw error;
    throw new OperatorError(`the PostgreSQL schema could not be brought up to date: ${explain(error)}`, {
      cause: error,
    });
  }
}

/** For `migrate: false`: rejects with an OperatorError that names what is missing. */
export async function verifySchema(postgres: PostgresStore): Promise<void> {
  postgres.start();
  const { rows } = await postgres.query<{ table_name: string; columns: string[] }>(
    `SELECT t.name AS table_name, coalesce(array_agg(a.attname::text) FILTER (WHERE a.attname IS NOT NULL), '{}') AS columns
     FROM unnest($1::text[]) AS t (name)
     LEFT JOIN pg_attribute a ON a.attrelid = to_regclass(t.name) AND a.attnum > 0 AND NOT a.attisdropped
     GROUP BY t.name`,
    [Object.keys(REQUIRED_COLUMNS)],
  );
  const found = new Map(rows.map((row) => [row.table_name, new Set(row.columns)]));
  const missing = Object.entries(REQUIRED_COLUMNS).flatMap(([table, columns]) => {
    const there = found.get(table);
    if (!there || there.size === 0) return [`table ${table}`];
    return columns.filter((column) => !there.has(column)).map((column) => `column ${table}.${column}`);
  });
  if (missing.length > 0) {
    throw new OperatorError(
      `the PostgreSQL schema lacks ${missing.join(', ')}: run 'sticky-gateway migrate', or set store.postgres.migrate: true`,
    );
  }
}

function explain(error: unknown): string {
  const detail =
    error instanceof Error && 'detail' in error && typeof error.detail === 'string' ? ` (${error.detail})` : '';
  const message = `${describeError(error)}${detail}`;
  switch (sqlStateOf(error)) {
    case '42501':
      return `${message}. The user needs CREATE on the schema, or run 'sticky-gateway migrate' once as the owner and set migrate: false`;
    case '23505':
      return `${message}. Rows that were allowed so far break a unique index; remove the duplicates first`;
    default:
      return message;
  }
}

/** The file ships beside package.json, above the sources (lib/) and above the compiled files (dist/lib/) alike. */
function findSchemaFile(): string {
  for (let folder = dirname(fileURLToPath(import.meta.url)); ; folder = dirname(folder)) {
    const path = join(folder, SCHEMA_FILE);
    if (existsSync(path) && existsSync(join(folder, 'package.json'))) return path;
    if (folder === dirname(folder)) throw new OperatorError(`${SCHEMA_FILE} is missing from the installation`);
  }
}
