/** Gives every request an id: the client's if it is fit to be written anywhere, else a new one. */
import { randomUUID } from 'node:crypto';
import type { Middleware } from '../context.ts';

const ACCEPTABLE = /^[A-Za-z0-9._:/+=-]{1,128}$/;

export function requestId(): Middleware {
  return (context, next) => {
    // Node joins repeated lines with ', ', which is not acceptable: a request has one id.
    const sent = context.request.headers['x-request-id'];
    context.requestId = typeof sent === 'string' && ACCEPTABLE.test(sent) ? sent : randomUUID();
    return next(context);
  };
}
