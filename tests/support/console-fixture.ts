/** A gateway on PostgreSQL with three nodes and a few users, and a browser that looks at its console. */
// biome-ignore-all lint/performance/useDomNodeTextContent: a reader sees the rendered text.
import type { Browser, BrowserContextOptions, Locator, Page } from 'playwright-core';
import { ADMIN_TOKENS, AdminClient, TOKENS } from './admin-client.ts';
import { BackendNode } from './backend-node.ts';
import { openPage, startBrowser, type WatchedPage } from './browser.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from './gateway-fixture.ts';

export const MARKUP_NAME = '<img src=x onerror="document.title=\'pwned\'">';
export const MARKUP_REMARK = '<script>document.title="pwned"</script><b>bold</b>';

export interface ConsoleSetup {
  /** Default: a token of each role. */
  readonly admin?: string;
  /** Names that log in, in this order, each on the next node. */
  readonly users?: readonly string[];
}

export class ConsoleFixture {
  readonly gateway: GatewayFixture;
  readonly nodes: readonly BackendNode[];
  readonly browser: Browser;
  readonly admin: AdminClient;
  readonly #stores: StoreSetup;

  private constructor(gateway: GatewayFixture, nodes: readonly BackendNode[], browser: Browser, stores: StoreSetup) {
    this.gateway = gateway;
    this.nodes = nodes;
    this.browser = browser;
    this.admin = new AdminClient(gateway.adminPort);
    this.#stores = stores;
  }

  static async start(setup: ConsoleSetup = {}): Promise<ConsoleFixture> {
    const nodes = ['node-1', 'node-2', 'node-3'].map((id) => new BackendNode(id));
    for (const node of nodes) await node.start();
    const stores = await openStores('postgres');
    const gateway = await startGateway({
      stores,
      nodes,
      nodeOptions: { 'node-2': `remark: ${JSON.stringify(MARKUP_REMARK)}` },
      config: 'health: { failures: 1, interval: 100ms }',
      admin: setup.admin ?? ADMIN_TOKENS,
    });
    for (const name of setup.users ?? []) await gateway.tokenOf(name);
    return new ConsoleFixture(gateway, nodes, await startBrowser(), stores);
  }

  get origin(): string {
    return `http://127.0.0.1:${this.gateway.adminPort}`;
  }

  /** A new page with a storage of its own, signed in when a role is named. */
  async open(
    role: keyof typeof TOKENS | null,
    options: BrowserContextOptions = {},
    origin = this.origin,
  ): Promise<WatchedPage> {
    const watched = await openPage(this.browser, options);
    await watched.page.goto(`${origin}/`);
    if (role !== null) await signIn(watched.page, TOKENS[role]);
    return watched;
  }

  async stop(): Promise<void> {
    await this.browser.close();
    await this.gateway.stop();
    await this.#stores.close();
    for (const node of this.nodes) await node.stop();
  }
}

export async function signIn(page: Page, token: string): Promise<void> {
  await page.fill('#token', token);
  await page.click('#signin-form button');
  await page.locator('#services-list table').first().waitFor();
  await page.locator('#stream[data-state=live]').waitFor();
}

/** What the dialog says that it would do, when it has found out. */
export async function planOf(page: Page): Promise<string> {
  await page.locator('#dialog-lines p:not(.quiet)').first().waitFor();
  return page.locator('#dialog-lines').innerText();
}

/** Confirms what the open dialog asks. */
export async function confirm(page: Page, reason = ''): Promise<void> {
  await planOf(page);
  await page.fill('#reason', reason);
  await page.click('#dialog-go');
  await page.locator('#dialog').waitFor({ state: 'hidden' });
}

export function byKey(page: Page, key: string): Locator {
  return page.locator(`[data-key="${key}"]`);
}

export function keyInFocus(page: Page): Promise<string> {
  return page.evaluate('document.activeElement.dataset.key ?? document.activeElement.id') as Promise<string>;
}

/** Shows the view by its link. */
export async function goTo(page: Page, view: 'services' | 'users' | 'routes' | 'audit'): Promise<void> {
  await page.click(`nav a[href="#${view}"]`);
  await page.locator(`#${view}`).waitFor();
}

/** Looks for users, as an operator does. */
export async function findUsers(page: Page, by: 'username' | 'userId' | 'nodeId', value: string): Promise<void> {
  await goTo(page, 'users');
  await page.selectOption('#find-by', by);
  await page.fill('#find-value', value);
  await page.click('#find button');
}
