/** Holds schema/gateway.schema.json against the loader: the same keys everywhere, and the same verdict on documents. */
import assert from 'node:assert/strict';
import * as fs from 'node:fs';
import { describe, it } from 'node:test';
import { parse } from 'yaml';
import { FILE_KEYS, LOG_FORMATS, LOG_LEVELS, MIN_ADMIN_TOKEN, ROLES, UNKNOWN_TOKEN } from '../../lib/config/file.ts';
import { loadConfig } from '../../lib/config/load.ts';
import { CODECS, PUBLIC_ALGORITHMS, RESOLVER_KEYS, SECRET_ALGORITHMS } from '../../lib/config/resolvers.ts';
import * as services from '../../lib/config/services.ts';
import { findPackageFile } from '../../lib/process/package-file.ts';

interface Schema {
  readonly $ref?: string;
  readonly type?: string | readonly string[];
  readonly enum?: readonly unknown[];
  readonly pattern?: string;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly minLength?: number;
  readonly minItems?: number;
  readonly minProperties?: number;
  readonly maxProperties?: number;
  readonly required?: readonly string[];
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly additionalProperties?: boolean | Schema;
  readonly items?: Schema;
  readonly anyOf?: readonly Schema[];
  readonly definitions?: Readonly<Record<string, Schema>>;
}

const root = JSON.parse(fs.readFileSync(findPackageFile('schema/gateway.schema.json'), 'utf8')) as Schema;

/** The object schema at a path of property names; `definition:` begins at a definition, `[]` goes into a list. */
function objectAt(path: string): Schema {
  const [start = '', ...steps] = path.split('/');
  let schema: Schema = start === '' ? root : (root.definitions?.[start] ?? assert.fail(`no definition ${start}`));
  for (const step of steps) {
    schema = withObject(schema);
    schema =
      step === '[]'
        ? (schema.items ?? assert.fail(path))
        : (schema.properties?.[step] ?? assert.fail(`${path}: no ${step}`));
  }
  return withObject(schema);
}

function withObject(schema: Schema): Schema {
  if (schema.$ref)
    return withObject(root.definitions?.[schema.$ref.replace('#/definitions/', '')] ?? assert.fail(schema.$ref));
  const inner = schema.anyOf?.map(withObject).find((one) => one.properties || one.items);
  return inner ?? schema;
}

/** The small part of JSON Schema that the file uses. */
function accepts(schema: Schema, value: unknown): boolean {
  if (schema.$ref)
    return accepts(root.definitions?.[schema.$ref.replace('#/definitions/', '')] ?? assert.fail(), value);
  if (schema.anyOf && !schema.anyOf.some((one) => accepts(one, value))) return false;
  if (schema.enum && !schema.enum.includes(value as never)) return false;
  if (schema.type && ![schema.type].flat().some((type) => isOf(type as string, value))) return false;
  if (typeof value === 'string') {
    if (schema.pattern !== undefined && !new RegExp(schema.pattern).test(value)) return false;
    return value.length >= (schema.minLength ?? 0);
  }
  if (typeof value === 'number') {
    return (
      value >= (schema.minimum ?? Number.NEGATIVE_INFINITY) && value <= (schema.maximum ?? Number.POSITIVE_INFINITY)
    );
  }
  if (Array.isArray(value)) {
    return (
      value.length >= (schema.minItems ?? 0) && value.every((item) => !schema.items || accepts(schema.items, item))
    );
  }
  if (typeof value !== 'object' || value === null) return true;
  const keys = Object.keys(value);
  if (keys.length < (schema.minProperties ?? 0) || keys.length > (schema.maxProperties ?? Number.POSITIVE_INFINITY))
    return false;
  if (!(schema.required ?? []).every((key) => keys.includes(key))) return false;
  return Object.entries(value).every(([key, item]) => {
    const property = schema.properties?.[key];
    if (property) return accepts(property, item);
    if (typeof schema.additionalProperties === 'object') return accepts(schema.additionalProperties, item);
    return schema.additionalProperties !== false;
  });
}

function isOf(type: string, value: unknown): boolean {
  switch (type) {
    case 'null':
      return value === null;
    case 'array':
      return Array.isArray(value);
    case 'object':
      return typeof value === 'object' && value !== null && !Array.isArray(value);
    case 'integer':
      return Number.isInteger(value);
    default:
      return typeof value === type;
  }
}

