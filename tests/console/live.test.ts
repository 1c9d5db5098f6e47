/** What changes is seen as it changes, and a lost connection is told and mended. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { Page } from 'playwright-core';
import { TOKENS } from '../support/admin-client.ts';
import { byKey, ConsoleFixture, keyInFocus, signIn } from '../support/console-fixture.ts';
import { TcpGate } from '../support/tcp-gate.ts';

describe('the console while something changes', () => {
  let console: ConsoleFixture;
  let page: Page;

  before(async () => {
    console = await ConsoleFixture.start({ users: ['ada', 'bob'] });
    ({ page } = await console.open('admin'));
  });
  after(() => console?.stop());

  const healthOf = (id: string, state: string) =>
    page
      .locator('#services-list tr')
      .filter({ has: page.locator(`th:has-text("${id}")`) })
      .locator('td')
      .first()
      .filter({ hasText: state });

  it('shows that a node was killed, says it to who cannot see, and leaves the focus where it is', async () => {
    await healthOf('node-2', 'UP').waitFor();
    await byKey(page, 'edit/node-2').focus();
    await console.nodes[1]?.stop();
    await healthOf('node-2', 'DOWN').waitFor();
    const told = page.locator('[role=status]#told');
    await told.filter({ hasText: 'node-2 (demo) is DOWN' }).waitFor();
    await page.locator('#services-list .head').filter({ hasText: '2 of 3 nodes UP' }).waitFor();
    await healthOf('node-2', 'ECONN').waitFor();
    assert.equal(await keyInFocus(page), 'edit/node-2');
    await console.nodes[1]?.start();
    await healthOf('node-2', 'UP').waitFor();
    await told.filter({ hasText: 'node-2 (demo) is UP' }).waitFor();
  });

  it('shows what somebody else changes', async () => {
    await console.admin.patch('/api/services/demo/nodes/node-3', { draining: true, remark: 'moving out' });
    await page.locator('#services-list th').filter({ hasText: 'moving out' }).waitFor();
    await byKey(page, 'draining/node-3').filter({ hasText: 'Stop draining' }).waitFor();
    await console.admin.post('/api/services', {
      id: 'blue',
      pathPrefix: '/blue',
      nodes: [{ id: 'b-1', baseUrl: console.nodes[0]?.baseUrl }],
    });
    await page.locator('#service-blue').waitFor();
    await console.admin.delete('/api/services/blue');
    await page.locator('#service-blue').waitFor({ state: 'detached' });
  });

  it('shows requests under way', async () => {
    const node = console.nodes[0];
    const token = await console.gateway.tokenOf('ada');
    let finish: () => void = () => undefined;
    const underWay = new Promise<void>((resolve) => {
      if (node)
        node.handler = (_request, response) => {
          finish = () => response.end('{}');
          resolve();
        };
    });
    const answer = console.gateway.get('/js/a/slow', token);
    await underWay;
    await page.reload();
    const inFlight = (count: string) =>
      page
        .locator('#services-list tr')
        .filter({ has: page.locator('th:has-text("node-1")') })
        .locator('td')
        .nth(4)
        .filter({ hasText: count });
    await inFlight('1').waitFor();
    finish();
    assert.equal((await answer).status, 200);
    await inFlight('0').waitFor();
  });

  it('warns that the list of services is an old one', async () => {
    const { page: other } = await console.open('viewer');
    assert.ok(await other.locator('#stale').isHidden());
    const body = 'event: hello\ndata: {"version":1,"stale":true}\n\n';
    await other.route('**/api/events', (route) => route.fulfill({ contentType: 'text/event-stream', body }));
    await other.reload();
    await other.locator('#stale').filter({ hasText: 'the last good one' }).waitFor();
    await other.context().close();
  });

  it('tells when the connection is lost, comes back by itself, and catches up', async () => {
    const gate = await TcpGate.open(console.gateway.adminPort);
    const { page: other } = await console.open(null, {}, `http://127.0.0.1:${gate.port}`);
    await signIn(other, TOKENS.viewer);
    const stream = other.locator('#stream');
    await other.route('**/api/events', (route) => route.abort());
    gate.cut();
    await stream.filter({ hasText: /Not live; trying again in \d+ s/ }).waitFor();
    await console.admin.patch('/api/services/demo/nodes/node-1', { remark: 'changed in the dark' });
    await other.unrouteAll();
    await other.locator('#stream[data-state=live]').waitFor();
    await other.locator('#services-list th').filter({ hasText: 'changed in the dark' }).waitFor();
    await other.context().close();
    await gate.close();
  });
});
