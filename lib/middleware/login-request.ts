/**
 * Recognises a login and reads as much of its body as it may hold, to learn who wants to log in. The bytes themselves
 * are forwarded as they came.
 */
import type { LoginAttempt, Middleware, RequestContext } from '../context.ts';
import { isLoginPath } from '../proxy/targets.ts';
import { readLoginUsername } from './login-mapping.ts';

export function loginRequest(limits: { loginRequestBytes: number }): Middleware {
  return (context, next) => {
    const { request, service } = context;
    if (request.method !== 'POST' || context.upgrade || !service || !isLoginPath(service, context.path)) {
      return next(context);
    }
    const declared = Number(request.headers['content-length'] ?? 0);
    if (declared > limits.loginRequestBytes) {
      context.login = { username: null, bodyRead: [], bodyComplete: false, seat: null };
      return next(context);
    }
    return readThenGoOn(context, limits.loginRequestBytes, next);
  };
}

async function readThenGoOn(
  context: RequestContext,
  limitBytes: number,
  next: (context: RequestContext) => void | Promise<void>,
): Promise<void> {
  const { request, service } = context;
  // The username decides where the request goes, so the body is needed before a node could say "continue".
  if (request.headers.expect !== undefined) context.response.writeContinue();
  const read = await readUpTo(context, limitBytes);
  if (!read || !service) return;
  const username = read.bodyComplete
    ? readLoginUsername(
        request.headers['content-type'],
        request.headers['content-encoding'],
        Buffer.concat(read.bodyRead),
        service.login.request.username,
      )
    : null;
  context.login = { username, ...read, seat: null };
  return next(context);
}

/** Undefined = the client left before the body was whole. */
function readUpTo(
  context: RequestContext,
  limitBytes: number,
): Promise<Pick<LoginAttempt, 'bodyRead' | 'bodyComplete'> | undefined> {
  const { request } = context;
  return new Promise((resolve) => {
    const bodyRead: Buffer[] = [];
    let bytes = 0;
    const done = (result: Pick<LoginAttempt, 'bodyRead' | 'bodyComplete'> | undefined) => {
      request.off('data', onData);
      request.off('end', onEnd);
      request.off('close', onClose);
      resolve(result);
    };
    const onData = (chunk: Buffer) => {
      bodyRead.push(chunk);
      bytes += chunk.length;
      if (bytes <= limitBytes) return;
      request.pause();
      done({ bodyRead, bodyComplete: false });
    };
    const onEnd = () => done({ bodyRead, bodyComplete: true });
    const onClose = () => done(undefined);
    request.on('data', onData);
    request.on('end', onEnd);
    request.on('close', onClose);
  });
}
