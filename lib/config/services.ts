/** Checks of services, nodes and routes as operators write them, and of how they fit together. */
import type {
  LoginMapping,
  NodeDefinition,
  RegistryDefinition,
  RouteDefinition,
  RouteRule,
  RouteVersion,
  ServiceDefinition,
} from '../model.ts';
import {
  didYouMean,
  type Field,
  type FieldObject,
  type FieldPath,
  formatPath,
  isPlainObject,
  type Problems,
} from './fields.ts';
import { DEFAULTS } from './options.ts';

/** Every key that may stand in these places; the JSON Schema is held against them. */
export const SERVICE_KEYS = [
  'id',
  'name',
  'pathPrefix',
  'loginPath',
  'healthPath',
  'defaultNodeId',
  'enabled',
  'affinity',
  'placement',
  'balance',
  'login',
  'health',
  'timeouts',
  'hostHeader',
  'ca',
  'insecure',
  'nodes',
];
export const NODE_KEYS = ['id', 'name', 'baseUrl', 'enabled', 'draining', 'weight', 'maxUsers', 'remark'];
export const LOGIN_KEYS = ['also', 'request', 'response'];
export const LOGIN_RESPONSE_KEYS = ['success', 'userId', 'username', 'token'];
export const SERVICE_HEALTH_KEYS = ['interval', 'timeout', 'failures', 'jitter', 'onDemand', 'tiers'];
export const SERVICE_TIER_KEYS = ['regular', 'stable', 'degraded', 'stableAfter', 'degradedAfter'];
export const SERVICE_TIMEOUT_KEYS = ['connect', 'response', 'idle'];
export const ROUTE_KEYS = ['id', 'pathPrefix', 'enabled', 'fallback', 'versions', 'rules'];
export const VERSION_KEYS = ['version', 'service', 'weight', 'enabled'];
export const RULE_KEYS = ['type', 'name', 'value', 'version'];
export const AFFINITIES = ['user', 'none'] as const;
export const PLACEMENTS = ['round-robin', 'least-users', 'weighted'] as const;
export const BALANCES = ['weighted', 'round-robin', 'random', 'consistent-hash'] as const;
export const HOST_HEADERS = ['client', 'node'] as const;
export const RULE_TYPES = ['header', 'cookie', 'query', 'weight'] as const;

/** Of the columns of gateway.sql. */
const MOST_NAME = 256;
const MOST_PATH = 256;
const MOST_BASE_URL = 512;
const MOST_REMARK = 512;
const MOST_USERS = 2_147_483_647;

/** A token of RFC 9110, which names of header fields and cookies are. */
export const TOKEN = /^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/;

/** Blanks around a value are no part of it, and control characters never arrive. */
const UNSENDABLE = /^[ \t]|[ \t]$|[^\t\x20-\x7e\u0080-\uffff]/;

export interface ServiceContext {
  /** Of services that name no health path; null = a TCP connect. */
  readonly healthPath: string | null;
  /** Makes a path in the file absolute. */
  readonly resolvePath: (path: string) => string;
}

export function checkService(field: Field, context: ServiceContext): ServiceDefinition {
  const object = field.object(SERVICE_KEYS);
  const defaults = DEFAULTS.service;
  const affinity = object.field('affinity').choice(AFFINITIES, defaults.affinity);
  const loginPath = pathOrNull(object.field('loginPath'), defaults.loginPath);
  const id = object.field('id').id();
  const service: ServiceDefinition = {
    id,
    name: object.field('name').shortText(id, MOST_NAME),
    pathPrefix: checkPrefix(object.field('pathPrefix')),
    loginPath,
    healthPath: checkHealthPath(object.field('healthPath'), context.healthPath),
    defaultNodeId: object.field('defaultNodeId').textOrNull(defaults.defaultNodeId),
    enabled: object.field('enabled').flag(defaults.enabled),
    affinity,
    placement: object.field('placement').choice(PLACEMENTS, defaults.placement),
    balance: object.field('balance').choice(BALANCES, defaults.balance),
    login: checkLogin(object.field('login')),
    ...checkServiceSettings(object),
    upstream: checkUpstream(object, context),
    nodes: object.field('nodes').list('a list of nodes').map(checkNode),
  };
  checkAffinity(object, service);
  return service;
}

