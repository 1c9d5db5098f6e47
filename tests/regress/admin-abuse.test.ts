/** Callers of the admin API who send what no client should, byte by byte: each gets an answer, and the next one is served. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { ADMIN_TOKENS, AdminClient, TOKENS } from '../support/admin-client.ts';
import { BackendNode } from '../support/backend-node.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import { connectRaw, fieldOf } from '../support/raw-http.ts';
import { waitUntil } from '../support/wait-until.ts';

describe('the admin API under abuse', () => {
  let stores: StoreSetup;
  let fixture: GatewayFixture;
  let admin: AdminClient;
  const clock = new FakeClock(Date.now());
  const n1 = new BackendNode('n1');
  const path = '/api/services/demo/nodes/n1';

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

  const head = (method: string, target: string, ...fields: string[]) =>
    [
      `${method} ${target} HTTP/1.1`,
      'Host: 127.0.0.1',
      `Authorization: Bearer ${TOKENS.admin}`,
      ...fields,
      '',
      '',
    ].join('\r\n');
  const untouched = async () => assert.equal((await admin.read(path))['remark'], '');

  it('refuses JSON that can be read in two ways, or in none', async () => {
    for (const [body, pattern] of [
      ['{"enabled":true,"enabled":false}', /stands twice/],
      ['{"enabled":tru', /not sound JSON/],
      ['{"remark":"\\ud800"}', /not valid Unicode/],
      ['{"\\udc00":1}', /not valid Unicode/],
      ['{"remark":"a"} {"remark":"b"}', /not sound JSON/],
      ['[]', /must be a JSON object/],
      ['', /not sound JSON/],
      [`{"remark":${'['.repeat(100_000)}`, /not sound JSON/],
      ['{"weight":1e999}', /weight/],
      ['{"weight":12345678901234567890}', /weight/],
      ['{"maxUsers":1.5}', /maxUsers/],
      ['{"__proto__":{"enabled":false}}', /__proto__/],
      ['{"remark":"nul \\u0000"}', /remark/],
    ] as const) {
      const answer = await admin.send('PATCH', path, body, { 'Content-Type': 'application/json' });
      assert.equal(answer.status, 400, `${body.slice(0, 80)}: ${answer.text}`);
      assert.match(answer.json()['message'] as string, pattern, body.slice(0, 80));
    }
    await untouched();
  });

  it('refuses bytes that are no UTF-8, and bodies of another kind', async () => {
    const body = Buffer.from([0x7b, 0x22, 0x72, 0xff, 0x22, 0x3a, 0x31, 0x7d]);
    const raw = await connectRaw(fixture.adminPort);
    raw.write(head('PATCH', path, 'Content-Type: application/json', `Content-Length: ${body.length}`), body);
    assert.equal((await raw.readAnswer()).status, 400);
    raw.end();
    for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'application/json; charset=latin1']) {
      assert.equal((await admin.send('PATCH', path, '{}', { 'Content-Type': type })).status, 415, type);
    }
    assert.equal((await admin.send('PATCH', path, '{}', { 'Content-Encoding': 'gzip' })).status, 415);
    await untouched();
  });

  it('refuses bodies that are too large, whether they say so or not, and the answer arrives', async () => {
    const told = await connectRaw(fixture.adminPort);
    told.write(head('PATCH', path, 'Content-Type: application/json', 'Content-Length: 99999999'), 'x');
    assert.equal((await told.readAnswer()).status, 413);
    told.end();

    const untold = await connectRaw(fixture.adminPort);
    untold.write(head('PATCH', path, 'Content-Type: application/json', 'Transfer-Encoding: chunked'));
    const chunk = Buffer.concat([Buffer.from('10000\r\n'), Buffer.alloc(65_536, ' '), Buffer.from('\r\n')]);
    for (let count = 0; count < 20; count += 1) untold.write(chunk);
    const answer = await untold.readAnswer();
    assert.equal(answer.status, 413);
    assert.equal(fieldOf(answer.fields, 'cache-control'), 'no-store');
    untold.end();
    await untouched();
  });

  it('gives up on bodies that do not come, and ends the connection', async () => {
    const slow = await connectRaw(fixture.adminPort);
    slow.write(head('PATCH', path, 'Content-Type: application/json', 'Content-Length: 100'), '{"remark":');
    // Its timer and the heartbeat of events: then the body is being waited for.
    const before = clock.pending;
    const import_ = await connectRaw(fixture.adminPort);
    import_.write(
      head('POST', '/api/services/demo/bindings/import', 'Content-Type: text/csv', 'Content-Length: 100'),
      'a,b,',
    );
    await waitUntil('both to be read', () => clock.pending >= before + 1 && clock.pending >= 2);
    for (let second = 0; second < 60 && (slow.receivedBytes === 0 || import_.receivedBytes === 0); second += 1) {
      await clock.advanceAsync(1_000);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    assert.equal((await slow.readAnswer()).status, 408);
    assert.equal((await import_.readAnswer()).status, 408);
    for (let second = 0; second < 10; second += 1) {
      await clock.advanceAsync(1_000);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    await slow.done();
    await import_.done();
    assert.deepEqual((await admin.read('/api/services/demo/bindings'))['bindings'], []);
    await untouched();
  });

  it('answers targets that are no paths', async () => {
    for (const [target, status] of [
      ['/api/services/%zz', 400],
      ['/api/services/%00', 404],
      ['/api/services/..%2f..%2fetc', 404],
      ['/api//services', 404],
      ['/api/', 404],
      ['/api/services/', 404],
      ['http://127.0.0.1/api/services', 404],
    ] as const) {
      const raw = await connectRaw(fixture.adminPort);
      raw.write(head('GET', target));
      assert.equal((await raw.readAnswer()).status, status, target);
      raw.end();
    }
  });

  it('takes the first of two Authorization lines, and no folded ones', async () => {
    const raw = await connectRaw(fixture.adminPort);
    raw.write(head('GET', '/api/services', 'Authorization: Bearer nonsense-nonsense-nonsense'));
    assert.equal((await raw.readAnswer()).status, 200);
    raw.end();
    const huge = await connectRaw(fixture.adminPort);
    huge.write(head('GET', '/api/services', `X-Large: ${'x'.repeat(20_000)}`));
    assert.equal((await huge.readAnswer()).status, 431);
    huge.end();
  });

  it('never shows a secret, whatever it is asked', async () => {
    const texts = [
      (await admin.get('/api/config')).text,
      (await admin.get('/api/audit?limit=1000')).text,
      (await admin.get('/api/openapi.json')).text,
      fixture.lines.join(''),
    ];
    for (const text of texts) {
      for (const token of Object.values(TOKENS)) assert.ok(!text.includes(token));
    }
  });
});
