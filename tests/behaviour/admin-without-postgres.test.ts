/** The admin API while PostgreSQL is away: writes are refused whole, what is known is still shown; and imports that are killed. */
import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import * as http from 'node:http';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { Client } from 'pg';
import { ADMIN_TOKENS, AdminClient, TOKENS } from '../support/admin-client.ts';
import { BackendNode } from '../support/backend-node.ts';
import { openStores, startGateway } from '../support/gateway-fixture.ts';
import { GatewayProcess } from '../support/gateway-process.ts';
import { createDatabase } from '../support/postgres-server.ts';
import { TcpGate } from '../support/tcp-gate.ts';
import { temporaryFolder } from '../support/temporary-folder.ts';
import { waitUntil } from '../support/wait-until.ts';

describe('the admin API without PostgreSQL', () => {
  it('refuses every write with 503, leaves nothing half-done, and works again when it is back', async () => {
    const n1 = await new BackendNode('n1').start();
    const stores = await openStores('postgres');
    const url = new URL(stores.postgresUrl as string);
    const gate = await TcpGate.open(Number(url.port));
    const directly = new Client({ connectionString: url.href });
    await directly.connect();
    const behind = new URL(url);
    behind.port = String(gate.port);
    const fixture = await startGateway({
      stores: { ...stores, postgresUrl: behind.href },
      nodes: [n1],
      admin: ADMIN_TOKENS,
    });
    const admin = new AdminClient(fixture.adminPort);
    try {
      await admin.put('/api/services/demo/bindings/u-1', { nodeId: 'n1' });
      const state = async () =>
        JSON.stringify(
          (
            await directly.query(
              `SELECT (SELECT json_agg(s ORDER BY id) FROM gateway_service s) AS s, (SELECT json_agg(n ORDER BY id) FROM gateway_node n) AS n,
                 (SELECT json_agg(r ORDER BY id) FROM gateway_user_route r) AS r, (SELECT json_agg(a ORDER BY id) FROM gateway_audit a) AS a`,
            )
          ).rows,
        );
      const before = await state();
      gate.silence();
      const answers = await Promise.all([
        admin.post('/api/services', { id: 'new', pathPrefix: '/new' }),
        admin.patch('/api/services/demo/nodes/n1', { draining: true }),
        admin.delete('/api/services/demo/nodes/n1'),
        admin.put('/api/services/demo/bindings/u-2', { nodeId: 'n1' }),
        admin.patch('/api/services/demo/bindings/u-1', { frozen: true }),
        admin.delete('/api/services/demo/bindings/u-1'),
        admin.send('POST', '/api/services/demo/bindings/import', 'u-3,,n1\n', { 'Content-Type': 'text/csv' }),
        admin.post('/api/reload', undefined),
        admin.get('/api/services/demo/bindings'),
        admin.get('/api/services/demo/bindings/export'),
        admin.get('/api/audit'),
      ]);
      for (const answer of answers) {
        assert.equal(answer.status, 503, answer.text);
        assert.equal(answer.json()['error'], 'store_unavailable');
        assert.ok(answer.headers['retry-after']);
      }
      // What this gateway knows by itself is most wanted now.
      const node = await admin.read('/api/services/demo/nodes/n1');
      assert.equal(node['users'], null);
      assert.equal(node['draining'], false);
      assert.equal((await admin.get('/api/health')).status, 200);
      const said = await admin.post('/api/explain', { path: '/js/a/x', userId: 'never-seen' });
      assert.equal((said.json()['error'] as { error: string }).error, 'directory_unavailable');

      gate.cut();
      gate.unsilence();
      await waitUntil('PostgreSQL to be back', async () => (await admin.get('/api/audit')).status === 200);
      assert.equal(await state(), before, 'nothing of it was done');
      assert.equal((await admin.patch('/api/services/demo/nodes/n1', { draining: true })).status, 200);
      assert.ok(fixture.events('audit_not_written').length > 0, 'what could not be stored is in the log');
    } finally {
      await fixture.stop();
      await directly.end();
      await gate.close();
      await stores.close();
      await n1.stop();
    }
  });
});

describe('an import', () => {
  it('is all or nothing when the gateway is killed in the middle', async (t) => {
    const folder = await temporaryFolder(t);
    const database = await createDatabase();
    const config = join(folder, 'gateway.yaml');
    await writeFile(
      config,
      `listen: 127.0.0.1:0
admin: { listen: "127.0.0.1:0", ${ADMIN_TOKENS} }
store: { dataDir: ${JSON.stringify(join(folder, 'data'))}, postgres: { url: "${database.url}" } }
log: { access: false }
services: [{ id: demo, pathPrefix: /js/a, nodes: [{ id: n1, baseUrl: "http://127.0.0.1:9" }] }]
`,
    );
    const client = new Client({ connectionString: database.url });
    await client.connect();
    const count = async () => Number((await client.query('SELECT count(*) AS n FROM gateway_user_route')).rows[0].n);
    const file = Array.from({ length: 10_003 }, (_, index) => `u${index},name${index},n1\n`).join('');
    try {
      // Killed while rows are staged, while they are inserted, and wherever that falls on a slow machine.
      for (const waitFor of [
        'INSERT INTO gateway_import',
        'INSERT INTO gateway_user_route',
        'INSERT INTO gateway_user_route',
      ]) {
        const gateway = await GatewayProcess.serve(config);
        const request = http.request({
          host: '127.0.0.1',
          port: gateway.adminPort,
          path: '/api/services/demo/bindings/import',
          method: 'POST',
          headers: { 'Content-Type': 'text/csv', Authorization: `Bearer ${TOKENS.admin}` },
        });
        let over = false;
        request.on('error', () => {
          over = true;
        });
        request.on('response', (response) => {
          over = true;
          response.resume();
        });
        request.end(file);
        await waitUntil(waitFor, async () => {
          const seen = await client.query(
            'SELECT 1 FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE $1',
            [`%${waitFor}%`],
          );
          return over || (seen.rowCount ?? 0) > 0;
        });
        await gateway.kill();
        // The session of the killed gateway ends by itself.
        await waitUntil('its sessions to end', async () => {
          const left = await client.query(
            "SELECT 1 FROM pg_stat_activity WHERE application_name = 'sticky-gateway' AND datname = current_database()",
          );
          return left.rowCount === 0;
        });
        const rows = await count();
        assert.ok(rows === 0 || rows === 10_003, `${rows} rows`);
        await client.query('TRUNCATE gateway_user_route');
      }
      const gateway = await GatewayProcess.serve(config);
      const answer = await new AdminClient(gateway.adminPort).send('POST', '/api/services/demo/bindings/import', file, {
        'Content-Type': 'text/csv',
      });
      assert.equal(answer.json()['inserted'], 10_003, answer.text);
      assert.equal(await count(), 10_003);
      await gateway.kill();
    } finally {
      await client.end();
      await database.drop();
    }
  });
});
