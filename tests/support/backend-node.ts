/**
 * A fake node: journals every request it sees, logs users in, and can be switched to every way of failing. Its user
 * ids are the same on every node, as if the nodes shared a user database; its data is its own.
 */
import * as http from 'node:http';
import type { AddressInfo, Socket } from 'node:net';

export interface JournalEntry {
  readonly method: string;
  readonly path: string;
  readonly token: string | undefined;
  readonly headers: http.IncomingHttpHeaders;
  readonly rawHeaders: readonly string[];
  body: string;
}

export type Mode = 'up' | 'black-hole' | 'reset-after-body' | 'status-500' | 'slow' | 'reset-head';

/** What a login answers; undefined = the usual success. */
export type LoginAnswer = (username: string, response: http.ServerResponse, node: BackendNode) => void;

export class BackendNode {
  readonly id: string;
  readonly prefix: string;
  readonly journal: JournalEntry[] = [];
  /** Health probes, kept apart. */
  probes = 0;
  mode: Mode = 'up';
  slowMs = 200;
  loginAnswer: LoginAnswer | undefined;
  /** Answers everything but logins and probes; undefined = JSON that names the node. */
  handler: ((request: http.IncomingMessage, response: http.ServerResponse, body: string) => void) | undefined;
  #server: http.Server | undefined;
  #port = 0;
  readonly #sockets = new Set<Socket>();

  constructor(id: string, prefix = '/js/a') {
    this.id = id;
    this.prefix = prefix;
  }

  get baseUrl(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  get port(): number {
    return this.#port;
  }

  get listening(): boolean {
    return this.#server !== undefined;
  }

  get server(): http.Server {
    if (!this.#server) throw new Error('not started');
    return this.#server;
  }

  /** Starts, or starts again on the port it had. */
  async start(): Promise<this> {
    this.#server = http.createServer((request, response) => this.#take(request, response));
    this.#server.keepAliveTimeout = 60_000;
    this.#server.on('connection', (socket) => {
      this.#sockets.add(socket);
      socket.on('close', () => this.#sockets.delete(socket));
    });
    await new Promise<void>((resolve, reject) => {
      this.#server?.once('error', reject);
      this.#server?.listen(this.#port, '127.0.0.1', resolve);
    });
    this.#port = (this.#server.address() as AddressInfo).port;
    return this;
  }

  /** Refuses connections from now on, and drops those it has: as if the process had been killed. */
  async stop(): Promise<void> {
    const server = this.#server;
    this.#server = undefined;
    if (!server) return;
    const closed = new Promise((resolve) => server.close(resolve));
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  /** Requests that carried this token. */
  withToken(token: string): JournalEntry[] {
    return this.journal.filter((entry) => entry.token === token);
  }

  #take(request: http.IncomingMessage, response: http.ServerResponse): void {
    const path = (request.url ?? '').split('?')[0] ?? '';
    if (path === '/health') {
      this.probes += 1;
      if (this.mode === 'black-hole') return;
      response.writeHead(this.mode === 'status-500' ? 500 : 200).end();
      return;
    }
    const entry: JournalEntry = {
      method: request.method ?? '',
      path: request.url ?? '',
      token: request.headers['x-token'] as string | undefined,
      headers: request.headers,
      rawHeaders: request.rawHeaders,
      body: '',
    };
    this.journal.push(entry);
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('error', () => undefined);
    request.on('end', () => {
      entry.body = Buffer.concat(chunks).toString('utf8');
      this.#answer(request, response, path, entry.body);
    });
  }

  #answer(request: http.IncomingMessage, response: http.ServerResponse, path: string, body: string): void {
    if (this.mode === 'black-hole') return;
    if (this.mode === 'reset-after-body') {
      request.socket.resetAndDestroy();
      return;
    }
    if (this.mode === 'status-500') {
      response.writeHead(500).end('broken');
      return;
    }
    const answer = () => {
      if (request.method === 'POST' && path === `${this.prefix}/auth/login`) this.#logIn(body, response);
      else if (this.handler) this.handler(request, response, body);
      else sendJson(response, { node: this.id, path: request.url });
    };
    if (this.mode === 'slow') setTimeout(answer, this.slowMs);
    else answer();
  }

  #logIn(body: string, response: http.ServerResponse): void {
    let username: string;
    try {
      username = String((JSON.parse(body) as { username: unknown }).username);
    } catch {
      username = new URLSearchParams(body).get('username') ?? '';
    }
    if (this.loginAnswer) this.loginAnswer(username, response, this);
    else sendJson(response, loginSuccess(username));
  }
}

let tokens = 0;

/** The body of a successful login. */
export function loginSuccess(username: string, userId = userIdOf(username), token = newToken()): object {
  return { code: 200, data: { token, userId, username } };
}

export function newToken(): string {
  tokens += 1;
  return `tok-${process.pid}-${tokens}-${Math.random().toString(36).slice(2)}secret`;
}

export function userIdOf(username: string): string {
  return `u-${username.toLowerCase()}`;
}

export function sendJson(response: http.ServerResponse, value: unknown): void {
  const body = JSON.stringify(value);
  response.writeHead(200, { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) });
  response.end(body);
}
