/**
 * A headless Chromium for tests of the console, and pages in it that keep what must not happen: violations of the
 * policy, errors of the script, requests to anywhere else.
 */
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core';
import { requireProgram } from './programs.ts';

export interface WatchedPage {
  readonly page: Page;
  /** Errors and warnings of the script and of the policy; a failed answer of the API is no fault. */
  readonly faults: string[];
  /** URLs of every request. */
  readonly requests: string[];
}

export async function startBrowser(): Promise<Browser> {
  return chromium.launch({
    executablePath: requireProgram('chromium'),
    // The sandbox refuses root; the pages are our own.
    args: process.getuid?.() === 0 ? ['--no-sandbox'] : [],
  });
}

/** A page with a storage of its own. */
export async function openPage(browser: Browser, options: BrowserContextOptions = {}): Promise<WatchedPage> {
  const context = await browser.newContext({ locale: 'en-GB', ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  const faults: string[] = [];
  const requests: string[] = [];
  page.on('pageerror', (error) => faults.push(String(error)));
  page.on('console', (message) => {
    const text = message.text();
    // Chromium writes a line of its own about every answer that is not 2xx.
    if (message.type() === 'error' && !text.startsWith('Failed to load resource')) faults.push(text);
  });
  page.on('request', (request) => requests.push(request.url()));
  return { page, faults, requests };
}
