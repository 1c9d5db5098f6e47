/**
 * The complete, readonly configuration as every part of the program sees it, and every default in one constant.
 * Reading the file is done in load.ts. Durations are milliseconds, sizes bytes.
 */
import type { RegistryDefinition } from '../model.ts';

export interface TlsFiles {
  readonly cert: string;
  readonly key: string;
}

export interface ListenOptions {
  readonly host: string;
  /** 0 = any free port. */
  readonly port: number;
  readonly tls: TlsFiles | null;
}

export interface PostgresOptions {
  readonly url: string;
  readonly poolSize: number;
  readonly connectTimeoutMs: number;
  readonly queryTimeoutMs: number;
  /** True = bring the schema up to date at start. */
  readonly migrate: boolean;
}

export type RedisTarget =
  | { readonly kind: 'single'; readonly url: string }
  | { readonly kind: 'cluster'; readonly nodes: readonly string[] }
  | { readonly kind: 'sentinel'; readonly sentinels: readonly string[]; readonly name: string };

export interface RedisOptions {
  readonly target: RedisTarget;
  /** Longest wait for one command before the store counts as failing. */
  readonly timeoutMs: number;
}

export interface SaTokenResolverOptions {
  readonly type: 'saToken';
  /** null = the gateway's own Redis. */
  readonly redis: RedisOptions | null;
  readonly tokenName: string;
  readonly loginTypes: readonly string[];
  readonly keyPrefix: string;
  readonly codec: 'auto' | 'plain' | 'json' | 'kryo5' | 'jdk';
  /** Seconds of inactivity after which a login is frozen; null = off. */
  readonly activeTimeoutSeconds: number | null;
  /** True = the second field of last-active decides, where present. */
  readonly dynamicActiveTimeout: boolean;
}

export interface JwtResolverOptions {
  readonly type: 'jwt';
  readonly secret: string | null;
  /** PEM text or the path of a PEM file. */
  readonly publicKey: string | null;
  readonly jwksFile: string | null;
  readonly algorithms: readonly string[];
  readonly claim: string;
  readonly issuer: string | null;
  readonly audience: string | null;
  readonly leewayMs: number;
  /** Set = the Sa-Token mixin/stateless form: `eff` and `loginType` are checked, the id is `loginId`. */
  readonly saToken: { readonly loginType: string } | null;
}

export interface RedisResolverOptions {
  readonly type: 'redis';
  /** null = the gateway's own Redis. */
  readonly redis: RedisOptions | null;
  /** Key with `{token}` in it. */
  readonly key: string;
  /** Hash field; null = the key is a string. */
  readonly field: string | null;
  /** Dotted path into a JSON value; null = the value itself is the user id. */
  readonly jsonPath: string | null;
}

export type ResolverOptions = SaTokenResolverOptions | JwtResolverOptions | RedisResolverOptions;

/** Where a request carries its token; read in this order, the first non-empty wins. */
export interface TokenSourceOptions {
  readonly header: string | null;
  readonly cookie: string | null;
  readonly query: string | null;
  /** Stripped for the look-up only, for example `Bearer`. */
  readonly prefix: string | null;
}

export interface HealthOptions {
  readonly intervalMs: number;
  readonly timeoutMs: number;
  /** Consecutive failures that make a node DOWN, 1 or more. */
  readonly failures: number;
  /** Health path of services that do not name one; null = a TCP connect. */
  readonly path: string | null;
  /** Share of the interval by which each probe is shifted at random, 0 to 0.5. */
  readonly jitter: number;
  readonly tiers: {
    readonly regularMs: number;
    readonly stableMs: number;
    readonly degradedMs: number;
    readonly stableAfter: number;
    readonly degradedAfter: number;
  };
  /** Least time between two probes that requests for a DOWN node's users ask for. */
  readonly onDemandMs: number;
  /** So many nodes changing state within the window mean that the gateway's own network is at fault. */
  readonly suspicion: { readonly flips: number; readonly windowMs: number };
}

export interface CorsOptions {
  readonly enabled: boolean;
  readonly allowedOriginPatterns: readonly string[];
  readonly allowCredentials: boolean;
  readonly maxAgeMs: number;
}

export type LogLevel = 'debug' | 'info' | 'warn' | 'error';

export interface AdminToken {
  readonly name: string;
  readonly role: 'viewer' | 'operator' | 'admin';
  readonly token: string;
}

