/**
 * Header fields on their way through: which are dropped, replaced and added, on raw arrays `[name, value, name, value…]`
 * so that names, order and duplicates stay as sent. Framing (Content-Length against chunked) is the caller's decision.
 */

/** What the gateway adds to a request. */
export interface RequestAdditions {
  readonly requestId: string;
  /** X-Gateway-Epoch; 0 = the request is not bound, no field. */
  readonly epoch: number;
  /** The peer's address, appended to or put in place of X-Forwarded-For. */
  readonly forwardedFor: string;
  /** True = the peer's X-Forwarded-* are believed. */
  readonly trustedPeer: boolean;
  readonly proto: 'http' | 'https';
  /** Host as the client sent it, for X-Forwarded-Host; undefined = it sent none. */
  readonly host: string | undefined;
  /** Value for Host instead of the client's. Give the node's authority when the client sent no Host (HTTP/1.0). */
  readonly hostOverride: string | null;
  /** Whole value of one more Via line, such as `1.1 gateway`; null = none. */
  readonly via: string | null;
  /** True = Accept-Encoding becomes `identity`. */
  readonly acceptEncodingIdentity: boolean;
  /** True = Upgrade stays and `Connection: Upgrade` is added (here, not by the caller). */
  readonly keepUpgrade: boolean;
  /** Makes a traceparent for a request that has none. */
  readonly traceparent?: (requestId: string) => string;
}

/** What the gateway adds to a response. */
export interface ResponseAdditions {
  readonly nodeId: string;
  /** X-Gateway-Version; null = no route chose one. */
  readonly version: string | null;
  readonly requestId: string;
  /** CorsPolicy.responseHeaders(): put in place of the node's Access-Control-*. null = the node's stay. */
  readonly cors: readonly string[] | null;
  /** Whole value of one more Via line; null = none. */
  readonly via: string | null;
  /** True = `Connection: close` is added. */
  readonly close: boolean;
  /** True = a 101: Upgrade stays and `Connection: Upgrade` is added. */
  readonly keepUpgrade: boolean;
  /** False = the client's answer cannot have trailers, being bodyless or for HTTP/1.0: none are announced. */
  readonly trailers?: boolean;
}

/** Connection options and fields that a Connection field cannot take away: the gateway writes or guards them itself. */
const NOT_REMOVABLE = new Set([
  '',
  'close',
  'keep-alive',
  'upgrade',
  'te',
  'connection',
  'host',
  'content-length',
  'transfer-encoding',
  'x-request-id',
  'via',
  'traceparent',
]);

/**
 * The fields for the node. Dropped: hop-by-hop fields and those that Connection names (RFC 9110 7.6.1, save those the
 * gateway answers for), client-sent X-Gateway-*, and from peers that are not trusted Forwarded and every
 * X-Forwarded-*. `TE: trailers` stays, with its connection option (RFC 9110 10.1.4).
 */
