/**
 * Which origins may read answers in a browser, and the header fields that say so. It answers no request itself, and
 * refuses none: a browser enforces what the fields say.
 *
 * An origin pattern is matched whole, without regard to case. `*` alone is every origin. `*` in the host stands for
 * one or more characters of a host name (`https://*.example.com`: any depth of subdomains, not the domain itself), as
 * the port for any or none (`http://localhost:*`), as the whole authority for any host and port. `:[*]` and
 * `:[80,8443]` are read too: patterns written for Spring's allowedOriginPatterns go on working.
 */
import type { CorsOptions } from '../config/options.ts';
import { fieldValue, fieldValues } from '../proxy/headers.ts';

/** What scripts may read beyond the safelisted fields. */
const EXPOSED = 'X-Gateway-Node, X-Request-Id, Content-Disposition';
/** Longer than any origin: a host name has 253 characters at most. */
const MAX_ORIGIN_LENGTH = 300;
const PREFLIGHT_VARY = 'Origin, Access-Control-Request-Method, Access-Control-Request-Headers';

export class CorsPolicy {
  readonly #patterns: readonly RegExp[];
  readonly #anyOrigin: boolean;
  readonly #allowCredentials: boolean;
  readonly #maxAgeSeconds: string;

  constructor(options: CorsOptions) {
    this.#anyOrigin = options.allowedOriginPatterns.includes('*');
    this.#patterns = options.allowedOriginPatterns.filter((pattern) => pattern !== '*').map(compilePattern);
    this.#allowCredentials = options.allowCredentials;
    this.#maxAgeSeconds = String(Math.floor(options.maxAgeMs / 1_000));
  }

  /**
   * The fields of the 204 that answers a preflight, for an OPTIONS request with these raw headers; null when it is
   * no preflight and belongs to the node. A foreign origin gets an answer without a permission.
   */
  preflight(raw: readonly string[]): string[] | null {
    const method = fieldValue(raw, 'access-control-request-method');
    const origins = fieldValues(raw, 'origin');
    const origin = origins[0];
    if (method === undefined || origin === undefined) return null;
    const allowed = origins.length === 1 ? this.#allowOrigin(origin) : undefined;
    if (allowed === undefined || !isToken(method)) return ['Vary', PREFLIGHT_VARY];

    const fields = ['Access-Control-Allow-Origin', allowed, 'Access-Control-Allow-Methods', method];
    const requested = fieldValues(raw, 'access-control-request-headers').join(', ');
    // Echoed, since the wildcard neither covers Authorization nor counts with credentials (Fetch 3.3.3).
    if (requested !== '' && requested.split(',').every((name) => isToken(name.trim()))) {
      fields.push('Access-Control-Allow-Headers', requested);
    }
    if (this.#allowCredentials) fields.push('Access-Control-Allow-Credentials', 'true');
    fields.push('Access-Control-Max-Age', this.#maxAgeSeconds, 'Vary', PREFLIGHT_VARY);
    return fields;
  }

  /** The fields to add to an answer. `origin`: the request's Origin; undefined = it had none. */
  responseHeaders(origin: string | undefined): string[] {
    const allowed = origin === undefined ? undefined : this.#allowOrigin(origin);
    // A cache must not hand an answer made for one origin, or for none, to another.
    const vary = this.#anyOrigin && !this.#allowCredentials ? [] : ['Vary', 'Origin'];
    if (allowed === undefined) return vary;
    const fields = ['Access-Control-Allow-Origin', allowed, ...vary, 'Access-Control-Expose-Headers', EXPOSED];
    if (this.#allowCredentials) fields.push('Access-Control-Allow-Credentials', 'true');
    return fields;
  }

  /** The value of Access-Control-Allow-Origin, or undefined for a foreign origin. */
  #allowOrigin(origin: string): string | undefined {
    if (origin.length > MAX_ORIGIN_LENGTH) return undefined;
    if (this.#anyOrigin && !this.#allowCredentials) return '*';
    // The null origin is every sandboxed frame and file: with credentials only a pattern `null` lets it in.
    if (this.#anyOrigin && isOrigin(origin)) return origin;
    return this.#patterns.some((pattern) => pattern.test(origin)) ? origin : undefined;
  }
}

const HOST = '[a-z0-9._-]+';
const SCHEME = '[a-z][a-z0-9+.-]*';
const ANY_AUTHORITY = `(?:${HOST}|\\[[0-9a-f:.]+\\])(?::[0-9]{1,5})?`;

/** RFC 6454 6.2: scheme, host, port, and nothing else. */
const ORIGIN = new RegExp(`^${SCHEME}://${ANY_AUTHORITY}$`, 'i');

function isOrigin(origin: string): boolean {
  return ORIGIN.test(origin);
}

function compilePattern(pattern: string): RegExp {
  const divider = pattern.indexOf('://');
  if (divider < 0) return new RegExp(`^${escapePattern(pattern)}$`, 'i');
  const scheme = pattern.slice(0, divider);
  const authority = pattern.slice(divider + 3);
  return new RegExp(`^${scheme === '*' ? SCHEME : escapePattern(scheme)}://${compileAuthority(authority)}$`, 'i');
}

function compileAuthority(authority: string): string {
  if (authority === '*') return ANY_AUTHORITY;
  const [, host = authority, port] = /^(.*):(\*|\[\*\]|\[[0-9, ]+\]|[0-9]+)$/.exec(authority) ?? [];
  const hostSource = host === '*' ? `(?:${HOST}|\\[[0-9a-f:.]+\\])` : escapePattern(host).replaceAll('\\*', HOST);
  return hostSource + compilePort(port);
}

function compilePort(port: string | undefined): string {
  if (port === undefined) return '';
  if (port === '*' || port === '[*]') return '(?::[0-9]{1,5})?';
  return `:(?:${port
    .replace(/[[\] ]/g, '')
    .split(',')
    .join('|')})`;
}

function escapePattern(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\/-]/g, '\\$&');
}

/** A field name or a method (RFC 9110 5.6.2). */
function isToken(text: string): boolean {
  return /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(text);
}
