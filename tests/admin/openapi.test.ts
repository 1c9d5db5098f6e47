/** The OpenAPI document against the table of routes: every call is in both, with the same role and parameters. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { apiRoutes, type Calls } from '../../lib/admin/api-routes.ts';
import { openapi } from '../../lib/admin/openapi.ts';
import { NODE_KEYS, ROUTE_KEYS, SERVICE_KEYS } from '../../lib/config/services.ts';
import { schemaFaults } from '../support/schema-check.ts';

type Json = Record<string, unknown>;

const nothing = new Proxy({}, { get: () => () => null });
const ROUTES = apiRoutes(
  Object.fromEntries(
    ['services', 'nodes', 'bindings', 'transfer', 'routes', 'operations', 'explain', 'events'].map((key) => [
      key,
      nothing,
    ]),
  ) as unknown as Calls,
);
const METHODS = ['get', 'post', 'put', 'patch', 'delete'];
const operations = Object.entries(openapi.paths).flatMap(([path, item]) =>
  Object.entries(item as Json)
    .filter(([method]) => METHODS.includes(method))
    .map(([method, operation]) => ({ path, method: method.toUpperCase(), operation: operation as Json })),
);

describe('the OpenAPI document', () => {
  it('has every call of the table, and no others', () => {
    const inTable = ROUTES.map(({ method, path }) => `${method} ${path.replace(/:(\w+)/g, '{$1}')}`);
    assert.deepEqual(operations.map(({ method, path }) => `${method} ${path}`).sort(), inTable.sort());
  });

  it('says of each call who may make it and which parameters it knows', () => {
    for (const { method, path, role, query } of ROUTES) {
      const found = operations.find((one) => one.method === method && one.path === path.replace(/:(\w+)/g, '{$1}'));
      assert.equal(found?.operation['x-role'], role, `${method} ${path}`);
      const parameters = ((found?.operation['parameters'] ?? []) as Json[]).filter((one) => one['in'] === 'query');
      assert.deepEqual(parameters.map((one) => one['name']).sort(), [...query].sort(), `${method} ${path}`);
    }
  });

  it('has only references that lead somewhere', () => {
    const names = new Set(Object.keys(openapi.components.schemas));
    const used = [...JSON.stringify(openapi).matchAll(/"#\/components\/schemas\/(\w+)"/g)].map(
      ([, name]) => name as string,
    );
    assert.deepEqual(
      used.filter((name) => !names.has(name)),
      [],
    );
    assert.deepEqual(
      [...names].filter((name) => !used.includes(name)),
      [],
    );
  });

  it('knows the keys that services, nodes and routes have in the file', () => {
    const keysOf = (name: string) =>
      Object.keys(((openapi.components.schemas[name] as Json)['properties'] ?? {}) as Json);
    assert.deepEqual(keysOf('ServiceDraft').sort(), [...SERVICE_KEYS].sort());
    assert.deepEqual(keysOf('NodeDefinition').sort(), [...NODE_KEYS].sort());
    assert.deepEqual(keysOf('RouteDraft').sort(), [...ROUTE_KEYS].sort());
  });

  it('is JSON, and the checker of it finds faults', () => {
    assert.deepEqual(JSON.parse(JSON.stringify(openapi)), openapi);
    const binding = { userId: '1', username: null, nodeId: 'n', epoch: 1, frozen: false };
    const schema = { $ref: '#/components/schemas/Binding' };
    assert.deepEqual(schemaFaults(binding, schema, openapi), []);
    for (const wrong of [
      { ...binding, epoch: '1' },
      { ...binding, more: 1 },
      { ...binding, epoch: 0 },
      { userId: '1' },
      [],
      null,
    ])
      assert.notDeepEqual(schemaFaults(wrong, schema, openapi), [], JSON.stringify(wrong));
  });
});
