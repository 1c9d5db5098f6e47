/** A gateway that is cut off in the middle of a transaction keeps no rows locked for long. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { silentLogger } from '../../lib/observe/log.ts';
import { PostgresStore } from '../../lib/stores/postgres.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { FailingStores, type ProxiedStores } from '../support/failing-stores.ts';
import { postgresOptions } from '../support/postgres-store.ts';

const QUERY_TIMEOUT_MS = 500;

describe('a transaction that its gateway cannot end', () => {
  let stores: FailingStores;
  let way: ProxiedStores;
  let postgres: PostgresStore;

  before(async () => {
    stores = await FailingStores.open();
    way = await stores.way();
    const options = postgresOptions(way.setup.postgresUrl ?? '', { queryTimeoutMs: QUERY_TIMEOUT_MS });
    postgres = new PostgresStore(options, silentLogger);
    postgres.start();
    await stores.sql(`CREATE TABLE rows (id int); INSERT INTO rows VALUES (1)`);
  });
  after(async () => {
    await postgres?.stop();
    await stores?.close();
  });

  it('is ended by PostgreSQL, and what it had locked can be changed', async () => {
    await assert.rejects(
      postgres.transaction(async (client) => {
        await client.query('UPDATE rows SET id = 2');
        await way.postgres.set('black-hole');
        await client.query('SELECT 1');
      }),
      StoreUnavailable,
    );
    // Fails by its own timeout while somebody else has the row; the cut-off gateway never says that it left.
    await stores.sql(`SET lock_timeout = '10s'; UPDATE rows SET id = 3`);
    assert.deepEqual(await stores.sql('SELECT id FROM rows'), [{ id: 3 }]);
  });
});
