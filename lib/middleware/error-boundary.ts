/**
 * The one place where an error becomes an answer. Before the head has gone out it renders it; afterwards it can only
 * cut the connection, so that the client does not take a part for the whole.
 */
import { STATUS_CODES } from 'node:http';
import type { Middleware, RequestContext } from '../context.ts';
import { type GatewayError, toGatewayError } from '../errors.ts';
import { describeError, type Logger } from '../observe/log.ts';
import type { Metrics } from '../observe/metrics.ts';
import { cut } from '../proxy/forward.ts';
import type { Clock } from '../support/clock.ts';
import { renderError } from './error-page.ts';

/** What a client may still send of a body nobody wants, before its connection is ended. */
const LINGER_BYTES = 1_048_576;
const LINGER_MS = 5_000;

export interface ErrorBoundaryOptions {
  readonly logger: Logger;
  readonly metrics: Metrics;
  readonly clock: Clock;
  /** Fields that every answer of the gateway gets, such as those of CORS; raw pairs. */
  readonly extraHeaders: (context: RequestContext) => readonly string[];
}

export function errorBoundary(options: ErrorBoundaryOptions): Middleware {
  const errorHandler = (context: RequestContext, error: unknown) => answer(context, error, options);
  return (context, next) => {
    context.errorHandler = errorHandler;
    try {
      const pending = next(context);
      return pending?.catch((error: unknown) => context.fail(error));
    } catch (error) {
      context.fail(error);
    }
  };
}

function answer(context: RequestContext, thrown: unknown, options: ErrorBoundaryOptions): void {
  const error = toGatewayError(thrown);
  const { response, request } = context;
  context.errorCode ??= error.code;
  options.metrics.counter('gateway_refusals_total', 'Requests answered with an error', { error: error.code }).inc();
  report(context, error, options.logger);
  if (response.headersSent) {
    cut(context);
    return;
  }
  // Gone before it could be told.
  if (response.destroyed) return;
  const page = renderError(error, context.requestId, request.headers.accept);
  const headers = [
    'Content-Type',
    page.contentType,
    'Content-Length',
    String(Buffer.byteLength(page.body)),
    'Cache-Control',
    'no-store',
    'X-Request-Id',
    context.requestId,
    ...options.extraHeaders(context),
  ];
  if (error.nodeId !== undefined) headers.push('X-Gateway-Node', error.nodeId);
  if (context.version !== null) headers.push('X-Gateway-Version', context.version);
  if (error.retryAfterSeconds !== undefined) headers.push('Retry-After', String(error.retryAfterSeconds));
  // With its reason: a node's, that could not be sent, would still be on the response and throw again.
  response.writeHead(error.status, STATUS_CODES[error.status] ?? '', headers);
  if (request.method !== 'HEAD') context.bytesSent = Buffer.byteLength(page.body);
  response.end(request.method === 'HEAD' ? undefined : page.body);
  if (!request.complete && !context.upgrade) linger(context, options.clock);
}

/**
 * Closing at once would reset the connection under the answer (RFC 9112 section 9.6), so what the client still sends
 * is read and dropped, but not for ever.
 */
function linger(context: RequestContext, clock: Clock): void {
  const { request, response } = context;
  const { socket } = request;
  let leftBytes = LINGER_BYTES;
  const timer = clock.after(LINGER_MS, () => {
    if (!request.complete) socket.destroy();
  });
  request.on('data', (chunk: Buffer) => {
    leftBytes -= chunk.length;
    if (leftBytes < 0) socket.destroy();
  });
  request.once('close', () => timer.cancel());
  response.once('close', () => request.resume());
  request.resume();
}

function report(context: RequestContext, error: GatewayError, logger: Logger): void {
  const fields = {
    requestId: context.requestId,
    error: error.code,
    message: error.message,
    node: error.nodeId,
  };
  if (error.code === 'internal') {
    const { cause } = error;
    logger.error('internal_error', {
      ...fields,
      cause: cause instanceof Error ? cause.stack : String(cause),
    });
  } else if (error.cause !== undefined) logger.warn('request_failed', { ...fields, cause: describeError(error.cause) });
}
