/** Checks of everything at the top level of a configuration file, and the defaults for what is not written. */
import { isIPv6 } from 'node:net';
import type { Field, FieldObject, ResolvePath } from './fields.ts';
import {
  type AdminToken,
  DEFAULTS,
  type GatewayOptions,
  type HealthOptions,
  type ListenOptions,
  type PostgresOptions,
} from './options.ts';
import { checkRedis, checkUrl, REDIS_KEYS } from './redis.ts';
import { checkResolver } from './resolvers.ts';
import { checkHealthPath, checkReachable, checkRoute, checkService, checkTogether, TOKEN } from './services.ts';

/** Every key of the file, by the object it stands in; the JSON Schema is held against it. */
export const FILE_KEYS = {
  file: [
    'listen',
    'workers',
    'trustedProxies',
    'allow',
    'store',
    'cache',
    'identity',
    'registry',
    'health',
    'timeouts',
    'limits',
    'cors',
    'via',
    'log',
    'admin',
    'shutdown',
    'services',
    'routes',
  ],
  listen: ['host', 'port', 'tls'],
  tls: ['cert', 'key'],
  store: ['dataDir', 'postgres', 'redis'],
  postgres: ['url', 'poolSize', 'connectTimeout', 'queryTimeout', 'migrate'],
  redis: REDIS_KEYS,
  cache: ['ttl', 'staleIfError', 'maxEntries', 'redisTtl'],
  identity: ['token', 'tokenTtl', 'resolvers', 'unknownToken'],
  token: ['header', 'cookie', 'query', 'prefix'],
  registry: ['pollInterval'],
  health: ['interval', 'timeout', 'failures', 'path', 'jitter', 'tiers', 'onDemand', 'suspicion'],
  tiers: ['regular', 'stable', 'degraded', 'stableAfter', 'degradedAfter'],
  suspicion: ['flips', 'within'],
  timeouts: ['connect', 'response', 'idle', 'requestHead', 'keepAlive'],
  limits: ['loginRequest', 'loginResponse', 'header', 'body', 'connectionsPerNode'],
  cors: ['enabled', 'allowedOriginPatterns', 'allowCredentials', 'maxAge'],
  log: ['level', 'access', 'format'],
  admin: ['listen', 'allow', 'tokens'],
  adminToken: ['name', 'role', 'token'],
  shutdown: ['grace', 'delay'],
} as const;
export const LOG_LEVELS = ['debug', 'info', 'warn', 'error'] as const;
export const LOG_FORMATS = ['json', 'text'] as const;
export const ROLES = ['viewer', 'operator', 'admin'] as const;
export const UNKNOWN_TOKEN = ['anonymous', 'reject'] as const;

export const MIN_ADMIN_TOKEN = 16;
/** A Map of Node ends at 2^24 entries. */
const MOST_ENTRIES = 16_000_000;
/** Tokens expire in stores, not by a timer; ten years. */
const LONGEST_TTL_MS = 87_600 * 3_600_000;

export function checkFile(field: Field, resolvePath: ResolvePath): GatewayOptions {
  const file = field.object(FILE_KEYS.file);
  const health = checkHealth(file.field('health'));
  const store = checkStore(file.field('store'), resolvePath);
  const options: GatewayOptions = {
    listen: checkListen(file.field('listen'), resolvePath),
    workers: checkWorkers(file.field('workers'), store.postgres !== null),
    trustedProxies: file.field('trustedProxies').networks(DEFAULTS.trustedProxies),
    allow: file.field('allow').networks(DEFAULTS.allow),
    store,
    cache: checkCache(file.field('cache')),
    identity: checkIdentity(file.field('identity'), store.redis !== null, resolvePath),
    registry: {
      pollIntervalMs: file
        .field('registry')
        .object(FILE_KEYS.registry)
        .field('pollInterval')
        .period(DEFAULTS.registry.pollIntervalMs),
    },
    health,
    timeouts: checkTimeouts(file.field('timeouts')),
    limits: checkLimits(file.field('limits')),
    cors: checkCors(file.field('cors')),
    via: checkVia(file.field('via')),
    log: checkLog(file.field('log')),
    admin: checkAdmin(file.field('admin'), resolvePath),
    shutdown: checkShutdown(file.field('shutdown')),
    registryDefinition: checkDefinition(file, health, resolvePath),
  };
  checkListenersApart(file, options);
  return options;
}

