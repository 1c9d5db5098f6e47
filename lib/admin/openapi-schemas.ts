/** The shapes of the API's bodies as JSON Schema, for openapi.ts. Definitions are in the form of the configuration file. */

export type Schema = Readonly<Record<string, unknown>>;

export const text: Schema = { type: 'string' };
export const whole: Schema = { type: 'integer', minimum: 0 };
export const flag: Schema = { type: 'boolean' };
const number: Schema = { type: 'number', minimum: 0 };
const time: Schema = { type: 'string', format: 'date-time' };

export function ref(name: string): Schema {
  return { $ref: `#/components/schemas/${name}` };
}

export function orNull(schema: Schema): Schema {
  return { anyOf: [schema, { type: 'null' }] };
}

export function list(items: Schema): Schema {
  return { type: 'array', items };
}

/** Every key is required but those with a question mark; no others are allowed. */
export function object(properties: Readonly<Record<string, Schema>>): Schema {
  const keys = Object.keys(properties);
  return {
    type: 'object',
    properties: Object.fromEntries(Object.entries(properties).map(([key, schema]) => [key.replace(/\?$/, ''), schema])),
    required: keys.filter((key) => !key.endsWith('?')),
    additionalProperties: false,
  };
}

const id: Schema = { type: 'string', pattern: '^[A-Za-z0-9._-]{1,64}$' };
const dryRun = { 'dryRun?': { const: true, description: 'Nothing was changed.' } };

const nodeKeys = {
  id,
  name: text,
  baseUrl: text,
  enabled: flag,
  draining: flag,
  weight: number,
  maxUsers: orNull({ type: 'integer', minimum: 1 }),
  remark: text,
};
const serviceKeys = {
  id,
  name: text,
  pathPrefix: orNull(text),
  loginPath: orNull(text),
  healthPath: orNull(text),
  defaultNodeId: orNull(id),
  enabled: flag,
  affinity: { enum: ['user', 'none'] },
  placement: { enum: ['round-robin', 'least-users', 'weighted'] },
  balance: { enum: ['weighted', 'round-robin', 'random', 'consistent-hash'] },
  login: object({
    also: list(text),
    request: object({ username: text }),
    response: object({ success: { type: 'object' }, userId: text, username: orNull(text), token: orNull(text) }),
  }),
  health: object({
    interval: orNull(text),
    timeout: orNull(text),
    failures: orNull(whole),
    jitter: orNull(number),
    onDemand: orNull(text),
    tiers: object({
      regular: orNull(text),
      stable: orNull(text),
      degraded: orNull(text),
      stableAfter: orNull(whole),
      degradedAfter: orNull(whole),
    }),
  }),
  timeouts: object({ connect: orNull(text), response: orNull(text), idle: orNull(text) }),
  hostHeader: { enum: ['client', 'node'] },
  ca: orNull(text),
  insecure: flag,
  nodes: list(ref('NodeDefinition')),
};
const routeKeys = {
  id,
  pathPrefix: text,
  enabled: flag,
  fallback: flag,
  versions: list(object({ version: id, service: id, weight: number, enabled: flag })),
  rules: list(
    object({ type: { enum: ['header', 'cookie', 'query', 'weight'] }, 'name?': text, value: {}, version: id }),
  ),
};
const healthKeys = {
  state: { enum: ['UNKNOWN', 'UP', 'DOWN'] },
  since: orNull(time),
  lastCheck: orNull(time),
  lastKind: orNull({ enum: ['active', 'passive', 'immediate'] }),
  lastError: orNull(text),
  successesInRow: whole,
  failuresInRow: whole,
};
const lineFaults = list(object({ line: whole, message: text }));

/** The keys but those named are optional: what a body may leave out. */
function draft(keys: Readonly<Record<string, Schema>>, required: readonly string[]): Schema {
  return object(
    Object.fromEntries(Object.entries(keys).map(([key, schema]) => [required.includes(key) ? key : `${key}?`, schema])),
  );
}

