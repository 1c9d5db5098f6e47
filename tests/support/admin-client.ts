/** A caller of the admin API who holds every answer against the OpenAPI document. */
import assert from 'node:assert/strict';
import { openapi } from '../../lib/admin/openapi.ts';
import { type Answer, call } from './http-client.ts';
import { schemaFaults } from './schema-check.ts';

export const TOKENS = {
  viewer: 'viewer-token-0123456789',
  operator: 'operator-token-0123456789',
  admin: 'admin-token-0123456789',
} as const;

/** For GatewaySetup.admin: one token of each role, named like it. */
export const ADMIN_TOKENS = `tokens: [${Object.entries(TOKENS)
  .map(([role, token]) => `{ name: ${role}, role: ${role}, token: ${token} }`)
  .join(', ')}]`;

type Schema = Readonly<Record<string, unknown>>;

export class AdminClient {
  readonly port: number;
  readonly token: string | null;

  constructor(port: number, token: string | null = TOKENS.admin) {
    this.port = port;
    this.token = token;
  }

  as(role: keyof typeof TOKENS): AdminClient {
    return new AdminClient(this.port, TOKENS[role]);
  }

  get(path: string, headers: Record<string, string> = {}): Promise<Answer> {
    return this.send('GET', path, undefined, headers);
  }

  post(path: string, body: unknown, headers: Record<string, string> = {}): Promise<Answer> {
    return this.send('POST', path, body, headers);
  }

  put(path: string, body: unknown, headers: Record<string, string> = {}): Promise<Answer> {
    return this.send('PUT', path, body, headers);
  }

  patch(path: string, body: unknown, headers: Record<string, string> = {}): Promise<Answer> {
    return this.send('PATCH', path, body, headers);
  }

  delete(path: string, headers: Record<string, string> = {}): Promise<Answer> {
    return this.send('DELETE', path, undefined, headers);
  }

  /** Sends text as it is and anything else as JSON; fails when the answer is none that the document knows. */
  async send(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<Answer> {
    const text = body === undefined ? undefined : typeof body === 'string' ? body : JSON.stringify(body);
    const answer = await call(this.port, path, {
      method,
      headers: {
        ...(this.token === null ? {} : { Authorization: `Bearer ${this.token}` }),
        ...(text === undefined ? {} : { 'Content-Type': 'application/json' }),
        ...headers,
      },
      ...(text === undefined ? {} : { body: text }),
    });
    assert.equal(answer.headers['cache-control'], 'no-store', `${method} ${path}`);
    assertDocumented(method, path, answer);
    return answer;
  }

  /** As `get`, and throws unless it is a success. */
  async read(path: string): Promise<Record<string, unknown>> {
    const answer = await this.get(path);
    assert.equal(answer.status, 200, `${path}: ${answer.text}`);
    return answer.json();
  }
}

function assertDocumented(method: string, path: string, answer: Answer): void {
  const bare = path.split('?')[0] ?? '';
  const operation = operationOf(method === 'HEAD' ? 'GET' : method, bare);
  const content = (
    operation?.['responses'] as Record<string, { content: Record<string, { schema: Schema }> }> | undefined
  )?.[answer.status]?.content;
  const type = (answer.headers['content-type'] ?? '').split(';')[0] ?? '';
  const failed = answer.status >= 400;
  const schema = content?.[type]?.schema ?? (failed ? { $ref: '#/components/schemas/Error' } : undefined);
  assert.ok(schema, `${method} ${path}: ${answer.status} ${type} is not in the document`);
  if (operation && failed) assert.ok(content, `${method} ${path}: ${answer.status} is not in the document`);
  if (type !== 'application/json' || method === 'HEAD') return;
  assert.deepEqual(schemaFaults(answer.json(), schema, openapi), [], `${method} ${path}: ${answer.status}`);
}

function operationOf(method: string, path: string): Record<string, unknown> | undefined {
  const segments = path.split('/');
  const fits = Object.keys(openapi.paths).filter((pattern) => {
    const parts = pattern.split('/');
    return (
      parts.length === segments.length && parts.every((part, index) => part.startsWith('{') || part === segments[index])
    );
  });
  return fits
    .sort((left, right) => left.split('{').length - right.split('{').length)
    .map((fit) => (openapi.paths[fit] as Record<string, Record<string, unknown>>)[method.toLowerCase()])
    .find((one) => one !== undefined);
}
