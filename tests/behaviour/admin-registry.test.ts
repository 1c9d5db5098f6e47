/** Services, nodes and routes through the admin API, on both kinds of store, as an operator changes them under traffic. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { ADMIN_TOKENS, AdminClient } from '../support/admin-client.ts';
import { BackendNode } from '../support/backend-node.ts';
import {
  type GatewayFixture,
  openStores,
  STORE_KINDS,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';

type Json = Record<string, unknown>;

for (const kind of STORE_KINDS) {
  describe(`the registry through the admin API, ${kind}`, () => {
    let stores: StoreSetup;
    let fixture: GatewayFixture;
    let admin: AdminClient;
    const n1 = new BackendNode('n1');
    const n2 = new BackendNode('n2');
    const start = async () => {
      fixture = await startGateway({ stores, nodes: [n1, n2], admin: ADMIN_TOKENS });
      admin = new AdminClient(fixture.adminPort);
    };

    before(async () => {
      await n1.start();
      await n2.start();
      stores = await openStores(kind);
      await start();
    });
    after(async () => {
      await fixture?.stop();
      await stores?.close();
      await n1.stop();
      await n2.stop();
    });

    const newest = async (): Promise<Json> =>
      ((await admin.read('/api/audit?limit=1'))['entries'] as Json[])[0] as Json;

    it('shows services in the form of the file, so that what was read can be put back', async () => {
      const { services } = (await admin.read('/api/services')) as { services: Json[] };
      assert.deepEqual(
        services.map(({ id, pathPrefix }) => [id, pathPrefix]),
        [['demo', '/js/a']],
      );
      const answer = await admin.get('/api/services/demo');
      const put = await admin.put('/api/services/demo', answer.json());
      assert.equal(put.status, 200, put.text);
      assert.deepEqual(put.json(), answer.json());
      assert.equal(put.headers.etag, answer.headers.etag);
    });

    it('makes a service that answers requests when the call returns, and deletes it', async () => {
      const made = await admin.post('/api/services?reason=trial', {
        id: 'extra',
        pathPrefix: '/extra',
        affinity: 'none',
        nodes: [{ id: 'x1', baseUrl: n1.baseUrl }],
      });
      assert.equal(made.status, 201, made.text);
      assert.equal(made.headers.location, '/api/services/extra');
      assert.equal((await fixture.get('/extra/ping')).headers['x-gateway-node'], 'x1');
      const entry = await newest();
      assert.equal(entry['action'], 'service.create');
      assert.equal(entry['target'], 'services/extra');
      assert.equal(entry['actor'], 'admin');
      assert.equal(entry['address'], '127.0.0.1');
      assert.equal(entry['reason'], 'trial');
      assert.equal(entry['outcome'], 'done');
      assert.equal(entry['before'], null);
      assert.equal((entry['after'] as Json)['pathPrefix'], '/extra');

      assert.equal((await admin.delete('/api/services/extra')).status, 200);
      assert.equal((await fixture.get('/extra/ping')).status, 404);
      assert.equal((await admin.get('/api/services/extra')).status, 404);
      assert.equal((await newest())['action'], 'service.delete');
    });

    it('names each faulty field, and changes nothing', async () => {
      const answer = await admin.post('/api/services', {
        id: 'bad id',
        pathPrefix: 'nope',
        placment: 'weighted',
        nodes: [{ id: 'x1', baseUrl: 'ftp://x', weight: -1 }],
      });
      assert.equal(answer.status, 400, answer.text);
      const { error, fields } = answer.json() as { error: string; fields: { field: string }[] };
      assert.equal(error, 'bad_request');
      assert.deepEqual(fields.map(({ field }) => field).sort(), [
        'id',
        'nodes[0].baseUrl',
        'nodes[0].weight',
        'pathPrefix',
        'placment',
      ]);
      assert.match((await newest())['outcome'] as string, /^bad_request: /);
      assert.equal(((await admin.read('/api/services'))['services'] as Json[]).length, 1);
    });

    it('refuses what clashes with what there is', async () => {
      const service = { id: 'other', pathPrefix: '/other', nodes: [] as Json[] };
      for (const [body, status, field] of [
        [{ ...service, id: 'demo' }, 409, undefined],
        [{ ...service, pathPrefix: '/js/a' }, 409, 'pathPrefix'],
        [{ ...service, nodes: [{ id: 'n1', baseUrl: 'http://127.0.0.1:1' }] }, 409, undefined],
        [{ ...service, defaultNodeId: 'nobody' }, 400, 'defaultNodeId'],
      ] as const) {
        const answer = await admin.post('/api/services', body);
        assert.equal(answer.status, status, answer.text);
        const fields = answer.json()['fields'] as { field: string }[] | undefined;
        assert.equal(fields?.[0]?.field, field);
      }
      const node = await admin.post('/api/services/demo/nodes', { id: 'n9', baseUrl: n1.baseUrl });
      assert.equal(node.status, 409, node.text);
      assert.equal(((node.json()['fields'] as Json[])[0] as Json)['field'], 'baseUrl');
      assert.equal((await admin.put('/api/services/demo', { id: 'x' })).status, 400);
      assert.equal((await admin.put('/api/services/nobody', { pathPrefix: '/n' })).status, 404);
      assert.equal((await admin.put('/api/services/demo/nodes/n9', { baseUrl: 'http://127.0.0.1:1' })).status, 404);
    });

    it('rehearses every write without changing anything', async () => {
      const services = await admin.read('/api/services');
      const audit = await admin.read('/api/audit?limit=1');
      for (const [method, path, body] of [
        ['POST', '/api/services', { id: 'dry', pathPrefix: '/dry' }],
        ['PUT', '/api/services/demo', { pathPrefix: '/moved' }],
        ['POST', '/api/services/demo/nodes', { id: 'n3', baseUrl: 'http://127.0.0.1:3' }],
        ['PATCH', '/api/services/demo/nodes/n1', { draining: true }],
        ['DELETE', '/api/services/demo/nodes/n2', undefined],
        ['DELETE', '/api/services/demo', undefined],
        ['POST', '/api/reload', undefined],
      ] as const) {
        const answer = await admin.send(method, `${path}?dryRun=1`, body);
        assert.equal(answer.status, 200, `${method} ${path}: ${answer.text}`);
        assert.equal(answer.json()['dryRun'], true);
      }
      const refused = await admin.post('/api/services?dryRun=1', { id: 'demo', pathPrefix: '/dry' });
      assert.equal(refused.status, 409);
      assert.deepEqual(await admin.read('/api/services'), services);
      assert.deepEqual(await admin.read('/api/audit?limit=1'), audit);
      assert.equal((await admin.post('/api/services?dryrun=1', { id: 'dry', pathPrefix: '/dry' })).status, 400);
      assert.equal((await admin.post('/api/services?dryRun=yes', { id: 'dry', pathPrefix: '/dry' })).status, 400);
      assert.deepEqual(await admin.read('/api/services'), services);
    });

    it('turns the switches of a node at once, and nothing but the switches', async () => {
      const answer = await admin.patch('/api/services/demo/nodes/n2', { enabled: false, reason: 'disk full' });
      assert.equal(answer.status, 200, answer.text);
      for (let turn = 0; turn < 6; turn += 1) {
        assert.equal((await fixture.get('/js/a/x')).headers['x-gateway-node'], 'n1');
      }
      const entry = await newest();
      assert.equal(entry['reason'], 'disk full');
      assert.equal((entry['before'] as Json)['enabled'], true);
      assert.equal((entry['after'] as Json)['enabled'], false);
      const wrong = await admin.patch('/api/services/demo/nodes/n2', { baseUrl: 'http://127.0.0.1:1', weight: 'much' });
      assert.equal(wrong.status, 400);
      assert.equal(((wrong.json()['fields'] as Json[])[0] as Json)['field'], 'baseUrl');
      assert.equal((await admin.patch('/api/services/demo/nodes/n2', { weight: 'much' })).status, 400);
      assert.equal((await admin.patch('/api/services/demo/nodes/n2', { enabled: true })).status, 200);
      const { health, users } = (await admin.read('/api/services/demo/nodes/n2')) as { health: Json; users: number };
      assert.equal(typeof health['state'], 'string');
      assert.equal(users, 0);
    });

    it('lets one of two operators win who change the same version', async () => {
      const { etag } = (await admin.get('/api/services/demo/nodes/n1')).headers;
      assert.ok(etag);
      for (let round = 0; round < 10; round += 1) {
        const version = (await admin.get('/api/services/demo/nodes/n1')).headers.etag as string;
        const answers = await Promise.all(
          ['left', 'right'].map((remark) =>
            admin.patch('/api/services/demo/nodes/n1', { remark: `${remark} ${round}` }, { 'If-Match': version }),
          ),
        );
        assert.deepEqual(answers.map(({ status }) => status).sort(), [200, 412]);
        const winner = answers.find(({ status }) => status === 200)?.json()['remark'];
        assert.equal((await admin.read('/api/services/demo/nodes/n1'))['remark'], winner);
      }
      const late = await admin.delete('/api/services/demo/nodes/n1', { 'If-Match': etag });
      assert.equal(late.status, 412);
    });

    it('keeps both of two changes that are made at once to two nodes', async () => {
      await Promise.all([
        admin.patch('/api/services/demo/nodes/n1', { weight: 7 }),
        admin.patch('/api/services/demo/nodes/n2', { weight: 9 }),
      ]);
      const { nodes } = (await admin.read('/api/services/demo')) as { nodes: Json[] };
      assert.deepEqual(
        nodes.map(({ id, weight }) => [id, weight]),
        [
          ['n1', 7],
          ['n2', 9],
        ],
      );
    });

    it('keeps routes', async () => {
      const body = { id: 'r', pathPrefix: '/r', versions: [{ version: 'v1', service: 'demo', weight: 100 }] };
      assert.equal(
        (await admin.post('/api/routes', { ...body, versions: [{ version: 'v1', service: 'nobody' }] })).status,
        400,
      );
      const made = await admin.post('/api/routes', body);
      assert.equal(made.status, 201, made.text);
      assert.equal((await admin.post('/api/routes', body)).status, 409);
      const removed = await admin.delete('/api/services/demo');
      assert.equal(removed.status, 409, removed.text);
      const answer = await admin.get('/api/routes/r');
      const changed = await admin.put(
        '/api/routes/r',
        { ...answer.json(), enabled: false },
        { 'If-Match': answer.headers.etag as string },
      );
      assert.equal(changed.status, 200, changed.text);
      assert.equal((await admin.read('/api/routes/r'))['enabled'], false);
      assert.equal((await admin.delete('/api/routes/r')).status, 200);
      assert.deepEqual((await admin.read('/api/routes'))['routes'], []);
    });

    it('drains a node: bound users stay, new ones go elsewhere, and it goes when the last one was moved', async () => {
      await admin.patch('/api/services/demo/nodes/n2', { draining: true });
      const tokens = await Promise.all(['a', 'b', 'c'].map((name) => fixture.tokenOf(name)));
      await admin.patch('/api/services/demo/nodes/n2', { draining: false });
      assert.equal((await admin.patch('/api/services/demo/nodes/n1', { draining: true })).status, 200);
      for (const token of tokens) assert.equal((await fixture.get('/js/a/x', token)).headers['x-gateway-node'], 'n1');
      assert.equal((await fixture.get('/js/a/x', await fixture.tokenOf('new'))).headers['x-gateway-node'], 'n2');
      assert.equal((await fixture.get('/js/a/x')).headers['x-gateway-node'], 'n2');

      const refused = await admin.delete('/api/services/demo/nodes/n1');
      assert.equal(refused.status, 409, refused.text);
      assert.equal(refused.json()['error'], 'users_bound');
      assert.equal(refused.json()['users'], 3);
      assert.equal((await admin.delete('/api/services/demo')).json()['users'], 4);
      const emptied = await admin.put('/api/services/demo', { ...(await admin.read('/api/services/demo')), nodes: [] });
      assert.equal(emptied.status, 409);
      assert.deepEqual(emptied.json()['usersByNode'], { n1: 3, n2: 1 });
      const stateless = await admin.put('/api/services/demo', { pathPrefix: '/js/a', affinity: 'none' });
      assert.equal(stateless.status, 409, stateless.text);

      await fixture.stop();
      await start();
      assert.equal(
        (await admin.read('/api/services/demo/nodes/n1'))['draining'],
        true,
        'the switch survives a restart',
      );
      assert.equal((await admin.read('/api/services/demo/nodes/n1'))['users'], 3);
      for (const user of ['u-a', 'u-b', 'u-c']) {
        const moved = await admin.put(`/api/services/demo/bindings/${user}`, { nodeId: 'n2', reason: 'n1 goes' });
        assert.equal(moved.status, 200, moved.text);
      }
      assert.equal((await admin.delete('/api/services/demo/nodes/n1')).status, 200);
      for (const token of tokens) assert.equal((await fixture.get('/js/a/x', token)).headers['x-gateway-node'], 'n2');
    });
  });
}