const KEY_PLACES: readonly (readonly [string, readonly string[]])[] = [
  ['', FILE_KEYS.file],
  ['address', FILE_KEYS.listen],
  ['tls', FILE_KEYS.tls],
  ['/store', FILE_KEYS.store],
  ['postgres', FILE_KEYS.postgres],
  ['redis', FILE_KEYS.redis],
  ['/cache', FILE_KEYS.cache],
  ['/identity', FILE_KEYS.identity],
  ['/identity/token', FILE_KEYS.token],
  ['/identity/resolvers/[]', RESOLVER_KEYS.resolver],
  ['saToken', RESOLVER_KEYS.saToken],
  ['jwt', RESOLVER_KEYS.jwt],
  ['jwt/saToken', RESOLVER_KEYS.jwtSaToken],
  ['sessions', RESOLVER_KEYS.redis],
  ['/registry', FILE_KEYS.registry],
  ['/health', FILE_KEYS.health],
  ['/health/tiers', FILE_KEYS.tiers],
  ['/health/suspicion', FILE_KEYS.suspicion],
  ['/timeouts', FILE_KEYS.timeouts],
  ['/limits', FILE_KEYS.limits],
  ['/cors', FILE_KEYS.cors],
  ['/log', FILE_KEYS.log],
  ['/admin', FILE_KEYS.admin],
  ['/admin/tokens/[]', FILE_KEYS.adminToken],
  ['/shutdown', FILE_KEYS.shutdown],
  ['service', services.SERVICE_KEYS],
  ['service/health', services.SERVICE_HEALTH_KEYS],
  ['service/health/tiers', services.SERVICE_TIER_KEYS],
  ['service/timeouts', services.SERVICE_TIMEOUT_KEYS],
  ['login', services.LOGIN_KEYS],
  ['login/request', ['username']],
  ['login/response', services.LOGIN_RESPONSE_KEYS],
  ['node', services.NODE_KEYS],
  ['route', services.ROUTE_KEYS],
  ['route/versions/[]', services.VERSION_KEYS],
  ['route/rules/[]', services.RULE_KEYS],
];

const ENUMS: readonly (readonly [string, string, readonly string[]])[] = [
  ['/log', 'level', LOG_LEVELS],
  ['/log', 'format', LOG_FORMATS],
  ['/admin/tokens/[]', 'role', ROLES],
  ['/identity', 'unknownToken', UNKNOWN_TOKEN],
  ['service', 'affinity', services.AFFINITIES],
  ['service', 'placement', services.PLACEMENTS],
  ['service', 'balance', services.BALANCES],
  ['service', 'hostHeader', services.HOST_HEADERS],
  ['route/rules/[]', 'type', services.RULE_TYPES],
  ['saToken', 'codec', CODECS],
];

