/** Who gets into the console, what they find there, and where their token is. */
// biome-ignore-all lint/performance/useDomNodeTextContent: a reader sees the rendered text.
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { TOKENS } from '../support/admin-client.ts';
import { byKey, ConsoleFixture, goTo, signIn } from '../support/console-fixture.ts';

describe('signing in to the console', () => {
  let console: ConsoleFixture;

  before(async () => {
    console = await ConsoleFixture.start({ users: ['ada', 'bob', 'cyd'] });
    const body = { id: 'canary', pathPrefix: '/canary', versions: [{ version: 'v1', service: 'demo', weight: 1 }] };
    assert.equal((await console.admin.post('/api/routes', body)).status, 201);
  });
  after(() => console?.stop());

  it('refuses a wrong token in the words of the API, and keeps it nowhere', async () => {
    const { page, faults } = await console.open(null);
    for (const [token, words] of [
      ['wrong-token-0123456789', /401 unauthorized\s*this token is not known/],
      ['nö', /plain ASCII/],
    ] as const) {
      await page.fill('#token', token);
      await page.keyboard.press('Enter');
      await page.locator('#signin-error .error').filter({ hasText: words }).waitFor();
      assert.equal(await page.getAttribute('#token', 'aria-invalid'), 'true');
      assert.equal(await page.evaluate('document.activeElement.id'), 'token');
    }
    assert.ok(await page.locator('nav').isHidden());
    assert.equal(await page.evaluate('sessionStorage.length + localStorage.length'), 0);
    assert.deepEqual(faults, []);
    await page.context().close();
  });

  it('keeps the right token in this tab only, and forgets it when the operator leaves', async () => {
    const { page, faults } = await console.open('admin');
    assert.equal(await page.innerText('#caller'), 'admin (admin)');
    assert.equal(await page.evaluate('sessionStorage.getItem("token")'), TOKENS.admin);
    assert.equal(await page.evaluate('localStorage.length'), 0);
    assert.equal(await page.evaluate('document.cookie'), '');
    assert.equal(await page.inputValue('#token'), '');
    await page.reload();
    await page.locator('#services-list table').first().waitFor();
    await page.click('#signout');
    await page.locator('#signin').waitFor();
    assert.equal(await page.evaluate('sessionStorage.length'), 0);
    assert.equal(await page.locator('table').count(), 0);
    assert.doesNotMatch((await page.evaluate('document.body.textContent')) as string, /node-1/);
    assert.equal(await page.evaluate('document.activeElement.id'), 'token');
    assert.deepEqual(faults, []);
    await page.context().close();
  });

  it('asks again for a token that is no longer known', async () => {
    const { page } = await console.open('viewer');
    await page.evaluate('sessionStorage.setItem("token", "withdrawn-0123456789")');
    await page.reload();
    await page.locator('#signin-error').filter({ hasText: 'this token is not known' }).waitFor();
    assert.equal(await page.evaluate('sessionStorage.length'), 0);
    await signIn(page, TOKENS.viewer);
    await page.context().close();
  });

  it('shows each role what it may do, and no buttons that would be refused', async () => {
    const seen: Record<string, unknown> = {};
    for (const role of ['viewer', 'operator', 'admin'] as const) {
      const { page } = await console.open(role);
      await byKey(page, 'users/node-1').click();
      await page.locator('#found table').waitFor();
      const users = await page.locator('#found button').allInnerTexts();
      await goTo(page, 'routes');
      await page.locator('#route-canary').waitFor();
      seen[role] = {
        switches: await byKey(page, 'draining/node-1').count(),
        users: [...new Set(users)],
        weights: await byKey(page, 'weights/canary').count(),
        told: await page.locator('#rights').isVisible(),
      };
      await page.context().close();
    }
    assert.deepEqual(seen, {
      viewer: { switches: 0, users: ['Why?'], weights: 0, told: true },
      operator: { switches: 1, users: ['Why?', 'Move', 'Freeze', 'Unbind'], weights: 0, told: false },
      admin: { switches: 1, users: ['Why?', 'Move', 'Freeze', 'Unbind'], weights: 1, told: false },
    });
  });
});

describe('the console of a gateway without tokens', () => {
  it('lets this machine look without signing in, and says why nothing can be changed', async () => {
    const console = await ConsoleFixture.start({ admin: 'tokens: []' });
    try {
      const { page } = await console.open(null);
      await page.locator('#services-list table').waitFor();
      await page.locator('#stream[data-state=live]').waitFor();
      assert.equal(await page.innerText('#caller'), 'local (viewer)');
      assert.match(await page.innerText('#rights'), /no admin\.tokens are configured/);
      assert.ok(await page.locator('#signout').isHidden());
      assert.equal(await byKey(page, 'draining/node-1').count(), 0);
    } finally {
      await console.stop();
    }
  });
});