/** The public listeners are checked among themselves already. */
function checkListenersApart(file: FieldObject, { listen, admin }: GatewayOptions): void {
  if (admin.listen === null || admin.listen.port === 0) return;
  const place = placeOf(admin.listen);
  if (!listen.some((one) => placeOf(one) === place)) return;
  const own = file.field('admin').object(FILE_KEYS.admin).field('listen');
  (own.absent ? file.field('listen') : own).fail(`${place} is the address of the admin listener and of a public one`);
}

function checkDefinition(
  file: FieldObject,
  health: HealthOptions,
  resolvePath: ResolvePath,
): GatewayOptions['registryDefinition'] {
  const services = file.field('services');
  if (services.absent) file.fail('services is missing: at least one is needed');
  else if (Array.isArray(services.value) && services.value.length === 0)
    services.fail('must name at least one service');
  const definition = {
    services: services
      .list('a list of services')
      .map((service) => checkService(service, { healthPath: health.path, resolvePath })),
    routes: file.field('routes').list('a list of routes').map(checkRoute),
  };
  checkTogether(definition, services.problems);
  checkReachable(definition, services.problems);
  return definition;
}

function checkListen(field: Field, resolvePath: ResolvePath): readonly ListenOptions[] {
  if (field.absent) return DEFAULTS.listen;
  const fields = Array.isArray(field.value) ? field.list() : [field];
  if (fields.length === 0) field.fail('must name at least one address');
  const taken = new Set<string>();
  return fields.map((one) => {
    const before = field.problems.list.length;
    const listen = checkAddress(one, DEFAULTS.listen[0], resolvePath);
    // A stand-in for a bad address is nobody's rival.
    if (field.problems.list.length > before) return listen;
    const place = placeOf(listen);
    if (listen.port !== 0 && taken.has(place)) one.fail(`is listened on already: ${place}`);
    taken.add(place);
    return listen;
  });
}

function placeOf({ host, port }: ListenOptions): string {
  return `${host.toLowerCase()}:${port}`;
}

function checkAddress(field: Field, fallback: ListenOptions, resolvePath: ResolvePath): ListenOptions {
  if (typeof field.value === 'number') {
    field.fail(`must be 'host:port' (did you mean ":${field.value}"?)`);
    return fallback;
  }
  if (typeof field.value === 'string') return parseAddress(field, field.value, fallback);
  const object = field.object(FILE_KEYS.listen);
  const tls = object.field('tls');
  const host = object.field('host').filled(fallback.host);
  if (!/^[A-Za-z0-9._-]*$/.test(host) && !isIPv6(host))
    object.field('host').fail(`must be a host name or an address, not ${object.field('host').shown}`);
  return {
    host,
    port: object.field('port').number(fallback.port, { least: 0, most: 65_535, whole: true }),
    tls: tls.absent || tls.value === null ? null : checkTls(tls, resolvePath),
  };
}

function parseAddress(field: Field, text: string, fallback: ListenOptions): ListenOptions {
  const found = /^(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]*)):(\d+)$/.exec(text);
  const port = Number(found?.[3]);
  const ipv6 = found?.[1];
  if (!found || port > 65_535 || (ipv6 !== undefined && !isIPv6(ipv6))) {
    field.fail(
      port > 65_535
        ? `has a port above 65535: ${field.shown}`
        : `must be host:port, such as 0.0.0.0:8080 or [::]:8080, not ${field.shown}`,
    );
    return fallback;
  }
  return { host: ipv6 ?? (found[2] || '0.0.0.0'), port, tls: null };
}

function checkTls(field: Field, resolvePath: ResolvePath): { cert: string; key: string } {
  const tls = field.object(FILE_KEYS.tls);
  const read = (key: 'cert' | 'key') => {
    const file = tls.field(key);
    if (file.absent) file.fail('is missing: the path of a PEM file');
    return resolvePath(file.filled(''));
  };
  return { cert: read('cert'), key: read('key') };
}

function checkWorkers(field: Field, hasPostgres: boolean): number | 'auto' {
  const workers = field.value === 'auto' ? 'auto' : field.number(DEFAULTS.workers, { least: 1, whole: true });
  if (workers !== 1 && !hasPostgres) {
    field.fail('more than one worker needs store.postgres: the embedded store belongs to one process');
  }
  return workers;
}

function checkStore(field: Field, resolvePath: ResolvePath): GatewayOptions['store'] {
  const store = field.object(FILE_KEYS.store);
  const postgres = store.field('postgres');
  const redis = store.field('redis');
  return {
    dataDir: resolvePath(store.field('dataDir').filled(DEFAULTS.store.dataDir)),
    postgres: postgres.absent || postgres.value === null ? null : checkPostgres(postgres),
    redis: redis.absent || redis.value === null ? null : checkRedis(redis),
  };
}