export function requestHeaders(raw: readonly string[], add: RequestAdditions): string[] {
  const out: string[] = [];
  let named: string[] | null = null;
  let forwardedFor = '';
  let hasProto = false;
  let hasForwardedHost = false;
  let hasHost = false;
  let hasTrace = false;
  let trailers = false;

  for (let index = 0; index + 1 < raw.length; index += 2) {
    const name = raw[index] ?? '';
    const value = raw[index + 1] ?? '';
    switch (name.length) {
      case 2:
        if (is(name, 'te')) {
          if (hasToken(value, 'trailers')) trailers = true;
          continue;
        }
        break;
      case 4:
        if (is(name, 'host')) {
          // Two Host lines are refused before; should one slip through, the node must not choose between them.
          if (!hasHost) out.push(name, add.hostOverride ?? value);
          hasHost = true;
          continue;
        }
        break;
      case 7:
        if (!add.keepUpgrade && is(name, 'upgrade')) continue;
        break;
      case 9:
        if (!add.trustedPeer && is(name, 'forwarded')) continue;
        break;
      case 10:
        if (is(name, 'connection')) {
          named = addNamed(named, value);
          continue;
        }
        if (is(name, 'keep-alive')) continue;
        break;
      case 11:
        if (add.traceparent && is(name, 'traceparent')) hasTrace = true;
        break;
      case 12:
        if (is(name, 'x-request-id')) continue;
        break;
      case 15:
        if (add.acceptEncodingIdentity && is(name, 'accept-encoding')) continue;
        if (is(name, 'x-forwarded-for')) {
          if (add.trustedPeer && value !== '') forwardedFor += forwardedFor === '' ? value : `, ${value}`;
          continue;
        }
        break;
      case 16:
        if (is(name, 'proxy-connection')) continue;
        if (add.trustedPeer && is(name, 'x-forwarded-host')) hasForwardedHost = true;
        break;
      case 17:
        if (is(name, 'transfer-encoding')) continue;
        if (add.trustedPeer && is(name, 'x-forwarded-proto')) hasProto = true;
        break;
      case 18:
        if (is(name, 'proxy-authenticate')) continue;
        break;
      case 19:
        if (is(name, 'proxy-authorization')) continue;
        break;
    }
    // Every name of more than 9 letters that begins with X may be one of two families.
    if (name.length > 9 && (name.charCodeAt(0) | 0x20) === 0x78) {
      if (hasPrefix(name, 'x-gateway-')) continue;
      if (!add.trustedPeer && hasPrefix(name, 'x-forwarded-')) continue;
    }
    out.push(name, value);
  }
  const kept = named === null ? out : withoutNamed(out, named);

  if (!hasHost && (add.hostOverride ?? add.host) !== undefined) kept.push('Host', add.hostOverride ?? add.host ?? '');
  kept.push('X-Forwarded-For', forwardedFor === '' ? add.forwardedFor : `${forwardedFor}, ${add.forwardedFor}`);
  if (!hasProto) kept.push('X-Forwarded-Proto', add.proto);
  if (!hasForwardedHost && add.host !== undefined) kept.push('X-Forwarded-Host', add.host);
  kept.push('X-Request-Id', add.requestId);
  if (add.epoch > 0) kept.push('X-Gateway-Epoch', String(add.epoch));
  if (add.acceptEncodingIdentity) kept.push('Accept-Encoding', 'identity');
  if (add.via !== null) kept.push('Via', add.via);
  if (add.traceparent && !hasTrace) kept.push('traceparent', add.traceparent(add.requestId));
  if (trailers) kept.push('TE', 'trailers');
  if (add.keepUpgrade) kept.push('Connection', trailers ? 'Upgrade, TE' : 'Upgrade');
  else if (trailers) kept.push('Connection', 'TE');
  return kept;
}

/**
 * The fields for the client. Dropped: hop-by-hop fields and those that Connection names, and what the gateway says
 * itself (X-Gateway-Node, X-Gateway-Version, X-Request-Id). Set-Cookie lines stay apart.
 */
export function responseHeaders(raw: readonly string[], add: ResponseAdditions): string[] {
  const out: string[] = [];
  let named: string[] | null = null;
  let announced = false;
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const name = raw[index] ?? '';
    const value = raw[index + 1] ?? '';
    switch (name.length) {
      case 2:
        if (is(name, 'te')) continue;
        break;
      case 7:
        if (!add.keepUpgrade && is(name, 'upgrade')) continue;
        if (is(name, 'trailer')) announced = true;
        break;
      case 10:
        if (is(name, 'connection')) {
          named = addNamed(named, value);
          continue;
        }
        if (is(name, 'keep-alive')) continue;
        break;
      case 12:
        if (is(name, 'x-request-id')) continue;
        break;
      case 14:
        if (is(name, 'x-gateway-node')) continue;
        break;
      case 16:
        if (is(name, 'proxy-connection')) continue;
        break;
      case 17:
        if (is(name, 'transfer-encoding') || is(name, 'x-gateway-version')) continue;
        break;
      case 18:
        if (is(name, 'proxy-authenticate')) continue;
        break;
      case 19:
        if (is(name, 'proxy-authorization')) continue;
        break;
    }
    if (add.cors !== null && name.length > 21 && hasPrefix(name, 'access-control-')) continue;
    out.push(name, value);
  }
  // Node refuses to announce trailers in a message that has no chunks.
  if (announced && (add.trailers === false || contentLengthOf(out) !== null)) named = [...(named ?? []), 'trailer'];
  const kept = named === null ? out : withoutNamed(out, named);
  kept.push('X-Gateway-Node', add.nodeId);
  if (add.version !== null) kept.push('X-Gateway-Version', add.version);
  kept.push('X-Request-Id', add.requestId);
  if (add.cors !== null) for (const text of add.cors) kept.push(text);
  if (add.via !== null) kept.push('Via', add.via);
  if (add.keepUpgrade) kept.push('Connection', 'Upgrade');
  else if (add.close) kept.push('Connection', 'close');
  return kept;
}

/** The node's reason phrase if it may be sent on (RFC 9112 4), else none: the parser does not look at it. */
export function reasonPhrase(text: string | undefined): string {
  return text === undefined || /[^\t\x20-\x7e\x80-\xff]/.test(text) ? '' : text;
}

/** What never belongs to a 1xx answer: fields of one hop, and those that would give it a body (RFC 9110 8.6). */
const NOT_IN_INTERIM = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'proxy-authenticate',
  'te',
  'upgrade',
  'transfer-encoding',
  'content-length',
]);

