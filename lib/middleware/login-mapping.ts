/** What a login's request and response say, by the service's mapping. Pure but for the decompression; nothing is bound here. */
import { promisify } from 'node:util';
import * as zlib from 'node:zlib';
import type { LoginResponseMapping } from '../model.ts';
import { fieldValues } from '../proxy/headers.ts';
import { asIdentifier, equalsScalar, type JsonValue, parseJsonDigits, readPath } from '../support/json-digits.ts';
import { unstorable } from '../support/storable-text.ts';

export interface LoginSuccess {
  readonly userId: string;
  readonly username: string | null;
  readonly token: string | null;
}

export interface LoginResponse {
  readonly status: number;
  readonly rawHeaders: readonly string[];
  readonly body: Buffer;
}

/** A compressed body that grows beyond this is left alone: it may be a bomb. */
const MAX_DECODED_BYTES = 4_194_304;

/** The username, or null when the body does not give one in a form that is understood. Never throws. */
export function readLoginUsername(
  contentType: string | undefined,
  contentEncoding: string | undefined,
  body: Buffer,
  path: string,
): string | null {
  if (body.length === 0 || (contentEncoding !== undefined && contentEncoding !== 'identity')) return null;
  const text = body.toString('utf8');
  const mediaType = (contentType?.split(';')[0] ?? '').trim().toLowerCase();
  if (mediaType === 'application/x-www-form-urlencoded')
    return asUsername(new URLSearchParams(text).get(path) ?? undefined) ?? null;
  const document = parse(text);
  return document === undefined ? null : (asUsername(readPath(document, path)) ?? null);
}

/**
 * Who logged in; null when this is not a success: another status than 2xx, a success field that differs, or no user
 * id or username where the mapping says; `unusable` when all is there, but what stands in their place can name nobody.
 * Rejects only for a body that cannot be decompressed.
 */
export async function readLoginResponse(
  response: LoginResponse,
  mapping: LoginResponseMapping,
  requestUsername: string | null,
): Promise<LoginSuccess | 'unusable' | null> {
  if (response.status < 200 || response.status > 299 || response.body.length === 0) return null;
  const decoded = await decode(response);
  const document = decoded === undefined ? undefined : parse(decoded.toString('utf8'));
  if (document === undefined) return null;
  for (const [path, expected] of Object.entries(mapping.success)) {
    if (!equalsScalar(readPath(document, path), expected)) return null;
  }
  const userIdFound = readPath(document, mapping.userId);
  if (isMissing(userIdFound)) return null;
  const userId = asIdentifier(userIdFound);
  if (userId === undefined) return 'unusable';
  const token = readToken(mapping.token, document, response.rawHeaders);
  if (mapping.username === null) return { userId, username: requestUsername, token };
  const username = readPath(document, mapping.username);
  if (isMissing(username)) return null;
  if (asIdentifier(username) === undefined) return 'unusable';
  return { userId, username: asUsername(username) ?? null, token };
}

function isMissing(value: JsonValue | undefined): boolean {
  return value === undefined || value === null || value === '';
}

/**
 * As asIdentifier, but nothing for a name that no store can hold, or whose bytes were no UTF-8: what is left of it may
 * equal what is left of somebody else's, and would lead to that user's node.
 */
function asUsername(value: JsonValue | undefined): string | undefined {
  const name = asIdentifier(value);
  return name === undefined || name.includes('\ufffd') || unstorable(name) ? undefined : name;
}

function parse(text: string): JsonValue | undefined {
  try {
    // A byte order mark is no part of JSON, but some servers send it.
    return parseJsonDigits(text.startsWith('\ufeff') ? text.slice(1) : text);
  } catch {
    // HTML, or anything else: no login that this mapping knows.
    return undefined;
  }
}

function readToken(source: string | null, document: JsonValue, rawHeaders: readonly string[]): string | null {
  if (source === null) return null;
  const found = /^(cookie|header):(.+)$/.exec(source);
  const name = found?.[2] ?? '';
  if (found?.[1] === 'cookie') return readSetCookie(rawHeaders, name);
  if (found?.[1] === 'header') return asToken(fieldValues(rawHeaders, name.toLowerCase())[0]);
  return asToken(asTokenText(readPath(document, source)));
}

function asTokenText(value: JsonValue | undefined): string | undefined {
  return typeof value === 'string' ? value : asIdentifier(value);
}

function asToken(value: string | undefined): string | null {
  return value === undefined || value === '' ? null : value;
}

/** The last one set wins, as in a browser. */
function readSetCookie(rawHeaders: readonly string[], name: string): string | null {
  let token: string | null = null;
  for (const line of fieldValues(rawHeaders, 'set-cookie')) {
    const [pair = '', ...attributes] = line.split(';');
    const equals = pair.indexOf('=');
    if (equals < 0 || pair.slice(0, equals).trim() !== name) continue;
    const value = pair
      .slice(equals + 1)
      .trim()
      .replace(/^"(.*)"$/, '$1');
    token = value === '' || isExpired(attributes) ? null : value;
  }
  return token;
}

function isExpired(attributes: readonly string[]): boolean {
  const values = new Map(
    attributes.map((attribute) => {
      const [key = '', ...rest] = attribute.split('=');
      return [key.trim().toLowerCase(), rest.join('=').trim()];
    }),
  );
  const maxAge = values.get('max-age');
  // RFC 6265 section 5.3: Max-Age outweighs Expires.
  if (maxAge !== undefined) return /^-|^0+$/.test(maxAge);
  const expires = values.get('expires');
  return expires !== undefined && Date.parse(expires) <= Date.now();
}

const gunzip = promisify<zlib.InputType, zlib.ZlibOptions, Buffer>(zlib.gunzip);
const inflate = promisify<zlib.InputType, zlib.ZlibOptions, Buffer>(zlib.inflate);
const inflateRaw = promisify<zlib.InputType, zlib.ZlibOptions, Buffer>(zlib.inflateRaw);
const brotli = promisify<zlib.InputType, zlib.BrotliOptions, Buffer>(zlib.brotliDecompress);
const LIMIT = { maxOutputLength: MAX_DECODED_BYTES };

/** Undefined = a coding that is not known. */
async function decode({ rawHeaders, body }: LoginResponse): Promise<Buffer | undefined> {
  const codings = fieldValues(rawHeaders, 'content-encoding')
    .join(',')
    .split(',')
    .map((coding) => coding.trim().toLowerCase())
    .filter((coding) => coding !== '' && coding !== 'identity');
  let decoded: Buffer | undefined = body;
  // Applied in the order listed, so undone from the last (RFC 9110 section 8.4).
  for (const coding of codings.reverse()) decoded = decoded && (await decodeOne(coding, decoded));
  return decoded;
}

async function decodeOne(coding: string, body: Buffer): Promise<Buffer | undefined> {
  switch (coding) {
    case 'gzip':
    case 'x-gzip':
      return gunzip(body, LIMIT);
    case 'br':
      return brotli(body, LIMIT);
    case 'deflate':
      // Some servers leave out the zlib wrapper; its first byte has 8 in the low half (RFC 1950).
      return ((body[0] ?? 0) & 0x0f) === 8 ? inflate(body, LIMIT) : inflateRaw(body, LIMIT);
    default:
      return undefined;
  }
}
