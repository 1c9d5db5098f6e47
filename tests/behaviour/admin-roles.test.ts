/** Who may make which call: every line of the table of routes, with every role, without a token and with a wrong one. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { apiRoutes, type Calls } from '../../lib/admin/api-routes.ts';
import type { Role } from '../../lib/admin/auth.ts';
import { ADMIN_TOKENS, AdminClient, TOKENS } from '../support/admin-client.ts';
import { BackendNode } from '../support/backend-node.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import { call } from '../support/http-client.ts';

type Json = Record<string, unknown>;

/** The table with handlers that are never called. */
const nothing = new Proxy({}, { get: () => () => null });
const ROUTES = apiRoutes(
  Object.fromEntries(
    ['services', 'nodes', 'bindings', 'transfer', 'routes', 'operations', 'explain', 'events'].map((key) => [
      key,
      nothing,
    ]),
  ) as unknown as Calls,
);
const RANK: Record<Role, number> = { viewer: 1, operator: 2, admin: 3 };
const pathOf = (path: string) => path.replace(/:(\w+)/g, 'no-such-$1');

describe('roles of the admin API', () => {
  let stores: StoreSetup;
  let fixture: GatewayFixture;
  let admin: AdminClient;
  const clock = new FakeClock(Date.now());
  const n1 = new BackendNode('n1');

  before(async () => {
    await n1.start();
    stores = await openStores('embedded');
    fixture = await startGateway({ stores, nodes: [n1], admin: ADMIN_TOKENS, clock });
    admin = new AdminClient(fixture.adminPort);
  });
  after(async () => {
    await fixture?.stop();
    await stores?.close();
    await n1.stop();
  });

  const send = (method: string, path: string, token: string | null) =>
    new AdminClient(fixture.adminPort, token).send(
      method,
      path,
      method === 'GET' || method === 'DELETE' ? undefined : '{}',
    );

  it('let each role make the calls of the roles below it, and no others', async () => {
    assert.ok(ROUTES.length >= 29);
    for (const { method, path, role } of ROUTES) {
      if (path === '/api/events') continue;
      for (const own of ['viewer', 'operator', 'admin'] as const) {
        const { status } = await send(method, pathOf(path), TOKENS[own]);
        const place = `${own}: ${method} ${path}: ${status}`;
        if (RANK[own] < RANK[role]) assert.equal(status, 403, place);
        else assert.ok([200, 400, 404, 415].includes(status), place);
      }
    }
  });

  it('refuse everybody without a token, and slow down who tries to write', async () => {
    for (const { method, path, action } of ROUTES) {
      assert.equal((await send(method, pathOf(path), null)).status, 401, `${method} ${path}`);
      if (action !== null) clock.advance(60_000);
    }
    assert.equal((await send('GET', '/api/nothing', null)).status, 401, 'what there is, is not told either');
    assert.equal((await send('GET', '/api/nothing', TOKENS.viewer)).status, 404);
  });

  it('refuse tokens that differ in the last character, and other schemes', async () => {
    for (const header of [
      `Bearer ${TOKENS.admin.slice(0, -1)}0`,
      `Bearer ${TOKENS.admin}0`,
      `Basic ${TOKENS.admin}`,
      'Bearer ',
      TOKENS.admin,
    ]) {
      const answer = await call(fixture.adminPort, '/api/services', { headers: { Authorization: header } });
      assert.equal(answer.status, 401, header);
      assert.equal(answer.headers['www-authenticate']?.startsWith('Bearer'), true);
      assert.ok(!answer.text.includes(TOKENS.admin));
    }
    clock.advance(60_000);
  });

  it('make an address that guesses wait, also when it guesses right, and no longer than told', async () => {
    for (let attempt = 0; attempt < 10; attempt += 1) {
      assert.equal((await send('GET', '/api/services', `wrong-token-${attempt}-0123456789`)).status, 401);
    }
    const refused = await send('GET', '/api/services', TOKENS.admin);
    assert.equal(refused.status, 429);
    const seconds = Number(refused.headers['retry-after']);
    assert.ok(seconds > 0 && seconds <= 60, String(seconds));
    clock.advance(seconds * 1_000);
    assert.equal((await send('GET', '/api/services', TOKENS.admin)).status, 200);
  });

  it('are in the audit with who was refused, from where and why', async () => {
    await admin.as('viewer').delete('/api/services/demo?reason=curious');
    await send('DELETE', '/api/services/demo', null);
    const { entries } = (await admin.read('/api/audit?limit=2')) as { entries: Json[] };
    assert.deepEqual(
      entries.map(({ actor, action, target, address, reason }) => [actor, action, target, address, reason]),
      [
        ['-', 'service.delete', 'services/demo', '127.0.0.1', null],
        ['viewer', 'service.delete', 'services/demo', '127.0.0.1', null],
      ],
    );
    assert.match(entries[0]?.['outcome'] as string, /^unauthorized: /);
    assert.match(entries[1]?.['outcome'] as string, /^forbidden: /);
    clock.advance(60_000);
  });

  it('page through the audit, newest first, without a gap', async () => {
    for (let turn = 0; turn < 7; turn += 1) {
      await admin.patch('/api/services/demo/nodes/n1', { remark: `turn ${turn}` });
    }
    const remarks: unknown[] = [];
    let next: unknown = null;
    for (let page = 0; page < 4; page += 1) {
      const answer: Json = await admin.read(`/api/audit?limit=2${next === null ? '' : `&after=${next}`}`);
      remarks.push(...(answer['entries'] as Json[]).map((entry) => (entry['after'] as Json | null)?.['remark']));
      next = answer['next'];
    }
    assert.deepEqual(
      remarks.slice(0, 7),
      [6, 5, 4, 3, 2, 1, 0].map((turn) => `turn ${turn}`),
    );
    assert.equal((await admin.get('/api/audit?after=x')).status, 400);
    assert.equal((await admin.get('/api/audit?limit=0')).status, 400);
    assert.equal((await admin.get('/api/audit?limit=1001')).status, 400);
  });

  it('do not matter to other web sites: their pages are refused with every token', async () => {
    const origin = `http://127.0.0.1:${fixture.adminPort}`;
    for (const headers of [
      { Origin: 'https://evil.example' },
      { Origin: 'null' },
      { Origin: `http://127.0.0.1:${fixture.port}` },
      { 'Sec-Fetch-Site': 'cross-site' },
      { 'Sec-Fetch-Site': 'same-site', Origin: origin },
    ]) {
      const answer = await admin.patch('/api/services/demo/nodes/n1', { remark: 'evil' }, headers);
      assert.equal(answer.status, 403, JSON.stringify(headers));
      assert.equal(answer.json()['error'], 'foreign_origin');
      assert.equal(answer.headers['access-control-allow-origin'], undefined);
    }
    const own = await admin.get('/api/services', { Origin: origin, 'Sec-Fetch-Site': 'same-origin' });
    assert.equal(own.status, 200);
    assert.notEqual((await admin.read('/api/services/demo/nodes/n1'))['remark'], 'evil');
  });

  it('answers 405 with what the path knows', async () => {
    const answer = await admin.send('PATCH', '/api/services/demo', '{}');
    assert.equal(answer.status, 405);
    assert.equal(answer.headers.allow, 'GET, HEAD, PUT, DELETE');
    assert.equal((await admin.send('OPTIONS', '/api/services')).status, 405);
    const head = await admin.send('HEAD', '/api/services');
    assert.equal(head.status, 200);
    assert.equal(head.text, '');
  });
});