export interface GatewayOptions {
  readonly listen: readonly ListenOptions[];
  /** Number of processes; `auto` = one per core. */
  readonly workers: number | 'auto';
  readonly trustedProxies: readonly string[];
  readonly allow: readonly string[];
  readonly store: {
    readonly dataDir: string;
    readonly postgres: PostgresOptions | null;
    readonly redis: RedisOptions | null;
  };
  readonly cache: {
    readonly ttlMs: number;
    readonly staleIfErrorMs: number;
    readonly maxEntries: number;
    readonly redisTtlMs: number;
  };
  readonly identity: {
    readonly token: TokenSourceOptions;
    readonly tokenTtlMs: number;
    readonly resolvers: readonly ResolverOptions[];
    readonly unknownToken: 'anonymous' | 'reject';
  };
  readonly registry: { readonly pollIntervalMs: number };
  readonly health: HealthOptions;
  readonly timeouts: {
    readonly connectMs: number;
    /** From the last byte of the request to the response head. */
    readonly responseMs: number;
    /** Longest silence in the middle of a body or a tunnel. */
    readonly idleMs: number;
    readonly requestHeadMs: number;
    readonly keepAliveMs: number;
  };
  readonly limits: {
    readonly loginRequestBytes: number;
    readonly loginResponseBytes: number;
    readonly headerBytes: number;
    readonly bodyBytes: number | null;
    readonly connectionsPerNode: number | null;
  };
  readonly cors: CorsOptions;
  /** Pseudonym for the Via field; null = no Via is added. */
  readonly via: string | null;
  readonly log: { readonly level: LogLevel; readonly access: boolean; readonly format: 'json' | 'text' };
  readonly admin: {
    /** null = no admin listener. */
    readonly listen: ListenOptions | null;
    readonly allow: readonly string[];
    readonly tokens: readonly AdminToken[];
  };
  readonly shutdown: { readonly graceMs: number; readonly delayMs: number };
  readonly registryDefinition: RegistryDefinition;
}

/** Every default. `services` is the only key a file must have. */
export const DEFAULTS = {
  listen: [{ host: '0.0.0.0', port: 8080, tls: null }],
  workers: 1,
  trustedProxies: [],
  allow: [],
  store: { dataDir: './gateway-data', postgres: null, redis: null },
  postgres: { poolSize: 10, connectTimeoutMs: 3_000, queryTimeoutMs: 2_000, migrate: true },
  redis: { timeoutMs: 100 },
  cache: { ttlMs: 10_000, staleIfErrorMs: 300_000, maxEntries: 200_000, redisTtlMs: 600_000 },
  identity: {
    token: { header: 'x-token', cookie: null, query: null, prefix: null },
    tokenTtlMs: 86_400_000,
    resolvers: [],
    unknownToken: 'anonymous',
  },
  saToken: {
    tokenName: 'satoken',
    loginTypes: ['login'],
    keyPrefix: '',
    codec: 'auto',
    activeTimeoutSeconds: null,
    dynamicActiveTimeout: false,
  },
  jwt: { claim: 'sub', leewayMs: 0 },
  registry: { pollIntervalMs: 10_000 },
  health: {
    intervalMs: 5_000,
    timeoutMs: 2_000,
    failures: 3,
    path: '/health',
    jitter: 0.1,
    tiers: { regularMs: 30_000, stableMs: 120_000, degradedMs: 180_000, stableAfter: 10, degradedAfter: 5 },
    onDemandMs: 1_000,
    suspicion: { flips: 10, windowMs: 10_000 },
  },
  timeouts: {
    connectMs: 3_000,
    responseMs: 60_000,
    idleMs: 300_000,
    requestHeadMs: 10_000,
    keepAliveMs: 75_000,
  },
  limits: {
    loginRequestBytes: 65_536,
    loginResponseBytes: 262_144,
    headerBytes: 32_768,
    bodyBytes: null,
    connectionsPerNode: null,
  },
  cors: { enabled: false, allowedOriginPatterns: [], allowCredentials: false, maxAgeMs: 3_600_000 },
  via: null,
  log: { level: 'info', access: true, format: 'json' },
  admin: {
    listen: { host: '127.0.0.1', port: 9090, tls: null },
    allow: ['127.0.0.1/32', '::1/128'],
    tokens: [],
  },
  shutdown: { graceMs: 30_000, delayMs: 0 },
  service: {
    name: '',
    loginPath: null,
    defaultNodeId: null,
    enabled: true,
    affinity: 'user',
    placement: 'round-robin',
    balance: 'weighted',
    login: {
      also: [],
      request: { username: 'username' },
      response: {
        success: { code: 200 },
        userId: 'data.userId',
        username: 'data.username',
        token: 'data.token',
      },
    },
    health: {
      intervalMs: null,
      timeoutMs: null,
      failures: null,
      jitter: null,
      onDemandMs: null,
      tiers: { regularMs: null, stableMs: null, degradedMs: null, stableAfter: null, degradedAfter: null },
    },
    timeouts: { connectMs: null, responseMs: null, idleMs: null },
    upstream: { hostHeader: 'client', ca: null, insecure: false },
  },
  node: { name: '', enabled: true, draining: false, weight: 1, maxUsers: null, remark: '' },
  route: { enabled: true, fallback: false, versionEnabled: true, versionWeight: 0 },
} as const;
