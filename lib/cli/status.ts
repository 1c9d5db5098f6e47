/** `status`: the gateway on one page: services, nodes, health, users, stores, ages. */
import type { AdminClient, Json } from './admin-client.ts';
import { listServices, type ServiceView, servicePath } from './choose-service.ts';
import { type Command, type Invocation, show } from './command.ts';
import { CONNECT_OPTIONS_AND_TOKEN, withClient } from './connect.ts';
import { healthNote, isUsable, nodeState, stateStyle } from './health-text.ts';
import { grouped } from './progress.ts';
import { printable, type Row, Table } from './table.ts';
import { agoText } from './time-text.ts';

interface ServiceStatus {
  readonly service: ServiceView;
  readonly nodes: readonly Json[];
}

interface Status {
  readonly address: string;
  readonly ready: boolean;
  readonly readyText: string;
  readonly version: string | null;
  readonly stores: string;
  readonly storeErrors: Readonly<Record<string, number>>;
  readonly snapshot: Json;
  readonly services: readonly ServiceStatus[];
  readonly problems: readonly string[];
}

export const status: Command = {
  name: 'status',
  summary: 'Show services, nodes, their health and users, and the stores',
  usage: '',
  options: CONNECT_OPTIONS_AND_TOKEN,
  mostWords: 0,
  notes: [
    'Exit code 1 if the gateway is not ready or an enabled service has no usable node (enabled and not DOWN).',
    'A node that is down while others are up is told, and is no failure of the gateway: exit code 0.',
  ],
  examples: ['sticky-gateway status', 'sticky-gateway status --admin http://10.0.0.5:9090 --json'],
  run: (invocation) =>
    withClient(invocation, async (client) => {
      const found = await readStatus(client);
      await show(invocation, documentOf(found, invocation), () => linesOf(found, invocation));
      return found.problems.length === 0 ? 0 : 1;
    }),
};

async function readStatus(client: AdminClient): Promise<Status> {
  const ready = await client.text('/readyz');
  const services: ServiceStatus[] = [];
  for (const service of await listServices(client)) {
    const { nodes } = await client.get(servicePath(service, 'nodes'));
    services.push({ service, nodes: nodes as readonly Json[] });
  }
  const { snapshot } = await client.get('/api/health');
  const config = await client.get('/api/config');
  const metrics = (await client.text('/metrics')).text;
  const readyText = ready.text.trim();
  const problems = [
    ...(ready.status === 200 ? [] : [readyText || 'not ready']),
    ...services
      .filter(({ service, nodes }) => service.enabled && !nodes.some(isUsable))
      .map(({ service }) => `service ${service.id} has no usable node`),
  ];
  return {
    address: client.address,
    ready: ready.status === 200,
    readyText,
    version: /^gateway_build_info\{[^}]*\bversion="([^"]*)"/m.exec(metrics)?.[1] ?? null,
    stores: storesText(config['store'] as Json),
    storeErrors: storeErrorsIn(metrics),
    snapshot: snapshot as Json,
    services,
    problems,
  };
}

function storesText(store: Json): string {
  const { dataDir, postgres, redis } = store;
  if (!postgres) return `embedded (${String(dataDir)})`;
  const target = (redis as Json | null)?.['target'] as Json | undefined;
  const cache = target ? ` + redis (${String(target['url'] ?? target['kind'])})` : '';
  return `postgres (${String((postgres as Json)['url'])})${cache}`;
}

/** Store -> failures since its start. */
function storeErrorsIn(metrics: string): Record<string, number> {
  const errors: Record<string, number> = {};
  for (const [, labels = '', value] of metrics.matchAll(/^gateway_store_errors_total\{([^}]*)\} (\S+)$/gm)) {
    const store = /store="([^"]*)"/.exec(labels)?.[1] ?? 'store';
    errors[store] = (errors[store] ?? 0) + Number(value);
  }
  return errors;
}

function documentOf(found: Status, { version, clock }: Invocation): Json {
  const { address, ready, stores, storeErrors, snapshot, services, problems } = found;
  return {
    ok: problems.length === 0,
    problems,
    admin: address,
    ready,
    version: found.version,
    cliVersion: version,
    time: new Date(clock.now()).toISOString(),
    stores,
    storeErrors,
    snapshot,
    services: services.map(({ service, nodes }) => ({
      id: service.id,
      pathPrefix: service.pathPrefix,
      enabled: service.enabled,
      affinity: service.affinity,
      usable: nodes.some(isUsable),
      users: sumUsers(nodes),
      nodes,
    })),
  };
}

/** Null = they cannot be counted at the moment. */
function sumUsers(nodes: readonly Json[]): number | null {
  return nodes.reduce<number | null>(
    (sum, { users }) => (sum === null || typeof users !== 'number' ? null : sum + users),
    0,
  );
}

function linesOf(found: Status, { style, version, clock }: Invocation): string[] {
  const nowMs = clock.now();
  const { snapshot, storeErrors } = found;
  const failures = Object.entries(storeErrors).filter(([, count]) => count > 0);
  const head: Row[] = [
    [
      'gateway',
      `${found.address}${found.version === null ? '' : `, version ${found.version}`} (this command: ${version})`,
    ],
    ['ready', { text: found.ready ? 'yes' : found.readyText, paint: found.ready ? style.green : style.red }],
    ['stores', found.stores],
    [
      'services',
      `read ${agoText(snapshot['loadedAt'], nowMs)}, version ${String(snapshot['version'])}${snapshot['stale'] === true ? ', STALE: from the last good copy' : ''}`,
    ],
    ...(failures.length > 0
      ? [
          [
            'store errors',
            failures.map(([store, count]) => `${store} ${grouped(count)}`).join(', ') + ' since its start',
          ],
        ]
      : []),
  ];
  const lines = new Table().lines(head);
  const table = new Table();
  for (const { service, nodes } of found.services) {
    const users = sumUsers(nodes);
    const facts = [
      service.pathPrefix ?? 'reached through routes',
      ...(service.enabled ? [] : ['DISABLED']),
      service.affinity === 'user' ? `${users === null ? '?' : grouped(users)} users` : 'affinity none',
    ];
    lines.push('', printable(`${service.id}  ${facts.join(', ')}`));
    if (nodes.length === 0) lines.push('  no nodes');
    const rows = nodes.map((node): Row => {
      const count = typeof node['users'] === 'number' ? `${grouped(node['users'])} users` : '? users';
      const most = typeof node['maxUsers'] === 'number' ? ` of ${grouped(node['maxUsers'])}` : '';
      const state = { text: nodeState(node), paint: stateStyle(node, style) };
      return [
        `  ${String(node['id'])}`,
        state,
        service.affinity === 'user' ? count + most : '',
        String(node['baseUrl']),
        healthNote(node, nowMs),
      ];
    });
    lines.push(...table.lines(rows));
    const refused = nodes.filter((node) => !isUsable(node) && typeof node['users'] === 'number' && node['users'] > 0);
    const sum = refused.reduce((total, { users: one }) => total + Number(one), 0);
    if (service.affinity === 'user' && sum > 0)
      lines.push(style.red(`  ${grouped(sum)} ${sum === 1 ? 'user gets' : 'users get'} 503`));
  }
  if (found.services.length === 0) lines.push('', 'no services yet');
  return [
    ...lines,
    ...(found.problems.length > 0 ? [''] : []),
    ...found.problems.map((problem) => style.red(`PROBLEM: ${printable(problem)}`)),
  ];
}