function checkPostgres(field: Field): PostgresOptions {
  const postgres = field.object(FILE_KEYS.postgres);
  const defaults = DEFAULTS.postgres;
  return {
    url: checkUrl(postgres.field('url'), ['postgres:', 'postgresql:'], 'postgres://user:password@host:5432/database'),
    poolSize: postgres.field('poolSize').number(defaults.poolSize, { least: 1, most: 1_000, whole: true }),
    connectTimeoutMs: postgres.field('connectTimeout').period(defaults.connectTimeoutMs),
    queryTimeoutMs: postgres.field('queryTimeout').period(defaults.queryTimeoutMs),
    migrate: postgres.field('migrate').flag(defaults.migrate),
  };
}

function checkCache(field: Field): GatewayOptions['cache'] {
  const cache = field.object(FILE_KEYS.cache);
  const defaults = DEFAULTS.cache;
  return {
    ttlMs: cache.field('ttl').duration(defaults.ttlMs),
    staleIfErrorMs: cache.field('staleIfError').duration(defaults.staleIfErrorMs),
    maxEntries: cache.field('maxEntries').number(defaults.maxEntries, { least: 1, most: MOST_ENTRIES, whole: true }),
    redisTtlMs: cache.field('redisTtl').period(defaults.redisTtlMs, LONGEST_TTL_MS),
  };
}

function checkIdentity(field: Field, hasRedis: boolean, resolvePath: ResolvePath): GatewayOptions['identity'] {
  const identity = field.object(FILE_KEYS.identity);
  const token = identity.field('token').object(FILE_KEYS.token);
  const defaults = DEFAULTS.identity;
  const header = tokenName(token.field('header'), defaults.token.header, 'header field');
  const cookie = tokenName(token.field('cookie'), defaults.token.cookie, 'cookie');
  const query = token.field('query').textOrNull(defaults.token.query);
  if (header === null && cookie === null && query === null) {
    identity.field('token').fail('names no header, cookie or query parameter, so nobody would ever be known');
  }
  return {
    token: {
      header,
      cookie,
      query,
      prefix: token.field('prefix').textOrNull(defaults.token.prefix),
    },
    tokenTtlMs: identity.field('tokenTtl').period(defaults.tokenTtlMs, LONGEST_TTL_MS),
    resolvers: identity
      .field('resolvers')
      .list('a list of resolvers')
      .map((resolver) =>
        checkResolver(resolver, { hasRedis, resolvePath, tokenHeader: token.has('header') ? header : null }),
      ),
    unknownToken: identity.field('unknownToken').choice(UNKNOWN_TOKEN, defaults.unknownToken),
  };
}

function tokenName(field: Field, fallback: string | null, what: string): string | null {
  const name = field.textOrNull(fallback);
  if (name !== null && !TOKEN.test(name)) field.fail(`is not the name of a ${what}: ${field.shown}`);
  return name;
}

function checkHealth(field: Field): HealthOptions {
  const health = field.object(FILE_KEYS.health);
  const tiers = health.field('tiers').object(FILE_KEYS.tiers);
  const suspicion = health.field('suspicion').object(FILE_KEYS.suspicion);
  const defaults = DEFAULTS.health;
  const count = { least: 1, whole: true } as const;
  return {
    intervalMs: health.field('interval').period(defaults.intervalMs),
    timeoutMs: health.field('timeout').period(defaults.timeoutMs),
    failures: health.field('failures').number(defaults.failures, count),
    path: checkHealthPath(health.field('path'), defaults.path),
    jitter: health.field('jitter').number(defaults.jitter, { least: 0, most: 0.5 }),
    tiers: {
      regularMs: tiers.field('regular').period(defaults.tiers.regularMs),
      stableMs: tiers.field('stable').period(defaults.tiers.stableMs),
      degradedMs: tiers.field('degraded').period(defaults.tiers.degradedMs),
      stableAfter: tiers.field('stableAfter').number(defaults.tiers.stableAfter, count),
      degradedAfter: tiers.field('degradedAfter').number(defaults.tiers.degradedAfter, count),
    },
    onDemandMs: health.field('onDemand').period(defaults.onDemandMs),
    suspicion: {
      flips: suspicion.field('flips').number(defaults.suspicion.flips, { least: 0, whole: true }),
      windowMs: suspicion.field('within').period(defaults.suspicion.windowMs),
    },
  };
}

function checkTimeouts(field: Field): GatewayOptions['timeouts'] {
  const timeouts = field.object(FILE_KEYS.timeouts);
  const defaults = DEFAULTS.timeouts;
  return {
    connectMs: timeouts.field('connect').period(defaults.connectMs),
    responseMs: timeouts.field('response').period(defaults.responseMs),
    idleMs: timeouts.field('idle').period(defaults.idleMs),
    requestHeadMs: timeouts.field('requestHead').period(defaults.requestHeadMs),
    keepAliveMs: timeouts.field('keepAlive').period(defaults.keepAliveMs),
  };
}

