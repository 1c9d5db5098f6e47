/**
 * The console page as the admin listener serves it: one file with its script and style inside, and the header fields
 * that let a browser run these two and nothing else. What the page does is written in console.html.
 */
import { createHash } from 'node:crypto';
import * as fs from 'node:fs';
import { findPackageFile } from '../process/package-file.ts';

/** The page lies beside this source, not beside what was compiled from it; package.json ships it from there. */
const FILE = 'lib/admin/console.html';

export interface ConsolePage {
  readonly body: Buffer;
  readonly headers: Readonly<Record<string, string | number>>;
}

/** Throws when the file is not there, or has not exactly one script and one style. */
export function readConsole(): ConsolePage {
  return consolePage(fs.readFileSync(findPackageFile(FILE), 'utf8'));
}

export function consolePage(source: string): ConsolePage {
  // Browsers hash what they have parsed, and the parser makes \n of every line end.
  const page = source.replaceAll('\r\n', '\n');
  const body = Buffer.from(page);
  return {
    body,
    headers: {
      'Content-Type': 'text/html; charset=utf-8',
      'Content-Length': body.length,
      'Cache-Control': 'no-store',
      'Content-Security-Policy': policyOf(page),
      'Referrer-Policy': 'no-referrer',
      'X-Content-Type-Options': 'nosniff',
      'X-Frame-Options': 'DENY',
      'Cross-Origin-Resource-Policy': 'same-origin',
    },
  };
}

/** Trusted types without a policy: text from the API cannot become markup, whatever the script does by mistake. */
function policyOf(page: string): string {
  return [
    "default-src 'none'",
    `script-src ${hashOf(page, 'script')}`,
    `style-src ${hashOf(page, 'style')}`,
    "connect-src 'self'",
    'img-src data:',
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
  ].join('; ');
}

function hashOf(page: string, element: 'script' | 'style'): string {
  const found = [...page.matchAll(new RegExp(`<${element}>(.*?)</${element}>`, 'gs'))];
  const [content] = found;
  if (found.length !== 1 || content?.[1] === undefined)
    throw new Error(`the console must have one <${element}> without attributes, and has ${found.length}`);
  return `'sha256-${createHash('sha256').update(content[1]).digest('base64')}'`;
}
