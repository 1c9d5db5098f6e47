/** Trace contexts for requests that come without one (W3C Trace Context, level 1). */
import { createHash, randomUUID } from 'node:crypto';

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

/**
 * A value for `traceparent`. The trace id comes from the request id, so that a trace and the log lines of its request
 * find each other; the span id is new each time. Marked as sampled: whoever keeps traces decides how many.
 */
export function makeTraceparent(requestId: string): string {
  const traceId = UUID.test(requestId)
    ? requestId.replaceAll('-', '').toLowerCase()
    : createHash('sha256').update(requestId).digest('hex').slice(0, 32);
  const random = randomUUID();
  return `00-${traceId}-${random.slice(0, 8)}${random.slice(28)}-01`;
}
