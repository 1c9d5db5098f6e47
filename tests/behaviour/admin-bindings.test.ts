/** Bindings through the admin API: looked up, moved, frozen, removed, and in force on this gateway when the call returns. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { Client } from 'pg';
import { ADMIN_TOKENS, AdminClient } from '../support/admin-client.ts';
import { BackendNode } from '../support/backend-node.ts';
import {
  type GatewayFixture,
  openStores,
  STORE_KINDS,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';
import { waitUntil } from '../support/wait-until.ts';

type Json = Record<string, unknown>;

for (const kind of STORE_KINDS) {
  describe(`bindings through the admin API, ${kind}`, () => {
    let stores: StoreSetup;
    let fixture: GatewayFixture;
    let admin: AdminClient;
    const n1 = new BackendNode('n1');
    const n2 = new BackendNode('n2');
    const bindings = '/api/services/demo/bindings';
    const nodeOf = async (token: string) => (await fixture.get('/js/a/x', token)).headers['x-gateway-node'];

    before(async () => {
      await n1.start();
      await n2.start();
      stores = await openStores(kind);
      fixture = await startGateway({ stores, nodes: [n1, n2], admin: ADMIN_TOKENS });
      admin = new AdminClient(fixture.adminPort).as('operator');
    });
    after(async () => {
      await fixture?.stop();
      await stores?.close();
      await n1.stop();
      await n2.stop();
    });

    it('moves a user with a warm cache at once, with a higher epoch', async () => {
      const token = await fixture.tokenOf('alice');
      const from = (await nodeOf(token)) as string;
      const to = from === 'n1' ? 'n2' : 'n1';
      const answer = await admin.put(`${bindings}/u-alice`, { nodeId: to, reason: 'balance' });
      assert.equal(answer.status, 200, answer.text);
      const { binding, before } = answer.json() as { binding: Json; before: Json };
      assert.deepEqual([before['nodeId'], before['epoch']], [from, 1]);
      assert.deepEqual([binding['nodeId'], binding['epoch'], binding['username']], [to, 2, 'alice']);
      assert.equal(await nodeOf(token), to);
      const { entries } = (await admin.read('/api/audit?limit=1')) as { entries: Json[] };
      assert.equal(entries[0]?.['action'], 'binding.move');
      assert.equal(entries[0]?.['target'], 'services/demo/bindings/u-alice');
      assert.equal(entries[0]?.['reason'], 'balance');
      assert.equal((entries[0]?.['before'] as Json | undefined)?.['nodeId'], from);
      assert.equal((entries[0]?.['after'] as Json | undefined)?.['nodeId'], to);
    });

    it('freezes and lets go', async () => {
      const token = await fixture.tokenOf('bob');
      const node = await nodeOf(token);
      assert.equal((await admin.patch(`${bindings}/u-bob`, { frozen: true })).status, 200);
      const frozen = await fixture.get('/js/a/x', token);
      assert.equal(frozen.status, 503);
      assert.equal(frozen.json()['error'], 'user_frozen');
      assert.equal((await admin.patch(`${bindings}/u-bob`, { frozen: false })).status, 200);
      assert.equal(await nodeOf(token), node);
      assert.equal((await admin.patch(`${bindings}/u-bob`, { frozen: 'yes' })).status, 400);
      assert.equal((await admin.patch(`${bindings}/nobody`, { frozen: true })).status, 404);
    });

    it('unbinds', async () => {
      const token = await fixture.tokenOf('carol');
      assert.equal((await admin.delete(`${bindings}/u-carol?reason=left`)).status, 200);
      assert.equal((await fixture.get('/js/a/x', token)).json()['error'], 'user_not_bound');
      assert.equal((await admin.delete(`${bindings}/u-carol`)).status, 404);
    });

    it('binds users nobody has seen yet, with ids that need encoding or are too large for numbers', async () => {
      for (const userId of ['1790000000000000001', '1790000000000000002', 'a/b c?d', '用户', 'import', 'export']) {
        const path = `${bindings}/${encodeURIComponent(userId)}`;
        const made = await admin.put(path, { nodeId: 'n2' });
        assert.equal(made.status, 201, made.text);
        const found = (await admin.read(`${bindings}?userId=${encodeURIComponent(userId)}`)) as { bindings: Json[] };
        assert.deepEqual(
          found.bindings.map((one) => one['userId']),
          [userId],
        );
        assert.equal((await admin.delete(path)).status, 200);
      }
    });

    it('refuses what cannot be, by name', async () => {
      for (const [path, body, field] of [
        [`${bindings}/u-1`, { nodeId: 'n9' }, 'nodeId'],
        [`${bindings}/u-1`, {}, 'nodeId'],
        [`${bindings}/u-1`, { nodeId: 'n1', force: true }, 'force'],
        [`${bindings}/u-1`, { nodeId: 'n1', reason: 7 }, 'reason'],
        [`${bindings}/${'x'.repeat(257)}`, { nodeId: 'n1' }, 'userId'],
        [`${bindings}/a%00b`, { nodeId: 'n1' }, 'userId'],
        [`${bindings}/%zz`, { nodeId: 'n1' }, undefined],
      ] as const) {
        const answer = await admin.put(path, body);
        assert.equal(answer.status, 400, answer.text);
        if (field !== undefined)
          assert.equal((answer.json()['fields'] as { field: string }[])[0]?.field, field, answer.text);
      }
      assert.equal((await admin.put('/api/services/nobody/bindings/u-1', { nodeId: 'n1' })).status, 404);
    });

    it('rehearses', async () => {
      const token = await fixture.tokenOf('dave');
      const node = await nodeOf(token);
      const other = node === 'n1' ? 'n2' : 'n1';
      const moved = await admin.put(`${bindings}/u-dave?dryRun=1`, { nodeId: other });
      const { binding, before } = moved.json() as { binding: Json; before: Json };
      assert.equal(binding['epoch'], (before['epoch'] as number) + 1);
      assert.equal((await admin.patch(`${bindings}/u-dave?dryRun=1`, { frozen: true })).json()['dryRun'], true);
      assert.equal((await admin.delete(`${bindings}/u-dave?dryRun=1`)).json()['dryRun'], true);
      assert.equal((await admin.put(`${bindings}/u-new?dryRun=1`, { nodeId: other })).status, 200);
      assert.equal(await nodeOf(token), node);
      assert.deepEqual((await admin.read(`${bindings}?userId=u-new`))['bindings'], []);
    });

    it('pages through them', async () => {
      for (let user = 0; user < 25; user += 1) await admin.put(`${bindings}/page-${user}`, { nodeId: 'n1' });
      const seen: unknown[] = [];
      let next: unknown = null;
      do {
        const page: Json = await admin.read(`${bindings}?nodeId=n1&limit=7${next === null ? '' : `&after=${next}`}`);
        assert.ok((page['bindings'] as Json[]).length <= 7);
        seen.push(...(page['bindings'] as Json[]).map((one) => one['userId']));
        next = page['next'];
      } while (next !== null);
      assert.equal(new Set(seen).size, seen.length);
      assert.equal(seen.filter((id) => String(id).startsWith('page-')).length, 25);
      assert.equal((await admin.read(`${bindings}?username=ALICE`))['next'], null);
      assert.equal(((await admin.read(`${bindings}?username=ALICE`))['bindings'] as Json[]).length, 1);
      assert.equal((await admin.get(`${bindings}?after=-1`)).status, 400);
    });

    if (kind !== 'embedded') {
      it('does not delete a node while a binding to it is being written', async () => {
        const root = new AdminClient(fixture.adminPort);
        const made = await root.post('/api/services/demo/nodes', { id: 'n3', baseUrl: 'http://127.0.0.1:1' });
        assert.equal(made.status, 201, made.text);
        const client = new Client({ connectionString: stores.postgresUrl as string });
        await client.connect();
        try {
          await client.query('BEGIN');
          await client.query(
            "INSERT INTO gateway_user_route (service_id, user_id, node_id) VALUES ('demo', 'late', 'n3')",
          );
          const removal = root.delete('/api/services/demo/nodes/n3');
          const waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'gateway_user_route'::regclass";
          await waitUntil(
            'the deletion to wait for the binding',
            async () => (await client.query(waiting)).rowCount === 1,
          );
          await client.query('COMMIT');
          const answer = await removal;
          assert.equal(answer.status, 409, answer.text);
          assert.equal(answer.json()['users'], 1);
        } finally {
          await client.end();
        }
      });
    }
  });
}
