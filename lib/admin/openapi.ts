/** The OpenAPI 3.1 document of the admin API, written by hand; a test holds it against the table of routes. */
import { object, ref, type Schema, schemas, text, whole } from './openapi-schemas.ts';

type Json = Readonly<Record<string, unknown>>;

interface Operation {
  readonly summary: string;
  readonly role: 'viewer' | 'operator' | 'admin';
  readonly parameters?: readonly Json[];
  readonly body?: Json;
  /** Status -> schema, or the whole content. */
  readonly answers: Readonly<Record<number, Schema | { readonly content: Json }>>;
}

function json(schema: Schema): { content: Json } {
  return { content: { 'application/json': { schema } } };
}

function query(name: string, description: string, schema: Schema = text): Json {
  return { name, in: 'query', description, schema };
}

const DRY_RUN = query('dryRun', '1 = check and rehearse, change nothing', { enum: ['0', '1', 'true', 'false', ''] });
const REASON = query('reason', 'For the audit');
const WRITE = [DRY_RUN, REASON];
const IF_MATCH = {
  name: 'If-Match',
  in: 'header',
  description: 'ETag of what was read; 412 if it has changed',
  schema: text,
};
const PAGE = [query('limit', '1 to 1000, default 100', whole), query('after', '`next` of the page before')];

const FAILURES: Readonly<Record<number, string>> = {
  400: 'Faulty; `fields` names what is wrong',
  401: 'No token, or one that is not known',
  403: 'Not for this role, address or origin',
  404: 'There is no such thing',
  408: 'The body did not come in time',
  409: 'It clashes with what there is; `users` are bound',
  412: 'Changed since it was read',
  413: 'The body is too large',
  415: 'Not this kind of body',
  429: 'Too many failed attempts',
  503: 'The store does not answer; nothing is half-done',
};

function operation({ summary, role, parameters, body, answers }: Operation): Json {
  const success = Object.entries(answers).map(([status, answer]) => [
    status,
    { description: summary, ...('content' in answer ? answer : json(answer)) },
  ]);
  const failures = Object.entries(FAILURES).map(([status, description]) => [
    status,
    { description, ...json(ref('Error')) },
  ]);
  return {
    summary,
    'x-role': role,
    ...(parameters ? { parameters } : {}),
    ...(body ? { requestBody: { required: true, ...body } } : {}),
    responses: Object.fromEntries([...failures, ...success]),
  };
}

/** The parameters that stand in the path are those in braces. */
function path(pattern: string, operations: Readonly<Record<string, Operation>>): readonly [string, Json] {
  const parameters = [...pattern.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
    name,
    in: 'path',
    required: true,
    schema: text,
  }));
  const methods = Object.entries(operations).map(([method, one]) => [method, operation(one)]);
  return [pattern, { ...(parameters.length > 0 ? { parameters } : {}), ...Object.fromEntries(methods) }];
}

function read(summary: string, answer: Schema, parameters: readonly Json[] = []): Operation {
  return { summary, role: 'viewer', answers: { 200: answer }, ...(parameters.length > 0 ? { parameters } : {}) };
}

/** 202 = stored, and this gateway follows as soon as it can read it back. */
function edit(
  summary: string,
  role: Operation['role'],
  body: Schema | null,
  answer: Schema,
  created = false,
): Operation {
  return {
    summary,
    role,
    parameters: created ? WRITE : [...WRITE, IF_MATCH],
    ...(body ? { body: json(body) } : {}),
    answers: { 200: answer, 202: answer, ...(created ? { 201: answer } : {}) },
  };
}

const FILE = {
  content: {
    'text/csv': { schema: { ...text, description: 'user_id,username[,node_id]' } },
    'application/x-ndjson': { schema: { ...text, description: '{"userId","username","nodeId"} a line' } },
  },
};

