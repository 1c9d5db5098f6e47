/** What Node's parser lets through of a request head although two readers could understand it in two ways. */
import type { IncomingMessage } from 'node:http';

/** Null = sound; else why the request is refused and its connection closed. */
export function checkFraming(request: IncomingMessage): string | null {
  // The parser knows the version numbers of HTTP/0.9 and HTTP/2.0, which are never sent in this form.
  if (request.httpVersionMajor !== 1) return 'only HTTP/1.0 and HTTP/1.1 are understood here';
  const coding = request.headers['transfer-encoding'];
  if (coding !== undefined) {
    // RFC 9112 section 6.1: a server that sees it in HTTP/1.0 must take the framing as faulty.
    if (request.httpVersionMinor === 0) return 'Transfer-Encoding is not part of HTTP/1.0';
    if (coding.toLowerCase() !== 'chunked') return 'the only transfer coding understood here is chunked';
    if (request.headers['content-length'] !== undefined)
      return 'Content-Length and Transfer-Encoding exclude each other';
  }
  return countHost(request.rawHeaders) > 1 ? 'there is more than one Host' : null;
}

/** Node keeps the first of several Host lines in `headers`; only the raw fields show the others. */
function countHost(raw: readonly string[]): number {
  let count = 0;
  for (let index = 0; index < raw.length; index += 2) {
    const name = raw[index];
    if (name?.length === 4 && (name === 'Host' || name === 'host' || name.toLowerCase() === 'host')) count += 1;
  }
  return count;
}