describe('the admin API without configured tokens', () => {
  let stores: StoreSetup;
  let fixture: GatewayFixture;
  const n1 = new BackendNode('n1');

  before(async () => {
    await n1.start();
    stores = await openStores('embedded');
    fixture = await startGateway({ stores, nodes: [n1] });
  });
  after(async () => {
    await fixture?.stop();
    await stores?.close();
    await n1.stop();
  });

  it('reads for loopback, and writes for nobody', async () => {
    const local = new AdminClient(fixture.adminPort, null);
    assert.equal((await local.get('/api/services')).status, 200);
    assert.equal((await local.post('/api/explain', { path: '/js/a/x' })).status, 200);
    for (const { method, path, action } of ROUTES) {
      if (action === null) continue;
      const answer = await local.send(method, pathOf(path), method === 'DELETE' ? undefined : '{}');
      assert.equal(answer.status, 403, `${method} ${path}`);
      assert.match(answer.json()['message'] as string, /read-only/);
    }
  });

  it('does not answer to a name that somebody else points here', async () => {
    const local = new AdminClient(fixture.adminPort, null);
    for (const [host, status] of [
      ['rebound.evil.example', 403],
      [`rebound.evil.example:${fixture.adminPort}`, 403],
      ['127.0.0.1.evil.example', 403],
      [`localhost:${fixture.adminPort}`, 200],
      ['[::1]:9090', 200],
      ['127.0.0.1', 200],
    ] as const) {
      assert.equal((await local.get('/api/services', { Host: host })).status, status, host);
    }
  });

  it('keeps addresses out that are not allowed, from all of it', async () => {
    const other = await openStores('embedded');
    const closed = await startGateway({ stores: other, nodes: [n1], admin: 'allow: ["10.0.0.0/8"]' });
    try {
      assert.equal((await call(closed.adminPort, '/healthz')).status, 403);
      const answer = await call(closed.adminPort, '/api/services');
      assert.equal(answer.status, 403);
      assert.equal(answer.json()['error'], 'ip_not_allowed');
    } finally {
      await closed.stop();
      await other.close();
    }
  });
});
