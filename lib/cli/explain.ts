/**
 * `explain`: where a request would go and why, or why not. The gateway decides, on a request that is never sent; the
 * words for it are in explain-text.ts.
 */
import type { Readable } from 'node:stream';
import type { AdminClient, Json } from './admin-client.ts';
import { chooseService, SERVICE_OPTION } from './choose-service.ts';
import { UsageError } from './cli-error.ts';
import { type Command, type Invocation, show } from './command.ts';
import { CONNECT_OPTIONS, withClient } from './connect.ts';
import { explanationLines, type Question } from './explain-text.ts';

/** A token is one line; more than this is something else. */
const MOST_TOKEN_BYTES = 65_536;

export const explain: Command = {
  name: 'explain',
  summary: 'Say where a request would go and why; sends nothing',
  usage: '(--user-id ID | --username NAME | --token -) [--path /PATH] [--login]',
  options: {
    'user-id': { type: 'string', short: 'u', value: 'ID', help: 'whose request it is, by id' },
    username: { type: 'string', value: 'NAME', help: 'whose request it is, by name; with --login: who logs in' },
    token: {
      type: 'string',
      value: '-|TOKEN',
      help: "the user's token; - reads it from standard input, where ps does not see it",
    },
    path: { type: 'string', short: 'p', value: 'PATH', help: "path of the request; else the service's prefix" },
    login: { type: 'boolean', help: "a login: POST to the service's login path" },
    method: { type: 'string', value: 'METHOD', help: 'else GET' },
    header: { type: 'string', value: "'NAME: VALUE'", multiple: true, help: 'a field of the request; may be repeated' },
    'client-address': { type: 'string', value: 'IP', help: 'of the client, for allow and consistent hashing' },
    ...SERVICE_OPTION,
    ...CONNECT_OPTIONS,
  },
  mostWords: 0,
  notes: [
    'The first line is the answer, the rest is how it came about. Exit code 0 whenever there is an explanation, also of',
    'a 503. Nothing is forwarded and nobody is bound. The token of this command itself is --admin-token here.',
  ],
  examples: [
    'sticky-gateway explain --username alice',
    'sticky-gateway explain --user-id 42 --path /js/a/notes',
    'sticky-gateway explain --token - < token.txt',
    'sticky-gateway explain --login --username alice',
  ],
  run: (invocation) => {
    const who = readWho(invocation);
    return withClient(invocation, async (client) => {
      const question = await questionOf(invocation, client, who);
      const { body } = await client.send('POST', '/api/explain', { body: question });
      await show(invocation, body, () =>
        explanationLines(body, { ...question, hasToken: who.token !== undefined }, invocation),
      );
      return 0;
    });
  },
};

interface Who {
  readonly userId?: string | undefined;
  readonly username?: string | undefined;
  readonly token?: string | undefined;
}

function readWho({ text, command }: Invocation): Who {
  const who = { userId: text('user-id'), username: text('username'), token: text('token') };
  if (Object.values(who).filter((value) => value !== undefined).length > 1)
    throw new UsageError('give one of --user-id, --username and --token', command);
  return who;
}

async function questionOf(invocation: Invocation, client: AdminClient, who: Who): Promise<Omit<Question, 'hasToken'>> {
  const { text, flag, command } = invocation;
  const headers = readHeaders(invocation);
  let path = text('path');
  if (path === undefined || flag('login')) {
    if (path !== undefined) throw new UsageError('--login knows its path: leave --path away', command);
    const { id, pathPrefix, loginPath } = await chooseService(invocation, client, false);
    if (pathPrefix === null)
      throw new UsageError(`service '${id}' is reached through routes: give the --path`, command);
    if (flag('login') && loginPath === null) throw new UsageError(`service '${id}' has no loginPath`, command);
    path = flag('login') ? pathPrefix.replace(/\/$/, '') + loginPath : pathPrefix;
  }
  if (who.token !== undefined) {
    const token = who.token === '-' ? await readLine(invocation.stdin) : who.token;
    if (token === '') throw new UsageError('there is no token on standard input', command);
    path = await carryToken(client, token, path, headers);
  }
  const address = text('client-address');
  return {
    method: text('method') ?? (flag('login') ? 'POST' : 'GET'),
    path,
    ...(Object.keys(headers).length > 0 ? { headers } : {}),
    ...(who.userId === undefined ? {} : { userId: who.userId }),
    ...(who.username === undefined ? {} : { username: who.username }),
    ...(address === undefined ? {} : { clientAddress: address }),
  };
}

function readHeaders({ texts, command }: Invocation): Record<string, string[]> {
  const headers: Record<string, string[]> = {};
  for (const field of texts('header')) {
    const found = /^([^:\s]+):\s*(.*)$/.exec(field);
    if (!found) throw new UsageError(`--header must be 'NAME: VALUE', not '${field}'`, command);
    const [, name = '', value = ''] = found;
    headers[name] = [...(headers[name] ?? []), value];
  }
  return headers;
}

/** Puts the token where the gateway looks for it first, and returns the path, which may carry it. */
async function carryToken(
  client: AdminClient,
  token: string,
  path: string,
  headers: Record<string, string[]>,
): Promise<string> {
  const { identity } = await client.get('/api/config');
  const { header, cookie, query, prefix } = (identity as Json)['token'] as Readonly<Record<string, string | null>>;
  const value = prefix && !token.toLowerCase().startsWith(`${prefix.toLowerCase()} `) ? `${prefix} ${token}` : token;
  if (header) headers[header] = [value];
  else if (cookie) headers['Cookie'] = [`${cookie}=${value}`];
  else if (query)
    return `${path}${path.includes('?') ? '&' : '?'}${encodeURIComponent(query)}=${encodeURIComponent(value)}`;
  return path;
}

async function readLine(stdin: Readable): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of stdin as AsyncIterable<Buffer>) {
    chunks.push(chunk);
    bytes += chunk.length;
    if (chunk.includes(10) || bytes > MOST_TOKEN_BYTES) break;
  }
  return (Buffer.concat(chunks).toString('utf8').split('\n')[0] ?? '').trim();
}
