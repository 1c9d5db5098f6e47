/**
 * The admin listener: the console, liveness, readiness and metrics, and the API below /api/. It has an address of its
 * own and is never reachable through the public one.
 */
import * as http from 'node:http';
import * as https from 'node:https';
import type { AddressInfo } from 'node:net';
import type { ListenOptions } from '../config/options.ts';
import { OperatorError } from '../errors.ts';
import { readTlsFiles } from '../process/tls-files.ts';
import { explainListen } from '../support/explain-listen.ts';
import { AddressList, plainAddress } from '../support/ip.ts';
import { type ConsolePage, readConsole } from './console.ts';

export interface AdminServerOptions {
  readonly listen: ListenOptions;
  readonly allow: readonly string[];
  /** Prometheus text; of several processes it takes a moment to add up. */
  readonly metrics: { render(): string | Promise<string> };
  /** A socket to listen on instead of binding the address. */
  readonly fd?: number | undefined;
  /** Null = ready; else why not. */
  readonly notReady: () => string | null;
  /** Takes what lies below /api/ and answers it in every case. */
  readonly api: (request: http.IncomingMessage, response: http.ServerResponse, address: string) => Promise<void>;
}

const LIMITS = {
  maxHeaderSize: 16_384,
  headersTimeout: 10_000,
  // Files may take as long as they flow; silence in bodies is watched where they are read.
  requestTimeout: 0,
  keepAliveTimeout: 15_000,
  connectionsCheckingInterval: 2_000,
  noDelay: true,
} as const;
const MOST_CONNECTIONS = 256;

export class AdminServer {
  readonly #options: AdminServerOptions;
  readonly #allowed: AddressList;
  readonly #console: ConsolePage;
  readonly #server: http.Server;

  /** Throws OperatorError for TLS files that cannot be used, Error when the console is not in its place. */
  constructor(options: AdminServerOptions) {
    this.#options = options;
    this.#allowed = new AddressList(options.allow);
    this.#console = readConsole();
    const { tls } = options.listen;
    this.#server = tls ? https.createServer({ ...LIMITS, ...readTlsFiles(tls) }) : http.createServer(LIMITS);
    this.#server.maxConnections = MOST_CONNECTIONS;
    this.#server.on('request', (request: http.IncomingMessage, response: http.ServerResponse) =>
      this.#answer(request, response),
    );
  }

  async start(): Promise<AddressInfo> {
    const { listen, fd } = this.#options;
    const { host, port } = listen;
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', (error) =>
        reject(new OperatorError(`admin.listen: ${explainListen(error, host, port)}`)),
      );
      this.#server.listen(fd === undefined ? { host, port } : { fd }, resolve);
    });
    return this.#server.address() as AddressInfo;
  }

  /** Reads certificate and key again (OperatorError) and returns what puts them in force, for later connections. */
  prepareReload(): () => void {
    const { tls } = this.#options.listen;
    const server = this.#server;
    if (!tls || !(server instanceof https.Server)) return () => undefined;
    const pair = readTlsFiles(tls);
    return () => server.setSecureContext(pair);
  }

  stop(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }

  #answer(request: http.IncomingMessage, response: http.ServerResponse): void {
    const address = plainAddress(request.socket.remoteAddress ?? '');
    const path = (request.url ?? '').split('?')[0] ?? '';
    if (!this.#allowed.has(address)) refuseAddress(response, path);
    else if (path.startsWith('/api/')) void this.#options.api(request, response, address);
    else if (request.method !== 'GET' && request.method !== 'HEAD') {
      response.setHeader('Allow', 'GET, HEAD');
      send(response, 405, 'text/plain', 'GET only\n');
    } else if (path === '/') {
      response.writeHead(200, this.#console.headers);
      response.end(this.#console.body);
    } else if (path === '/console' || path === '/console/') {
      response.writeHead(307, { Location: '/', 'Content-Length': 0 });
      response.end();
    } else if (path === '/healthz') send(response, 200, 'text/plain', 'ok\n');
    else if (path === '/readyz') this.#answerReady(response);
    else if (path === '/metrics') {
      void this.#answerMetrics(response);
    } else send(response, 404, 'text/plain', 'there are /, /healthz, /readyz, /metrics and /api/ here\n');
  }

  async #answerMetrics(response: http.ServerResponse): Promise<void> {
    send(response, 200, 'text/plain; version=0.0.4', await this.#options.metrics.render());
  }

  #answerReady(response: http.ServerResponse): void {
    const reason = this.#options.notReady();
    if (reason === null) send(response, 200, 'text/plain', 'ready\n');
    else send(response, 503, 'text/plain', `not ready: ${reason}\n`);
  }
}

function refuseAddress(response: http.ServerResponse, path: string): void {
  const message = 'this address may not use the admin listener';
  if (!path.startsWith('/api/')) send(response, 403, 'text/plain', `${message}\n`);
  else send(response, 403, 'application/json', `${JSON.stringify({ code: 403, error: 'ip_not_allowed', message })}\n`);
}

function send(response: http.ServerResponse, status: number, contentType: string, body: string): void {
  response.writeHead(status, {
    'Content-Type': `${contentType}; charset=utf-8`,
    'Cache-Control': 'no-store',
  });
  response.end(body);
}
