/** Answers of the API: JSON that no cache keeps, errors in the one shape, and the end of requests nobody reads on. */
import type { IncomingMessage } from 'node:http';
import type { Clock } from '../support/clock.ts';
import type { AdminError } from './admin-error.ts';
import type { AdminCall, Reply } from './call.ts';

/** What a client may still send of a body that was refused, and for how long, before its connection is cut. */
const LINGER_BYTES = 4_194_304;
const LINGER_MS = 2_000;

export function sendReply(call: AdminCall, reply: Reply): void {
  const { response, request } = call;
  if (response.destroyed) return;
  const body = Buffer.from(`${JSON.stringify(reply.body ?? {})}\n`);
  response.writeHead(reply.status, {
    'Content-Type': 'application/json; charset=utf-8',
    'Content-Length': body.length,
    'Cache-Control': 'no-store',
    'X-Content-Type-Options': 'nosniff',
    'X-Request-Id': call.requestId,
    ...reply.headers,
  });
  response.end(request.method === 'HEAD' ? undefined : body);
}

export function sendError(call: AdminCall, error: AdminError): void {
  // In the middle of a file a tidy end would make a whole of a part.
  if (call.response.headersSent) {
    call.response.destroy();
    return;
  }
  sendReply(call, {
    status: error.status,
    body: {
      code: error.status,
      error: error.code,
      message: error.message,
      ...error.details,
      requestId: call.requestId,
    },
    headers: error.headers,
  });
  linger(call.request, call.clock);
}

/** Reads on for a while what is left of a request that is answered: closing at once would reset the connection under the answer (RFC 9112 section 9.6). */
export function linger(request: IncomingMessage, clock: Clock): void {
  if (request.complete) return;
  const { socket } = request;
  let leftBytes = LINGER_BYTES;
  const timer = clock.after(LINGER_MS, () => {
    if (!request.complete) socket.destroy();
  });
  request.on('data', (chunk: Buffer) => {
    leftBytes -= chunk.length;
    if (leftBytes < 0) socket.destroy();
  });
  // The connection may end in the middle of it: that is all that was expected of it.
  request.on('error', () => timer.cancel());
  request.once('close', () => timer.cancel());
  request.resume();
}
