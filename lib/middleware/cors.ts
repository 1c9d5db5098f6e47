/** When the gateway answers for CORS instead of the nodes: preflights here, and the fields for every other answer. */
import type { Middleware } from '../context.ts';
import type { CorsPolicy } from './cors-policy.ts';

/** `policy` null = off, the nodes answer for themselves. */
export function cors(policy: CorsPolicy | null): Middleware {
  if (!policy) return (context, next) => next(context);
  return (context, next) => {
    const { request, response } = context;
    if (request.method === 'OPTIONS') {
      const fields = policy.preflight(request.rawHeaders);
      if (fields) {
        response.writeHead(204, [...fields, 'X-Request-Id', context.requestId]);
        response.end();
        return;
      }
    }
    context.corsHeaders = policy.responseHeaders(request.headers.origin);
    return next(context);
  };
}