/** The fields of a 1xx answer for the client: as they came, without those of one hop. */
export function interimHeaders(raw: readonly string[]): string[] {
  let named: string[] | null = null;
  const out: string[] = [];
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const name = raw[index] ?? '';
    const value = raw[index + 1] ?? '';
    const lower = name.toLowerCase();
    if (lower === 'connection') named = addNamed(named, value);
    if (!NOT_IN_INTERIM.has(lower)) out.push(name, value);
  }
  return named === null ? out : withoutNamed(out, named);
}

/**
 * Fields that must not be read from a trailer section (RFC 9110 6.5.1): framing, routing, request modifiers,
 * authentication, and those that say how the content is to be read.
 */
const NOT_IN_TRAILERS = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'te',
  'transfer-encoding',
  'upgrade',
  'trailer',
  'content-length',
  'content-encoding',
  'content-type',
  'content-range',
  'host',
  'expect',
  'max-forwards',
  'pragma',
  'range',
  'cache-control',
  'age',
  'date',
  'expires',
  'location',
  'retry-after',
  'vary',
  'set-cookie',
  'cookie',
  'authorization',
  'proxy-authorization',
  'proxy-authenticate',
  'www-authenticate',
  'forwarded',
  'via',
  'x-request-id',
  'if-match',
  'if-none-match',
  'if-modified-since',
  'if-unmodified-since',
  'if-range',
]);

/** The trailer fields that may pass, as the pairs that `addTrailers` of node:http takes (it takes no flat array). */
export function trailerHeaders(raw: readonly string[]): [string, string][] {
  const out: [string, string][] = [];
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const name = raw[index] ?? '';
    const lower = name.toLowerCase();
    if (NOT_IN_TRAILERS.has(lower) || isFamily(lower)) continue;
    out.push([name, raw[index + 1] ?? '']);
  }
  return out;
}

/** The first value of the field `lowerName`, or undefined. */
export function fieldValue(raw: readonly string[], lowerName: string): string | undefined {
  for (let index = 0; index + 1 < raw.length; index += 2) {
    if (isName(raw[index] ?? '', lowerName)) return raw[index + 1];
  }
  return undefined;
}

/** All values of the field `lowerName`, in the order received. */
export function fieldValues(raw: readonly string[], lowerName: string): string[] {
  const values: string[] = [];
  for (let index = 0; index + 1 < raw.length; index += 2) {
    if (isName(raw[index] ?? '', lowerName)) values.push(raw[index + 1] ?? '');
  }
  return values;
}

/** The length that Content-Length states, in bytes; null without the field or when it is not a plain number. */
export function contentLengthOf(raw: readonly string[]): number | null {
  const value = fieldValue(raw, 'content-length');
  return value !== undefined && /^\d+$/.test(value) ? Number(value) : null;
}

/** True when `lowerToken` is an element of the comma-separated list; parameters behind `;` do not count. */
export function hasToken(value: string | undefined, lowerToken: string): boolean {
  if (value === undefined) return false;
  if (value === lowerToken) return true;
  return value.split(',').some((element) => {
    const semicolon = element.indexOf(';');
    return (semicolon < 0 ? element : element.slice(0, semicolon)).trim().toLowerCase() === lowerToken;
  });
}

/** `name` has the length of `lower`. The first letter spares most names the lower-casing. */
function is(name: string, lower: string): boolean {
  return (name.charCodeAt(0) | 0x20) === lower.charCodeAt(0) && (name === lower || name.toLowerCase() === lower);
}

function isName(name: string, lower: string): boolean {
  return name.length === lower.length && is(name, lower);
}

function hasPrefix(name: string, lower: string): boolean {
  return (
    (name.charCodeAt(0) | 0x20) === lower.charCodeAt(0) &&
    (name.charCodeAt(2) | 0x20) === lower.charCodeAt(2) &&
    name.slice(0, lower.length).toLowerCase() === lower
  );
}

function isFamily(lowerName: string): boolean {
  return lowerName.startsWith('x-gateway-') || lowerName.startsWith('x-forwarded-');
}

/** Collects the fields that a Connection value names; null as long as there is nothing to remove. */
function addNamed(named: string[] | null, value: string): string[] | null {
  if (value === 'keep-alive' || value === 'close') return named;
  let list = named;
  for (const element of value.split(',')) {
    const option = element.trim().toLowerCase();
    if (NOT_REMOVABLE.has(option) || isFamily(option)) continue;
    if (list === null) list = [option];
    else list.push(option);
  }
  return list;
}

function withoutNamed(raw: readonly string[], named: readonly string[]): string[] {
  const removed = new Set(named);
  const out: string[] = [];
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const name = raw[index] ?? '';
    if (!removed.has(name.toLowerCase())) out.push(name, raw[index + 1] ?? '');
  }
  return out;
}
