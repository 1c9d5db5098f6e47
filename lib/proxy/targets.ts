/**
 * Path safety: which request targets are refused, and how a target falls into path and query. Nothing is ever decoded
 * or rewritten; what passes goes on byte for byte. Matching prefixes is the snapshot's duty.
 *
 * Choices, each the strict side where servers behind a gateway are known to disagree:
 * - In the path, `/`, `\`, `%2f` and `%5c` all end a segment when dot segments are looked for, and a segment counts up
 *   to its `;` (raw or `%3b`): `..%2f`, `%2e.%5c` and `..;x/` are refused. `a%2Fb` and `a%5Cb` themselves pass.
 * - A percent sign in the path without two hex digits is refused, as nginx, Apache and Tomcat do.
 * - `%00` is refused in the path; other encoded controls are data and pass.
 * - The query is data: browsers send raw backslashes and stray percent signs there. Only raw control bytes, blanks,
 *   `#` and bytes above 0x7e are refused in it.
 */
import type { Service } from '../model.ts';
import { foldPath } from '../support/fold-path.ts';

/** An absolute-form target, taken apart (RFC 9112 3.2.2). */
export interface AbsoluteTarget {
  /** `host[:port]`, which replaces the Host field. */
  readonly authority: string;
  /** Origin-form, to be used in place of the target: path and query as sent, `/` for an empty path. */
  readonly target: string;
}

const SLASH = 0x2f;
const PERCENT = 0x25;
const DOT = 0x2e;
const QUESTION = 0x3f;
const BACKSLASH = 0x5c;
const HASH = 0x23;
const SEMICOLON = 0x3b;

const DOT_SEGMENT = 'the target has a dot segment';
const BAD_BYTE = 'the target has a byte that is not allowed in a URL';
const BACKSLASH_IN_PATH = 'the path has a backslash';
const BAD_ESCAPE = 'the path has a malformed percent escape';
const ENCODED_NUL = 'the path has an encoded NUL';
const BAD_FORM = 'the target is neither a path nor an http URL';

/**
 * Null when `url` (a request target in origin-form or absolute-form) is fine, else the reason for a 400
 * `bad_request`, fit to be shown. The asterisk of `OPTIONS *` is not fine.
 */
export function checkTarget(url: string): string | null {
  if (url.charCodeAt(0) === SLASH) return checkFrom(url, 0);
  const absolute = parseAbsolute(url);
  return absolute ? checkFrom(absolute.target, 0) : BAD_FORM;
}

/** Takes an absolute-form target apart; null for every other form, origin-form among them. */
export function parseAbsolute(url: string): AbsoluteTarget | null {
  if (url.charCodeAt(0) === SLASH) return null;
  // User information has no place in a target (RFC 9110 4.2.4); as an authority it could fool a reader of Host.
  const found = /^https?:\/\/([A-Za-z0-9._~!$&'()*+,;=:%[\]-]+)(?=[/?]|$)/i.exec(url);
  const authority = found?.[1];
  if (!found || authority === undefined || authority.startsWith(':')) return null;
  const rest = url.slice(found[0].length);
  return { authority, target: rest.charCodeAt(0) === SLASH ? rest : `/${rest}` };
}

/** The path as sent: everything before the first `?` of an origin-form target. */
export function pathOf(url: string): string {
  const question = url.indexOf('?');
  return question < 0 ? url : url.slice(0, question);
}

/**
 * True when `path` (no query) is one of a service's login paths, or what the node may take for one: with encoded
 * letters, another case, a trailing slash, path parameters. A node that let somebody in there would give out a token
 * the gateway knows nothing of. `routePrefix`: the prefix of the route through which the service was reached, '' or
 * '/' for the root; null = reached by its own prefix.
 */
export function isLoginPath(
  service: Pick<Service, 'loginPaths' | 'pathPrefix'>,
  path: string,
  routePrefix: string | null = null,
): boolean {
  if (service.loginPaths.size === 0) return false;
  if (routePrefix === null) return service.loginPaths.has(foldPath(path));
  const route = routePrefix === '/' ? '' : routePrefix;
  if (!path.startsWith(route)) return false;
  // A service with a prefix of its own keeps it in its login paths; the route's takes its place on the wire.
  const own = service.pathPrefix === null || service.pathPrefix === '/' ? '' : service.pathPrefix;
  return service.loginPaths.has(foldPath(own + path.slice(route.length)));
}

function checkFrom(url: string, start: number): string | null {
  // One look at every byte; segments are only looked into when a dot or an escape was seen next to a separator.
  let suspicious = false;
  let index = start;
  for (; index < url.length; index += 1) {
    const code = url.charCodeAt(index);
    if (code === QUESTION) break;
    if (code <= 0x20 || code >= 0x7f || code === HASH) return BAD_BYTE;
    if (code === BACKSLASH) return BACKSLASH_IN_PATH;
    if (code === PERCENT) {
      const byte = escapedByte(url, index);
      if (byte < 0) return BAD_ESCAPE;
      if (byte === 0) return ENCODED_NUL;
      if (byte === DOT || byte === SLASH || byte === BACKSLASH) suspicious = true;
      index += 2;
    } else if (code === DOT && url.charCodeAt(index - 1) === SLASH) {
      suspicious = true;
    }
  }
  if (suspicious && hasDotSegment(url, start, index)) return DOT_SEGMENT;
  for (; index < url.length; index += 1) {
    const code = url.charCodeAt(index);
    if (code <= 0x20 || code >= 0x7f || code === HASH) return BAD_BYTE;
  }
  return null;
}

/** `url` from `start` to `end` is a path with sound escapes. */
function hasDotSegment(url: string, start: number, end: number): boolean {
  let dots = 0;
  let onlyDots = true;
  let index = start;
  while (index < end) {
    let code = url.charCodeAt(index);
    if (code === PERCENT) {
      code = escapedByte(url, index);
      index += 2;
    }
    index += 1;
    if (code === SLASH || code === BACKSLASH) {
      if (onlyDots && (dots === 1 || dots === 2)) return true;
      dots = 0;
      onlyDots = true;
    } else if (code === SEMICOLON) {
      if (onlyDots && (dots === 1 || dots === 2)) return true;
      onlyDots = false;
    } else if (code === DOT) {
      dots += 1;
    } else {
      onlyDots = false;
    }
  }
  return onlyDots && (dots === 1 || dots === 2);
}

/** The byte of the percent escape at `index`, or -1 if it is malformed. */
function escapedByte(url: string, index: number): number {
  const high = hexValue(url.charCodeAt(index + 1));
  const low = hexValue(url.charCodeAt(index + 2));
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/** -1 for everything else, NaN (the end of the text) among it. */
function hexValue(code: number): number {
  if (code >= 0x30 && code <= 0x39) return code - 0x30;
  const letter = code | 0x20;
  return letter >= 0x61 && letter <= 0x66 ? letter - 0x57 : -1;
}