function checkServiceSettings(object: FieldObject): Pick<ServiceDefinition, 'health' | 'timeouts'> {
  const health = object.field('health').object(SERVICE_HEALTH_KEYS);
  const tiers = health.field('tiers').object(SERVICE_TIER_KEYS);
  const timeouts = object.field('timeouts').object(SERVICE_TIMEOUT_KEYS);
  const count = { least: 1, whole: true } as const;
  return {
    health: {
      intervalMs: health.field('interval').periodOrNull(null),
      timeoutMs: health.field('timeout').periodOrNull(null),
      failures: health.field('failures').numberOrNull(null, count),
      jitter: health.field('jitter').numberOrNull(null, { least: 0, most: 0.5 }),
      onDemandMs: health.field('onDemand').periodOrNull(null),
      tiers: {
        regularMs: tiers.field('regular').periodOrNull(null),
        stableMs: tiers.field('stable').periodOrNull(null),
        degradedMs: tiers.field('degraded').periodOrNull(null),
        stableAfter: tiers.field('stableAfter').numberOrNull(null, count),
        degradedAfter: tiers.field('degradedAfter').numberOrNull(null, count),
      },
    },
    timeouts: {
      connectMs: timeouts.field('connect').periodOrNull(null),
      responseMs: timeouts.field('response').periodOrNull(null),
      idleMs: timeouts.field('idle').periodOrNull(null),
    },
  };
}

function checkUpstream(object: FieldObject, context: ServiceContext): ServiceDefinition['upstream'] {
  const ca = object.field('ca').textOrNull(null);
  return {
    hostHeader: object.field('hostHeader').choice(HOST_HEADERS, DEFAULTS.service.upstream.hostHeader),
    ca: ca === null ? null : context.resolvePath(ca),
    insecure: object.field('insecure').flag(DEFAULTS.service.upstream.insecure),
  };
}

function checkAffinity(object: FieldObject, service: ServiceDefinition): void {
  if (service.affinity === 'none') {
    if (service.loginPath !== null)
      object.field('loginPath').fail('means nothing with affinity: none; remove it, or use affinity: user');
    if (service.defaultNodeId !== null)
      object.field('defaultNodeId').fail('means nothing with affinity: none; remove it');
  }
  if (service.loginPath === null && service.login.also.length > 0) {
    object
      .field('login')
      .object(LOGIN_KEYS)
      .field('also')
      .fail('means nothing without loginPath: move one of them there');
  }
}

function checkLogin(field: Field): LoginMapping {
  const defaults = DEFAULTS.service.login;
  const login = field.object(LOGIN_KEYS);
  const request = login.field('request').object(['username']);
  const response = login.field('response').object(LOGIN_RESPONSE_KEYS);
  return {
    also: login
      .field('also')
      .list('a list of paths')
      .map((path) => checkPath(path, path.text('/'))),
    request: { username: dottedPath(request.field('username'), defaults.request.username) },
    response: {
      success: checkSuccess(response.field('success')),
      userId: dottedPath(response.field('userId'), defaults.response.userId),
      username: nullOr(response.field('username'), (name) => dottedPath(name, defaults.response.username)),
      token: nullOr(response.field('token'), checkTokenSource),
    },
  };
}

function nullOr<T>(field: Field, check: (field: Field) => T): T | null {
  return field.value === null ? null : check(field);
}

function dottedPath(field: Field, fallback: string): string {
  const text = field.filled(fallback);
  if (text !== '' && text.split('.').includes(''))
    field.fail(`must be a dotted path such as data.userId, not ${field.shown}`);
  return text;
}

function checkTokenSource(field: Field): string {
  const text = field.filled(DEFAULTS.service.login.response.token);
  const found = /^(cookie|header):(.*)$/.exec(text);
  if (!found) return dottedPath(field, DEFAULTS.service.login.response.token);
  if (!TOKEN.test(found[2] ?? '')) field.fail(`must name a ${found[1]}, as in ${found[1]}:token`);
  return text;
}

function checkSuccess(field: Field): LoginMapping['response']['success'] {
  if (field.absent) return DEFAULTS.service.login.response.success;
  if (!isPlainObject(field.value)) {
    field.fail('must be a mapping from dotted paths to values, such as { code: 200 }');
    return {};
  }
  const success: Record<string, string | number | boolean | null> = {};
  for (const [path, value] of Object.entries(field.value)) {
    const scalar = value === null || ['string', 'number', 'boolean'].includes(typeof value);
    if (!scalar) field.problems.add([...field.path, path], 'must be text, a number, true, false or null');
    else if (
      typeof value === 'number' &&
      (Number.isInteger(value) ? !Number.isSafeInteger(value) : !Number.isFinite(value))
    ) {
      field.problems.add([...field.path, path], 'is no number that can be compared exactly');
    } else success[path] = value as string | number | boolean | null;
  }
  return success;
}

