/** A real gateway on free ports in this process, on either kind of store, with its log lines kept. */
import * as fs from 'node:fs/promises';
import type { AddressInfo } from 'node:net';
import * as os from 'node:os';
import * as path from 'node:path';
import { Gateway } from '../../bin/compose.ts';
import { loadConfig } from '../../lib/config/load.ts';
import { LineLogger } from '../../lib/observe/log.ts';
import type { Clock } from '../../lib/support/clock.ts';
import { systemClock } from '../../lib/support/clock.ts';
import type { BackendNode } from './backend-node.ts';
import { type Answer, call, postJson } from './http-client.ts';
import { createDatabase } from './postgres-server.ts';
import { startRedis } from './redis-server.ts';

export type StoreKind = 'embedded' | 'postgres' | 'postgres+redis';
export const STORE_KINDS: readonly StoreKind[] = ['embedded', 'postgres+redis'];

/** What a gateway stands on; may be shared by several, and outlives each. */
export interface StoreSetup {
  readonly kind: StoreKind;
  readonly dataDir: string;
  readonly postgresUrl: string | null;
  readonly redisUrl: string | null;
  /** Instead of the default, which is short for a busy machine; milliseconds. */
  readonly redisTimeoutMs?: number;
  close(): Promise<void>;
}

export async function openStores(kind: StoreKind): Promise<StoreSetup> {
  const folder = await fs.mkdtemp(path.join(os.tmpdir(), 'sticky-gateway-'));
  const database = kind === 'embedded' ? undefined : await createDatabase();
  const redis = kind === 'postgres+redis' ? await startRedis() : undefined;
  return {
    kind,
    dataDir: path.join(folder, 'data'),
    postgresUrl: database?.url ?? null,
    redisUrl: redis?.url ?? null,
    async close() {
      await redis?.stop();
      await database?.drop();
      await fs.rm(folder, { recursive: true, force: true });
    },
  };
}

export interface GatewaySetup {
  readonly stores: StoreSetup;
  readonly nodes: readonly BackendNode[];
  /** YAML lines of the one service, indented by four. */
  readonly service?: string;
  /** YAML of each node's switches, by node id: `draining: true`. */
  readonly nodeOptions?: Readonly<Record<string, string>>;
  /** Further top-level YAML. */
  readonly config?: string;
  /** Instead of all of the above: the whole `services` block. */
  readonly services?: string;
  readonly clock?: Clock;
  /** Instead of any free port of 127.0.0.1: YAML. */
  readonly listen?: string;
  /** Tokens of the admin API and the like: YAML in flow form, `tokens: [...]`. */
  readonly admin?: string;
}

export class GatewayFixture {
  readonly gateway: Gateway;
  readonly lines: string[];

  constructor(gateway: Gateway, lines: string[]) {
    this.gateway = gateway;
    this.lines = lines;
  }

  get port(): number {
    return (this.gateway.addresses[0] as AddressInfo).port;
  }

  get adminPort(): number {
    return (this.gateway.adminAddress as AddressInfo).port;
  }

  /** Log lines of one event, parsed. */
  events(event: string): Record<string, unknown>[] {
    return this.lines
      .map((line) => JSON.parse(line) as Record<string, unknown>)
      .filter((line) => line['event'] === event);
  }

  login(username: string, extra: Record<string, unknown> = {}, headers: Record<string, string> = {}): Promise<Answer> {
    return postJson(this.port, '/js/a/auth/login', { username, ...extra }, headers);
  }

  /** Logs in and returns the token; throws unless the node let the user in. */
  async tokenOf(username: string): Promise<string> {
    const answer = await this.login(username);
    const data = answer.json()['data'] as { token?: string } | undefined;
    if (answer.status !== 200 || !data?.token) throw new Error(`login of ${username}: ${answer.status} ${answer.text}`);
    return data.token;
  }

  get(path: string, token?: string, headers: Record<string, string> = {}): Promise<Answer> {
    return call(this.port, path, {
      headers: { ...(token === undefined ? {} : { 'x-token': token }), ...headers },
    });
  }

  async stop(): Promise<void> {
    await this.gateway.stop();
  }
}

export function configText(setup: GatewaySetup): string {
  const { stores, nodes } = setup;
  const redisTimeout = stores.redisTimeoutMs === undefined ? '' : `, timeout: ${stores.redisTimeoutMs}ms`;
  const store = [
    'store:',
    `  dataDir: ${JSON.stringify(stores.dataDir)}`,
    ...(stores.postgresUrl ? [`  postgres: { url: ${JSON.stringify(stores.postgresUrl)} }`] : []),
    ...(stores.redisUrl ? [`  redis: { url: ${JSON.stringify(stores.redisUrl)}${redisTimeout} }`] : []),
  ].join('\n');
  const services =
    setup.services ??
    [
      'services:',
      '  - id: demo',
      '    pathPrefix: /js/a',
      '    loginPath: /auth/login',
      '    healthPath: /health',
      ...(setup.service ? [setup.service] : []),
      '    nodes:',
      ...nodes.map((node) => {
        const more = setup.nodeOptions?.[node.id];
        return `      - { id: ${node.id}, baseUrl: "${node.baseUrl}"${more ? `, ${more}` : ''} }`;
      }),
    ].join('\n');
  return `listen: ${setup.listen ?? '127.0.0.1:0'}\nadmin: { listen: "127.0.0.1:0"${setup.admin ? `, ${setup.admin}` : ''} }\n${store}\n${setup.config ?? ''}\n${services}\n`;
}

export async function startGateway(setup: GatewaySetup): Promise<GatewayFixture> {
  const loaded = loadConfig(configText(setup), 'test.yaml', {});
  if ('problems' in loaded) throw new Error(loaded.problems.map((problem) => JSON.stringify(problem)).join('\n'));
  const lines: string[] = [];
  const logger = new LineLogger({ level: 'debug', format: 'json' }, { write: (line) => void lines.push(line) });
  const gateway = new Gateway(loaded.options, { logger, clock: setup.clock ?? systemClock });
  await gateway.start();
  return new GatewayFixture(gateway, lines);
}
