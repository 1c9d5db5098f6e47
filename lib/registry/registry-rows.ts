/**
 * Rows of gateway_service, gateway_node and gateway_route to definitions and back. Whether a single value is sound is
 * for the checks it is given to say; when to read and what to do with the result is the business of
 * postgres-registry.ts.
 */
import { DEFAULTS } from '../config/options.ts';
import { findMixed } from '../config/services.ts';
import type { NodeDefinition, RegistryDefinition, RouteDefinition, ServiceDefinition } from '../model.ts';
import type { Queryable } from '../stores/postgres.ts';

/** Each returns its value as a complete definition or throws an Error that says what is wrong with it. */
export interface DefinitionChecks {
  /** `value` has every field of a ServiceDefinition; `nodes` is empty. `path` for messages: `services.ai-server`. */
  service(value: unknown, path: string): ServiceDefinition;
  node(value: unknown, path: string): NodeDefinition;
  route(value: unknown, path: string): RouteDefinition;
}

/** Definitions as found, before any check. */
export interface Candidates {
  readonly services: readonly {
    readonly id: string;
    readonly value: object;
    readonly nodes: readonly Candidate[];
  }[];
  readonly routes: readonly Candidate[];
  /** What was noticed while reading: rows and keys that lead nowhere. */
  readonly notes: readonly string[];
}

interface Candidate {
  readonly id: string;
  readonly value: object;
}

export interface Assembled {
  readonly definition: RegistryDefinition;
  /** What was left out or ignored, by name. */
  readonly problems: readonly string[];
}

type Json = Readonly<Record<string, unknown>>;

const OPTION_KEYS = new Set(['affinity', 'placement', 'balance', 'login', 'health', 'timeouts', 'upstream']);

// One statement sees one state of all three tables. Sorted by bytes, so that every database agrees on the order.
const READ_ALL = `SELECT
  (SELECT coalesce(json_agg(s ORDER BY s.id COLLATE "C"), '[]') FROM gateway_service s) AS services,
  (SELECT coalesce(json_agg(n ORDER BY n.id COLLATE "C"), '[]') FROM gateway_node n) AS nodes,
  (SELECT coalesce(json_agg(r ORDER BY r.id COLLATE "C"), '[]') FROM gateway_route r) AS routes`;

export async function readCandidates(client: Queryable): Promise<Candidates> {
  const { rows } = await client.query<{ services: Json[]; nodes: Json[]; routes: Json[] }>(READ_ALL, [], {
    name: 'gateway_registry_read',
  });
  const { services = [], nodes = [], routes = [] } = rows[0] ?? {};
  const notes: string[] = [];
  const nodesOf = new Map<string, Candidate[]>(services.map((row) => [String(row.id), []]));
  for (const row of nodes) {
    const siblings = nodesOf.get(String(row.service_id));
    if (siblings) siblings.push({ id: String(row.id), value: nodeFromRow(row) });
    else notes.push(`node ${row.id}: its service ${row.service_id} does not exist`);
  }
  return {
    services: services.map((row) => {
      const id = String(row.id);
      for (const key of Object.keys(object(row.options))) {
        if (!OPTION_KEYS.has(key)) notes.push(`service ${id}: options.${key} is not known and was ignored`);
      }
      return { id, value: serviceFromRow(row), nodes: nodesOf.get(id) ?? [] };
    }),
    routes: routes.map((row) => ({ id: String(row.id), value: routeFromRow(row) })),
    notes,
  };
}

/** A definition that was stored as JSON, as candidates: it may be from another version of the program. */
export function candidatesOf(definition: { services: readonly unknown[]; routes: readonly unknown[] }): Candidates {
  return {
    services: definition.services.map((entry) => {
      const value = object(entry);
      const nodes = Array.isArray(value.nodes) ? value.nodes.map(object) : [];
      return {
        id: String(value.id),
        value: { ...value, nodes: [] },
        nodes: nodes.map((node) => ({ id: String(node.id), value: node })),
      };
    }),
    routes: definition.routes.map(object).map((value) => ({ id: String(value.id), value })),
    notes: [],
  };
}