export function checkNode(field: Field): NodeDefinition {
  const object = field.object(NODE_KEYS);
  const defaults = DEFAULTS.node;
  return {
    id: object.field('id').id(),
    name: object.field('name').shortText(defaults.name, MOST_NAME),
    baseUrl: checkBaseUrl(object.field('baseUrl')),
    enabled: object.field('enabled').flag(defaults.enabled),
    draining: object.field('draining').flag(defaults.draining),
    weight: object.field('weight').number(defaults.weight, { least: 0 }),
    maxUsers: object.field('maxUsers').numberOrNull(defaults.maxUsers, { least: 1, most: MOST_USERS, whole: true }),
    remark: object.field('remark').shortText(defaults.remark, MOST_REMARK),
  };
}

/** A stand-in is empty: a made-up address could clash with a real one. */
function checkBaseUrl(field: Field): string {
  if (field.absent) {
    field.fail('is missing: write scheme, host and port, such as http://127.0.0.1:9001');
    return '';
  }
  // The text may hold a password, so it is not repeated.
  const text = field.secret();
  if (typeof field.value !== 'string') return '';
  const bare = text.replace(/\/$/, '');
  if (!/^https?:\/\/[^/?#@\s\\]*[^/?#@\s\\:]$/i.test(bare) || !URL.canParse(bare) || new URL(bare).port === '0') {
    field.fail('must be http:// or https:// with host and port only, such as http://127.0.0.1:9001');
    return '';
  }
  if (bare.length > MOST_BASE_URL) field.fail(`must not be longer than ${MOST_BASE_URL} characters`);
  return bare;
}

/** Absent = reached only through routes. */
function checkPrefix(field: Field): string | null {
  return field.absent || field.value === null ? null : checkPresentPrefix(field);
}

/** A stand-in is empty: a made-up prefix could clash with a real one. */
function checkPresentPrefix(field: Field): string {
  const text = field.text('');
  if (typeof field.value !== 'string') return '';
  if (text === '') {
    field.fail("must not be empty: write '/' for everything");
    return '';
  }
  const bare = text.replace(/^(?!\/)/, '/').replace(/\/+$/, '') || '/';
  if (text !== '/' && text.endsWith('/')) field.fail(`must not end in '/'${write(field, bare)}`);
  return checkPath(field, text.endsWith('/') ? bare : text);
}

function pathOrNull(field: Field, fallback: string | null): string | null {
  if (field.value === null) return null;
  if (field.absent) return fallback;
  return checkPath(field, field.text('/'));
}

/** Of a probe: unlike the others it may have a query. */
export function checkHealthPath(field: Field, fallback: string | null): string | null {
  if (field.value === null) return null;
  if (field.absent) return fallback;
  const text = field.shortText('/', MOST_PATH);
  if (!text.startsWith('/')) field.fail(`must start with '/'${write(field, `/${text}`)}`);
  else if (/#|[^\x21-\x7e]/.test(text)) field.fail("must hold no blanks, '#' or characters outside ASCII");
  return text;
}

function checkPath(field: Field, text: string): string {
  if (text.length > MOST_PATH) field.fail(`must not be longer than ${MOST_PATH} characters`);
  else if (!text.startsWith('/')) field.fail(`must start with '/'${write(field, `/${text}`)}`);
  else if (/[?#]/.test(text)) field.fail("must be a path without '?' or '#'");
  else if (/[\s\\]|[^\x21-\x7e]/.test(text)) field.fail('must hold no blanks, backslashes or characters outside ASCII');
  else if (/\/\//.test(text)) field.fail("must not hold '//'");
  else if (/\/\.{1,2}([/;]|$)/.test(text)) field.fail("must not hold '.' or '..' segments");
  else if (/%(2f|5c|00|2e)/i.test(text)) field.fail("must not hold encoded '/', '\\', '.' or NUL");
  // No request with such a path is let in, so nothing would ever match.
  else if (/%(?![0-9a-f]{2})/i.test(text)) field.fail("must not hold a '%' without two hexadecimal digits");
  return text;
}

/** `: write '…'`, unless that would tell what an environment variable holds. */
function write(field: Field, text: string): string {
  return field.fromEnvironment ? '' : `: write '${text}'`;
}

export function checkRoute(field: Field): RouteDefinition {
  const object = field.object(ROUTE_KEYS);
  const prefix = object.field('pathPrefix');
  if (prefix.absent) prefix.fail('is missing');
  const { problems } = field;
  const problemsBefore = problems.list.length;
  const versions = object.field('versions').list('a list of versions').map(checkVersion);
  if (versions.length === 0) object.field('versions').fail('must name at least one version');
  // A weight that could not be read stands as one already reported.
  else if (
    versions.length > 1 &&
    problems.list.length === problemsBefore &&
    versions.every(({ weight }) => weight === 0)
  )
    object.field('versions').fail('must give a weight to at least one version: weight 0 gets nothing');
  const names = versions.map((version) => version.version);
  names.forEach((name, index) => {
    if (names.indexOf(name) < index)
      problems.add([...object.field('versions').path, index, 'version'], `is used twice: '${name}'`);
  });
  const ruleFields = object.field('rules').list('a list of rules');
  const rules = ruleFields.map((rule) => checkRule(rule, names));
  refuseDoubles(ruleFields, rules);
  return {
    id: object.field('id').id(),
    pathPrefix: prefix.absent ? '' : checkPresentPrefix(prefix),
    enabled: object.field('enabled').flag(DEFAULTS.route.enabled),
    fallback: object.field('fallback').flag(DEFAULTS.route.fallback),
    versions,
    rules,
  };
}

/** The first match wins, so a rule that another one before it covers would never be seen to work. */
function refuseDoubles(fields: readonly Field[], rules: readonly RouteRule[]): void {
  const first = new Map<string, number>();
  rules.forEach((rule, index) => {
    if (rule.type !== 'weight' && rule.name === '') return;
    const name = rule.type === 'weight' ? rule.version : rule.type === 'header' ? rule.name.toLowerCase() : rule.name;
    const key = JSON.stringify(rule.type === 'weight' ? [rule.type, name] : [rule.type, name, rule.value]);
    const other = first.get(key);
    if (other === undefined) first.set(key, index);
    else if (rule.type !== 'weight') fields[index]?.fail(`looks for the same as rules[${other}], which comes first`);
    else if (name !== '') fields[index]?.fail(`is for the same version as rules[${other}]: write one percentage`);
  });
}

function checkVersion(field: Field): RouteVersion {
  const object = field.object(VERSION_KEYS);
  return {
    version: object.field('version').id(),
    service: object.field('service').id(),
    weight: object.field('weight').number(DEFAULTS.route.versionWeight, { least: 0 }),
    enabled: object.field('enabled').flag(DEFAULTS.route.versionEnabled),
  };
}

function checkRule(field: Field, versions: readonly string[]): RouteRule {
  const object = field.object(RULE_KEYS);
  const type = object.field('type').choice(RULE_TYPES, 'header');
  if (object.field('type').absent) object.field('type').fail(`is missing: ${RULE_TYPES.join(', ')}`);
  const version = object.field('version').id();
  if (unknownName(version, versions)) {
    object.field('version').fail(`names no version of this route: '${version}'${didYouMean(version, versions)}`);
  }
  if (object.field('value').absent) object.field('value').fail('is missing');
  if (type === 'weight') {
    if (object.has('name')) object.field('name').fail('means nothing in a weight rule');
    return { type, value: object.field('value').number(0, { least: 0, most: 100 }), version };
  }
  if (object.field('name').absent) object.field('name').fail('is missing');
  const name = object.field('name').filled('');
  if (name !== '' && type !== 'query' && !TOKEN.test(name))
    object.field('name').fail(`is not the name of a ${type}: ${object.field('name').shown}`);
  const value = object.field('value').text('');
  if (type !== 'query' && UNSENDABLE.test(value))
    object
      .field('value')
      .fail(`can never be the value of a ${type}: it begins or ends with a blank, or holds a control`);
  return { type, name, value, version };
}

/** A name that could not be read is empty, and may be the one that is looked for. */
function unknownName(name: string, known: readonly string[]): boolean {
  return name !== '' && !known.includes(name) && !known.includes('');
}

/**
 * What no single service can show: ids and prefixes that clash, references that lead nowhere. Whether every service
 * can be reached is asked by checkReachable: one that is made before its route cannot.
 */
export function checkTogether(definition: RegistryDefinition, problems: Problems): void {
  const { services, routes } = definition;
  const ids = services.map((service) => service.id);
  unique(
    problems,
    [
      ...services.map((service, index): Named => [['services', index, 'id'], service.id]),
      ...routes.map((route, index): Named => [['routes', index, 'id'], route.id]),
    ],
    (id, other) => `'${id}' is the id of ${other} already`,
  );
  unique(
    problems,
    services.flatMap((service, index) =>
      service.nodes.map((node, at): Named => [['services', index, 'nodes', at, 'id'], node.id]),
    ),
    (id, other) => `'${id}' is the id of ${other} already: node ids are unique across services`,
  );
  unique(
    problems,
    [
      ...services.flatMap((service, index): Named[] =>
        service.pathPrefix === null ? [] : [[['services', index, 'pathPrefix'], service.pathPrefix]],
      ),
      ...routes.map((route, index): Named => [['routes', index, 'pathPrefix'], route.pathPrefix]),
    ],
    (prefix, other) => `'${prefix}' is the prefix of ${other} already`,
  );
  services.forEach((service, index) => {
    unique(
      problems,
      service.nodes.map((node, at): Named => [['services', index, 'nodes', at, 'baseUrl'], normalizeUrl(node.baseUrl)]),
      (_url, other) => `is the address of ${other} already`,
    );
    const { defaultNodeId, nodes } = service;
    if (
      defaultNodeId !== null &&
      unknownName(
        defaultNodeId,
        nodes.map((node) => node.id),
      )
    ) {
      problems.add(['services', index, 'defaultNodeId'], `names no node of this service: '${defaultNodeId}'`);
    }
  });
  routes.forEach((route, index) => {
    route.versions.forEach((version, at) => {
      if (!unknownName(version.service, ids)) return;
      const hint = didYouMean(version.service, ids);
      problems.add(['routes', index, 'versions', at, 'service'], `names no service: '${version.service}'${hint}`);
    });
    const mixed = findMixed(route, services);
    if (mixed) problems.add(['routes', index, 'versions', mixed.index], mixed.message);
  });
}

/**
 * Versions that divide users up by weight must agree on whether they bind users. A login is decided by the username, since no
 * more is known then, and what follows by the binding; where there is none it would be decided by the user id, and
 * could come to the other kind of version, in which this user is not bound. Undefined = they agree.
 */
export function findMixed(
  route: RouteDefinition,
  services: readonly ServiceDefinition[],
): { readonly index: number; readonly message: string } | undefined {
  const affinityOf = new Map(services.map((service) => [service.id, service.affinity]));
  let first: RouteVersion | undefined;
  for (const [index, version] of route.versions.entries()) {
    const ruled = route.rules.some(
      (rule) => rule.type === 'weight' && rule.version === version.version && rule.value > 0,
    );
    const affinity = affinityOf.get(version.service);
    if (affinity === undefined || (version.weight <= 0 && !ruled)) continue;
    first ??= version;
    if (affinityOf.get(first.service) === affinity) continue;
    return {
      index,
      message: `has a share by weight and affinity: ${affinity}, unlike version ${first.version}: give one of them weight 0, and a rule with header, cookie or query`,
    };
  }
  return undefined;
}

/** In a file, a service without a prefix that no route names is a mistake. */
export function checkReachable({ services, routes }: RegistryDefinition, problems: Problems): void {
  const named = new Set(routes.flatMap((route) => route.versions.map((version) => version.service)));
  services.forEach((service, index) => {
    if (service.pathPrefix !== null || service.id === '' || named.has(service.id) || named.has('')) return;
    problems.add(['services', index], 'has no pathPrefix and no route names it, so nothing can reach it');
  });
}

type Named = readonly [FieldPath, string];

function unique(problems: Problems, named: readonly Named[], explain: (value: string, other: string) => string): void {
  const first = new Map<string, FieldPath>();
  for (const [path, value] of named) {
    if (value === '') continue;
    const other = first.get(value);
    if (other === undefined) first.set(value, path);
    else problems.add(path, explain(value, formatPath(other.slice(0, -1))));
  }
}

function normalizeUrl(baseUrl: string): string {
  return URL.canParse(baseUrl) ? new URL(baseUrl).origin : baseUrl;
}
