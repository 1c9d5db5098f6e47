/** The schema file on an empty database, on itself and on an older gateway's tables; its triggers. */
import assert from 'node:assert/strict';
import { after, before, beforeEach, describe, test } from 'node:test';
import { OperatorError } from '../../lib/errors.ts';
import { silentLogger } from '../../lib/observe/log.ts';
import { migrate, verifySchema } from '../../lib/stores/migrate.ts';
import { PostgresStore } from '../../lib/stores/postgres.ts';
import { PostgresListener } from '../../lib/stores/postgres-listener.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { createDatabase, runSql } from '../support/postgres-server.ts';
import { OLDER_TABLES, type OpenedDatabase, openDatabase, postgresOptions } from '../support/postgres-store.ts';

/** What the database holds by name: columns with types, indexes, constraints, triggers. */
const SHAPE = `
  SELECT 'column ' || attrelid::regclass || '.' || attname || ' ' || format_type(atttypid, atttypmod) AS item
    FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
    WHERE relname LIKE 'gateway%' AND relkind = 'r' AND attnum > 0 AND NOT attisdropped
  UNION ALL SELECT 'index ' || indexdef FROM pg_indexes WHERE tablename LIKE 'gateway%'
  UNION ALL SELECT 'trigger ' || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
  UNION ALL SELECT 'constraint ' || conrelid::regclass || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
    WHERE conrelid::regclass::text LIKE 'gateway%'
  ORDER BY 1`;

async function withEmptyDatabase(work: (postgres: PostgresStore, url: string) => Promise<void>): Promise<void> {
  const database = await createDatabase();
  const postgres = new PostgresStore(postgresOptions(database.url), silentLogger);
  try {
    await work(postgres, database.url);
  } finally {
    await postgres.stop();
    await database.drop();
  }
}

describe('migrate', () => {
  test('makes the tables, and changes nothing the second time', () =>
    withEmptyDatabase(async (postgres) => {
      await migrate(postgres);
      const first = (await postgres.query(SHAPE)).rows;
      assert.ok(first.length > 60);
      await migrate(postgres);
      assert.deepEqual((await postgres.query(SHAPE)).rows, first);
      await verifySchema(postgres);
    }));

  test('lets several gateways start at once on an empty database', () =>
    withEmptyDatabase(async (_, url) => {
      const stores = Array.from({ length: 4 }, () => new PostgresStore(postgresOptions(url), silentLogger));
      await Promise.all(stores.map((store) => migrate(store)));
      await Promise.all(stores.map((store) => store.stop()));
    }));

  test('only adds to the tables of an older gateway, and keeps their rows and their bigint column', () =>
    withEmptyDatabase(async (postgres) => {
      postgres.start();
      await postgres.query(OLDER_TABLES);
      await assert.rejects(verifySchema(postgres), /column gateway_user_route\.epoch.*sticky-gateway migrate/);
      for (let round = 0; round < 2; round += 1) await migrate(postgres);
      await verifySchema(postgres);
      const { rows } = await postgres.query(
        'SELECT user_id, pg_typeof(user_id)::text AS type, username, node_id, epoch, frozen FROM gateway_user_route ORDER BY id',
      );
      assert.deepEqual(rows, [
        {
          user_id: '1790000000000000001',
          type: 'bigint',
          username: 'Zhang',
          node_id: 'old-1',
          epoch: '1',
          frozen: 0,
        },
        { user_id: null, type: 'bigint', username: 'nameonly', node_id: 'old-1', epoch: '1', frozen: 0 },
      ]);
      const nodes = await postgres.query('SELECT draining, weight, max_users FROM gateway_node');
      assert.deepEqual(nodes.rows, [{ draining: 0, weight: 1, max_users: null }]);
      // A service that is reached only through routes has no prefix of its own.
      await postgres.query("INSERT INTO gateway_service (id) VALUES ('inner')");
      await assert.rejects(
        postgres.query("INSERT INTO gateway_user_route (service_id, node_id) VALUES ('old', 'old-1')"),
        /gateway_user_route_identity/,
      );
    }));

  test('takes no lock that stops other gateways when there is nothing to add', async () => {
    const opened = await openDatabase();
    await opened.postgres.transaction(async (client) => {
      await client.query("INSERT INTO gateway_user_route (service_id, user_id, node_id) VALUES ('s', '1', 'n')");
      await client.query("INSERT INTO gateway_service (id) VALUES ('s')");
      const second = new PostgresStore(opened.options, silentLogger);
      // It would wait for this open transaction.
      await migrate(second);
      await second.stop();
    });
    await opened.close();
  });

  test('names the rows that stand in the way, and leaves nothing half-done', () =>
    withEmptyDatabase(async (postgres) => {
      postgres.start();
      await postgres.query(OLDER_TABLES);
      await postgres.query(
        "INSERT INTO gateway_user_route (service_id, user_id, username, node_id) VALUES ('old', 5, 'ZHANG', 'old-1')",
      );
      await assert.rejects(migrate(postgres), (error: Error) => {
        assert.ok(error instanceof OperatorError);
        assert.match(error.message, /zhang.*remove the duplicates/s);
        return true;
      });
      const { rows } = await postgres.query("SELECT to_regclass('gateway_token') AS token");
      assert.deepEqual(rows, [{ token: null }]);
    }));

  test('says what a user without permission can do', () =>
    withEmptyDatabase(async (_, url) => {
      await runSql(
        url,
        'DROP ROLE IF EXISTS sticky_guest; CREATE ROLE sticky_guest LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC',
      );
      const guestUrl = new URL(url);
      guestUrl.username = 'sticky_guest';
      const guest = new PostgresStore(postgresOptions(guestUrl.href), silentLogger);
      await assert.rejects(migrate(guest), (error: Error) => {
        assert.ok(error instanceof OperatorError);
        assert.match(error.message, /permission denied.*sticky-gateway migrate/s);
        return true;
      });
      await guest.stop();
      await runSql(url, 'DROP ROLE sticky_guest');
    }));

  test('tells an unreachable PostgreSQL from one that refuses', async () => {
    const away = new PostgresStore(postgresOptions('postgres://x@127.0.0.1:1/x'), silentLogger);
    await assert.rejects(migrate(away), StoreUnavailable);
    await away.stop();
  });
});