/** Keeps what is sound on its own and among the others; the rest is left out and named. */
export function assemble(candidates: Candidates, checks: DefinitionChecks): Assembled {
  const problems = [...candidates.notes];
  const keep = <T>(what: string, check: () => T): T | undefined => {
    try {
      return check();
    } catch (error) {
      problems.push(`${what} is left out: ${error instanceof Error ? error.message : String(error)}`);
      return undefined;
    }
  };
  const prefixes = new Map<string, string>();
  const claimPrefix = (prefix: string | null, owner: string): void => {
    if (prefix === null) return;
    const other = prefixes.get(prefix);
    if (other) throw new Error(`${other} has the path prefix ${prefix} already`);
    prefixes.set(prefix, owner);
  };

  const services = candidates.services.flatMap(({ id, value, nodes }) => {
    const path = `services.${id}`;
    const service = keep(`service ${id}`, () => {
      const checked = checks.service(value, path);
      claimPrefix(checked.pathPrefix, `service ${id}`);
      return checked;
    });
    if (!service) return [];
    const sound = nodes.flatMap(
      (node) => keep(`node ${node.id}`, () => checks.node(node.value, `${path}.nodes.${node.id}`)) ?? [],
    );
    return [withDefaultNode({ ...service, nodes: sound }, problems)];
  });
  const serviceIds = new Set(services.map((service) => service.id));
  const routes = candidates.routes.flatMap(({ id, value }) => {
    const route = keep(`route ${id}`, () => {
      const checked = checks.route(value, `routes.${id}`);
      if (serviceIds.has(id)) throw new Error('a service has this id; both own tokens by it');
      const missing = checked.versions.find((version) => !serviceIds.has(version.service));
      if (missing) throw new Error(`version ${missing.version}: there is no service ${missing.service}`);
      const mixed = findMixed(checked, services);
      if (mixed) throw new Error(`version ${checked.versions[mixed.index]?.version} ${mixed.message}`);
      claimPrefix(checked.pathPrefix, `route ${id}`);
      return checked;
    });
    return route ? [route] : [];
  });
  return { definition: { services, routes }, problems };
}

/** Users are not sent to a default node that is not there. */
function withDefaultNode(service: ServiceDefinition, problems: string[]): ServiceDefinition {
  const { defaultNodeId } = service;
  if (defaultNodeId === null || service.nodes.some((node) => node.id === defaultNodeId)) return service;
  problems.push(`service ${service.id}: its default node ${defaultNodeId} is not among its nodes and was ignored`);
  return { ...service, defaultNodeId: null };
}

/** A row of an older gateway has no options and NULL where this one has defaults. */
function serviceFromRow(row: Json): object {
  const defaults = DEFAULTS.service;
  const options = object(row.options);
  const login = object(options.login);
  return {
    id: row.id,
    name: row.name ?? defaults.name,
    pathPrefix: textOrNull(row.path_prefix),
    loginPath: textOrNull(row.login_path),
    healthPath: textOrNull(row.health_path),
    defaultNodeId: textOrNull(row.default_node_id),
    enabled: flag(row.enabled, defaults.enabled),
    affinity: options.affinity ?? defaults.affinity,
    placement: options.placement ?? defaults.placement,
    balance: options.balance ?? defaults.balance,
    login: {
      also: login.also ?? defaults.login.also,
      request: { ...defaults.login.request, ...object(login.request) },
      response: { ...defaults.login.response, ...object(login.response) },
    },
    health: { ...defaults.health, ...object(options.health) },
    timeouts: { ...defaults.timeouts, ...object(options.timeouts) },
    upstream: { ...defaults.upstream, ...object(options.upstream) },
    nodes: [],
  };
}