function checkLimits(field: Field): GatewayOptions['limits'] {
  const limits = field.object(FILE_KEYS.limits);
  const defaults = DEFAULTS.limits;
  return {
    loginRequestBytes: limits.field('loginRequest').size(defaults.loginRequestBytes),
    loginResponseBytes: limits.field('loginResponse').size(defaults.loginResponseBytes),
    headerBytes: limits.field('header').size(defaults.headerBytes),
    bodyBytes: limits.field('body').sizeOrNull(defaults.bodyBytes),
    connectionsPerNode: limits
      .field('connectionsPerNode')
      .numberOrNull(defaults.connectionsPerNode, { least: 1, whole: true }),
  };
}

function checkCors(field: Field): GatewayOptions['cors'] {
  const cors = field.object(FILE_KEYS.cors);
  const defaults = DEFAULTS.cors;
  const patterns = cors.field('allowedOriginPatterns');
  const enabled = cors.field('enabled').flag(defaults.enabled);
  const allowedOriginPatterns = patterns
    .list('a list of origins such as https://*.example.com')
    .map((pattern) => pattern.filled('*'));
  if (enabled && allowedOriginPatterns.length === 0) cors.fail('is enabled but allowedOriginPatterns names no origin');
  return {
    enabled,
    allowedOriginPatterns,
    allowCredentials: cors.field('allowCredentials').flag(defaults.allowCredentials),
    maxAgeMs: cors.field('maxAge').duration(defaults.maxAgeMs, LONGEST_TTL_MS),
  };
}

function checkVia(field: Field): string | null {
  const via = field.textOrNull(DEFAULTS.via);
  if (via !== null && via !== '' && !/^[A-Za-z0-9!#$%&'*+.^_`|~:-]+$/.test(via))
    field.fail(`must be a host name or a pseudonym without blanks, not ${field.shown}`);
  return via;
}

function checkLog(field: Field): GatewayOptions['log'] {
  const log = field.object(FILE_KEYS.log);
  return {
    level: log.field('level').choice(LOG_LEVELS, DEFAULTS.log.level),
    access: log.field('access').flag(DEFAULTS.log.access),
    format: log.field('format').choice(LOG_FORMATS, DEFAULTS.log.format),
  };
}

function checkAdmin(field: Field, resolvePath: ResolvePath): GatewayOptions['admin'] {
  const admin = field.object(FILE_KEYS.admin);
  const listen = admin.field('listen');
  const tokens = admin.field('tokens').list('a list of tokens').map(checkAdminToken);
  tokens.forEach(({ name, token }, index) => {
    if (tokens.findIndex((other) => other.name === name) < index) {
      admin.field('tokens').problems.add([...admin.field('tokens').path, index, 'name'], `is used twice: '${name}'`);
    }
    if (token !== '' && tokens.findIndex((other) => other.token === token) < index) {
      admin
        .field('tokens')
        .problems.add([...admin.field('tokens').path, index, 'token'], 'is the token of another name already');
    }
  });
  return {
    listen:
      listen.value === null
        ? null
        : listen.absent
          ? DEFAULTS.admin.listen
          : checkAddress(listen, DEFAULTS.admin.listen, resolvePath),
    allow: admin.field('allow').networks(DEFAULTS.admin.allow),
    tokens,
  };
}

function checkAdminToken(field: Field): AdminToken {
  const object = field.object(FILE_KEYS.adminToken);
  const token = object.field('token');
  const text = token.secret();
  if (token.absent) token.fail('is missing');
  else if (/[^\x21-\x7e]/.test(text))
    token.fail('must hold no blanks or characters outside ASCII: no request could carry it');
  else if (text.length < MIN_ADMIN_TOKEN) token.fail(`must have at least ${MIN_ADMIN_TOKEN} characters`);
  const role = object.field('role');
  if (role.absent) role.fail(`is missing: ${ROLES.join(', ')}`);
  return { name: object.field('name').id(), role: role.choice(ROLES, 'viewer'), token: text };
}

function checkShutdown(field: Field): GatewayOptions['shutdown'] {
  const shutdown = field.object(FILE_KEYS.shutdown);
  return {
    graceMs: shutdown.field('grace').duration(DEFAULTS.shutdown.graceMs),
    delayMs: shutdown.field('delay').duration(DEFAULTS.shutdown.delayMs),
  };
}
