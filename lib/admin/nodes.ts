/** Calls on the nodes of a service: definitions, switches, and how each is doing. */
import { checkNodeDefinition } from '../config/stored-definitions.ts';
import type { HealthDetails } from '../health/health-registry.ts';
import type { Node, NodeDefinition, Service } from '../model.ts';
import { describeError, type Logger } from '../observe/log.ts';
import { AdminError, badFields, notFound } from './admin-error.ts';
import { toPlain } from './body.ts';
import type { AdminCall, CallHandler } from './call.ts';
import {
  type Decision,
  definitionOf,
  etagOf,
  findNode,
  findService,
  refuseBound,
  requireMatch,
  runEdit,
  type SnapshotSource,
  snapshotOf,
  withIdOfPath,
} from './definitions.ts';
import type { EditContext, RegistryEditor } from './registry-editor.ts';
import { withService } from './services.ts';

export interface NodeCallOptions {
  readonly registry: SnapshotSource;
  readonly editor: RegistryEditor;
  readonly health: { details(healthKey: string): HealthDetails };
  readonly counts: { countByNode(serviceId: string): Promise<ReadonlyMap<string, number>> };
  /** Node id -> exchanges and tunnels under way through this gateway; a node that is not in it has none. */
  readonly traffic: { readonly inFlight: ReadonlyMap<string, number> };
  readonly logger: Logger;
}

export type NodeCalls = Record<'list' | 'get' | 'create' | 'replace' | 'change' | 'remove', CallHandler>;

/** What operators may switch without the right to say what a node is. */
export const SWITCHES = ['enabled', 'draining', 'weight', 'maxUsers', 'remark'] as const;
/** Told by GET; a body that brings them along is not refused for it. */
const TOLD = ['serviceId', 'health', 'users', 'inFlight'];

export function nodeCalls(options: NodeCallOptions): NodeCalls {
  const { registry, editor } = options;
  const read = async (call: AdminCall): Promise<Record<string, unknown>> => {
    const body = toPlain(await call.json()) as Record<string, unknown>;
    return Object.fromEntries(Object.entries(body).filter(([key]) => !TOLD.includes(key)));
  };
  return {
    list: async (call) => {
      const service = serviceOf(registry, call);
      const users = await countUsers(options, service);
      return { status: 200, body: { nodes: service.nodes.map((node) => viewNode(options, node, users)) } };
    },

    get: async (call) => {
      const service = serviceOf(registry, call);
      const node = service.nodesById.get(call.param('node'));
      if (!node) throw notFound(`node '${call.param('node')}' in service '${service.id}'`);
      const users = await countUsers(options, service);
      return { status: 200, body: viewNode(options, node, users), headers: { ETag: etagOf(definitionPart(node)) } };
    },

    create: async (call) => {
      const node = definitionOf(checkNodeDefinition(await read(call), ''));
      call.audit.target = `services/${call.param('service')}/nodes/${node.id}`;
      return runEdit(call, editor, async (context) => {
        const service = findService(context.current, call.param('service'));
        if (context.isTaken('node', node.id))
          throw new AdminError('conflict', `there is a node '${node.id}' already: node ids are unique across services`);
        const after = { ...service, nodes: [...service.nodes, node] };
        return {
          next: withService(context.current, service, after),
          before: null,
          after: node,
          status: 201,
          body: { ...node, serviceId: service.id },
          location: `/api/services/${service.id}/nodes/${node.id}`,
          place: `services[${context.current.services.indexOf(service)}].nodes[${service.nodes.length}]`,
        };
      });
    },

    replace: async (call) => {
      const node = definitionOf(checkNodeDefinition(withIdOfPath(await read(call), call.param('node')), ''));
      return runEdit(call, editor, async (context) => replaceNode(call, context, () => node));
    },

    change: async (call) => {
      const { reason, ...changes } = await read(call);
      call.giveReason('reason', reason);
      const unknown = Object.keys(changes).filter((key) => !(SWITCHES as readonly string[]).includes(key));
      if (unknown.length > 0)
        throw badFields(
          unknown.map((field) => ({ field, message: `cannot be changed here: only ${SWITCHES.join(', ')} can` })),
        );
      return runEdit(call, editor, async (context) =>
        replaceNode(call, context, (before) => definitionOf(checkNodeDefinition({ ...before, ...changes }, ''))),
      );
    },

    remove: (call) =>
      runEdit(call, editor, async (context) => {
        const service = findService(context.current, call.param('service'));
        const node = findNode(service, call.param('node'));
        requireMatch(call, node);
        await refuseBound(context, service.id, [node.id], `node '${node.id}'`);
        const after = { ...service, nodes: service.nodes.filter((one) => one !== node) };
        return {
          next: withService(context.current, service, after),
          before: node,
          after: null,
          status: 200,
          body: { deleted: `services/${service.id}/nodes/${node.id}` },
          place: null,
        };
      }),
  };
}

function replaceNode(
  call: AdminCall,
  context: EditContext,
  change: (before: NodeDefinition) => NodeDefinition,
): Decision {
  const service = findService(context.current, call.param('service'));
  const before = findNode(service, call.param('node'));
  requireMatch(call, before);
  const node = change(before);
  const after = { ...service, nodes: service.nodes.map((one) => (one === before ? node : one)) };
  const { services } = context.current;
  return {
    next: withService(context.current, service, after),
    before,
    after: node,
    status: 200,
    body: { ...node, serviceId: service.id },
    place: `services[${services.indexOf(service)}].nodes[${service.nodes.indexOf(before)}]`,
  };
}

function serviceOf(registry: SnapshotSource, call: AdminCall): Service {
  const service = snapshotOf(registry).services.get(call.param('service'));
  if (!service) throw notFound(`service '${call.param('service')}'`);
  return service;
}

/** Null = they cannot be counted at the moment; the rest of the answer is of use all the same. */
async function countUsers(options: NodeCallOptions, service: Service): Promise<ReadonlyMap<string, number> | null> {
  try {
    return await options.counts.countByNode(service.id);
  } catch (error) {
    options.logger.warn('admin_count_failed', { service: service.id, error: describeError(error) });
    return null;
  }
}

function viewNode(
  options: NodeCallOptions,
  node: Node,
  users: ReadonlyMap<string, number> | null,
): Record<string, unknown> {
  return {
    ...definitionPart(node),
    serviceId: node.serviceId,
    health: viewHealth(options.health.details(node.healthKey)),
    users: users === null ? null : (users.get(node.id) ?? 0),
    inFlight: options.traffic.inFlight.get(node.id) ?? 0,
  };
}

/** In the order of keys in which the checks make a definition, so that both have the same version. */
export function definitionPart(node: NodeDefinition): NodeDefinition {
  const { id, name, baseUrl, enabled, draining, weight, maxUsers, remark } = node;
  return { id, name, baseUrl, enabled, draining, weight, maxUsers, remark };
}

export function viewHealth(details: HealthDetails): Record<string, unknown> {
  return {
    state: details.state,
    since: timeOrNull(details.sinceMs),
    lastCheck: timeOrNull(details.lastCheckMs),
    lastKind: details.lastKind,
    lastError: details.lastError,
    successesInRow: details.successesInRow,
    failuresInRow: details.failuresInRow,
  };
}

function timeOrNull(ms: number | null): string | null {
  return ms === null ? null : new Date(ms).toISOString();
}
