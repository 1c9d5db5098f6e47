/** An operator's work in the console, on a real gateway: everything asks first, names whom it affects, and is on record. */
// biome-ignore-all lint/performance/useDomNodeTextContent: a reader sees the rendered text.
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { Page } from 'playwright-core';
import {
  byKey,
  ConsoleFixture,
  confirm,
  findUsers,
  goTo,
  keyInFocus,
  MARKUP_NAME,
  MARKUP_REMARK,
  planOf,
} from '../support/console-fixture.ts';
import { waitUntil } from '../support/wait-until.ts';

type Json = Record<string, unknown>;

describe('the console in the hands of an operator', () => {
  let console: ConsoleFixture;
  let page: Page;
  let faults: string[];

  before(async () => {
    console = await ConsoleFixture.start({ users: ['ada', 'bob', 'cyd', 'dan', 'eve', 'fay', MARKUP_NAME] });
    ({ page, faults } = await console.open('operator'));
  });
  after(async () => {
    assert.deepEqual(faults, []);
    await console?.stop();
  });

  const nodeOf = async (userId: string) =>
    ((await console.admin.read(`/api/services/demo/bindings?userId=${userId}`))['bindings'] as Json[])[0]?.['nodeId'];
  const node = (id: string) => console.admin.read(`/api/services/demo/nodes/${id}`);
  const newestEntry = async () => ((await console.admin.read('/api/audit?limit=1'))['entries'] as Json[])[0] as Json;

  it('shows how many users a switch of a node affects, and does nothing unless it is confirmed', async () => {
    const { users } = await node('node-1');
    assert.equal(users, 3);
    await byKey(page, 'draining/node-1').click();
    assert.match(
      await planOf(page),
      /draining: false → true\s+Affects 3 users bound to node-1\.\s+They stay on the node/,
    );
    await page.click('#dialog-cancel');
    await page.locator('#dialog').waitFor({ state: 'hidden' });
    assert.equal((await node('node-1'))['draining'], false);
    assert.deepEqual((await console.admin.read('/api/audit'))['entries'], []);
    assert.equal(await keyInFocus(page), 'draining/node-1');
  });

  it('drains a node, says so, and has it on record with who and why', async () => {
    await byKey(page, 'draining/node-1').click();
    await confirm(page, 'new disk');
    assert.equal((await node('node-1'))['draining'], true);
    await byKey(page, 'draining/node-1').filter({ hasText: 'Stop draining' }).waitFor();
    assert.equal(await keyInFocus(page), 'draining/node-1');
    assert.match(await page.innerText('#told'), /Done\. Drain: node-1/);
    await goTo(page, 'audit');
    const row = page.locator('#audit-list tbody tr').first();
    await row.waitFor();
    assert.match(
      (await row.innerText()).replace(/\s+/g, ' '),
      /operator 127\.0\.0\.1 node\.change services\/demo\/nodes\/node-1 ✓ done new disk/,
    );
    await row.locator('summary').click();
    assert.match(await row.locator('pre').innerText(), /"draining": false[\s\S]*→[\s\S]*"draining": true/);
    await goTo(page, 'services');
  });

  it('puts what the API finds wrong to the field where it is', async () => {
    await byKey(page, 'edit/node-3').click();
    await page.fill('[name=weight]', 'heavy');
    await page.fill('[name=maxUsers]', '-1');
    await page.click('#dialog-go');
    await page.locator('#dialog-error li').nth(1).waitFor();
    assert.match(
      await page.innerText('#dialog-error'),
      /400 bad_request\s+maxUsers: must be|400 bad_request\s+weight: must be/,
    );
    assert.equal(await page.locator('#dialog [aria-invalid=true]').count(), 2);
    await page.fill('[name=weight]', '2.5');
    await page.fill('[name=maxUsers]', '40');
    await page.click('#dialog-go');
    assert.match(await planOf(page), /weight: 1 → 2\.5[\s\S]*maxUsers: — → 40[\s\S]*Affects 2 users/);
    await confirm(page);
    const { weight, maxUsers, remark } = await node('node-3');
    assert.deepEqual([weight, maxUsers, remark], [2.5, 40, '']);
  });

  it('never writes over what somebody else has changed meanwhile', async () => {
    await byKey(page, 'edit/node-3').click();
    await page.fill('[name=remark]', 'rack 7');
    await page.click('#dialog-go');
    await planOf(page);
    assert.equal((await console.admin.patch('/api/services/demo/nodes/node-3', { weight: 9 })).status, 200);
    await page.click('#dialog-go');
    await page.locator('#dialog-error').filter({ hasText: '412 changed_meanwhile' }).waitFor();
    assert.equal((await node('node-3'))['remark'], '');
    await page.click('#dialog-go');
    assert.match(await planOf(page), /remark: {1,2}→ rack 7/);
    await confirm(page);
    const { weight, remark } = await node('node-3');
    assert.deepEqual([weight, remark], [9, 'rack 7']);
  });

  it('shows a conflict and a refusal as the API puts them', async () => {
    for (const [status, error, message] of [
      [409, 'users_bound', '3 users are bound to it'],
      [403, 'forbidden', "this call needs the role operator; 'operator' is viewer"],
    ] as const) {
      await byKey(page, 'enabled/node-2').click();
      await planOf(page);
      await page.route('**/api/services/demo/nodes/node-2', (route) =>
        route.request().method() === 'PATCH'
          ? route.fulfill({ status, json: { code: status, error, message, requestId: 'r-1' } })
          : route.fallback(),
      );
      await page.click('#dialog-go');
      await page.locator('#dialog-error').filter({ hasText: message }).waitFor();
      assert.match(await page.innerText('#dialog-error'), new RegExp(`${status} ${error}[\\s\\S]*Request r-1`));
      await page.unrouteAll();
      await page.keyboard.press('Escape');
      await page.locator('#dialog').waitFor({ state: 'hidden' });
    }
    assert.equal((await node('node-2'))['enabled'], true);
  });

  it('finds a user by name and by id, and says why their requests go where they go', async () => {
    await findUsers(page, 'username', 'bob');
    await page.locator('#found tbody tr').waitFor();
    assert.match(
      (await page.locator('#found tbody tr').innerText()).replace(/\s+/g, ' '),
      /^bob u-bob node-2 1 ✓ active/,
    );
    await findUsers(page, 'userId', 'u-ada');
    await page.locator('#found tbody tr').filter({ hasText: 'u-ada' }).waitFor();
    await byKey(page, 'why/u-ada').click();
    await page.locator('#trail .verdict').waitFor();
    const trail = await page.locator('#trail li').allInnerTexts();
    assert.deepEqual(
      trail.map((line) => line.replace(/answered by: \w+/, 'answered by')),
      [
        'The path belongs to service demo.',
        'It is the request of u-ada.',
        'The user is bound to node-1, epoch 1 (answered by).',
        'Node node-1 is enabled, draining; health UP.',
        '→ It goes to node node-1 (decision: bound, stage: sticky-route).',
      ],
    );
    await page.selectOption('#why-by', 'username');
    await page.fill('#why-user', 'newcomer');
    await page.fill('#why-method', 'POST');
    await page.fill('#why-path', '/js/a/auth/login');
    await page.click('#why button');
    await page.locator('#trail li').filter({ hasText: 'It is a login of newcomer.' }).waitFor();
    assert.match(await page.innerText('#trail'), /would start a binding/);
    await page.fill('#why-path', '/nowhere');
    await page.click('#why button');
    await page.locator('#trail .verdict').filter({ hasText: '404 no_route' }).waitFor();
    await page.fill('#why-path', 'no slash');
    await page.fill('#why-user', '');
    await page.click('#why button');
    await page.locator('#trail .error').filter({ hasText: '400 bad_request' }).waitFor();
  });

  it('moves a user, naming them, and their next request goes to the new node', async () => {
    const token = await console.gateway.tokenOf('dan');
    const answeredBy = async () => (await console.gateway.get('/js/a/notes', token)).json()['node'];
    assert.equal(await answeredBy(), 'node-1');
    await findUsers(page, 'username', 'dan');
    await byKey(page, 'move/u-dan').click();
    assert.deepEqual(await page.locator('#field-nodeId option').allInnerTexts(), ['—', 'node-2 · UP', 'node-3 · UP']);
    await page.click('#dialog-go');
    await page.locator('#dialog-error li').filter({ hasText: 'nodeId' }).waitFor();
    assert.equal(await keyInFocus(page), 'field-nodeId');
    await page.selectOption('#field-nodeId', 'node-3');
    await page.click('#dialog-go');
    assert.match(
      await planOf(page),
      /Affects 1 user: dan \(u-dan\)\.\s+node-1 → node-3, epoch 2\s+The gateway does not move their data/,
    );
    assert.equal(await nodeOf('u-dan'), 'node-1');
    await confirm(page, 'data copied');
    assert.equal(await nodeOf('u-dan'), 'node-3');
    assert.equal(await answeredBy(), 'node-3');
    await page.locator('#found tbody tr').filter({ hasText: 'node-3' }).waitFor();
    const { action, actor, reason, target } = await newestEntry();
    assert.deepEqual(
      [action, actor, reason, target],
      ['binding.move', 'operator', 'data copied', 'services/demo/bindings/u-dan'],
    );
  });

  it('freezes, unfreezes and unbinds a user', async () => {
    await findUsers(page, 'userId', 'u-eve');
    await byKey(page, 'freeze/u-eve').click();
    assert.match(await planOf(page), /Affects 1 user: eve \(u-eve\)\.\s+Their requests get 503/);
    await confirm(page, 'abuse');
    await byKey(page, 'freeze/u-eve').filter({ hasText: 'Unfreeze' }).waitFor();
    assert.match(await page.locator('#found tbody tr').innerText(), /frozen/);
    assert.equal((await newestEntry())['reason'], 'abuse');
    await byKey(page, 'freeze/u-eve').click();
    await confirm(page);
    await byKey(page, 'freeze/u-eve')
      .filter({ hasText: /^Freeze/ })
      .waitFor();
    await byKey(page, 'unbind/u-eve').click();
    assert.match(
      await planOf(page),
      /Affects 1 user: eve \(u-eve\)\.[\s\S]*does not have their data \(now on node-2\)/,
    );
    await confirm(page, 'left us');
    await page.locator('#found-count').filter({ hasText: 'Nobody is found in service demo.' }).waitFor();
    assert.equal(await nodeOf('u-eve'), undefined);
    assert.deepEqual([(await newestEntry())['action'], (await newestEntry())['reason']], ['binding.unbind', 'left us']);
    await byKey(page, 'bind').click();
    await page.selectOption('#field-nodeId', 'node-2');
    await page.click('#dialog-go');
    assert.match(await planOf(page), /not bound → node-2, epoch 1/);
    await confirm(page);
    assert.equal(await nodeOf('u-eve'), 'node-2');
  });

  it('shows names and remarks as the text they are', async () => {
    await goTo(page, 'services');
    await page.locator('#services-list th').filter({ hasText: MARKUP_REMARK }).waitFor();
    await byKey(page, 'users/node-1').click();
    const row = page.locator('#found tbody tr').filter({ hasText: MARKUP_NAME });
    await row.waitFor();
    await row.getByRole('button', { name: 'Freeze' }).click();
    assert.ok((await planOf(page)).includes(MARKUP_NAME));
    await confirm(page, MARKUP_REMARK);
    await row.getByRole('button', { name: 'Why?' }).click();
    await page.locator('#trail .verdict').waitFor();
    await goTo(page, 'audit');
    await page.locator('#audit-list td').filter({ hasText: MARKUP_REMARK }).waitFor();
    assert.equal(await page.locator('img, b, main script').count(), 0);
    assert.equal(await page.title(), 'Audit log · sticky-gateway');
  });

  it('pages through more users than fit on a page', async () => {
    const rows = Array.from({ length: 120 }, (_, index) => `many-${index},many-${index},node-2`);
    const file = ['user_id,username,node_id', ...rows, ''].join('\n');
    assert.equal(
      (await console.admin.post('/api/services/demo/bindings/import', file, { 'Content-Type': 'text/csv' })).status,
      200,
    );
    const all = (
      (await console.admin.read('/api/services/demo/bindings?nodeId=node-2&limit=1000'))['bindings'] as Json[]
    ).length;
    await findUsers(page, 'nodeId', 'node-2');
    const shown = () => page.locator('#found tbody tr').count();
    for (const count of [50, 100, all]) {
      await waitUntil(`${count} rows`, async () => (await shown()) === count);
      if (count !== all) await byKey(page, 'more').click();
    }
    assert.equal(await byKey(page, 'more').count(), 0);
  });
});

