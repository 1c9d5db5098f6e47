/** A migrated database with a started store on it, for tests of what keeps its data in PostgreSQL. */
import type { PostgresOptions } from '../../lib/config/options.ts';
import { type Logger, silentLogger } from '../../lib/observe/log.ts';
import { migrate } from '../../lib/stores/migrate.ts';
import { PostgresStore } from '../../lib/stores/postgres.ts';
import { createDatabase, type TestDatabase } from './postgres-server.ts';

export interface OpenedDatabase {
  readonly database: TestDatabase;
  readonly options: PostgresOptions;
  readonly postgres: PostgresStore;
  close(): Promise<void>;
}

export function postgresOptions(url: string, changes: Partial<PostgresOptions> = {}): PostgresOptions {
  return { url, poolSize: 10, connectTimeoutMs: 3_000, queryTimeoutMs: 10_000, migrate: true, ...changes };
}

/** `prepare`: SQL that runs before the migration. */
export async function openDatabase(
  settings: { prepare?: string; options?: Partial<PostgresOptions>; logger?: Logger } = {},
): Promise<OpenedDatabase> {
  const database = await createDatabase();
  const options = postgresOptions(database.url, settings.options);
  const postgres = new PostgresStore(options, settings.logger ?? silentLogger);
  postgres.start();
  if (settings.prepare !== undefined) await postgres.query(settings.prepare);
  await migrate(postgres);
  return {
    database,
    options,
    postgres,
    close: async () => {
      await postgres.stop();
      await database.drop();
    },
  };
}

/** The tables as an older gateway made them: fewer columns, user ids in a bigint column. */
export const OLDER_TABLES = `
  CREATE TABLE gateway_service (
    id varchar(64) PRIMARY KEY, name varchar(128), path_prefix varchar(128) NOT NULL UNIQUE, login_path varchar(128),
    health_path varchar(128), default_node_id varchar(64), enabled smallint DEFAULT 1,
    create_time timestamp DEFAULT now(), update_time timestamp DEFAULT now());
  CREATE TABLE gateway_node (
    id varchar(64) PRIMARY KEY, service_id varchar(64) NOT NULL REFERENCES gateway_service (id), name varchar(128),
    base_url varchar(256) NOT NULL, enabled smallint DEFAULT 1, remark varchar(256),
    create_time timestamp DEFAULT now(), update_time timestamp DEFAULT now(), UNIQUE (service_id, base_url));
  CREATE TABLE gateway_user_route (
    id bigserial PRIMARY KEY, service_id varchar(64) NOT NULL, user_id bigint, username varchar(64),
    node_id varchar(64) NOT NULL, create_time timestamp DEFAULT now(), update_time timestamp DEFAULT now());
  INSERT INTO gateway_service (id, name, path_prefix) VALUES ('old', 'Old', '/old');
  INSERT INTO gateway_node (id, service_id, base_url) VALUES ('old-1', 'old', 'http://127.0.0.1:9001');
  INSERT INTO gateway_user_route (service_id, user_id, username, node_id)
    VALUES ('old', 1790000000000000001, 'Zhang', 'old-1'), ('old', NULL, 'nameonly', 'old-1');
`;
