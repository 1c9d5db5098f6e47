/**
 * Builds the frozen snapshot from a checked definition: parsed node addresses, indexes, and the prefix match.
 * Checking the definition is the loader's duty; a definition that reaches this file is sound.
 */
import type {
  Match,
  Node,
  NodeDefinition,
  RegistryDefinition,
  Route,
  Service,
  ServiceDefinition,
  Snapshot,
} from '../model.ts';
import { foldPath } from '../support/fold-path.ts';

export interface SnapshotMeta {
  readonly version: number;
  readonly loadedAtMs: number;
  readonly stale: boolean;
}

export function buildSnapshot(definition: RegistryDefinition, meta: SnapshotMeta): Snapshot {
  const services = new Map(definition.services.map((service) => [service.id, buildService(service)]));
  const nodes = new Map<string, Node>();
  for (const service of services.values()) for (const node of service.nodes) nodes.set(node.id, node);
  const routes = new Map<string, Route>(
    definition.routes.map((route) => [
      route.id,
      Object.freeze({
        ...route,
        services: route.versions.flatMap((version) => services.get(version.service) ?? []),
      }),
    ]),
  );
  const prefixes = indexPrefixes(services, routes);
  const longest = Math.max(0, ...[...prefixes.keys()].map((prefix) => prefix.length));
  return Object.freeze({
    ...meta,
    definition,
    services,
    routes,
    nodes,
    match: (path: string) => longestPrefix(prefixes, longest, path),
  });
}

function buildService(definition: ServiceDefinition): Service {
  const nodes = definition.nodes.map((node) => buildNode(definition, node));
  const prefix = definition.pathPrefix === null || definition.pathPrefix === '/' ? '' : definition.pathPrefix;
  const paths = definition.loginPath === null ? [] : [definition.loginPath, ...definition.login.also];
  return Object.freeze({
    ...definition,
    nodes,
    nodesById: new Map(nodes.map((node) => [node.id, node])),
    loginPaths: new Set(paths.map((path) => foldPath(prefix + path))),
  });
}

function buildNode(service: ServiceDefinition, definition: NodeDefinition): Node {
  const url = new URL(definition.baseUrl);
  const protocol = url.protocol === 'https:' ? 'https:' : 'http:';
  const port = url.port === '' ? (protocol === 'https:' ? 443 : 80) : Number(url.port);
  // URL keeps the brackets of an IPv6 address; sockets want it bare.
  const hostname = url.hostname.startsWith('[') ? url.hostname.slice(1, -1) : url.hostname;
  return Object.freeze({
    ...definition,
    serviceId: service.id,
    protocol,
    hostname,
    port,
    authority: url.host,
    healthKey:
      service.healthPath === null
        ? `tcp://${url.hostname}:${port}`
        : `${protocol}//${url.hostname}:${port}${service.healthPath}`,
  });
}

function indexPrefixes(services: ReadonlyMap<string, Service>, routes: ReadonlyMap<string, Route>): Map<string, Match> {
  const prefixes = new Map<string, Match>();
  for (const service of services.values()) {
    if (service.pathPrefix === null) continue;
    prefixes.set(
      prefixKey(service.pathPrefix),
      Object.freeze({ realm: service.id, prefix: prefixKey(service.pathPrefix), service, route: null }),
    );
  }
  for (const route of routes.values()) {
    prefixes.set(
      prefixKey(route.pathPrefix),
      Object.freeze({ realm: route.id, prefix: prefixKey(route.pathPrefix), service: null, route }),
    );
  }
  return prefixes;
}

/** '/' is the empty prefix: every path begins with it. */
function prefixKey(pathPrefix: string): string {
  return pathPrefix === '/' ? '' : pathPrefix;
}

/**
 * Tries each run of whole segments, from the longest that can be a prefix: one look-up a segment, whatever the number
 * of prefixes. `longest` is the length of the longest one; without it a path of 8,000 slashes would cost 0.2 s.
 */
function longestPrefix(prefixes: ReadonlyMap<string, Match>, longest: number, path: string): Match | undefined {
  let end = path.length <= longest ? path.length : path.lastIndexOf('/', longest);
  while (end > 0) {
    const match = prefixes.get(path.slice(0, end));
    if (match) return match;
    end = path.lastIndexOf('/', end - 1);
  }
  return prefixes.get('');
}
