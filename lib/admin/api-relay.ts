/**
 * With several workers: passes the calls of the API from the primary process, which has the admin listener, on to a
 * worker, whose gateway answers them. It looks into nothing.
 */
import * as http from 'node:http';

/** The peer's address, on the way to the worker; what clients send of it is dropped. */
export const PEER_FIELD = 'x-sticky-gateway-peer';

/** Fields of one connection, which are not those of the next. */
const OF_THE_CONNECTION = new Set([PEER_FIELD, 'connection', 'keep-alive']);

export class ApiRelay {
  readonly #socketPath: () => string | null;

  /** `socketPath`: of a worker that serves, null = there is none. */
  constructor(socketPath: () => string | null) {
    this.#socketPath = socketPath;
  }

  /** Answers in every case. `address`: of the peer. */
  async handle(request: http.IncomingMessage, response: http.ServerResponse, address: string): Promise<void> {
    const socketPath = this.#socketPath();
    if (socketPath === null) {
      refuse(response);
      return;
    }
    const passed = http.request({
      socketPath,
      method: request.method,
      path: request.url,
      headers: [...passable(request.rawHeaders), PEER_FIELD, address],
      agent: false,
    });
    passed.on('response', (answer) => {
      response.writeHead(answer.statusCode ?? 502, passable(answer.rawHeaders));
      answer.pipe(response);
      // A part must not look like the whole.
      answer.on('close', () => {
        if (!answer.complete) response.destroy();
      });
    });
    passed.on('error', () => {
      if (response.headersSent) response.destroy();
      else refuse(response);
    });
    response.on('close', () => passed.destroy());
    request.pipe(passed);
  }
}

function passable(rawHeaders: readonly string[]): string[] {
  const kept: string[] = [];
  for (let index = 0; index + 1 < rawHeaders.length; index += 2) {
    const name = rawHeaders[index] ?? '';
    if (!OF_THE_CONNECTION.has(name.toLowerCase())) kept.push(name, rawHeaders[index + 1] ?? '');
  }
  return kept;
}

function refuse(response: http.ServerResponse): void {
  const body = JSON.stringify({ code: 503, error: 'not_ready', message: 'no worker serves at the moment' });
  response.writeHead(503, {
    'Content-Type': 'application/json; charset=utf-8',
    'Cache-Control': 'no-store',
    'Retry-After': '2',
  });
  response.end(`${body}\n`);
}
