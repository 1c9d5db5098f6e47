/** PostgresStore against a real server, a silent one and one that goes away; and its circuit breaker. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import { after, before, describe, test } from 'node:test';
import { OperatorError } from '../../lib/errors.ts';
import { describeError, type Logger, silentLogger } from '../../lib/observe/log.ts';
import { Metrics } from '../../lib/observe/metrics.ts';
import { PostgresStore, sqlStateOf } from '../../lib/stores/postgres.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { type Clock, systemClock } from '../../lib/support/clock.ts';
import { createDatabase, runSql, startPostgres, type TestDatabase } from '../support/postgres-server.ts';
import { postgresOptions } from '../support/postgres-store.ts';
import { TcpGate } from '../support/tcp-gate.ts';

/** Real timers, and a monotonic time that a test moves ahead. */
function shiftableClock(): Clock & { shiftMs: number } {
  return {
    ...systemClock,
    shiftMs: 0,
    monotonic: function () {
      return systemClock.monotonic() + this.shiftMs;
    },
  };
}

function recordingLogger(): Logger & { readonly lines: string[] } {
  const lines: string[] = [];
  const record = (event: string, fields?: object) => void lines.push(`${event} ${JSON.stringify(fields ?? {})}`);
  return { lines, debug: record, info: record, warn: record, error: record };
}

async function causeOf(promise: Promise<unknown>): Promise<string> {
  let text = '';
  await assert.rejects(promise, (error) => {
    assert.ok(error instanceof StoreUnavailable, describeError(error));
    assert.equal(error.store, 'postgres');
    text = describeError(error.cause);
    return true;
  });
  return text;
}

