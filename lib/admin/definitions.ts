/**
 * What calls on services, nodes and routes have in common: definitions in and out in the form of the configuration
 * file, the check against what else is there, versions (ETag, If-Match), and the run of an edit.
 */
import { createHash } from 'node:crypto';
import { type Checked, checkRegistry, serviceForm } from '../config/stored-definitions.ts';
import type { NodeDefinition, RegistryDefinition, ServiceDefinition, Snapshot } from '../model.ts';
import { AdminError, badField, badFields, type FieldFault, notFound } from './admin-error.ts';
import { type AdminCall, dryRunMark, type Reply } from './call.ts';
import type { EditContext, RegistryEditor } from './registry-editor.ts';

export interface SnapshotSource {
  readonly snapshot: Snapshot | undefined;
}

/** Throws AdminError `not_ready` before the first load. */
export function snapshotOf(source: SnapshotSource): Snapshot {
  if (source.snapshot) return source.snapshot;
  throw new AdminError('not_ready', 'the services have not been loaded yet', { headers: { 'Retry-After': '2' } });
}

export function findService(definition: RegistryDefinition, id: string): ServiceDefinition {
  const service = definition.services.find((one) => one.id === id);
  if (!service) throw notFound(`service '${id}'`);
  return service;
}

export function findNode(service: ServiceDefinition, id: string): NodeDefinition {
  const node = service.nodes.find((one) => one.id === id);
  if (!node) throw notFound(`node '${id}' in service '${service.id}'`);
  return node;
}

/** As it would stand in the file. */
export function viewService(service: ServiceDefinition): Record<string, unknown> {
  return serviceForm(service);
}

/** The version of a definition: the same content has the same one, on every gateway. */
export function etagOf(definition: object): string {
  return `"${createHash('sha256').update(JSON.stringify(definition)).digest('base64url').slice(0, 22)}"`;
}

/** Throws AdminError `changed_meanwhile` when the caller has seen another version than the stored one. */
export function requireMatch(call: AdminCall, definition: object): void {
  const wanted = call.request.headers['if-match'];
  if (wanted === undefined || wanted.trim() === '*') return;
  const versions = wanted.split(',').map((version) => version.trim());
  if (versions.includes(etagOf(definition))) return;
  throw new AdminError('changed_meanwhile', 'somebody else has changed this since it was read: read it again');
}

export function definitionOf<T>(checked: Checked<T>): T {
  if ('definition' in checked) return checked.definition;
  throw badFields(checked.problems.map(({ path, message }) => ({ field: path, message })));
}

/** The id in the body must be the one in the path; absent = that one. */
export function withIdOfPath(body: Record<string, unknown>, id: string): Record<string, unknown> {
  if (body['id'] !== undefined && body['id'] !== id) throw badField('id', `must be '${id}', as in the path`);
  return { ...body, id };
}

/** What an edit has decided. */
export interface Decision {
  readonly next: RegistryDefinition;
  /** For the audit; null = was not there, or will not be. */
  readonly before: object | null;
  readonly after: object | null;
  readonly status: number;
  /** The answer's body; the definition itself where there still is one. */
  readonly body: Record<string, unknown>;
  readonly location?: string;
  /** Where in the registry the body belongs: `services[0]`, for the faults that are found in it. */
  readonly place: string | null;
}

/** Runs an edit, or rehearses it, and answers when it is in force here. */
export async function runEdit(
  call: AdminCall,
  editor: RegistryEditor,
  decide: (context: EditContext) => Promise<Decision>,
): Promise<Reply> {
  const { dryRun } = call;
  const { result, inForce } = await editor.edit(
    async (context) => {
      const decision = await decide(context);
      call.audit.before = decision.before;
      call.audit.after = decision.after;
      refuseClashes(context.current, decision.next, decision.place);
      return { next: dryRun ? null : decision.next, result: decision };
    },
    () => call.entry('done'),
  );
  call.audit.recorded = !dryRun;
  return {
    // 202: stored, and this gateway follows as soon as it can read it back.
    status: inForce ? (dryRun ? 200 : result.status) : 202,
    body: { ...result.body, ...dryRunMark(call) },
    headers: {
      ...(result.after ? { ETag: etagOf(result.after) } : {}),
      ...(result.location !== undefined && !dryRun ? { Location: result.location } : {}),
    },
  };
}

/** Faults in the body are 400, clashes with what else is there 409. What was wrong before stands in nobody's way. */
function refuseClashes(current: RegistryDefinition, next: RegistryDefinition, place: string | null): void {
  const before = new Set(checkRegistry(current).map(({ message }) => message));
  const faults = checkRegistry(next).filter(({ message }) => !before.has(message));
  if (faults.length === 0) return;
  const own = faults.filter(({ path }) => place !== null && path.startsWith(`${place}.`));
  const dangling = own.filter(({ path }) => /\.(defaultNodeId|service)$/.test(path));
  const fields = faults.map(({ path, message }): FieldFault => {
    const isOwn = place !== null && path.startsWith(`${place}.`);
    return { field: isOwn ? path.slice(place.length + 1) : byId(next, path), message: byId(next, message) };
  });
  throw badFields(fields, dangling.length === faults.length ? 'bad_request' : 'conflict');
}

/** `services[3].nodes[1]` as `services.ai-server.nodes.node-1`: indexes mean nothing to a caller. */
function byId(definition: RegistryDefinition, text: string): string {
  return text
    .replace(/services\[(\d+)\](?:\.nodes\[(\d+)\])?/g, (_all, service: string, node: string | undefined) => {
      const found = definition.services[Number(service)];
      return `services.${found?.id}${node === undefined ? '' : `.nodes.${found?.nodes[Number(node)]?.id}`}`;
    })
    .replace(/routes\[(\d+)\]/g, (_all, route: string) => `routes.${definition.routes[Number(route)]?.id}`);
}

/** Throws AdminError `users_bound` if users are bound to any of the nodes; null = to any of the service. */
export async function refuseBound(
  context: EditContext,
  serviceId: string,
  nodeIds: readonly string[] | null,
  what: string,
): Promise<void> {
  const counts = await context.countUsers(serviceId);
  const bound = [...counts].filter(([nodeId]) => nodeIds === null || nodeIds.includes(nodeId));
  const users = bound.reduce((sum, [, count]) => sum + count, 0);
  if (users === 0) return;
  throw new AdminError(
    'users_bound',
    `${users} ${users === 1 ? 'user is' : 'users are'} bound to ${what}: move or unbind them first`,
    { details: { users, usersByNode: Object.fromEntries(bound) } },
  );
}
