/** Calls on services. Their nodes have calls of their own in nodes.ts. */
import { checkServiceDefinition } from '../config/stored-definitions.ts';
import type { RegistryDefinition, ServiceDefinition } from '../model.ts';
import { AdminError } from './admin-error.ts';
import { toPlain } from './body.ts';
import type { AdminCall, CallHandler } from './call.ts';
import {
  type Decision,
  definitionOf,
  etagOf,
  findService,
  refuseBound,
  requireMatch,
  runEdit,
  type SnapshotSource,
  snapshotOf,
  viewService,
  withIdOfPath,
} from './definitions.ts';
import type { EditContext, RegistryEditor } from './registry-editor.ts';

export interface ServiceCallOptions {
  readonly registry: SnapshotSource;
  readonly editor: RegistryEditor;
  /** Of services that name no health path. */
  readonly healthPath: string | null;
}

export type ServiceCalls = Record<'list' | 'get' | 'create' | 'replace' | 'remove', CallHandler>;

export function serviceCalls(options: ServiceCallOptions): ServiceCalls {
  const { registry, editor, healthPath } = options;
  const read = async (call: AdminCall, id: string | null): Promise<Record<string, unknown>> => {
    const body = toPlain(await call.json()) as Record<string, unknown>;
    const named = id === null ? body : withIdOfPath(body, id);
    return { ...(healthPath === '/health' ? {} : { healthPath }), ...named };
  };
  return {
    list: () => ({ status: 200, body: { services: snapshotOf(registry).definition.services.map(viewService) } }),

    get: (call) => {
      const service = findService(snapshotOf(registry).definition, call.param('service'));
      return { status: 200, body: viewService(service), headers: { ETag: etagOf(service) } };
    },

    create: async (call) => {
      const service = definitionOf(checkServiceDefinition(await read(call, null), ''));
      call.audit.target = `services/${service.id}`;
      return runEdit(call, editor, async (context) => {
        if (context.isTaken('service', service.id))
          throw new AdminError('conflict', `there is a service '${service.id}' already`);
        refuseForeignNodes(context, null, service);
        const { current } = context;
        return {
          next: { ...current, services: [...current.services, service] },
          before: null,
          after: service,
          status: 201,
          body: viewService(service),
          location: `/api/services/${service.id}`,
          place: `services[${current.services.length}]`,
        };
      });
    },

    replace: async (call) => {
      const id = call.param('service');
      const body = await read(call, id);
      return runEdit(call, editor, (context) => replaceService(call, context, id, body));
    },

    remove: (call) =>
      runEdit(call, editor, async (context) => {
        const { current } = context;
        const service = findService(current, call.param('service'));
        requireMatch(call, service);
        await refuseBound(context, service.id, null, `service '${service.id}'`);
        return {
          next: { ...current, services: current.services.filter((one) => one !== service) },
          before: service,
          after: null,
          status: 200,
          body: { deleted: `services/${service.id}` },
          place: null,
        };
      }),
  };
}

async function replaceService(
  call: AdminCall,
  context: EditContext,
  id: string,
  body: Record<string, unknown>,
): Promise<Decision> {
  const { current } = context;
  const before = findService(current, id);
  requireMatch(call, before);
  // Without a list of nodes they stay as they are.
  const after = definitionOf(checkServiceDefinition({ nodes: before.nodes, ...body }, ''));
  refuseForeignNodes(context, before, after);
  const kept = new Set(after.nodes.map((node) => node.id));
  const removed = before.nodes.map((node) => node.id).filter((nodeId) => !kept.has(nodeId));
  if (removed.length > 0) await refuseBound(context, id, removed, 'nodes that this would remove');
  // Without affinity every request would be balanced, also those of users whose data lie on one node.
  if (before.affinity === 'user' && after.affinity === 'none')
    await refuseBound(context, id, null, `service '${id}', which would lose its affinity`);
  return {
    next: withService(current, before, after),
    before,
    after,
    status: 200,
    body: viewService(after),
    place: `services[${current.services.indexOf(before)}]`,
  };
}

export function withService(
  current: RegistryDefinition,
  before: ServiceDefinition,
  after: ServiceDefinition,
): RegistryDefinition {
  return { ...current, services: current.services.map((one) => (one === before ? after : one)) };
}

/** A node's row is found by its id alone: writing it for one service would take it from another. */
function refuseForeignNodes(context: EditContext, before: ServiceDefinition | null, after: ServiceDefinition): void {
  const own = new Set(before?.nodes.map((node) => node.id));
  const taken = after.nodes.find((node) => !own.has(node.id) && context.isTaken('node', node.id));
  if (taken)
    throw new AdminError('conflict', `there is a node '${taken.id}' already: node ids are unique across services`);
}