describe('PostgresStore', () => {
  let database: TestDatabase;
  const stores: PostgresStore[] = [];
  const open = (
    changes: Parameters<typeof postgresOptions>[1] = {},
    clock?: Clock,
    logger: Logger = silentLogger,
    metrics?: Metrics,
  ) => {
    const store = new PostgresStore(postgresOptions(database.url, changes), logger, clock, metrics);
    store.start();
    stores.push(store);
    return store;
  };
  before(async () => {
    database = await createDatabase();
  });
  after(async () => {
    await Promise.all(stores.map((store) => store.stop()));
    await database.drop();
  });

  test('runs a statement under its own name with the settings it promises', async () => {
    const store = open({ queryTimeoutMs: 2_000 });
    const { rows, rowCount } = await store.query<{ name: string; statement: string; lock: string }>(
      `SELECT current_setting('application_name') AS name, current_setting('statement_timeout') AS statement,
        current_setting('lock_timeout') AS lock`,
    );
    assert.deepEqual(rows, [{ name: 'sticky-gateway', statement: '1800ms', lock: '1600ms' }]);
    assert.equal(rowCount, 1);
  });

  test('keeps 64-bit integers whole', async () => {
    const { rows } = await open().query('SELECT 1790000000000000001::bigint AS id');
    assert.deepEqual(rows, [{ id: '1790000000000000001' }]);
  });

  test('passes SQL errors through and keeps the connection', async () => {
    const store = open({ poolSize: 1 });
    const pid = async () => (await store.query('SELECT pg_backend_pid() AS pid')).rows[0]?.pid;
    const earlier = await pid();
    await assert.rejects(store.query('SELECT * FROM nowhere'), (error) => sqlStateOf(error) === '42P01');
    await assert.rejects(store.query('SELECT $1::int', ['x']), (error) => sqlStateOf(error) === '22P02');
    assert.equal(await pid(), earlier);
  });

  test('commits a transaction and returns what its work returned', async () => {
    const store = open();
    await store.query('CREATE TABLE kept (n int)');
    const result = await store.transaction(async (client) => {
      await client.query('INSERT INTO kept VALUES ($1)', [1]);
      return 'done';
    });
    assert.equal(result, 'done');
    assert.equal((await store.query('SELECT * FROM kept')).rowCount, 1);
  });

  test('rolls back what threw, in SQL or elsewhere, and passes the error through', async () => {
    const store = open({ poolSize: 1 });
    await store.query('CREATE TABLE undone (n int PRIMARY KEY)');
    const mistake = new Error('on purpose');
    await assert.rejects(
      store.transaction(async (client) => {
        await client.query('INSERT INTO undone VALUES (1)');
        throw mistake;
      }),
      mistake,
    );
    await assert.rejects(
      store.transaction(async (client) => {
        await client.query('INSERT INTO undone VALUES (1)');
        await client.query('INSERT INTO undone VALUES (1)');
      }),
      (error) => sqlStateOf(error) === '23505',
    );
    assert.equal((await store.query('SELECT * FROM undone')).rowCount, 0);
  });

  test('does not pretend to have committed when a failed statement was overlooked', async () => {
    const store = open();
    await assert.rejects(
      store.transaction(async (client) => {
        await assert.rejects(client.query('SELECT * FROM nowhere'));
      }),
      /rolled back/,
    );
  });

  test('refuses statements after the end of their transaction', async () => {
    const store = open();
    const leaked = await store.transaction(async (client) => client);
    await assert.rejects(leaked.query('SELECT 1'), /the transaction is over/);
  });

  test('gives a transaction for bulk work its own deadline', async () => {
    const store = open({ queryTimeoutMs: 100 });
    await store.transaction((client) => client.query('SELECT pg_sleep(0.2)'), { timeoutMs: 5_000 });
    assert.match(await causeOf(store.transaction((client) => client.query('SELECT pg_sleep(0.2)'))), /57014/);
  });

  test('takes a statement that PostgreSQL cancels for no answer, and asks nothing for a second', async () => {
    const clock = shiftableClock();
    const logger = recordingLogger();
    const metrics = new Metrics();
    const store = open({ queryTimeoutMs: 500 }, clock, logger, metrics);
    // Connected already: the time that takes would count too.
    await store.query('SELECT 1');
    let recoveries = 0;
    store.onAvailable(() => {
      recoveries += 1;
    });
    assert.match(await causeOf(store.query('SELECT pg_sleep(5)')), /57014/);
    assert.match(await causeOf(store.query('SELECT 1')), /is not asked again yet/);
    assert.match(await causeOf(store.transaction(async () => undefined)), /is not asked again yet/);
    clock.shiftMs += 1_000;
    await store.query('SELECT 1');
    await store.query('SELECT 1');
    assert.deepEqual(
      logger.lines.map((line) => line.split(' ')[0]),
      ['postgres_unavailable', 'postgres_available'],
    );
    assert.equal(recoveries, 1);
    assert.match(metrics.render(), /gateway_store_errors_total\{store="postgres",use="all"\} 3/);
    assert.match(metrics.render(), /gateway_store_duration_seconds_count\{store="postgres"\} 4/);
  });

  test('lets one hot row make its own transactions fail and nobody else', async () => {
    const store = open({ queryTimeoutMs: 300 });
    const patient = open();
    await patient.query('CREATE TABLE hot (n int); INSERT INTO hot VALUES (1)');
    await patient.transaction(async (client) => {
      await client.query('SELECT * FROM hot FOR UPDATE');
      const locked = store.transaction((other) => other.query('UPDATE hot SET n = 2'));
      assert.match(await causeOf(locked), /55P03/);
      assert.equal((await store.query('SELECT * FROM hot')).rowCount, 1);
    });
  });

  test('takes a wait for a locked table for no answer', async () => {
    const store = open({ queryTimeoutMs: 300 });
    const patient = open();
    await patient.query('CREATE TABLE locked (n int)');
    await patient.transaction(async (client) => {
      await client.query('LOCK TABLE locked');
      assert.match(await causeOf(store.query('SELECT * FROM locked')), /55P03/);
      assert.match(await causeOf(store.query('SELECT 1')), /is not asked again yet/);
    });
  });

  test('keeps reading when PostgreSQL takes no writes', async () => {
    const store = open();
    const readOnly = store.transaction(async (client) => {
      await client.query('SET TRANSACTION READ ONLY');
      await client.query('CREATE TABLE never (n int)');
    });
    assert.match(await causeOf(readOnly), /25006/);
    await store.query('SELECT 1');
  });

  test('counts the wait for a free connection into the deadline', async () => {
    const store = open({ poolSize: 1, queryTimeoutMs: 400 });
    const patient = new PostgresStore(postgresOptions(database.url, { poolSize: 1 }), silentLogger);
    patient.start();
    stores.push(patient);
    let release = (): void => undefined;
    const held = store.transaction(() => new Promise<void>((resolve) => (release = resolve)));
    await store.query('SELECT 1').then(
      () => assert.fail('there was no connection'),
      (error) => assert.match(describeError(error), /no answer within 400 ms/),
    );
    release();
    await held;
  });

  test('hands a connection that came too late back to the pool', async () => {
    const store = open({ poolSize: 1, queryTimeoutMs: 150 }, shiftableClock());
    let release = (): void => undefined;
    const held = store.transaction(() => new Promise<void>((resolve) => (release = resolve)));
    await assert.rejects(store.query('SELECT 1'), StoreUnavailable);
    release();
    await held;
    assert.equal((await store.query('SELECT 1 AS one')).rows[0]?.one, 1);
    assert.deepEqual(store.connections, { open: 1, idle: 1 });
  });

  test('survives its sessions being ended by an administrator', async () => {
    const logger = recordingLogger();
    const store = open({ poolSize: 2 }, undefined, logger);
    const { rows } = await store.query('SELECT pg_backend_pid() AS pid');
    await runSql(database.url, `SELECT pg_terminate_backend(${rows[0]?.pid})`);
    while (store.connections.open > 0) await new Promise((resolve) => setTimeout(resolve, 5));
    assert.match(logger.lines.join('\n'), /postgres_connection_lost/);
    await store.query('SELECT 1');
  });

  test('takes the end of a session in the middle of a statement for no answer', async () => {
    const store = open({ poolSize: 1 });
    const cause = await causeOf(store.query('SELECT pg_terminate_backend(pg_backend_pid())'));
    assert.match(cause, /57P01|terminated/);
  });

  test('takes a session that is lost inside a transaction for no answer', async () => {
    const store = open({ poolSize: 1 });
    const cause = await causeOf(
      store.transaction(async (client) => {
        await client.query('SELECT pg_terminate_backend(pg_backend_pid())').catch(() => undefined);
        await client.query('SELECT 1');
      }),
    );
    assert.match(cause, /57P01|terminated|not queryable|connection error/i);
  });

  test('gives up a connection whose prepared statements no longer fit the table', async () => {
    const store = open({ poolSize: 1 });
    await store.query('CREATE TABLE changing (n int); INSERT INTO changing VALUES (1)');
    const read = () => store.query('SELECT * FROM changing', [], { name: 'changing_read' });
    await read();
    await runSql(database.url, 'ALTER TABLE changing ADD COLUMN m int');
    await assert.rejects(read(), (error) => sqlStateOf(error) === '0A000');
    assert.deepEqual((await read()).rows, [{ n: 1, m: null }]);
  });

  test('asks nothing before its start and after its stop, and starts anew', async () => {
    const store = new PostgresStore(postgresOptions(database.url), silentLogger);
    assert.match(await causeOf(store.query('SELECT 1')), /not started/);
    await store.stop();
    store.start();
    store.start();
    await store.query('SELECT 1');
    await Promise.all([store.stop(), store.stop()]);
    assert.match(await causeOf(store.query('SELECT 1')), /not started/);
    assert.deepEqual(store.connections, { open: 0, idle: 0 });
    store.start();
    await store.query('SELECT 1');
    await store.stop();
  });

  test('stops within the deadline although a transaction does not end', async () => {
    const logger = recordingLogger();
    const store = open({ queryTimeoutMs: 100 }, undefined, logger);
    let release = (): void => undefined;
    let begun = (): void => undefined;
    const running = new Promise<void>((resolve) => (begun = resolve));
    const held = store.transaction(() => {
      begun();
      return new Promise<void>((resolve) => (release = resolve));
    });
    await running;
    await store.stop();
    assert.match(logger.lines.join('\n'), /postgres_stop_forced/);
    release();
    await assert.rejects(held, StoreUnavailable);
  });
});

