/**
 * The body of an answer that the gateway gives itself: JSON, or a small page for a browser navigation. Status and
 * fields are the caller's. The message of a GatewayError is all that is shown: never its cause, never a stack.
 */
import type { GatewayError } from '../errors.ts';

export interface RenderedError {
  readonly body: Buffer;
  readonly contentType: string;
}

/** `accept`: the request's Accept field; undefined = it had none. */
export function renderError(error: GatewayError, requestId: string, accept: string | undefined): RenderedError {
  return prefersHtml(accept)
    ? { body: Buffer.from(renderHtml(error, requestId)), contentType: 'text/html; charset=utf-8' }
    : { body: Buffer.from(renderJson(error, requestId)), contentType: 'application/json; charset=utf-8' };
}

/**
 * True for what a browser sends when it navigates: text/html named in so many words, not refused, and not ranked
 * below JSON. Wildcards alone are what scripts send.
 */
function prefersHtml(accept: string | undefined): boolean {
  if (accept === undefined || !/text\/html/i.test(accept)) return false;
  let html = 0;
  let json = 0;
  for (const range of accept.split(',')) {
    const [type = '', ...parameters] = range.split(';').map((part) => part.trim().toLowerCase());
    if (type === 'text/html') html = Math.max(html, quality(parameters));
    else if (type === 'application/json') json = Math.max(json, quality(parameters));
  }
  return html > 0 && html >= json;
}

/** 1 without a `q`, 0 for one that is no number from 0 to 1. */
function quality(parameters: readonly string[]): number {
  const found = parameters.find((parameter) => parameter.startsWith('q='));
  if (found === undefined) return 1;
  return /^q=(?:0(?:\.\d{0,3})?|1(?:\.0{0,3})?)$/.test(found) ? Number(found.slice(2)) : 0;
}

function renderJson(error: GatewayError, requestId: string): string {
  return JSON.stringify({
    code: error.status,
    error: error.code,
    message: error.message,
    ...(error.nodeId === undefined ? {} : { nodeId: error.nodeId }),
    requestId,
  });
}

function renderHtml(error: GatewayError, requestId: string): string {
  const title = `${error.status} ${error.code}`;
  const node = error.nodeId === undefined ? '' : `<dt>Node<dd>${escapeHtml(error.nodeId)}`;
  return `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>${escapeHtml(title)}</title>
<style>:root{color-scheme:light dark}body{font:1rem/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem}\
h1{font-size:1.25rem}dl{display:grid;grid-template-columns:auto 1fr;gap:0 1rem;opacity:.7}dd{margin:0;overflow-wrap:anywhere}</style>
<h1>${escapeHtml(title)}</h1>
<p>${escapeHtml(error.message)}</p>
<dl>${node}<dt>Request<dd>${escapeHtml(requestId)}</dl>
</html>
`;
}

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

function escapeHtml(text: string): string {
  return text.replace(/[&<>"']/g, (character) => ENTITIES[character] ?? '');
}
