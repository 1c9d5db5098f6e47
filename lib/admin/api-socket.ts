/** A worker's end of the way from the primary's admin listener: the API on a Unix socket that only the primary reaches. */
import * as fs from 'node:fs';
import * as http from 'node:http';
import { OperatorError } from '../errors.ts';
import type { AdminApi } from './api.ts';
import { PEER_FIELD } from './api-relay.ts';

export class ApiSocket {
  readonly #path: string;
  readonly #server: http.Server;

  constructor(path: string, api: AdminApi) {
    this.#path = path;
    // Silence and sizes are the primary's to watch, and those of bodies the API's; so is Host, which HTTP/1.0 clients need not send.
    this.#server = http.createServer({ requestTimeout: 0, requireHostHeader: false }, (request, response) => {
      const address = request.headers[PEER_FIELD];
      void api.handle(request, response, typeof address === 'string' ? address : '');
    });
  }

  /** Rejects with OperatorError. */
  async start(): Promise<void> {
    // Left by the process that had this place before.
    fs.rmSync(this.#path, { force: true });
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', (error) => reject(new OperatorError(`${this.#path}: ${error.message}`)));
      // Else the cluster module would let all workers share it.
      this.#server.listen({ path: this.#path, exclusive: true }, resolve);
    });
  }

  stop(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }
}
