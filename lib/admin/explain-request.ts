/** The made-up request of an explanation: read from the call's body, and put into the form that stages expect. */
import { IncomingMessage, ServerResponse } from 'node:http';
import { Socket } from 'node:net';
import { RequestContext } from '../context.ts';
import { isCidr } from '../support/ip.ts';
import type { JsonValue } from '../support/json-digits.ts';
import { asIdentifier } from '../support/json-digits.ts';
import { badField } from './admin-error.ts';
import { isJsonObject } from './body.ts';
import type { AdminCall } from './call.ts';

export interface ExplainInput {
  readonly method: string;
  /** Path and query. */
  readonly path: string;
  /** Names and values in turn. */
  readonly rawHeaders: readonly string[];
  /** Instead of a token. */
  readonly userId: string | null;
  /** At a login path: who logs in. Elsewhere: whose request it is. */
  readonly username: string | null;
  /** null = the address plays no part: `allow` is not looked at. */
  readonly clientAddress: string | null;
}

const KEYS = ['method', 'path', 'headers', 'userId', 'username', 'clientAddress'];
const TOKEN = /^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/;
const MOST_PATH = 8_192;

export async function readExplainInput(call: AdminCall): Promise<ExplainInput> {
  const body = await call.json();
  const unknown = Object.keys(body).find((key) => !KEYS.includes(key));
  if (unknown !== undefined) throw badField(unknown, `unknown key: there are ${KEYS.join(', ')}`);
  const method = body['method'] ?? 'GET';
  if (typeof method !== 'string' || !/^[A-Z]{1,32}$/.test(method))
    throw badField('method', 'must be a method such as GET');
  const path = body['path'];
  if (typeof path !== 'string' || path === '' || path.length > MOST_PATH)
    throw badField('path', 'is missing: the path of the request, with its query if it has one');
  const userId = identifier(body['userId'], 'userId');
  const username = identifier(body['username'], 'username');
  if (userId !== null && username !== null) throw badField('username', 'stands beside userId: give one of them');
  const clientAddress = body['clientAddress'] ?? null;
  if (
    clientAddress !== null &&
    (typeof clientAddress !== 'string' || clientAddress.includes('/') || !isCidr(clientAddress))
  )
    throw badField('clientAddress', 'must be an IP address');
  return { method, path, rawHeaders: readHeaders(body['headers']), userId, username, clientAddress };
}

function identifier(value: JsonValue | undefined, field: string): string | null {
  if (value === undefined || value === null) return null;
  const text = asIdentifier(value);
  if (text === undefined) throw badField(field, 'must be text or a whole number');
  return text;
}

/** `{ name: value }` or `{ name: [values] }`. */
function readHeaders(value: JsonValue | undefined): readonly string[] {
  if (value === undefined || value === null) return [];
  if (!isJsonObject(value)) throw badField('headers', 'must be an object of header fields');
  return Object.entries(value).flatMap(([name, item]) => {
    if (!TOKEN.test(name)) throw badField(`headers.${name}`, 'is not the name of a header field');
    const values = Array.isArray(item) ? (item as readonly JsonValue[]) : [item];
    return values.flatMap((one) => {
      // Bytes of a head reach the stages as Latin-1, and no other character can stand in one.
      if (typeof one !== 'string' || /[^\t\x20-\x7e\x80-\xff]/.test(one))
        throw badField(`headers.${name}`, 'must be text, or a list of texts, fit for a header field');
      return [name, one.trim()];
    });
  });
}

interface HandedFields {
  _addHeaderLines(rawHeaders: string[], count: number): void;
}

export function madeUpContext(input: ExplainInput, requestId: string): RequestContext {
  const socket = new Socket();
  Object.defineProperty(socket, 'remoteAddress', { value: input.clientAddress ?? undefined });
  const request = new IncomingMessage(socket);
  request.method = input.method;
  request.url = input.path;
  request.httpVersion = '1.1';
  request.httpVersionMajor = 1;
  request.httpVersionMinor = 1;
  // As the parser hands fields over: `headers` is made from what was counted there, not from rawHeaders.
  (request as unknown as HandedFields)._addHeaderLines([...input.rawHeaders], input.rawHeaders.length);
  request.complete = true;
  // Without a username the body is not known: a login is then one of nobody that is known.
  if (input.username === null) request.push(null);
  const context = new RequestContext(request, new ServerResponse(request), null, 0);
  context.requestId = requestId;
  return context;
}

/** Gives the request the body of a login of this user, in the form that the service's mapping reads. */
export function pushLogin(context: RequestContext, username: string): void {
  const { request, service, match } = context;
  const services = service ? [service] : (match?.route?.services ?? []);
  const document: Record<string, unknown> = {};
  for (const { login } of services) place(document, login.request.username.split('.'), username);
  const body = Buffer.from(JSON.stringify(document));
  Object.assign(request.headers, { 'content-type': 'application/json' });
  delete request.headers['content-length'];
  delete request.headers['content-encoding'];
  delete request.headers.expect;
  request.push(body);
  request.push(null);
}

/** Puts `value` at a path of keys, beside what is there already. */
function place(document: Record<string, unknown>, [key = '', ...rest]: readonly string[], value: string): void {
  if (rest.length === 0) {
    document[key] ??= value;
    return;
  }
  const inner = document[key];
  const next = typeof inner === 'object' && inner !== null ? (inner as Record<string, unknown>) : {};
  document[key] = next;
  place(next, rest, value);
}
