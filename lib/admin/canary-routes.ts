/** Calls on routes with versions. Which version a request gets is decided in lib/canary. */
import { checkRouteDefinition } from '../config/stored-definitions.ts';
import type { RegistryDefinition, RouteDefinition } from '../model.ts';
import { AdminError, notFound } from './admin-error.ts';
import { toPlain } from './body.ts';
import type { CallHandler } from './call.ts';
import {
  definitionOf,
  etagOf,
  requireMatch,
  runEdit,
  type SnapshotSource,
  snapshotOf,
  withIdOfPath,
} from './definitions.ts';
import type { RegistryEditor } from './registry-editor.ts';

export interface RouteCallOptions {
  readonly registry: SnapshotSource;
  readonly editor: RegistryEditor;
}

export type RouteCalls = Record<'list' | 'get' | 'create' | 'replace' | 'remove', CallHandler>;

export function routeCalls({ registry, editor }: RouteCallOptions): RouteCalls {
  return {
    list: () => ({ status: 200, body: { routes: snapshotOf(registry).definition.routes } }),

    get: (call) => {
      const route = findRoute(snapshotOf(registry).definition, call.param('route'));
      return { status: 200, body: { ...route }, headers: { ETag: etagOf(route) } };
    },

    create: async (call) => {
      const route = definitionOf(checkRouteDefinition(toPlain(await call.json()), ''));
      call.audit.target = `routes/${route.id}`;
      return runEdit(call, editor, async ({ current, isTaken }) => {
        if (isTaken('route', route.id)) throw new AdminError('conflict', `there is a route '${route.id}' already`);
        return {
          next: { ...current, routes: [...current.routes, route] },
          before: null,
          after: route,
          status: 201,
          body: { ...route },
          location: `/api/routes/${route.id}`,
          place: `routes[${current.routes.length}]`,
        };
      });
    },

    replace: async (call) => {
      const body = withIdOfPath(toPlain(await call.json()) as Record<string, unknown>, call.param('route'));
      const route = definitionOf(checkRouteDefinition(body, ''));
      return runEdit(call, editor, async ({ current }) => {
        const before = findRoute(current, route.id);
        requireMatch(call, before);
        return {
          next: { ...current, routes: current.routes.map((one) => (one === before ? route : one)) },
          before,
          after: route,
          status: 200,
          body: { ...route },
          place: `routes[${current.routes.indexOf(before)}]`,
        };
      });
    },

    remove: (call) =>
      runEdit(call, editor, async ({ current }) => {
        const route = findRoute(current, call.param('route'));
        requireMatch(call, route);
        return {
          next: { ...current, routes: current.routes.filter((one) => one !== route) },
          before: route,
          after: null,
          status: 200,
          body: { deleted: `routes/${route.id}` },
          place: null,
        };
      }),
  };
}

function findRoute(definition: RegistryDefinition, id: string): RouteDefinition {
  const route = definition.routes.find((one) => one.id === id);
  if (!route) throw notFound(`route '${id}'`);
  return route;
}
