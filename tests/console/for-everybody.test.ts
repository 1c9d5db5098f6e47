/** The console in two languages, on a phone, by keyboard, for screen readers, in the dark; and under its own policy. */
// biome-ignore-all lint/performance/useDomNodeTextContent: a reader sees the rendered text.
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { Page } from 'playwright-core';
import { byKey, ConsoleFixture, findUsers, goTo, keyInFocus, planOf } from '../support/console-fixture.ts';
import { waitUntil } from '../support/wait-until.ts';

/** The name of every visible control, as far as HTML gives it one; '' = it has none. */
const CONTROLS = `[...document.querySelectorAll('button, a[href], input, select, summary, [tabindex="0"]')]
  .filter((control) => control.checkVisibility())
  .map((control) => ({
    what: control.outerHTML.slice(0, 120),
    name: (control.getAttribute('aria-label') ?? [...(control.labels ?? [])].map((label) => label.textContent).join(' ') + (control.matches('input, select') ? '' : control.textContent)).trim(),
  }))`;
const DUPLICATE_IDS = `[...document.querySelectorAll('[id]')].map(({ id }) => id).filter((id, index, all) => all.indexOf(id) !== index)`;
/** Texts whose colour does not stand out enough from what is behind them (WCAG 1.4.3). */
const PALE_TEXTS = `(() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((value) => value / 255).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const groundOf = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const color = numbers(getComputedStyle(one).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll('body *')]
    .filter((element) => element.checkVisibility() && [...element.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim() !== ''))
    .map((element) => {
      const [a, b] = [light(numbers(getComputedStyle(element).color)), light(groundOf(element))].sort((x, y) => y - x);
      return { text: element.textContent.slice(0, 40), ratio: (a + 0.05) / (b + 0.05) };
    })
    .filter(({ ratio }) => ratio < 4.5);
})()`;
const TOO_WIDE = `Math.max(...[document.documentElement, ...document.querySelectorAll('.scroll, dialog')].map((box) => box.scrollWidth - box.clientWidth))`;

