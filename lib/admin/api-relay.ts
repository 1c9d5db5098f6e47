/**
 * With several workers: passes the calls of the API from the primary process, which has the admin listener, on to a
 * worker, whose gateway answers them. It looks into nothing.
 */
import * as http from 'node:http';
import type { Clock } from '../support/clock.ts';
import { linger } from './answer.ts';

/** The peer's address, on the way to the worker; what clients send of it is dropped. */
export const PEER_FIELD = 'x-sticky-gateway-peer';

/** Fields of one connection, which are not those of the next. */
const OF_THE_CONNECTION = new Set([PEER_FIELD, 'connection', 'keep-alive']);

export class ApiRelay {
  readonly #socketPath: () => string | null;
  readonly #refresh: () => Promise<void>;
  readonly #clock: Clock;

  /**
   * `socketPath`: of a worker that serves, null = there is none. `refresh`: makes all workers see what one of them has
   * changed; an answer that something was done waits for it.
   */
  constructor(socketPath: () => string | null, refresh: () => Promise<void>, clock: Clock) {
    this.#socketPath = socketPath;
    this.#refresh = refresh;
    this.#clock = clock;
  }

  /** Answers in every case. `address`: of the peer. */
  async handle(request: http.IncomingMessage, response: http.ServerResponse, address: string): Promise<void> {
    const socketPath = this.#socketPath();
    // The worker cuts its own end only: what is left of a body that was refused comes in here.
    response.once('finish', () => linger(request, this.#clock));
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
    let reached = false;
    let answered = false;
    passed.on('socket', (socket) =>
      socket.once('connect', () => {
        reached = true;
      }),
    );
    passed.on('response', (answer) => {
      answered = true;
      const status = answer.statusCode ?? 502;
      const relay = () => {
        response.writeHead(status, passable(answer.rawHeaders, 'transfer-encoding'));
        answer.pipe(response);
      };
      if (status < 300 && !isSafe(request.method)) void this.#refresh().then(relay);
      else relay();
      // A part must not look like the whole.
      answer.on('close', () => {
        if (!answer.complete) response.destroy();
      });
    });
    passed.on('error', () => {
      // The worker closes behind its answer, which may look like a reset; an answer that is cut short is told by 'close'.
      if (answered) return;
      if (response.headersSent) response.destroy();
      else if (reached && !isSafe(request.method)) leaveOpen(response);
      else refuse(response);
    });
    response.on('close', () => passed.destroy());
    request.pipe(passed);
  }
}

/** `besides`: chunks are not for HTTP/1.0 clients, so how an answer is framed is decided for each connection. */
function passable(rawHeaders: readonly string[], besides?: string): string[] {
  const kept: string[] = [];
  for (let index = 0; index + 1 < rawHeaders.length; index += 2) {
    const name = rawHeaders[index] ?? '';
    const lower = name.toLowerCase();
    if (lower !== besides && !OF_THE_CONNECTION.has(lower)) kept.push(name, rawHeaders[index + 1] ?? '');
  }
  return kept;
}

function isSafe(method: string | undefined): boolean {
  return method === 'GET' || method === 'HEAD';
}

function refuse(response: http.ServerResponse): void {
  send(response, 503, 'not_ready', 'no worker serves at the moment', { 'Retry-After': '2' });
}

/** The worker had the call, and may have done what it asks for. */
function leaveOpen(response: http.ServerResponse): void {
  send(response, 502, 'outcome_unknown', 'the worker died before it answered: look whether the change was made', {});
}

function send(response: http.ServerResponse, code: number, error: string, message: string, more: object): void {
  const body = `${JSON.stringify({ code, error, message })}\n`;
  response.writeHead(code, {
    'Content-Type': 'application/json; charset=utf-8',
    'Content-Length': Buffer.byteLength(body),
    'Cache-Control': 'no-store',
    'X-Content-Type-Options': 'nosniff',
    ...more,
  });
  response.end(body);
}