export const schemas: Readonly<Record<string, Schema>> = {
  Error: object({
    code: { type: 'integer', description: 'The HTTP status.' },
    error: text,
    message: text,
    'requestId?': text,
    'fields?': list(object({ field: text, message: text })),
    'users?': { ...whole, description: 'Bound users that stand in the way.' },
    'usersByNode?': { type: 'object', additionalProperties: whole },
    'errors?': lineFaults,
    'errorCount?': whole,
    ...dryRun,
  }),
  Service: object({ ...serviceKeys, ...dryRun }),
  ServiceDraft: draft(serviceKeys, []),
  Services: object({ services: list(ref('Service')) }),
  NodeDefinition: object(nodeKeys),
  NodeDraft: draft({ ...nodeKeys, serviceId: id, health: {}, users: {}, inFlight: {} }, ['baseUrl']),
  NodeSwitches: object({
    'enabled?': flag,
    'draining?': flag,
    'weight?': number,
    'maxUsers?': nodeKeys.maxUsers,
    'remark?': text,
    'reason?': text,
  }),
  NodeWritten: object({ ...nodeKeys, serviceId: id, ...dryRun }),
  Node: object({
    ...nodeKeys,
    serviceId: id,
    health: ref('Health'),
    users: { ...orNull(whole), description: 'Bound users; null = they cannot be counted at the moment.' },
    inFlight: { ...whole, description: 'Exchanges and tunnels under way through this gateway.' },
  }),
  Nodes: object({ nodes: list(ref('Node')) }),
  Health: object(healthKeys),
  Deleted: object({ deleted: text, ...dryRun }),
  Binding: object({
    userId: orNull(text),
    username: orNull(text),
    nodeId: text,
    epoch: { type: 'integer', minimum: 1 },
    frozen: flag,
  }),
  Bindings: object({ bindings: list(ref('Binding')), next: orNull(text) }),
  Move: object({ nodeId: id, 'reason?': text }),
  Freeze: object({ frozen: flag, 'reason?': text }),
  BindingChanged: object({ binding: ref('Binding'), before: orNull(ref('Binding')), ...dryRun }),
  BindingRemoved: object({ removed: ref('Binding'), ...dryRun }),
  Imported: object({
    rows: whole,
    inserted: whole,
    unchanged: { ...whole, description: 'Users that were bound already: they keep their node.' },
    ...dryRun,
  }),
  Route: object({ ...routeKeys, ...dryRun }),
  RouteDraft: draft(routeKeys, ['pathPrefix', 'versions']),
  Routes: object({ routes: list(ref('Route')) }),
  Caller: object({
    name: text,
    role: { enum: ['viewer', 'operator', 'admin'] },
    readOnly: { ...flag, description: 'No tokens are configured: nobody may change anything.' },
  }),
  HealthOfAll: object({
    snapshot: object({ version: whole, loadedAt: time, stale: flag }),
    nodes: list(object({ serviceId: id, nodeId: id, enabled: flag, draining: flag, ...healthKeys })),
  }),
  Audit: object({
    entries: list(
      object({
        id: text,
        time,
        actor: text,
        address: text,
        action: text,
        target: text,
        outcome: { ...text, description: '`done`, or why it was refused.' },
        before: {},
        after: {},
        reason: orNull(text),
        requestId: text,
      }),
    ),
    next: orNull(text),
  }),
  Config: { type: 'object', description: 'The configuration in force; secrets are ***.' },
  Reloaded: object({ version: { ...whole, description: 'Of the snapshot in force.' }, ...dryRun }),
  Question: object({
    'method?': text,
    path: { ...text, description: 'With its query, if it has one.' },
    'headers?': { type: 'object', additionalProperties: { anyOf: [text, list(text)] } },
    'userId?': { anyOf: [text, whole], description: 'Whose request it is, instead of a token.' },
    'username?': { ...text, description: 'At a login path who logs in, elsewhere whose request it is.' },
    'clientAddress?': { ...text, description: 'For `allow` and consistent hashing.' },
  }),
  Explanation: object({
    outcome: { enum: ['forward', 'error', 'answered'] },
    stage: {
      enum: [
        'ip-allow',
        'cors',
        'match',
        'version-by-rule',
        'login-request',
        'version-by-user',
        'sticky-route',
        'balance',
      ],
    },
    snapshot: orNull(object({ version: whole, stale: flag })),
    realm: orNull(text),
    route: orNull(text),
    version: orNull(text),
    versionReason: orNull({ enum: ['rule', 'bound', 'weight', 'only'] }),
    serviceId: orNull(text),
    login: orNull(object({ username: orNull(text) })),
    userId: orNull(text),
    decision: orNull({ enum: ['bound', 'candidate', 'default', 'anonymous', 'balanced'] }),
    answeredBy: orNull({ enum: ['local', 'redis', 'store', 'stale'] }),
    binding: orNull(object({ nodeId: text, epoch: whole, frozen: flag })),
    wouldBind: { ...flag, description: 'The request itself would start a binding, if it succeeds.' },
    wouldProbe: { ...flag, description: 'The node is DOWN; a real request would have it probed first.' },
    drawnAtRandom: { ...flag, description: 'The node is an example.' },
    node: orNull(object({ id: text, enabled: flag, draining: flag, health: ref('Health') })),
    error: orNull({ type: 'object', description: 'The body that the client would get.' }),
  }),
};
