/** Import and export of bindings: all or nothing, every fault with its line, repeatable, and the same rows back. */
import assert from 'node:assert/strict';
import * as http from 'node:http';
import { after, before, describe, it } from 'node:test';
import { ADMIN_TOKENS, AdminClient, TOKENS } from '../support/admin-client.ts';
import { BackendNode } from '../support/backend-node.ts';
import {
  type GatewayFixture,
  openStores,
  STORE_KINDS,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';
import { call } from '../support/http-client.ts';
import { waitUntil } from '../support/wait-until.ts';

type Json = Record<string, unknown>;
const PATH = '/api/services/demo/bindings';
const CSV = { 'Content-Type': 'text/csv' };
const NDJSON = { 'Content-Type': 'application/x-ndjson' };

/** Line `n` of the file is row n - 1 behind the header. */
function rows(count: number): string[] {
  return [
    'user_id,username,node_id',
    ...Array.from({ length: count }, (_, index) => `u${index},name${index},n${1 + (index % 2)}`),
  ];
}

for (const kind of STORE_KINDS) {
  describe(`import and export, ${kind}`, () => {
    let stores: StoreSetup;
    let fixture: GatewayFixture;
    let admin: AdminClient;
    const n1 = new BackendNode('n1');
    const n2 = new BackendNode('n2');

    before(async () => {
      await n1.start();
      await n2.start();
      stores = await openStores(kind);
      const services = ['demo', 'copy', 'plain']
        .map((id, index) => {
          const nodes = [n1, n2].map(
            (node) => `{ id: ${index === 0 ? '' : `${id}-`}${node.id}, baseUrl: "${node.baseUrl}" }`,
          );
          return `  - { id: ${id}, pathPrefix: /${id}, affinity: ${id === 'plain' ? 'none' : 'user'}, nodes: [${nodes.join(', ')}] }`;
        })
        .join('\n');
      fixture = await startGateway({
        stores,
        nodes: [n1, n2],
        services: `services:\n${services}`,
        admin: ADMIN_TOKENS,
      });
      admin = new AdminClient(fixture.adminPort).as('operator');
    });
    after(async () => {
      await fixture?.stop();
      await stores?.close();
      await n1.stop();
      await n2.stop();
    });

    const count = async (service = 'demo') => {
      const { nodes } = (await admin.read(`/api/services/${service}/nodes`)) as { nodes: Json[] };
      return nodes.reduce((sum, node) => sum + (node['users'] as number), 0);
    };

    it('lists every fault with its line, as a dry run and as a run, and writes nothing', async () => {
      const lines = rows(10_002);
      lines[16] = 'u15,name15,n9';
      lines[39] = 'twin,twin,n1';
      lines[9_000] = 'twin,twin,n2';
      lines[5_554] = ',,n1';
      for (const query of ['?dryRun=1', '']) {
        const answer = await admin.send('POST', `${PATH}/import${query}`, `${lines.join('\n')}\n`, CSV);
        assert.equal(answer.status, 400, answer.text);
        const body = answer.json() as {
          error: string;
          errorCount: number;
          errors: { line: number; message: string }[];
        };
        assert.equal(body.error, 'import_refused');
        const alone = body.errors.filter(({ line }) => line !== 9_001);
        assert.deepEqual(
          alone.map(({ line }) => line),
          [17, 5_555],
        );
        assert.match(alone[0]?.message ?? '', /n9/);
        const twins = body.errors.filter(({ line }) => line === 9_001);
        assert.ok(
          twins.some(({ message }) => /line 40/.test(message)),
          answer.text,
        );
        assert.equal(body.errorCount, body.errors.length);
        assert.equal(await count(), 0);
      }
      const { entries } = (await admin.read('/api/audit?limit=2')) as { entries: Json[] };
      assert.equal(entries.length, 1, 'the dry run is not in the audit');
      assert.match(entries[0]?.['outcome'] as string, /^import_refused/);
    });

    it('takes the corrected file, and the same file again is a no-op', async () => {
      const file = `${rows(10_002).join('\r\n')}\r\n`;
      const dry = await admin.send('POST', `${PATH}/import?dryRun=1`, file, CSV);
      assert.deepEqual(dry.json(), { rows: 10_002, inserted: 10_002, unchanged: 0, dryRun: true });
      assert.equal(await count(), 0);
      const first = await admin.send('POST', `${PATH}/import?reason=take-over`, file, CSV);
      assert.equal(first.status, 200, first.text);
      assert.deepEqual(first.json(), { rows: 10_002, inserted: 10_002, unchanged: 0 });
      assert.equal(await count(), 10_002);
      const again = await admin.send('POST', `${PATH}/import`, file, CSV);
      assert.deepEqual(again.json(), { rows: 10_002, inserted: 0, unchanged: 10_002 });
      const { entries } = (await admin.read('/api/audit?limit=2')) as { entries: Json[] };
      assert.deepEqual(entries[1]?.['after'], { rows: 10_002, inserted: 10_002, unchanged: 0 });
      assert.equal(entries[1]?.['reason'], 'take-over');
    });

    it('leaves users alone who are bound already', async () => {
      const before = (await admin.read(`${PATH}?userId=u0`))['bindings'];
      const answer = await admin.send('POST', `${PATH}/import`, 'u0,name0,n2\nbrand-new,,n2\n', CSV);
      assert.deepEqual(answer.json(), { rows: 2, inserted: 1, unchanged: 1 });
      assert.deepEqual((await admin.read(`${PATH}?userId=u0`))['bindings'], before);
    });

    it('gives back the same rows that it was given, in both formats', async () => {
      const odd: [string | null, string | null][] = [
        ['1790000000000000001', 'comma, "quotes"'],
        ['1790000000000000002', '=cmd|calc!A0'],
        ['用户', '张三'],
        [' blanks ', 'line\nbreak'],
        ['+1', '-2'],
        [null, 'Only Name'],
        ['only-id', null],
      ];
      const file = odd.map(([userId, username]) => JSON.stringify({ userId, username, nodeId: 'copy-n1' })).join('\n');
      const given = await admin.send('POST', '/api/services/copy/bindings/import', file, NDJSON);
      assert.equal(given.status, 200, given.text);
      assert.equal(given.json()['inserted'], odd.length);
      const list = async () =>
        ((await admin.read('/api/services/copy/bindings?limit=1000'))['bindings'] as Json[]).map((one) => [
          one['userId'],
          one['username'],
        ]);
      assert.deepEqual(await list(), odd);
      for (const [format, headers] of [
        ['csv', CSV],
        ['ndjson', NDJSON],
      ] as const) {
        const file = await admin.get(`/api/services/copy/bindings/export?format=${format}`);
        assert.equal(file.status, 200);
        assert.match(file.headers['content-disposition'] as string, /attachment/);
        const again = await admin.send('POST', '/api/services/copy/bindings/import', file.text, headers);
        assert.deepEqual(again.json(), { rows: odd.length, inserted: 0, unchanged: odd.length }, format);
        const other = file.text.replaceAll('copy-n1', 'n1');
        const before = await count();
        assert.equal((await admin.send('POST', `${PATH}/import`, other, headers)).json()['rows'], odd.length);
        assert.equal((await count()) - before, format === 'csv' ? odd.length : 0);
      }
      const page = (await admin.read(`${PATH}?username=line%0Abreak`))['bindings'] as Json[];
      assert.equal(page[0]?.['userId'], ' blanks ');
    });

    it('keeps the digits of ids that are numbers in JSON', async () => {
      const answer = await admin.send(
        'POST',
        `${PATH}/import?nodeId=n1`,
        '{"userId":1790000000000000011}\n{"userId":1790000000000000012}',
        NDJSON,
      );
      assert.equal(answer.json()['inserted'], 2, answer.text);
      assert.equal(((await admin.read(`${PATH}?userId=1790000000000000011`))['bindings'] as Json[]).length, 1);
    });

    it('refuses files it cannot read, by line', async () => {
      for (const [body, headers, pattern] of [
        ['a,b,n1\n"open,x,n1\n', CSV, /line 2: .*quote/],
        ['a,b,n1\na"b,c,n1\n', CSV, /line 2: .*quote/],
        ['a,b,n1,more\n', CSV, /line 1: .*fields/],
        ['user_id,node_id\na,n1\nb\n', CSV, /line 3: .*fields/],
        ['a,b\n', CSV, /line 1: names no node/],
        [`"${'x'.repeat(70_000)}`, CSV, /line 1: is longer/],
        [`${'x'.repeat(300)},b,n1\n`, CSV, /line 1: user_id cannot be stored/],
        ['same,A,n1\nother,a,n1\n', CSV, /line 2: username/],
        ['{"userId":"a","nodeId":"n1"}\nnot json\n', NDJSON, /line 2: is not sound JSON/],
        ['{"userId":"a","userId":"b","nodeId":"n1"}\n', NDJSON, /line 1: .*stands twice/],
        ['{"userId":1.5,"nodeId":"n1"}\n', NDJSON, /line 1: userId/],
        ['{"userId":"a","node":"n1"}\n', NDJSON, /line 1: unknown key 'node'/],
      ] as const) {
        const answer = await admin.send('POST', `${PATH}/import`, body, headers);
        assert.equal(answer.status, 400, answer.text);
        assert.match(answer.json()['message'] as string, pattern);
      }
      const bytes = await call(fixture.adminPort, `${PATH}/import`, {
        method: 'POST',
        headers: { ...CSV, Authorization: `Bearer ${TOKENS.operator}` },
        body: Buffer.from([0x61, 0x2c, 0xff, 0x0a]),
      });
      assert.equal(bytes.status, 400);
      assert.match(bytes.text, /not UTF-8/);
      assert.equal(
        (await admin.send('POST', `${PATH}/import`, 'a,b,n1', { 'Content-Type': 'text/plain' })).status,
        415,
      );
      assert.equal((await admin.send('POST', `${PATH}/import?nodeId=n9`, 'a,b', CSV)).status, 400);
      assert.equal((await admin.send('POST', '/api/services/plain/bindings/import', 'a,b,plain-n1', CSV)).status, 409);
    });

    it('writes nothing when the sender breaks off, and takes one file at a time', async () => {
      const before = await count();
      const upload = () => {
        const request = http.request({
          host: '127.0.0.1',
          port: fixture.adminPort,
          path: `${PATH}/import`,
          method: 'POST',
          headers: { ...CSV, Authorization: `Bearer ${TOKENS.operator}` },
        });
        request.on('error', () => undefined);
        request.write(`${Array.from({ length: 2_500 }, (_, index) => `broken${index},,n1`).join('\n')}\n`);
        return request;
      };
      const look = async () => (await admin.send('POST', `${PATH}/import?dryRun=1`, 'x,,n1\n', CSV)).status;
      let request = upload() as http.ClientRequest & { res?: unknown };
      await waitUntil('the file to be under way', async () => {
        // A look may have been in its way.
        if (request.res) request = upload();
        const status = await look();
        assert.ok(status === 200 || status === 409, String(status));
        return status === 409;
      });
      request.destroy();
      // The lock goes with the transaction, so the next one that gets it comes after the end of the first.
      await waitUntil('the file to be given up', async () => (await look()) === 200);
      assert.equal(await count(), before);
    });
  });
}