describe('the console', () => {
  let console: ConsoleFixture;

  before(async () => {
    console = await ConsoleFixture.start({
      users: ['ada', 'a-user-with-quite-a-long-name@department.example.org', 'cyd'],
    });
    const versions = [{ version: 'v1', service: 'demo', weight: 1 }];
    const rules = [{ type: 'header', name: 'X-Version', value: 'v1', version: 'v1' }];
    await console.admin.post('/api/routes', { id: 'canary', pathPrefix: '/canary', versions, rules });
    await console.admin.patch('/api/services/demo/nodes/node-3', { enabled: false, draining: true });
    await console.nodes[1]?.stop();
  });
  after(() => console?.stop());

  /** Every view and kind of dialog in turn. */
  const tour = async (page: Page, look: (place: string) => Promise<void>) => {
    await page.locator('#services-list .DOWN').first().waitFor();
    await look('services');
    await byKey(page, 'draining/node-1').click();
    await planOf(page);
    await look('dialog to confirm');
    await page.keyboard.press('Escape');
    await byKey(page, 'edit/node-1').click();
    await page.fill('[name=weight]', 'x');
    await page.click('#dialog-go');
    await page.locator('#dialog-error li').waitFor();
    await look('dialog with a fault');
    await page.keyboard.press('Escape');
    await findUsers(page, 'userId', '');
    await page.locator('#found tbody tr').first().waitFor();
    await byKey(page, 'why/u-ada').click();
    await page.locator('#trail .verdict').waitFor();
    await page.locator('#trail summary').click();
    await look('users');
    await goTo(page, 'routes');
    await page.locator('#route-canary').waitFor();
    await look('routes');
    await goTo(page, 'audit');
    await page.locator('#audit-list summary').first().click();
    await look('audit');
    await page.click('#signout');
    await page.locator('#signin').waitFor();
    await look('sign-in');
  };

  it('breaks no rule of its policy and sends no request to anywhere else', async () => {
    const { page, faults, requests } = await console.open(null);
    await page.evaluate(
      "addEventListener('securitypolicyviolation', (event) => window.console.error('violation', event.violatedDirective))",
    );
    await page.fill('#token', 'admin-token-0123456789');
    await page.keyboard.press('Enter');
    await tour(page, async () => undefined);
    assert.deepEqual(faults, []);
    assert.deepEqual(
      requests.filter((url) => new URL(url).origin !== console.origin),
      [],
    );
    assert.ok(requests.length > 10);
    // The policy is in force: the same page may not run, style or fetch anything that is not its own.
    const tries = [
      "document.body.innerHTML = '<b>x</b>'",
      "document.body.append(Object.assign(document.createElement('script'), { text: 'document.title = 1' }))",
      "document.body.append(Object.assign(document.createElement('img'), { src: 'http://127.0.0.1:1/x' }))",
      "fetch('http://127.0.0.1:1/')",
      "const style = document.createElement('style'); style.textContent = 'body { color: red }'; document.head.append(style)",
    ];
    for (const attempt of tries) {
      const before = faults.length;
      await page.evaluate(`(async () => { ${attempt} })().catch(() => undefined)`);
      await waitUntil(attempt, () => faults.length > before);
    }
    await page.context().close();
  });

  it('speaks English or Chinese: by the browser at first, then by choice', async () => {
    const { page } = await console.open('admin', { locale: 'zh-CN' });
    assert.equal(await page.getAttribute('html', 'lang'), 'zh-CN');
    assert.equal(await page.innerText('#services-title'), '服务');
    await byKey(page, 'draining/node-1').click();
    assert.match(await planOf(page), /影响绑定在 node-1 上的 1 个用户/);
    await page.keyboard.press('Escape');
    await findUsers(page, 'userId', 'u-ada');
    await page.locator('#found tbody tr').waitFor();
    await byKey(page, 'why/u-ada').click();
    await page.locator('#trail .verdict').filter({ hasText: '转发到节点' }).waitFor();
    await page.selectOption('#language', 'en');
    assert.equal(await page.getAttribute('html', 'lang'), 'en');
    await page.locator('#trail .verdict').filter({ hasText: 'It goes to node' }).waitFor();
    await page.locator('#found td').filter({ hasText: 'active' }).waitFor();
    assert.equal(await page.inputValue('#find-value'), 'u-ada');
    assert.doesNotMatch(await page.locator('main').innerText(), /\p{Script=Han}/u);
    await page.reload();
    await page.locator('#users').waitFor();
    assert.equal(await page.innerText('#users-title'), 'Find a user');
    assert.equal(await page.evaluate('localStorage.getItem("language")'), 'en');
    await page.context().close();
    const { page: english } = await console.open(null);
    assert.equal(await english.getAttribute('html', 'lang'), 'en');
    await english.context().close();
  });

  it('gives every control a name, every place one title, and no id twice', async () => {
    const { page } = await console.open('admin');
    assert.equal(await page.getByRole('navigation', { name: 'Views' }).count(), 1);
    await tour(page, async (place) => {
      const controls = (await page.evaluate(CONTROLS)) as { what: string; name: string }[];
      assert.ok(controls.length > 3, place);
      assert.deepEqual(
        controls.filter(({ name }) => name === ''),
        [],
        place,
      );
      assert.deepEqual(await page.evaluate(DUPLICATE_IDS), [], place);
      assert.equal(await page.locator('h1:visible').count(), 1, place);
      for (const landmark of ['header', 'main']) assert.equal(await page.locator(landmark).count(), 1, place);
    });
    await page.context().close();
  });

  it('stays a table for screen readers, on a phone too, and tells health by more than colour', async () => {
    const { page } = await console.open('viewer', { viewport: { width: 360, height: 740 } });
    const row = page.getByRole('table', { name: 'demo' }).getByRole('row').filter({ hasText: 'node-2' });
    await row.getByRole('cell').first().filter({ hasText: '✕ DOWN' }).waitFor();
    assert.equal(await row.getByRole('rowheader').count(), 1);
    assert.equal(await page.getByRole('region', { name: 'demo' }).count(), 1);
    await page.context().close();
  });

  it('can be worked with by keyboard alone', async () => {
    const { page } = await console.open('operator');
    const order = [];
    await page.reload();
    await byKey(page, 'draining/node-1').waitFor();
    for (let count = 0; count < 11; count += 1) {
      await page.keyboard.press('Tab');
      order.push(
        await page.evaluate(
          'document.activeElement.dataset.key ?? (document.activeElement.id || document.activeElement.hash)',
        ),
      );
    }
    assert.deepEqual(order, [
      ...['skip', '#services', '#users', '#routes', '#audit', 'language', 'signout'],
      ...['users/node-1', 'draining/node-1', 'enabled/node-1', 'edit/node-1'],
    ]);
    assert.notEqual(await page.evaluate('getComputedStyle(document.activeElement).outlineStyle'), 'none');
    await page.keyboard.press('Enter');
    const places = new Set<string>();
    for (let count = 0; count < 8; count += 1) {
      places.add(await keyInFocus(page));
      await page.keyboard.press('Tab');
    }
    // Past the last control comes the browser's own bar, and then the first again: never the page behind.
    places.delete('');
    assert.deepEqual(
      [...places],
      ['field-weight', 'field-maxUsers', 'field-remark', 'reason', 'dialog-cancel', 'dialog-go'],
    );
    await page.keyboard.press('Escape');
    await page.locator('#dialog').waitFor({ state: 'hidden' });
    assert.equal(await keyInFocus(page), 'edit/node-1');
    await page.locator('nav a[href="#audit"]').focus();
    await page.keyboard.press('Enter');
    await page.locator('#audit').waitFor();
    assert.equal(await keyInFocus(page), 'audit-title');
    assert.equal(await page.getAttribute('nav a[href="#audit"]', 'aria-current'), 'page');
    await page.locator('#skip').focus();
    await page.keyboard.press('Enter');
    assert.equal(await keyInFocus(page), 'main');
    await page.context().close();
  });

  for (const colorScheme of ['light', 'dark'] as const) {
    it(`has texts that stand out from what is behind them, in ${colorScheme} colours`, async () => {
      const { page } = await console.open('admin', { colorScheme, reducedMotion: 'reduce' });
      await tour(page, async (place) => assert.deepEqual(await page.evaluate(PALE_TEXTS), [], place));
      await page.context().close();
    });
  }

  it('fits a phone of 360 pixels without scrolling sideways', async () => {
    for (const locale of ['en-GB', 'zh-CN']) {
      const { page } = await console.open('admin', {
        viewport: { width: 360, height: 740 },
        isMobile: true,
        hasTouch: true,
        locale,
      });
      await tour(page, async (place) => assert.equal(await page.evaluate(TOO_WIDE), 0, `${locale}: ${place}`));
      await page.context().close();
    }
  });

  it('moves nothing for who wants nothing to move', async () => {
    for (const reducedMotion of ['no-preference', 'reduce'] as const) {
      const { page } = await console.open('viewer', { reducedMotion });
      const name = await page.evaluate(
        "(() => { const box = document.createElement('p'); box.className = 'changed'; document.body.append(box); return getComputedStyle(box).animationName; })()",
      );
      assert.equal(name, reducedMotion === 'reduce' ? 'none' : 'changed');
      await page.context().close();
    }
  });
});
