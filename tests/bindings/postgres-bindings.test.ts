/** PostgresBindings: the contract on both kinds of user_id column, and what only PostgreSQL can do wrong. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { PostgresBindings } from '../../lib/bindings/postgres-bindings.ts';
import { OperatorError } from '../../lib/errors.ts';
import { silentLogger } from '../../lib/observe/log.ts';
import { PostgresStore, sqlStateOf } from '../../lib/stores/postgres.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { runSql } from '../support/postgres-server.ts';
import { OLDER_TABLES, type OpenedDatabase, openDatabase, postgresOptions } from '../support/postgres-store.ts';
import { bindingStoreContract, type OpenedStore } from './contract.ts';

async function openStore(prepare?: string): Promise<OpenedStore> {
  const opened = await openDatabase(prepare === undefined ? {} : { prepare });
  return {
    store: new PostgresBindings(opened.postgres),
    insertUsernameOnly: async (serviceId, username, nodeId) => {
      await opened.postgres.query(
        'INSERT INTO gateway_user_route (service_id, username, node_id) VALUES ($1, $2, $3)',
        [serviceId, username, nodeId],
      );
    },
    close: opened.close,
  };
}

bindingStoreContract('PostgresBindings', () => openStore());
bindingStoreContract('PostgresBindings on the bigint column of an older gateway', () => openStore(OLDER_TABLES));

describe('PostgresBindings', () => {
  let opened: OpenedDatabase;
  let other: PostgresStore;
  let bindings: PostgresBindings;
  const rows = async (serviceId: string) =>
    (await opened.postgres.query('SELECT * FROM gateway_user_route WHERE service_id = $1', [serviceId])).rows;

  before(async () => {
    opened = await openDatabase();
    other = new PostgresStore(opened.options, silentLogger);
    other.start();
    bindings = new PostgresBindings(opened.postgres);
  });
  after(async () => {
    await other.stop();
    await opened.close();
  });

  test('makes one row of 100 logins of one new user through two gateways', async () => {
    const second = new PostgresBindings(other);
    const results = await Promise.all(
      Array.from({ length: 100 }, (_, index) =>
        (index % 2 ? bindings : second).bindIfAbsent('race', '1', 'alice', `node-${index}`),
      ),
    );
    assert.equal((await rows('race')).length, 1);
    assert.equal(results.filter((result) => result.created).length, 1);
    assert.equal(new Set(results.map((result) => result.binding.nodeId)).size, 1);
  });

  test('survives logins that swap names between two users at once', async () => {
    const second = new PostgresBindings(other);
    await bindings.bindIfAbsent('swap', '1', 'a', 'node-1');
    await bindings.bindIfAbsent('swap', '2', 'b', 'node-2');
    await Promise.all(
      Array.from({ length: 20 }, (_, index) =>
        (index % 2 ? bindings : second).bindIfAbsent(
          'swap',
          index % 4 < 2 ? '1' : '2',
          index % 3 ? 'a' : 'b',
          'node-9',
        ),
      ),
    );
    assert.equal((await bindings.findByUserId('swap', '1'))?.nodeId, 'node-1');
    assert.equal((await bindings.findByUserId('swap', '2'))?.nodeId, 'node-2');
    assert.equal((await rows('swap')).length, 2);
  });

  test('writes nothing when the login says what the row says', async () => {
    await bindings.bindIfAbsent('quiet', '1', 'alice', 'node-1');
    const version = async () =>
      (await opened.postgres.query("SELECT xmin::text FROM gateway_user_route WHERE service_id = 'quiet'")).rows;
    const earlier = await version();
    await bindings.bindIfAbsent('quiet', '1', 'alice', 'node-2');
    await bindings.bindIfAbsent('quiet', '1', null, 'node-2');
    assert.deepEqual(await version(), earlier);
  });

  test('raises the epoch when a name that was known with a higher one passes to a row', async () => {
    await opened.postgres.query(
      "INSERT INTO gateway_user_route (service_id, username, node_id, epoch) VALUES ('epochs', 'carol', 'node-9', 50)",
    );
    await bindings.bindIfAbsent('epochs', '5', null, 'node-1');
    const merged = await bindings.bindIfAbsent('epochs', '5', 'carol', 'node-2');
    assert.equal(merged.conflict, true);
    assert.ok(merged.binding.epoch > 50);
    await opened.postgres.query("UPDATE gateway_user_route SET epoch = 90 WHERE service_id = 'epochs'");
    const passed = await bindings.bindIfAbsent('epochs', '6', 'carol', 'node-3');
    assert.equal(passed.created, true);
    assert.ok(passed.binding.epoch > 90);
  });

  test('never gives a row that waited for a removal an epoch at or below the removed one', async () => {
    await bindings.bindIfAbsent('floor', '1', 'alice', 'node-1');
    await opened.postgres.query("UPDATE gateway_user_route SET epoch = 7000 WHERE service_id = 'floor'");
    let again: Promise<unknown> | undefined;
    await opened.postgres.transaction(async (client) => {
      await client.query("DELETE FROM gateway_user_route WHERE service_id = 'floor'");
      again = other.query(
        "INSERT INTO gateway_user_route (service_id, user_id, node_id) VALUES ('floor', '1', 'node-2')",
      );
      // Until the insertion waits: for the lock, or (with a floor read too early) for the unique index.
      const waiting = `SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO gateway_user_route%'`;
      while ((await client.query(waiting)).rowCount === 0)
        await client.query('SELECT pg_stat_clear_snapshot(), pg_sleep(0.005)');
    });
    await again;
    const epoch = Number((await rows('floor'))[0]?.epoch);
    assert.ok(epoch > 7000, `epoch ${epoch}`);
  });

  test('refuses ids and names that PostgreSQL cannot hold as they are, and finds nothing under them', async () => {
    for (const text of ['', 'x'.repeat(257), 'a\0b', '\ud800']) {
      await assert.rejects(bindings.bindIfAbsent('odd', text, null, 'node-1'), OperatorError);
      await assert.rejects(bindings.move('odd', text, 'node-1'), OperatorError);
      await assert.rejects(bindings.bindIfAbsent('odd', '1', text, 'node-1'), OperatorError);
      assert.equal(await bindings.findByUserId('odd', text), undefined);
      assert.equal(await bindings.findByUsername('odd', text), undefined);
      assert.equal(await bindings.remove('odd', text), undefined);
      assert.equal(await bindings.setFrozen('odd', text, true), undefined);
      assert.deepEqual((await bindings.list('odd', { userId: text })).bindings, []);
      assert.deepEqual((await bindings.list('odd', { username: text })).bindings, []);
    }
    await assert.rejects(bindings.bindIfAbsent('odd', '1', null, 'n'.repeat(65)), OperatorError);
    assert.equal((await rows('odd')).length, 0);
  });

  test('finds a name whose lower case PostgreSQL and JavaScript see differently', async () => {
    await bindings.bindIfAbsent('greek', '1', 'ΟΔΟΣ', 'node-1');
    assert.equal((await bindings.findByUsername('greek', 'ΟΔΟΣ'))?.userId, '1');
    assert.equal((await bindings.bindIfAbsent('greek', '1', 'ΟΔΟΣ', 'node-2')).binding.nodeId, 'node-1');
  });

  test('refuses a page key that it never gave out', async () => {
    await assert.rejects(bindings.list('any', { after: "1' OR true" }), OperatorError);
    await assert.rejects(bindings.list('any', { after: '99999999999999999999' }), OperatorError);
  });

  test('keeps the limit of a page within its bounds', async () => {
    await bindings.bindIfAbsent('limits', '1', null, 'node-1');
    await bindings.bindIfAbsent('limits', '2', null, 'node-1');
    assert.equal((await bindings.list('limits', { limit: 0 })).bindings.length, 1);
    assert.equal((await bindings.list('limits', { limit: 5_000 })).bindings.length, 2);
  });

  test('reads no more of a large table than the rows it looks for', async () => {
    await opened.postgres.query(`
      INSERT INTO gateway_user_route (service_id, user_id, username, node_id)
        SELECT 'large', n::text, 'User' || n, 'node-' || n % 3 FROM generate_series(1, 20000) AS n;
      ANALYZE gateway_user_route`);
    const rowsRead = async () => {
      // The statistics of a session reach the shared view when it has been idle for a moment; this asks for it.
      await opened.postgres.query('SELECT pg_stat_force_next_flush()');
      const { rows: stats } = await opened.postgres.query<{ touched: string }>(`
        SELECT (pg_stat_get_tuples_returned(oid) + sum_index)::text AS touched FROM pg_class,
          (SELECT coalesce(sum(pg_stat_get_tuples_returned(indexrelid)), 0) AS sum_index FROM pg_index
            WHERE indrelid = 'gateway_user_route'::regclass) AS indexes
        WHERE oid = 'gateway_user_route'::regclass`);
      return Number(stats[0]?.touched);
    };
    const single = new PostgresStore({ ...opened.options, poolSize: 1 }, silentLogger);
    single.start();
    const store = new PostgresBindings(single);
    const earlier = await rowsRead();
    // PostgreSQL turns to a generic plan after five runs of a prepared statement: that one must be good as well.
    for (let round = 0; round < 8; round += 1) {
      assert.equal(await store.findByUsername('large', `nobody-${round}`), undefined);
      assert.equal(await store.findByUserId('large', `nobody-${round}`), undefined);
      assert.deepEqual((await store.list('large', { username: `nobody-${round}` })).bindings, []);
      await store.bindIfAbsent('large', `new-${round}`, `new-${round}`, 'node-1');
    }
    await single.query('SELECT pg_stat_force_next_flush()');
    await single.stop();
    const touched = (await rowsRead()) - earlier;
    assert.ok(touched < 5_000, `${touched} rows read`);
  });

  test('passes an unreachable PostgreSQL on as such, from every method', async () => {
    const away = new PostgresStore(postgresOptions('postgres://x@127.0.0.1:1/x'), silentLogger);
    away.start();
    const store = new PostgresBindings(away);
    await assert.rejects(store.findByUserId('s', '1'), StoreUnavailable);
    await assert.rejects(store.findByUsername('s', 'a'), StoreUnavailable);
    await assert.rejects(store.bindIfAbsent('s', '1', 'a', 'n'), StoreUnavailable);
    await assert.rejects(store.move('s', '1', 'n'), StoreUnavailable);
    await assert.rejects(store.remove('s', '1'), StoreUnavailable);
    await assert.rejects(store.setFrozen('s', '1', true), StoreUnavailable);
    await assert.rejects(store.countByNode('s'), StoreUnavailable);
    await assert.rejects(store.list('s', {}), StoreUnavailable);
    await away.stop();
  });

  test('gives up as unavailable when it loses every race', async () => {
    // A row that no statement sees but that is always in the way of an insertion.
    await opened.postgres.query(`
      CREATE FUNCTION always_lose() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF NEW.service_id = 'lost' THEN RETURN NULL; END IF; RETURN NEW; END $$;
      CREATE TRIGGER always_lose BEFORE INSERT ON gateway_user_route FOR EACH ROW EXECUTE FUNCTION always_lose()`);
    await assert.rejects(bindings.bindIfAbsent('lost', '1', null, 'node-1'), StoreUnavailable);
  });
});

describe('PostgresBindings on a bigint column', () => {
  let opened: OpenedDatabase;
  let bindings: PostgresBindings;
  before(async () => {
    opened = await openDatabase({ prepare: OLDER_TABLES, options: { poolSize: 1 } });
    bindings = new PostgresBindings(opened.postgres);
  });
  after(() => opened.close());

  test('reads the rows of the older gateway, ids digit by digit', async () => {
    assert.deepEqual(await bindings.findByUserId('old', '1790000000000000001'), {
      serviceId: 'old',
      userId: '1790000000000000001',
      username: 'Zhang',
      nodeId: 'old-1',
      epoch: 1,
      frozen: false,
    });
    assert.equal((await bindings.bindIfAbsent('old', '8', 'nameonly', 'old-2')).binding.nodeId, 'old-1');
  });

  test('takes only canonical numbers for user ids and says how to widen the column', async () => {
    const odd = ['u-1', '01790000000000000001', '+1', '1.0', ' 1', '-0', '9223372036854775808', '1e3'];
    for (const userId of odd) {
      assert.equal(await bindings.findByUserId('old', userId), undefined);
      assert.equal(await bindings.remove('old', userId), undefined);
      assert.equal(await bindings.setFrozen('old', userId, true), undefined);
      assert.deepEqual((await bindings.list('old', { userId })).bindings, []);
      await assert.rejects(bindings.bindIfAbsent('old', userId, null, 'old-1'), (error: Error) => {
        assert.ok(error instanceof OperatorError);
        assert.match(error.message, /gateway_user_route\.user_id.*ALTER COLUMN user_id TYPE varchar/);
        return true;
      });
    }
    for (const userId of ['9223372036854775807', '-9223372036854775808', '0']) {
      assert.equal((await bindings.bindIfAbsent('old', userId, null, 'old-1')).binding.userId, userId);
    }
  });

  test('refuses a username that the narrower column cannot hold', async () => {
    await assert.rejects(bindings.bindIfAbsent('old', '77', 'x'.repeat(100), 'old-1'), OperatorError);
  });

  test('notices that the column was widened while it ran', async () => {
    await bindings.findByUserId('old', '1');
    await bindings.move('old', '1', 'old-1');
    await bindings.move('old', '1', 'old-2');
    await runSql(opened.database.url, 'ALTER TABLE gateway_user_route ALTER COLUMN user_id TYPE varchar(256)');
    // The prepared statements of the one connection, and those inside the triggers, no longer fit.
    assert.equal((await bindings.findByUserId('old', '1'))?.nodeId, 'old-2');
    await bindings.bindIfAbsent('old', 'now-a-text', null, 'old-1');
    assert.equal((await bindings.findByUserId('old', 'now-a-text'))?.nodeId, 'old-1');
    await runSql(opened.database.url, 'ALTER TABLE gateway_user_route ALTER COLUMN user_id TYPE text');
    assert.equal((await bindings.move('old', '1', 'old-3')).nodeId, 'old-3');
  });

  test('passes the error on when the table is not what it should be', async () => {
    await runSql(
      opened.database.url,
      'ALTER TABLE gateway_user_route DROP COLUMN user_id CASCADE; ALTER TABLE gateway_user_route ADD COLUMN user_id point',
    );
    await assert.rejects(bindings.findByUserId('old', '1'), (error) => sqlStateOf(error) === '42883');
    await runSql(opened.database.url, 'DROP TABLE gateway_user_route');
    await assert.rejects(bindings.move('old', '1', 'old-1'), (error) => sqlStateOf(error) === '42P01');
  });
});
