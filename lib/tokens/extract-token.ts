/** Where a request carries its token, read from the raw fields: Node joins repeated lines, and the first one counts. */
import type { TokenSourceOptions } from '../config/options.ts';
import { readCookie } from '../support/cookies.ts';
import { decodeQueryText } from '../support/query.ts';

/** What is read of a request. */
export interface TokenCarrier {
  readonly rawHeaders: readonly string[];
  readonly url?: string | undefined;
}

/** Header, then cookie, then query; the first that is not empty. Null = the request carries no token. */
export function extractToken(request: TokenCarrier, source: TokenSourceOptions): string | null {
  const { header, cookie, query, prefix } = source;
  return (
    (header === null ? null : withoutPrefix(firstField(request.rawHeaders, header), prefix)) ??
    (cookie === null ? null : withoutPrefix(cookieValue(request.rawHeaders, cookie), prefix)) ??
    (query === null ? null : withoutPrefix(queryValue(request.url ?? '', query), prefix))
  );
}

/** The target as it may be written to a log: the value of the query token masked, wherever it stands. */
export function maskQueryToken(target: string, source: TokenSourceOptions): string {
  const question = target.indexOf('?');
  if (source.query === null || question < 0) return target;
  const masked = target
    .slice(question + 1)
    .split('&')
    .map((pair) => {
      const equals = pair.indexOf('=');
      return equals >= 0 && decodeQueryText(pair.slice(0, equals)) === source.query
        ? `${pair.slice(0, equals)}=***`
        : pair;
    });
  return `${target.slice(0, question + 1)}${masked.join('&')}`;
}

/** With a prefix configured, what lacks it is no token: `Bearer x` gives `x`, a bare `x` gives nothing. */
export function withoutPrefix(value: string | undefined, prefix: string | null): string | null {
  if (value === undefined || value === '') return null;
  if (prefix === null) return value;
  if (value.length <= prefix.length || value.slice(0, prefix.length).toLowerCase() !== prefix.toLowerCase())
    return null;
  const rest = value.slice(prefix.length);
  if (!/^[ \t]/.test(rest)) return null;
  return rest.trim() || null;
}

function firstField(raw: readonly string[], name: string): string | undefined {
  const lower = name.toLowerCase();
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const found = raw[index];
    if (found?.length === name.length && (found === name || found === lower || found.toLowerCase() === lower))
      return raw[index + 1];
  }
  return undefined;
}

/** A proxy in front may leave the cookies of HTTP/2 in several fields, and nodes join them (RFC 9113 section 8.2.3). */
function cookieValue(raw: readonly string[], name: string): string | undefined {
  for (let index = 0; index + 1 < raw.length; index += 2) {
    if (raw[index]?.length !== 6 || raw[index]?.toLowerCase() !== 'cookie') continue;
    const value = readCookie(raw[index + 1] ?? '', name);
    if (value !== undefined) return value;
  }
  return undefined;
}

function queryValue(url: string, name: string): string | undefined {
  const question = url.indexOf('?');
  if (question < 0) return undefined;
  for (const pair of url.slice(question + 1).split('&')) {
    const equals = pair.indexOf('=');
    if (equals >= 0 && decodeQueryText(pair.slice(0, equals)) === name) return decodeQueryText(pair.slice(equals + 1));
  }
  return undefined;
}