export const openapi = {
  openapi: '3.1.0',
  info: {
    title: 'sticky-gateway admin API',
    version: '1',
    description:
      'Services, nodes, bindings and routes of a gateway. Roles: viewer < operator < admin (x-role). Without configured tokens it is read-only, for loopback.',
  },
  security: [{ token: [] }],
  paths: Object.fromEntries([
    path('/api/services', {
      get: read('All services', ref('Services')),
      post: edit('Make a service', 'admin', ref('ServiceDraft'), ref('Service'), true),
    }),
    path('/api/services/{service}', {
      get: read('A service', ref('Service')),
      put: edit('Replace a service; without `nodes` they stay', 'admin', ref('ServiceDraft'), ref('Service')),
      delete: edit('Delete a service nobody is bound in', 'admin', null, ref('Deleted')),
    }),
    path('/api/services/{service}/nodes', {
      get: read('The nodes of a service, with health and bound users', ref('Nodes')),
      post: edit('Make a node', 'admin', ref('NodeDraft'), ref('NodeWritten'), true),
    }),
    path('/api/services/{service}/nodes/{node}', {
      get: read('A node, with health and bound users', ref('Node')),
      put: edit('Replace a node', 'admin', ref('NodeDraft'), ref('NodeWritten')),
      patch: edit('Turn the switches of a node', 'operator', ref('NodeSwitches'), ref('NodeWritten')),
      delete: edit('Delete a node nobody is bound to', 'admin', null, ref('Deleted')),
    }),
    path('/api/services/{service}/bindings', {
      get: read('Page through bindings', ref('Bindings'), [
        ...PAGE,
        query('userId', 'Of this user'),
        query('username', 'Of this user'),
        query('nodeId', 'On this node'),
      ]),
    }),
    path('/api/services/{service}/bindings/{userId}', {
      put: {
        summary: 'Bind a user, or move them',
        role: 'operator',
        parameters: WRITE,
        body: json(ref('Move')),
        answers: { 200: ref('BindingChanged'), 201: ref('BindingChanged') },
      },
      patch: {
        summary: 'Freeze a user, or let them go on',
        role: 'operator',
        parameters: WRITE,
        body: json(ref('Freeze')),
        answers: { 200: ref('BindingChanged') },
      },
      delete: {
        summary: 'Unbind a user',
        role: 'operator',
        parameters: WRITE,
        answers: { 200: ref('BindingRemoved') },
      },
    }),
    path('/api/services/{service}/bindings/import', {
      post: {
        summary: 'Bind the users of a file who are not bound yet: all of it or nothing',
        role: 'operator',
        parameters: [...WRITE, query('nodeId', 'For rows without a node; else the default node')],
        body: FILE,
        answers: { 200: ref('Imported') },
      },
    }),
    path('/api/services/{service}/bindings/export', {
      get: {
        summary: 'All bindings as a file',
        role: 'viewer',
        parameters: [query('format', 'csv (default) or ndjson', { enum: ['csv', 'ndjson'] })],
        answers: { 200: FILE },
      },
    }),
    path('/api/routes', {
      get: read('All routes with versions', ref('Routes')),
      post: edit('Make a route', 'admin', ref('RouteDraft'), ref('Route'), true),
    }),
    path('/api/routes/{route}', {
      get: read('A route', ref('Route')),
      put: edit('Replace a route', 'admin', ref('RouteDraft'), ref('Route')),
      delete: edit('Delete a route', 'admin', null, ref('Deleted')),
    }),
    path('/api/whoami', { get: read('Whose token this is, and what it may do', ref('Caller')) }),
    path('/api/health', { get: read('Health of every node, as this gateway sees it', ref('HealthOfAll')) }),
    path('/api/audit', { get: read('What was done or refused, newest first', ref('Audit'), PAGE) }),
    path('/api/config', { get: read('The configuration in force, secrets masked', ref('Config')) }),
    path('/api/reload', {
      post: {
        summary: 'Read the configuration file and the registry again, as SIGHUP does',
        role: 'admin',
        parameters: WRITE,
        answers: { 200: ref('Reloaded') },
      },
    }),
    path('/api/explain', {
      post: {
        summary: 'What would happen to a request; sends nothing',
        role: 'viewer',
        body: json(ref('Question')),
        answers: { 200: ref('Explanation') },
      },
    }),
    path('/api/events', {
      get: {
        summary: 'Changes as they happen: events hello, health, registry',
        role: 'viewer',
        answers: { 200: { content: { 'text/event-stream': { schema: text } } } },
      },
    }),
    path('/api/openapi.json', {
      get: read('This document', object({ openapi: text, info: {}, security: {}, paths: {}, components: {} })),
    }),
  ]),
  components: {
    schemas,
    securitySchemes: { token: { type: 'http', scheme: 'bearer' } },
  },
};
