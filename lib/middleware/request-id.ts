/** Gives every request an id: the client's if it is fit to be written anywhere, else a new one. */
import { randomUUID } from 'node:crypto';
import type { Middleware } from '../context.ts';

const ACCEPTABLE = /^[A-Za-z0-9._:/+=-]{1,128}$/;

export function requestId(): Middleware {
  return (context, next) => {
    context.requestId = requestIdOf(context.request.headers['x-request-id']);
    return next(context);
  };
}

/** `sent`: the field as Node gives it. Repeated lines are joined with ', ', which is not acceptable: a request has one id. */
export function requestIdOf(sent: string | string[] | undefined): string {
  return typeof sent === 'string' && ACCEPTABLE.test(sent) ? sent : randomUUID();
}
