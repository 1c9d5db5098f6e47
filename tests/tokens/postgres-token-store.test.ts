/** PostgresTokenStore: what it keeps, for how long, and in which form. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { OperatorError } from '../../lib/errors.ts';
import { type Logger, silentLogger } from '../../lib/observe/log.ts';
import { PostgresStore } from '../../lib/stores/postgres.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { PostgresTokenStore } from '../../lib/tokens/postgres-token-store.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { type OpenedDatabase, openDatabase, postgresOptions } from '../support/postgres-store.ts';

const HOUR_MS = 3_600_000;

describe('PostgresTokenStore', () => {
  let opened: OpenedDatabase;
  let tokens: PostgresTokenStore;
  const stored = async () => (await opened.postgres.query('SELECT * FROM gateway_token')).rows;
  before(async () => {
    opened = await openDatabase();
    tokens = new PostgresTokenStore({ postgres: opened.postgres, logger: silentLogger });
  });
  after(() => opened.close());

  test('finds what was saved, in its own realm only', async () => {
    await tokens.save('realm', 'tok-1', '1790000000000000001', HOUR_MS);
    assert.equal(await tokens.find('realm', 'tok-1'), '1790000000000000001');
    assert.equal(await tokens.find('other', 'tok-1'), undefined);
    assert.equal(await tokens.find('realm', 'tok-2'), undefined);
  });

  test('stores no token, only its hash', async () => {
    await tokens.save('realm', 'very-secret-token', '1', HOUR_MS);
    const text = JSON.stringify(await stored());
    assert.doesNotMatch(text, /very-secret-token/);
    assert.match(text, /[0-9a-f]{64}/);
  });

  test('replaces the user and the expiry of a token that is saved again', async () => {
    await tokens.save('again', 'tok', '1', 1);
    await tokens.save('again', 'tok', '2', HOUR_MS);
    assert.equal(await tokens.find('again', 'tok'), '2');
    const { rows } = await opened.postgres.query(
      `SELECT extract(epoch FROM expire_time - now())::int AS seconds FROM gateway_token WHERE realm = 'again'`,
    );
    assert.ok(Number(rows[0]?.seconds) > 3_590 && Number(rows[0]?.seconds) <= 3_600);
  });

  test('takes any bytes for a token', async () => {
    for (const token of ['a\0b', 'ü'.repeat(5_000), "'; DROP TABLE gateway_token; --", '']) {
      await tokens.save('bytes', token, token.length.toString(), HOUR_MS);
      assert.equal(await tokens.find('bytes', token), token.length.toString());
    }
  });

  test('never returns an expired token', async () => {
    await tokens.save('expired', 'tok', '1', HOUR_MS);
    await opened.postgres.query("UPDATE gateway_token SET expire_time = now() WHERE realm = 'expired'");
    assert.equal(await tokens.find('expired', 'tok'), undefined);
  });

  test('forgets a token, and does not mind one that is not there', async () => {
    await tokens.save('gone', 'tok', '1', HOUR_MS);
    await tokens.remove('gone', 'tok');
    await tokens.remove('gone', 'tok');
    assert.equal(await tokens.find('gone', 'tok'), undefined);
  });

  test('refuses user ids that the column cannot hold as they are', async () => {
    for (const userId of ['', 'x'.repeat(257), 'a\0', '\udfff']) {
      await assert.rejects(tokens.save('odd', 'tok', userId, HOUR_MS), OperatorError);
    }
    await opened.postgres.query('ALTER TABLE gateway_token ALTER COLUMN user_id TYPE varchar(20)');
    await assert.rejects(tokens.save('odd', 'tok', 'x'.repeat(21), HOUR_MS), OperatorError);
    await opened.postgres.query('ALTER TABLE gateway_token ALTER COLUMN user_id TYPE varchar(256)');
    await assert.rejects(tokens.save('r'.repeat(65), 'tok', '1', HOUR_MS), OperatorError);
    assert.equal(await tokens.find('odd', 'tok'), undefined);
  });

  test('removes expired tokens in batches and leaves the others', async () => {
    await opened.postgres.query('DELETE FROM gateway_token');
    await opened.postgres.query(`
      INSERT INTO gateway_token SELECT 'purge', n::text, '1', now() - interval '1 second' FROM generate_series(1, 2500) n`);
    await tokens.save('purge', 'alive', '1', HOUR_MS);
    assert.equal(await tokens.purge(), 2_500);
    assert.equal(await tokens.purge(), 0);
    assert.equal(await tokens.find('purge', 'alive'), '1');
    assert.equal((await stored()).length, 1);
  });

  test('purges now and then between start and stop, also after a failure', async () => {
    const clock = new FakeClock();
    let settle: (event: string) => void = () => undefined;
    const record = (event: string): void => settle(event);
    const logger: Logger = { debug: record, info: record, warn: record, error: record };
    const next = (): Promise<string> => new Promise((resolve) => (settle = resolve));
    const postgres = new PostgresStore(opened.options, silentLogger);
    const store = new PostgresTokenStore({ postgres, logger, clock });
    store.start();
    store.start();
    assert.equal(clock.pending, 1);
    let outcome = next();
    clock.advance(60_000);
    assert.equal(await outcome, 'token_purge_failed');
    postgres.start();
    await new Promise((resolve) => setImmediate(resolve));
    await opened.postgres.query("INSERT INTO gateway_token VALUES ('later', 'h', '1', now())");
    outcome = next();
    clock.advance(60_000);
    assert.equal(await outcome, 'tokens_purged');
    assert.equal((await stored()).filter((row) => row.realm === 'later').length, 0);
    await new Promise((resolve) => setImmediate(resolve));
    assert.equal(clock.pending, 1);
    store.stop();
    store.stop();
    assert.equal(clock.pending, 0);
    await postgres.stop();
  });

  test('schedules nothing when it is stopped while a purge runs', async () => {
    const clock = new FakeClock();
    let purged = (): void => undefined;
    const done = new Promise<void>((resolve) => (purged = resolve));
    const logger: Logger = { ...silentLogger, debug: purged };
    const store = new PostgresTokenStore({ postgres: opened.postgres, logger, clock });
    store.start();
    clock.advance(60_000);
    store.stop();
    await done;
    await new Promise((resolve) => setImmediate(resolve));
    assert.equal(clock.pending, 0);
  });

  test('passes an unreachable PostgreSQL on as such', async () => {
    const away = new PostgresStore(postgresOptions('postgres://x@127.0.0.1:1/x'), silentLogger);
    away.start();
    const store = new PostgresTokenStore({ postgres: away, logger: silentLogger });
    await assert.rejects(store.find('r', 't'), StoreUnavailable);
    await assert.rejects(store.save('r', 't', '1', 1), StoreUnavailable);
    await assert.rejects(store.remove('r', 't'), StoreUnavailable);
    await away.stop();
  });
});
