/** Options that say which gateway a command speaks to and as whom, and the client that comes of them. */
import * as fs from 'node:fs/promises';
import { readConfigFile } from '../config/load.ts';
import { DEFAULTS, type GatewayOptions, type ListenOptions } from '../config/options.ts';
import { OperatorError } from '../errors.ts';
import { AdminClient } from './admin-client.ts';
import { UsageError } from './cli-error.ts';
import type { CommandOptions, Invocation } from './command.ts';

export const TOKEN_VARIABLE = 'STICKY_GATEWAY_TOKEN';
export const ADMIN_VARIABLE = 'STICKY_GATEWAY_ADMIN';

export const CONNECT_OPTIONS: CommandOptions = {
  admin: {
    type: 'string',
    value: 'URL',
    help: `admin listener; else ${ADMIN_VARIABLE}, --config, http://127.0.0.1:9090`,
  },
  config: {
    type: 'string',
    short: 'c',
    value: 'FILE',
    help: "the gateway's file: its admin.listen and admin.tokens are used",
  },
  'token-file': { type: 'string', value: 'FILE', help: `file with the admin token; else ${TOKEN_VARIABLE}, --config` },
  'admin-token': {
    type: 'string',
    value: 'TOKEN',
    help: 'the admin token itself; others on this machine can see it (ps)',
  },
  ca: { type: 'string', value: 'FILE', help: 'PEM file with the certificate, or its authority, of an https listener' },
};

/** As above, with the short name that explain needs for the token of a user. */
export const CONNECT_OPTIONS_AND_TOKEN: CommandOptions = {
  ...CONNECT_OPTIONS,
  token: { type: 'string', value: 'TOKEN', help: 'the same as --admin-token' },
};

/** Runs `work` with a client and closes it. Rejects with UsageError, ConfigError, OperatorError or what `work` does. */
export async function withClient<T>(invocation: Invocation, work: (client: AdminClient) => Promise<T>): Promise<T> {
  const client = await connect(invocation);
  try {
    return await work(client);
  } finally {
    client.close();
  }
}

async function connect(invocation: Invocation): Promise<AdminClient> {
  const { text, env } = invocation;
  const config = text('config');
  const named = text('admin') ?? (config === undefined ? nonEmpty(env[ADMIN_VARIABLE]) : undefined);
  const options = config !== undefined && named === undefined ? await readConfigFile(config, env) : null;
  const base = named === undefined ? urlOf(options, config) : parseUrl(named);
  const token = (await givenToken(invocation)) ?? (options ? bestToken(options) : null);
  if (token !== null && /[^\x21-\x7e]/.test(token))
    throw new UsageError('the admin token must be one line without blanks', invocation.command);
  const caFile = text('ca') ?? options?.admin.listen?.tls?.cert;
  return new AdminClient({ base, token, ca: caFile === undefined ? null : await readNamed(caFile, '--ca') });
}

function urlOf(options: GatewayOptions | null, config: string | undefined): URL {
  const listen: ListenOptions | null = options ? options.admin.listen : DEFAULTS.admin.listen;
  if (listen === null)
    throw new OperatorError(`${config}: admin.listen is null, so this gateway has no admin listener`);
  if (listen.port === 0)
    throw new OperatorError(
      `${config}: admin.listen has port 0, so nobody knows the real one from the file: name it with --admin URL`,
    );
  const host = listen.host === '0.0.0.0' ? '127.0.0.1' : listen.host === '::' ? '::1' : listen.host;
  return new URL(`${listen.tls ? 'https' : 'http'}://${host.includes(':') ? `[${host}]` : host}:${listen.port}`);
}

function parseUrl(text: string): URL {
  const full = /^[a-z][a-z0-9+.-]*:\/\//i.test(text) ? text : `http://${text}`;
  const url = URL.canParse(full) ? new URL(full) : null;
  if (!url || (url.protocol !== 'http:' && url.protocol !== 'https:') || url.search !== '' || url.hash !== '')
    throw new UsageError(`--admin must be a URL such as http://127.0.0.1:9090, not '${text}'`);
  if (url.username !== '' || url.password !== '')
    throw new UsageError(`--admin takes no user or password: the token belongs into ${TOKEN_VARIABLE}`);
  return url;
}

/** In order: option, file, environment. */
async function givenToken(invocation: Invocation): Promise<string | null> {
  const { text, env, command } = invocation;
  const direct = text('admin-token') ?? (command === 'explain' ? undefined : text('token'));
  const file = text('token-file');
  if (direct !== undefined && file !== undefined)
    throw new UsageError('the admin token is given twice: as an option and as a file', command);
  if (direct !== undefined) return direct;
  if (file === undefined) return nonEmpty(env[TOKEN_VARIABLE]) ?? null;
  const token = (await readNamed(file, '--token-file')).trim();
  if (token === '') throw new OperatorError(`${file}: there is no token in it`);
  return token;
}

/** Whoever can read the file has them all; the audit names the one that was used. */
function bestToken({ admin }: GatewayOptions): string | null {
  const byRole = (['admin', 'operator', 'viewer'] as const).map((role) =>
    admin.tokens.find((one) => one.role === role),
  );
  return byRole.find((one) => one !== undefined)?.token ?? null;
}

async function readNamed(file: string, option: string): Promise<string> {
  try {
    return await fs.readFile(file, 'utf8');
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    throw new OperatorError(`${option} ${file}: ${code === 'ENOENT' ? 'there is no such file' : message}`, {
      cause: error,
    });
  }
}

function nonEmpty(text: string | undefined): string | undefined {
  return text === '' ? undefined : text;
}
