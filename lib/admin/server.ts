/** The admin listener: liveness, readiness and metrics. Never reachable through the public one. */
import * as http from 'node:http';
import type { AddressInfo } from 'node:net';
import type { ListenOptions } from '../config/options.ts';
import { OperatorError } from '../errors.ts';
import type { Metrics } from '../observe/metrics.ts';
import { explainListen } from '../support/explain-listen.ts';
import { AddressList } from '../support/ip.ts';

export interface AdminServerOptions {
  readonly listen: ListenOptions;
  readonly allow: readonly string[];
  readonly metrics: Metrics;
  /** Null = ready; else why not. */
  readonly notReady: () => string | null;
}

export class AdminServer {
  readonly #options: AdminServerOptions;
  readonly #allowed: AddressList;
  readonly #server: http.Server;

  constructor(options: AdminServerOptions) {
    this.#options = options;
    this.#allowed = new AddressList(options.allow);
    this.#server = http.createServer((request, response) => this.#answer(request, response));
  }

  async start(): Promise<AddressInfo> {
    const { host, port } = this.#options.listen;
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', (error) =>
        reject(new OperatorError(`admin.listen: ${explainListen(error, host, port)}`)),
      );
      this.#server.listen({ host, port }, resolve);
    });
    return this.#server.address() as AddressInfo;
  }

  stop(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }

  #answer(request: http.IncomingMessage, response: http.ServerResponse): void {
    if (!this.#allowed.has(request.socket.remoteAddress ?? '')) {
      send(response, 403, 'text/plain', 'this address may not use the admin listener\n');
      return;
    }
    const path = (request.url ?? '').split('?')[0];
    if (request.method !== 'GET' && request.method !== 'HEAD') send(response, 405, 'text/plain', 'GET only\n');
    else if (path === '/healthz') send(response, 200, 'text/plain', 'ok\n');
    else if (path === '/readyz') this.#answerReady(response);
    else if (path === '/metrics') {
      send(response, 200, 'text/plain; version=0.0.4', this.#options.metrics.render());
    } else send(response, 404, 'text/plain', 'there are /healthz, /readyz and /metrics here\n');
  }

  #answerReady(response: http.ServerResponse): void {
    const reason = this.#options.notReady();
    if (reason === null) send(response, 200, 'text/plain', 'ready\n');
    else send(response, 503, 'text/plain', `not ready: ${reason}\n`);
  }
}

function send(response: http.ServerResponse, status: number, contentType: string, body: string): void {
  response.writeHead(status, {
    'Content-Type': `${contentType}; charset=utf-8`,
    'Cache-Control': 'no-store',
  });
  response.end(body);
}
