/** The fields of one exchange, both ways: what headers.ts does to them, fed from the request's context. */
import type { RequestContext } from '../context.ts';
import type { Node, Service } from '../model.ts';
import { fieldValue, requestHeaders, responseHeaders } from './headers.ts';
import { makeTraceparent } from './trace-context.ts';

/** Methods for which Node would choose chunked framing when no length is stated. */
const BODY_EXPECTED = new Set(['POST', 'PUT', 'PATCH']);

/** `length`: the body's declared length, -1 = chunked. */
export function nodeRequestHeaders(
  context: RequestContext,
  node: Node,
  service: Service,
  via: string | null,
  length: number,
): string[] {
  const { request } = context;
  let headers = requestHeaders(request.rawHeaders, {
    requestId: context.requestId,
    epoch: context.epoch,
    forwardedFor: context.peerAddress,
    trustedPeer: context.trustedPeer,
    proto: 'encrypted' in request.socket ? 'https' : 'http',
    host: context.host,
    hostOverride: hostOverride(context, node, service),
    via: via === null ? null : `${request.httpVersion} ${via}`,
    acceptEncodingIdentity: context.login !== null,
    keepUpgrade: context.upgrade !== null,
    traceparent: makeTraceparent,
  });
  if (length === -1) headers.push('Transfer-Encoding', 'chunked');
  // Node refuses to announce trailers in a message that has no chunks.
  else if (request.headers.trailer !== undefined) headers = without(headers, 'trailer');
  if (length === 0 && BODY_EXPECTED.has(request.method ?? '') && request.headers['content-length'] === undefined) {
    headers.push('Content-Length', '0');
  }
  if (request.headers.expect === undefined || !context.login) return headers;
  // Of a login whose body was read to learn the username the gateway has said "continue" itself. One that was too
  // large from the start is still being held back, until the node says so.
  const { bodyRead, bodyComplete } = context.login;
  return bodyComplete || bodyRead.length > 0 ? without(headers, 'expect') : headers;
}

export function clientResponseHeaders(
  context: RequestContext,
  rawHeaders: readonly string[],
  via: string | null,
  close: boolean,
): string[] {
  return responseHeaders(rawHeaders, {
    nodeId: context.node?.id ?? '',
    version: context.version,
    requestId: context.requestId,
    cors: context.corsHeaders,
    via: via === null ? null : `1.1 ${via}`,
    close,
    keepUpgrade: context.upgrade !== null && context.nodeStatus === 101,
    trailers:
      context.request.httpVersionMinor !== 0 &&
      context.request.method !== 'HEAD' &&
      context.nodeStatus !== 204 &&
      context.nodeStatus !== 304,
  });
}

function hostOverride(context: RequestContext, node: Node, service: Service): string | null {
  if (service.upstream.hostHeader === 'node') return node.authority;
  const { host } = context.request.headers;
  // An HTTP/1.0 client may send none, and an absolute-form target outweighs it.
  if (host === undefined) return context.host ?? node.authority;
  return context.host === host ? null : (context.host ?? null);
}

function without(headers: readonly string[], lowerName: string): string[] {
  if (fieldValue(headers, lowerName) === undefined) return [...headers];
  const kept: string[] = [];
  for (let index = 0; index + 1 < headers.length; index += 2) {
    const name = headers[index] ?? '';
    if (name.toLowerCase() !== lowerName) kept.push(name, headers[index + 1] ?? '');
  }
  return kept;
}