describe('verifySchema', () => {
  test('names every table that is missing and the command that makes them', () =>
    withEmptyDatabase(async (postgres) => {
      await assert.rejects(verifySchema(postgres), (error: Error) => {
        assert.ok(error instanceof OperatorError);
        for (const table of ['service', 'node', 'user_route', 'route', 'token', 'audit']) {
          assert.match(error.message, new RegExp(`table gateway_${table}\\b`));
        }
        assert.match(error.message, /sticky-gateway migrate/);
        return true;
      });
    }));
});

describe('the triggers', () => {
  let opened: OpenedDatabase;
  let listener: PostgresListener;
  const heard: string[] = [];
  const run = (text: string) => opened.postgres.query(text);
  /** What was heard up to now; a marker tells that everything before it has arrived. */
  const messages = async (): Promise<string[]> => {
    await run("SELECT pg_notify('gateway_bindings', 'marker')");
    while (!heard.includes('gateway_bindings marker')) await new Promise((resolve) => setTimeout(resolve, 2));
    return heard.splice(0).filter((message) => message !== 'gateway_bindings marker');
  };
  const binding = (message: string | undefined) => JSON.parse((message ?? '').replace('gateway_bindings ', ''));
  before(async () => {
    opened = await openDatabase();
    await new Promise<void>((resolve) => {
      listener = new PostgresListener({
        postgres: opened.options,
        channels: ['gateway_registry', 'gateway_bindings'],
        onMessage: (channel, payload) => heard.push(`${channel} ${payload}`),
        onReconnect: resolve,
        logger: silentLogger,
      });
      listener.start();
    });
  });
  after(async () => {
    listener.stop();
    await opened.close();
  });
  beforeEach(async () => {
    await run('DELETE FROM gateway_user_route');
    await messages();
  });

  test('tell of every change of the registry, once a statement', async () => {
    await run("INSERT INTO gateway_service (id) VALUES ('a'), ('b')");
    await run("INSERT INTO gateway_node (id, service_id, base_url) VALUES ('n', 'a', 'http://127.0.0.1:1')");
    await run("INSERT INTO gateway_route (id, path_prefix) VALUES ('r', '/r')");
    await run("UPDATE gateway_node SET draining = 1 WHERE id = 'n'");
    await run("DELETE FROM gateway_service WHERE id = 'b'");
    assert.deepEqual(
      (await messages()).filter((message) => message.startsWith('gateway_registry')).slice(0, 4),
      ['gateway_service', 'gateway_node', 'gateway_route', 'gateway_node'].map((table) => `gateway_registry ${table}`),
    );
  });

  test('say nothing of new bindings: what is absent is never cached', async () => {
    await run("INSERT INTO gateway_user_route (service_id, user_id, node_id) VALUES ('s', '1', 'n'), ('s', '2', 'n')");
    assert.deepEqual(await messages(), []);
  });

  test('name old and new keys of a changed binding, and its epoch', async () => {
    await run("INSERT INTO gateway_user_route (service_id, user_id, username, node_id) VALUES ('s', '1', 'Old', 'n')");
    const earlier = (await run('SELECT epoch::int FROM gateway_user_route')).rows[0]?.epoch as number;
    await run("UPDATE gateway_user_route SET username = 'New', node_id = 'm'");
    await run('UPDATE gateway_user_route SET username = NULL');
    await run('DELETE FROM gateway_user_route');
    const [changed, unnamed, removed, ...rest] = await messages();
    assert.deepEqual(binding(changed), { s: 's', u: ['1'], n: ['Old', 'New'], e: earlier + 1, d: 0 });
    assert.deepEqual(binding(unnamed), { s: 's', u: ['1'], n: ['New'], e: earlier + 1, d: 0 });
    assert.deepEqual(binding(removed), { s: 's', u: ['1'], n: [], e: earlier + 1, d: 1 });
    assert.deepEqual(rest, []);
  });

  test('name the user id that completes a row', async () => {
    await run("INSERT INTO gateway_user_route (service_id, username, node_id) VALUES ('s', 'a', 'n')");
    await run("UPDATE gateway_user_route SET user_id = '7'");
    const { s, u, n } = binding((await messages())[0]);
    assert.deepEqual({ s, u, n }, { s: 's', u: ['7'], n: ['a'] });
  });

  test('say "all" once for bulk work, for a payload too long, and when the table is emptied', async () => {
    await run(
      "INSERT INTO gateway_user_route (service_id, user_id, node_id) SELECT 's', n::text, 'n' FROM generate_series(1, 500) n",
    );
    await opened.postgres.transaction(async (client) => {
      await client.query("SET LOCAL gateway.bulk = 'on'");
      await client.query("UPDATE gateway_user_route SET node_id = 'm'");
    });
    assert.deepEqual(await messages(), ['gateway_bindings *']);
    await run('ALTER TABLE gateway_user_route ALTER COLUMN username TYPE text');
    // Sessions that ran the triggers hold plans for the old type.
    await opened.postgres.stop();
    opened.postgres.start();
    await run("UPDATE gateway_user_route SET username = repeat('ü', 4100) WHERE user_id = '1'");
    assert.deepEqual(await messages(), ['gateway_bindings *']);
    await run('TRUNCATE gateway_user_route');
    assert.deepEqual(await messages(), ['gateway_bindings *']);
  });

  test('raise the epoch of a move by plain SQL, and of a row made after a removal or an emptied table', async () => {
    const epochOf = async () => Number((await run('SELECT epoch FROM gateway_user_route')).rows[0]?.epoch);
    const bind = () => run("INSERT INTO gateway_user_route (service_id, user_id, node_id) VALUES ('s', '1', 'n')");
    await bind();
    const first = await epochOf();
    await run("UPDATE gateway_user_route SET node_id = 'm'");
    assert.equal(await epochOf(), first + 1);
    await run("UPDATE gateway_user_route SET node_id = 'o', epoch = epoch + 1");
    assert.equal(await epochOf(), first + 2);
    await run('UPDATE gateway_user_route SET frozen = 1');
    assert.equal(await epochOf(), first + 2);
    await run('DELETE FROM gateway_user_route');
    await bind();
    assert.equal(await epochOf(), first + 3);
    await run('UPDATE gateway_user_route SET epoch = 1000');
    await run('TRUNCATE gateway_user_route');
    await bind();
    assert.equal(await epochOf(), 1001);
    // A row with a lower epoch does not lower the floor.
    await run('UPDATE gateway_user_route SET epoch = 5');
    await run('DELETE FROM gateway_user_route');
    await run("INSERT INTO gateway_user_route (service_id, username, node_id, epoch) VALUES ('s', 'a', 'n', NULL)");
    assert.equal(await epochOf(), 1001);
    await run('UPDATE gateway_user_route SET epoch = 3');
    await run("UPDATE gateway_user_route SET user_id = '1'");
    assert.equal(await epochOf(), 1001);
  });

  test('keep the time of the last update', async () => {
    await run(
      "INSERT INTO gateway_user_route (service_id, user_id, node_id, update_time) VALUES ('s', '1', 'n', '2020-01-01')",
    );
    await run('UPDATE gateway_user_route SET frozen = 1');
    const { rows } = await run("SELECT update_time > now() - interval '1 minute' AS recent FROM gateway_user_route");
    assert.deepEqual(rows, [{ recent: true }]);
  });
});
