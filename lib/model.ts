/**
 * The glossary of the program as types: services, nodes, routes, bindings, and the snapshot a request sees.
 * All of it is readonly and swapped whole; nothing in here does work.
 */

/** A user's affinity to nodes: `user` binds each user to one node, `none` balances every request. */
export type Affinity = 'user' | 'none';
/** Which node a user without a binding gets at login. */
export type Placement = 'round-robin' | 'least-users' | 'weighted';
/** How a stateless service picks a node. */
export type Balance = 'weighted' | 'round-robin' | 'random' | 'consistent-hash';

/** One backend process, as configured. `id` is unique across all services. */
export interface NodeDefinition {
  readonly id: string;
  readonly name: string;
  /** Scheme, host and port, without a path: `http://127.0.0.1:9001`. */
  readonly baseUrl: string;
  readonly enabled: boolean;
  /** A draining node keeps its bound users and gets no new ones. */
  readonly draining: boolean;
  /** Share of the load, 0 or more; 0 gets nothing. */
  readonly weight: number;
  /** Most users that may be bound to the node; null = no bound. */
  readonly maxUsers: number | null;
  readonly remark: string;
}

/** Where a login response says that it succeeded and who logged in. */
export interface LoginResponseMapping {
  /** Dotted path -> value that must be equal, for example `{ code: 200 }`. */
  readonly success: Readonly<Record<string, string | number | boolean | null>>;
  /** Dotted path of the user id. */
  readonly userId: string;
  /** Dotted path of the username; null = the response has none and the request's username is used. */
  readonly username: string | null;
  /** Dotted path, or `cookie:NAME`, or `header:NAME`; null = the response carries no token. */
  readonly token: string | null;
}

export interface LoginMapping {
  /** Further login paths below the prefix, with the same mapping. */
  readonly also: readonly string[];
  readonly request: { readonly username: string };
  readonly response: LoginResponseMapping;
}

/** Health settings of one service; null in a field = the global setting. Durations in milliseconds. */
export interface ServiceHealthDefinition {
  readonly intervalMs: number | null;
  readonly timeoutMs: number | null;
  readonly failures: number | null;
  /** 0 to 0.5: each period varies by so large a part of itself. */
  readonly jitter: number | null;
  /** Least time between probes that requests for a DOWN node ask for. */
  readonly onDemandMs: number | null;
  /** Periods of a stateless service that names no interval. */
  readonly tiers: {
    readonly regularMs: number | null;
    readonly stableMs: number | null;
    readonly degradedMs: number | null;
    readonly stableAfter: number | null;
    readonly degradedAfter: number | null;
  };
}

/** Timeouts of one service; null in a field = the global setting. Milliseconds. */
export interface ServiceTimeoutsDefinition {
  readonly connectMs: number | null;
  readonly responseMs: number | null;
  readonly idleMs: number | null;
}

/** How requests are put on the wire to a service's nodes. */
export interface UpstreamDefinition {
  /** `client` forwards Host as sent, `node` puts the node's own authority there. */
  readonly hostHeader: 'client' | 'node';
  /** Path of a PEM file with the certificate authorities for https nodes; null = the system's. */
  readonly ca: string | null;
  /** True = https certificates are not verified. */
  readonly insecure: boolean;
}

/** A path prefix and the nodes behind it, as configured: defaults filled in, not yet indexed. */
export interface ServiceDefinition {
  readonly id: string;
  readonly name: string;
  /** Starts with '/', no trailing '/', except the prefix '/' itself. null = reached only through routes. */
  readonly pathPrefix: string | null;
  /** Path below the prefix; null = no login stickiness. */
  readonly loginPath: string | null;
  /** Path of the probe; null = a TCP connect. */
  readonly healthPath: string | null;
  /** Where users with a valid token but no binding go; null = they get 503 `user_not_bound`. */
  readonly defaultNodeId: string | null;
  readonly enabled: boolean;
  readonly affinity: Affinity;
  readonly placement: Placement;
  readonly balance: Balance;
  readonly login: LoginMapping;
  readonly health: ServiceHealthDefinition;
  readonly timeouts: ServiceTimeoutsDefinition;
  readonly upstream: UpstreamDefinition;
  readonly nodes: readonly NodeDefinition[];
}

export interface RouteVersion {
  readonly version: string;
  readonly service: string;
  readonly weight: number;
  readonly enabled: boolean;
}

export type RouteRule =
  | {
      readonly type: 'header' | 'cookie' | 'query';
      readonly name: string;
      readonly value: string;
      readonly version: string;
    }
  | { readonly type: 'weight'; readonly value: number; readonly version: string };

/** A path prefix in front of several services, one per version. */
export interface RouteDefinition {
  readonly id: string;
  readonly pathPrefix: string;
  readonly enabled: boolean;
  /** True = when the chosen version has no usable node, another version may answer. */
  readonly fallback: boolean;
  readonly versions: readonly RouteVersion[];
  readonly rules: readonly RouteRule[];
}

/** What an operator wrote down, whole: the input of a snapshot. */
export interface RegistryDefinition {
  readonly services: readonly ServiceDefinition[];
  readonly routes: readonly RouteDefinition[];
}

/** A node inside a snapshot, with what the hot path needs parsed once. */
export interface Node extends NodeDefinition {
  readonly serviceId: string;
  readonly protocol: 'http:' | 'https:';
  readonly hostname: string;
  readonly port: number;
  /** `host[:port]` as it belongs in a Host header. */
  readonly authority: string;
  /** Identifies address and probe for health: `http://127.0.0.1:9001/health`, or `tcp://…` without a path. */
  readonly healthKey: string;
}

/** A service inside a snapshot. */
export interface Service extends Omit<ServiceDefinition, 'nodes'> {
  readonly nodes: readonly Node[];
  readonly nodesById: ReadonlyMap<string, Node>;
  /** Full login paths (prefix + path), empty without login stickiness. Below a route: without the route's prefix. */
  readonly loginPaths: ReadonlySet<string>;
}

export interface Route extends RouteDefinition {
  readonly services: readonly Service[];
}

/** What a path prefix leads to. `realm` owns the prefix and with it the token keys. */
export type Match =
  | { readonly realm: string; readonly prefix: string; readonly service: Service; readonly route: null }
  | { readonly realm: string; readonly prefix: string; readonly service: null; readonly route: Route };

/** The immutable view of services, nodes and routes that one request sees. Built by lib/registry/snapshot.ts. */
export interface Snapshot {
  /** Counts up with each swap in this process. */
  readonly version: number;
  /** When the definition was read from its source of truth, epoch milliseconds. */
  readonly loadedAtMs: number;
  /** True = taken from the last-good file because the source of truth could not be read. */
  readonly stale: boolean;
  readonly definition: RegistryDefinition;
  readonly services: ReadonlyMap<string, Service>;
  readonly routes: ReadonlyMap<string, Route>;
  readonly nodes: ReadonlyMap<string, Node>;
  /** Longest prefix of `path` (no query) on segment boundaries. */
  match(path: string): Match | undefined;
}

/** User -> node within one service. At least one of userId and username is set. */
export interface Binding {
  readonly serviceId: string;
  readonly userId: string | null;
  /** As stored; compared through normalizeUsername. */
  readonly username: string | null;
  readonly nodeId: string;
  /** Counts up each time the binding moves; 1 or more. */
  readonly epoch: number;
  readonly frozen: boolean;
}