describe('the JSON Schema', () => {
  for (const [place, keys] of KEY_PLACES) {
    it(`has the loader's keys at ${place === '' ? 'the top' : place}`, () => {
      assert.deepEqual(Object.keys(objectAt(place).properties ?? {}).sort(), [...keys].sort());
    });
  }

  it('compares every object of the schema with the loader, so that none is forgotten', () => {
    const compared = new Set(KEY_PLACES.map(([place]) => objectAt(place)));
    const forgotten: string[] = [];
    const visit = (schema: Schema, place: string): void => {
      if (schema.properties && schema.additionalProperties === false && !compared.has(schema)) forgotten.push(place);
      for (const [key, inner] of Object.entries(schema.properties ?? {})) visit(inner, `${place}/${key}`);
      for (const inner of [...(schema.anyOf ?? []), ...(schema.items ? [schema.items] : [])]) visit(inner, place);
      for (const [key, inner] of Object.entries(schema.definitions ?? {})) visit(inner, key);
    };
    visit(root, '');
    assert.deepEqual(forgotten, []);
  });

  for (const [place, key, values] of ENUMS) {
    it(`has the loader's values for ${key} at ${place}`, () => {
      const property = objectAt(place).properties?.[key];
      const listed = property?.enum ?? property?.anyOf?.find((one) => one.enum)?.enum;
      assert.deepEqual(listed, [...values]);
    });
  }

  it("has the loader's algorithms and least length of an admin token", () => {
    assert.deepEqual(objectAt('jwt').properties?.['algorithms']?.items?.enum, [
      ...SECRET_ALGORITHMS,
      ...PUBLIC_ALGORITHMS,
    ]);
    assert.equal(objectAt('/admin/tokens/[]').properties?.['token']?.minLength, MIN_ADMIN_TOKEN);
  });

  const good = 'services: [{ id: a, pathPrefix: /a, nodes: [{ id: n1, baseUrl: "http://h:1" }] }]';
  const both: readonly (readonly [string, boolean])[] = [
    [good, true],
    [`${good}\nlisten: "[::1]:80"`, true],
    [`${good}\nlisten: [":80", { host: h, port: 81, tls: { cert: c, key: k } }]`, true],
    [`${good}\nlisten: nowhere`, false],
    [`${good}\nlisten: { port: 99999 }`, false],
    [`${good}\nlisten: { tls: { cert: c } }`, false],
    [`${good}\nworkers: 0`, false],
    [`${good}\ncache: { ttl: 5 }`, false],
    [`${good}\ncache: { ttl: 5s, maxEntries: 10 }`, true],
    [`${good}\ncache: { maxEntries: 1.5 }`, false],
    [`${good}\nlimits: { body: null, header: 16KB }`, true],
    [`${good}\nlimits: { header: 16000 }`, false],
    [`${good}\nlog: { level: loud }`, false],
    [`${good}\nlog: { access: sometimes }`, false],
    [`${good}\nadmin: { listen: null }`, true],
    [`${good}\nadmin: { tokens: [{ name: ops, role: admin, token: short }] }`, false],
    [`${good}\nadmin: { tokens: [{ name: ops, role: admin, token: "0123456789abcdef" }] }`, true],
    [`${good}\nhealth: { path: null, jitter: 0.2 }`, true],
    [`${good}\nhealth: { jitter: 0.9 }`, false],
    [`${good}\nstore: { postgres: {} }`, false],
    [`${good}\nstore: { postgres: null, redis: null }`, true],
    [`${good}\nidentity: { resolvers: [{ jwt: { secret: s } }] }`, true],
    [`${good}\nidentity: { resolvers: [{ oauth: {} }] }`, false],
    [`${good}\nidentity: { resolvers: [{ redis: { key: sess } }] }`, false],
    [`${good}\nunknown: 1`, false],
    ['services: []', false],
    ['listen: ":80"', false],
    ['services: [{ pathPrefix: /a }]', false],
    ['services: [{ id: "a b", pathPrefix: /a }]', false],
    ['services: [{ id: a, pathPrefix: a }]', false],
    ['services: [{ id: a, pathPrefix: /a, nodes: [{ id: n1 }] }]', false],
    ['services: [{ id: a, pathPrefix: /a, nodes: [{ id: n1, baseUrl: "http://h/p" }] }]', false],
    ['services: [{ id: a, pathPrefix: /a, nodes: [{ id: n1, baseUrl: "http://h", weight: -1 }] }]', false],
    ['services: [{ id: a, pathPrefix: /a, login: { response: { success: { code: [1] } } } }]', false],
    ['services: [{ id: a, pathPrefix: /a, login: { response: { success: { ok: true }, token: null } } }]', true],
    ['services: [{ id: a, pathPrefix: /a, affinity: sometimes }]', false],
    [`${good}\nroutes: [{ id: r, pathPrefix: /r, versions: [{ version: v1, service: a }] }]`, true],
    [`${good}\nroutes: [{ id: r, pathPrefix: /r, versions: [] }]`, false],
    [
      `${good}\nroutes: [{ id: r, pathPrefix: /r, versions: [{ version: v1, service: a }], rules: [{ type: hat, value: x, version: v1 }] }]`,
      false,
    ],
  ];
  for (const [text, fine] of both) {
    it(`${fine ? 'accepts' : 'refuses'}, like the loader, ${JSON.stringify(text.replace(good, '…'))}`, () => {
      assert.equal('options' in loadConfig(text, 'g.yaml', {}), fine, 'the loader');
      assert.equal(accepts(root, parse(text)), fine, 'the schema');
    });
  }
});