describe('PostgresStore in front of a PostgreSQL that does not answer', () => {
  test('says that a URL is none, without repeating it', () => {
    for (const url of ['postgres://user:secret@host:port:port/', 'postgres://h/db?sslrootcert=/does/not/exist']) {
      assert.throws(
        () => new PostgresStore(postgresOptions(url), silentLogger),
        (error) => error instanceof OperatorError && !describeError(error).includes('secret'),
      );
    }
  });

  test('takes a refused connection and a wrong database for unavailable, and never logs the password', async () => {
    const database = await createDatabase();
    const logger = recordingLogger();
    const wrong = new URL(database.url);
    wrong.pathname = '/no-such-database';
    wrong.password = 'hunter2';
    for (const [url, expected] of [
      ['postgres://user:hunter2@127.0.0.1:1/db', /ECONNREFUSED/],
      [wrong.href, /3D000/],
      ['postgres://user:hunter2@/db?host=/does/not/exist', /ENOENT/],
    ] as const) {
      const store = new PostgresStore(postgresOptions(url), logger);
      store.start();
      assert.match(await causeOf(store.query('SELECT 1')), expected);
      await store.stop();
    }
    assert.equal(logger.lines.length, 3);
    assert.doesNotMatch(logger.lines.join('\n'), /hunter2/);
    await database.drop();
  });

  test('waits one deadline for a server that accepts and stays silent, then asks it one call at a time', async () => {
    const sockets = new Set<Socket>();
    const silent: Server = createServer((socket) => {
      sockets.add(socket);
      socket.on('error', () => sockets.delete(socket));
    }).listen(0, '127.0.0.1');
    await once(silent, 'listening');
    const { port } = silent.address() as { port: number };
    const clock = shiftableClock();
    const store = new PostgresStore(
      postgresOptions(`postgres://user@127.0.0.1:${port}/db`, {
        queryTimeoutMs: 100,
        connectTimeoutMs: 5_000,
      }),
      silentLogger,
      clock,
    );
    store.start();
    assert.match(await causeOf(store.query('SELECT 1')), /no answer within 100 ms/);
    assert.equal(sockets.size, 1);
    clock.shiftMs += 1_000;
    const causes = await Promise.all(Array.from({ length: 50 }, () => causeOf(store.query('SELECT 1'))));
    assert.equal(causes.filter((cause) => /no answer/.test(cause)).length, 1);
    assert.ok(sockets.size <= 2);
    await store.stop();
    for (const socket of sockets) socket.destroy();
    silent.close();
  });

  test('never reads a late answer as the answer to another query', async () => {
    const server = await startPostgres();
    const gate = await TcpGate.open(server.port);
    const clock = shiftableClock();
    const store = new PostgresStore(
      postgresOptions(`postgres://postgres@127.0.0.1:${gate.port}/postgres`, {
        poolSize: 1,
        queryTimeoutMs: 200,
      }),
      silentLogger,
      clock,
    );
    store.start();
    await store.query('SELECT 0');
    gate.silence();
    assert.match(await causeOf(store.query("SELECT 'late' AS value")), /no answer within/);
    gate.unsilence();
    clock.shiftMs += 1_000;
    assert.deepEqual((await store.query("SELECT 'mine' AS value")).rows, [{ value: 'mine' }]);
    assert.equal(gate.accepted, 2);
    gate.silence();
    const lost = store.transaction((client) => client.query('SELECT 1'));
    assert.match(await causeOf(lost), /no answer within/);
    await store.stop();
    await gate.close();
    await server.dispose();
  });

  test('comes back by itself when PostgreSQL does', async () => {
    const server = await startPostgres();
    const clock = shiftableClock();
    const store = new PostgresStore(postgresOptions(server.url), silentLogger, clock);
    store.start();
    await store.query('SELECT 1');
    await server.kill();
    await assert.rejects(store.query('SELECT 1'), StoreUnavailable);
    await server.start();
    clock.shiftMs += 1_000;
    await store.query('SELECT 1');
    await server.stop();
    await server.start();
    clock.shiftMs += 1_000;
    await store.query('SELECT 1').catch(() => undefined);
    clock.shiftMs += 1_000;
    await store.query('SELECT 1');
    await store.stop();
    await server.dispose();
  });
});
