/** Edits of the registry in PostgreSQL: one transaction that holds the tables, writes what differs and the audit. */
import type { RegistryDefinition, ServiceDefinition } from '../model.ts';
import {
  assemble,
  type DefinitionChecks,
  readCandidates,
  writeNode,
  writeRoute,
  writeService,
} from '../registry/registry-rows.ts';
import { type PostgresStore, type Queryable, sqlStateOf } from '../stores/postgres.ts';
import { AdminError } from './admin-error.ts';
import type { AuditEntry } from './audit-log.ts';
import type { PostgresAudit } from './postgres-audit.ts';
import type { Edit, EditContext, EditOutcome, RegistryEditor } from './registry-editor.ts';

export interface PostgresEditorOptions {
  readonly postgres: PostgresStore;
  readonly checks: DefinitionChecks;
  readonly audit: PostgresAudit;
  /** Resolves with false when the registry could not be read back. */
  readonly reload: () => Promise<boolean>;
}

export class PostgresEditor implements RegistryEditor {
  readonly #options: PostgresEditorOptions;

  constructor(options: PostgresEditorOptions) {
    this.#options = options;
  }

  async edit<T>(change: (context: EditContext) => Promise<Edit<T>>, entry: () => AuditEntry): Promise<EditOutcome<T>> {
    const { postgres, checks, audit, reload } = this.#options;
    const { result, written } = await translated(() =>
      postgres.transaction(async (client) => {
        // Other editors wait, plain SQL among them; readers do not.
        await client.query('LOCK TABLE gateway_service, gateway_node, gateway_route IN SHARE ROW EXCLUSIVE MODE');
        const candidates = await readCandidates(client);
        const taken = {
          service: new Set(candidates.services.map(({ id }) => id)),
          node: new Set(candidates.services.flatMap(({ nodes }) => nodes.map(({ id }) => id))),
          route: new Set(candidates.routes.map(({ id }) => id)),
        };
        const { definition: current } = assemble(candidates, checks);
        const edit = await change({
          current,
          isTaken: (kind, id) => taken[kind].has(id),
          countUsers: (serviceId) => countUsers(client, serviceId),
        });
        if (edit.next === null) return { result: edit.result, written: false };
        await writeDifferences(client, current, edit.next);
        await audit.recordIn(client, entry());
        return { result: edit.result, written: true };
      }),
    );
    return { result, inForce: written ? await reload() : true };
  }
}

/** No binding is made or moved from here to the end of the transaction, so what is counted stays true. */
async function countUsers(client: Queryable, serviceId: string): Promise<ReadonlyMap<string, number>> {
  await client.query('LOCK TABLE gateway_user_route IN SHARE MODE');
  const { rows } = await client.query<{ node_id: string; users: string }>(
    'SELECT node_id, count(*)::text AS users FROM gateway_user_route WHERE service_id = $1 GROUP BY node_id',
    [serviceId],
  );
  return new Map(rows.map(({ node_id, users }) => [node_id, Number(users)]));
}

/** Deletions come first: a prefix or an address may pass from what goes to what stays. */
async function writeDifferences(
  client: Queryable,
  before: RegistryDefinition,
  after: RegistryDefinition,
): Promise<void> {
  const servicesAfter = new Map(after.services.map((service) => [service.id, service]));
  const routesAfter = new Set(after.routes.map((route) => route.id));
  for (const { id } of before.routes) {
    if (!routesAfter.has(id)) await client.query('DELETE FROM gateway_route WHERE id = $1', [id]);
  }
  for (const service of before.services) {
    const next = servicesAfter.get(service.id);
    // Its nodes go with it, by the foreign key where there is one.
    const kept = new Set(next?.nodes.map((node) => node.id));
    for (const node of service.nodes) {
      if (!kept.has(node.id)) await client.query('DELETE FROM gateway_node WHERE id = $1', [node.id]);
    }
    if (!next) {
      await client.query('DELETE FROM gateway_node WHERE service_id = $1', [service.id]);
      await client.query('DELETE FROM gateway_service WHERE id = $1', [service.id]);
    }
  }
  const servicesBefore = new Map(before.services.map((service) => [service.id, service]));
  for (const service of after.services) await writeServiceDifferences(client, servicesBefore.get(service.id), service);
  const routesBefore = new Map(before.routes.map((route) => [route.id, route]));
  for (const route of after.routes) {
    if (!isSame(routesBefore.get(route.id), route)) await writeRoute(client, route);
  }
}

async function writeServiceDifferences(
  client: Queryable,
  before: ServiceDefinition | undefined,
  after: ServiceDefinition,
): Promise<void> {
  if (!before || !isSame({ ...before, nodes: [] }, { ...after, nodes: [] }))
    await writeService(client, { ...after, nodes: [] });
  const nodesBefore = new Map(before?.nodes.map((node) => [node.id, node]));
  for (const node of after.nodes) {
    if (!isSame(nodesBefore.get(node.id), node)) await writeNode(client, after.id, node);
  }
}

/** Definitions come out of the same checks, so equal ones have their keys in the same order. */
function isSame(before: unknown, after: unknown): boolean {
  return JSON.stringify(before) === JSON.stringify(after);
}

async function translated<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    // A row that is not sound, and so not in the definition, can still hold a prefix, an id or an address.
    if (sqlStateOf(error) === '23505')
      throw new AdminError('conflict', 'another row of the registry has this id, path prefix or address already', {
        cause: error,
      });
    throw error;
  }
}
