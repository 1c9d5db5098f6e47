/**
 * The table of the admin API: every call, who may make it, what the audit calls it. viewer = looks; operator = changes
 * what runs (users, switches of nodes); admin = changes what there is.
 */
import type { BindingCalls } from './bindings.ts';
import type { CallHandler } from './call.ts';
import type { RouteCalls } from './canary-routes.ts';
import type { NodeCalls } from './nodes.ts';
import { openapi } from './openapi.ts';
import type { OperationCalls } from './operations.ts';
import type { ApiRoute } from './router.ts';
import type { ServiceCalls } from './services.ts';
import type { TransferCalls } from './transfer.ts';

export interface Calls {
  readonly services: ServiceCalls;
  readonly nodes: NodeCalls;
  readonly bindings: BindingCalls;
  readonly transfer: TransferCalls;
  readonly routes: RouteCalls;
  readonly operations: OperationCalls;
  readonly explain: CallHandler;
  readonly events: CallHandler;
}

const SERVICES = '/api/services';
const SERVICE = '/api/services/:service';
const NODES = '/api/services/:service/nodes';
const NODE = '/api/services/:service/nodes/:node';
const BINDINGS = '/api/services/:service/bindings';
const BINDING = '/api/services/:service/bindings/:userId';
const ROUTES = '/api/routes';
const ROUTE = '/api/routes/:route';

const NONE: readonly string[] = [];
const WRITE = ['dryRun', 'reason'];
const PAGE = ['limit', 'after'];
const FIND = [...PAGE, 'userId', 'username', 'nodeId'];

/** One line a call: readable beats wrapped. */
// biome-ignore format: a table
export function apiRoutes({ services, nodes, bindings, transfer, routes, operations, explain, events }: Calls): readonly ApiRoute[] {
  return [
    { method: 'GET',    path: SERVICES, role: 'viewer',   action: null,              query: NONE,  handler: services.list },
    { method: 'POST',   path: SERVICES, role: 'admin',    action: 'service.create',  query: WRITE, handler: services.create },
    { method: 'GET',    path: SERVICE,  role: 'viewer',   action: null,              query: NONE,  handler: services.get },
    { method: 'PUT',    path: SERVICE,  role: 'admin',    action: 'service.replace', query: WRITE, handler: services.replace },
    { method: 'DELETE', path: SERVICE,  role: 'admin',    action: 'service.delete',  query: WRITE, handler: services.remove },

    { method: 'GET',    path: NODES,    role: 'viewer',   action: null,              query: NONE,  handler: nodes.list },
    { method: 'POST',   path: NODES,    role: 'admin',    action: 'node.create',     query: WRITE, handler: nodes.create },
    { method: 'GET',    path: NODE,     role: 'viewer',   action: null,              query: NONE,  handler: nodes.get },
    { method: 'PUT',    path: NODE,     role: 'admin',    action: 'node.replace',    query: WRITE, handler: nodes.replace },
    { method: 'PATCH',  path: NODE,     role: 'operator', action: 'node.change',     query: WRITE, handler: nodes.change },
    { method: 'DELETE', path: NODE,     role: 'admin',    action: 'node.delete',     query: WRITE, handler: nodes.remove },

    { method: 'GET',    path: BINDINGS, role: 'viewer',   action: null,              query: FIND,  handler: bindings.list },
    { method: 'PUT',    path: BINDING,  role: 'operator', action: 'binding.move',    query: WRITE, handler: bindings.put },
    { method: 'PATCH',  path: BINDING,  role: 'operator', action: 'binding.freeze',  query: WRITE, handler: bindings.change },
    { method: 'DELETE', path: BINDING,  role: 'operator', action: 'binding.unbind',  query: WRITE, handler: bindings.remove },
    { method: 'POST',   path: `${BINDINGS}/import`, role: 'operator', action: 'bindings.import', query: [...WRITE, 'nodeId'], handler: transfer.importFile },
    { method: 'GET',    path: `${BINDINGS}/export`, role: 'viewer',   action: null,              query: ['format'],           handler: transfer.exportFile },

    { method: 'GET',    path: ROUTES,   role: 'viewer',   action: null,              query: NONE,  handler: routes.list },
    { method: 'POST',   path: ROUTES,   role: 'admin',    action: 'route.create',    query: WRITE, handler: routes.create },
    { method: 'GET',    path: ROUTE,    role: 'viewer',   action: null,              query: NONE,  handler: routes.get },
    { method: 'PUT',    path: ROUTE,    role: 'admin',    action: 'route.replace',   query: WRITE, handler: routes.replace },
    { method: 'DELETE', path: ROUTE,    role: 'admin',    action: 'route.delete',    query: WRITE, handler: routes.remove },

    { method: 'GET',    path: '/api/whoami',       role: 'viewer', action: null,     query: NONE,  handler: operations.whoami },
    { method: 'GET',    path: '/api/health',       role: 'viewer', action: null,     query: NONE,  handler: operations.health },
    { method: 'GET',    path: '/api/audit',        role: 'viewer', action: null,     query: PAGE,  handler: operations.audit },
    { method: 'GET',    path: '/api/config',       role: 'viewer', action: null,     query: NONE,  handler: operations.config },
    { method: 'POST',   path: '/api/reload',       role: 'admin',  action: 'reload', query: WRITE, handler: operations.reload },
    { method: 'POST',   path: '/api/explain',      role: 'viewer', action: null,     query: NONE,  handler: explain },
    { method: 'GET',    path: '/api/events',       role: 'viewer', action: null,     query: NONE,  handler: events },
    { method: 'GET',    path: '/api/openapi.json', role: 'viewer', action: null,     query: NONE,  handler: () => ({ status: 200, body: openapi }) },
  ];
}