function nodeFromRow(row: Json): object {
  const defaults = DEFAULTS.node;
  return {
    id: row.id,
    name: row.name ?? defaults.name,
    baseUrl: row.base_url,
    enabled: flag(row.enabled, defaults.enabled),
    draining: flag(row.draining, defaults.draining),
    weight: row.weight ?? defaults.weight,
    maxUsers: row.max_users ?? defaults.maxUsers,
    remark: row.remark ?? defaults.remark,
  };
}

function routeFromRow(row: Json): object {
  const defaults = DEFAULTS.route;
  const config = object(row.config);
  const versions = Array.isArray(config.versions) ? config.versions : [];
  return {
    id: row.id,
    pathPrefix: row.path_prefix,
    enabled: flag(row.enabled, defaults.enabled),
    fallback: config.fallback ?? defaults.fallback,
    versions: versions.map((version) => ({
      weight: defaults.versionWeight,
      enabled: defaults.versionEnabled,
      ...object(version),
    })),
    rules: config.rules ?? [],
  };
}

/** Writes a definition row by row; rows that are there are replaced, others are left alone. */
export async function writeRegistry(client: Queryable, definition: RegistryDefinition): Promise<void> {
  for (const service of definition.services) await writeService(client, service);
  for (const route of definition.routes) await writeRoute(client, route);
}

/** The service's own row and those of its nodes; nodes that are not in the definition stay. */
export async function writeService(client: Queryable, service: ServiceDefinition): Promise<void> {
  const { affinity, placement, balance, login, health, timeouts, upstream } = service;
  await client.query(
    `INSERT INTO gateway_service (id, name, path_prefix, login_path, health_path, default_node_id, enabled, options)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
     ON CONFLICT (id) DO UPDATE SET name = excluded.name, path_prefix = excluded.path_prefix,
       login_path = excluded.login_path, health_path = excluded.health_path,
       default_node_id = excluded.default_node_id, enabled = excluded.enabled, options = excluded.options`,
    [
      service.id,
      service.name,
      service.pathPrefix,
      service.loginPath,
      service.healthPath,
      service.defaultNodeId,
      service.enabled ? 1 : 0,
      JSON.stringify({ affinity, placement, balance, login, health, timeouts, upstream }),
    ],
  );
  for (const node of service.nodes) await writeNode(client, service.id, node);
}

export async function writeNode(client: Queryable, serviceId: string, node: NodeDefinition): Promise<void> {
  await client.query(
    `INSERT INTO gateway_node (id, service_id, name, base_url, enabled, draining, weight, max_users, remark)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
     ON CONFLICT (id) DO UPDATE SET service_id = excluded.service_id, name = excluded.name,
       base_url = excluded.base_url, enabled = excluded.enabled, draining = excluded.draining,
       weight = excluded.weight, max_users = excluded.max_users, remark = excluded.remark`,
    [
      node.id,
      serviceId,
      node.name,
      node.baseUrl,
      node.enabled ? 1 : 0,
      node.draining ? 1 : 0,
      node.weight,
      node.maxUsers,
      node.remark,
    ],
  );
}

export async function writeRoute(client: Queryable, route: RouteDefinition): Promise<void> {
  const { fallback, versions, rules } = route;
  await client.query(
    `INSERT INTO gateway_route (id, path_prefix, enabled, config) VALUES ($1, $2, $3, $4)
     ON CONFLICT (id) DO UPDATE SET path_prefix = excluded.path_prefix, enabled = excluded.enabled,
       config = excluded.config`,
    [route.id, route.pathPrefix, route.enabled ? 1 : 0, JSON.stringify({ fallback, versions, rules })],
  );
}

function object(value: unknown): Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : {};
}

function textOrNull(value: unknown): unknown {
  return value === undefined || value === '' ? null : value;
}

/** smallint switches: NULL = the default, 0 = off, anything else = on. */
function flag(value: unknown, whenNull: boolean): boolean {
  return value === null || value === undefined ? whenNull : value !== 0 && value !== false;
}