describe('the console in the hands of an administrator', () => {
  let console: ConsoleFixture;
  before(async () => {
    console = await ConsoleFixture.start({ users: ['ada', 'bob'] });
  });
  after(() => console?.stop());

  it('changes weights of a route, naming the users who are bound behind it', async () => {
    const green = { id: 'green', nodes: [{ id: 'g-1', baseUrl: console.nodes[2]?.baseUrl }] };
    assert.equal((await console.admin.post('/api/services', green)).status, 201);
    const versions = [
      { version: 'v1', service: 'demo', weight: 90, enabled: true },
      { version: 'v2', service: 'green', weight: 10, enabled: true },
    ];
    const rules = [
      { type: 'header', name: 'X-Version', value: 'v2', version: 'v2' },
      { type: 'weight', value: 10, version: 'v2' },
    ];
    assert.equal(
      (await console.admin.post('/api/routes', { id: 'canary', pathPrefix: '/canary', versions, rules })).status,
      201,
    );
    const { page, faults } = await console.open('admin');
    await goTo(page, 'routes');
    await byKey(page, 'weights/canary').click();
    await page.fill('[name="versions[0].weight"]', '-5');
    await page.click('#dialog-go');
    await page.locator('#dialog-error').filter({ hasText: 'versions[0].weight' }).waitFor();
    assert.equal(await page.getAttribute('[name="versions[0].weight"]', 'aria-invalid'), 'true');
    await page.fill('[name="versions[0].weight"]', '70');
    await page.fill('[name="rules[1].value"]', '30');
    await page.click('#dialog-go');
    assert.match(
      await planOf(page),
      /Weight of v1: 90 → 70\s+Rule 2, by weight, to v2: 10 → 30\s+2 users bound in the services of this route \(demo, green\) stay/,
    );
    await confirm(page, 'wider');
    await page.locator('#routes-list td').filter({ hasText: '70' }).waitFor();
    const now = await console.admin.read('/api/routes/canary');
    assert.deepEqual(
      (now['versions'] as Json[]).map(({ weight }) => weight),
      [70, 10],
    );
    assert.deepEqual(
      (now['rules'] as Json[]).map(({ value }) => value),
      ['v2', 30],
    );
    const entry = ((await console.admin.read('/api/audit?limit=1'))['entries'] as Json[])[0] as Json;
    assert.deepEqual([entry['actor'], entry['action'], entry['reason']], ['admin', 'route.replace', 'wider']);
    assert.deepEqual(faults, []);
  });
});
