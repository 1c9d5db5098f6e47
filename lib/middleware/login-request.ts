/**
 * Recognises a login and reads as much of its body as it may hold, to learn who wants to log in. The bytes themselves
 * are forwarded as they came.
 */
import type { Handler, LoginAttempt, Middleware, RequestContext } from '../context.ts';
import { GatewayError } from '../errors.ts';
import { isLoginPath } from '../proxy/targets.ts';
import type { Clock } from '../support/clock.ts';
import { readLoginUsername } from './login-mapping.ts';

export interface LoginRequestOptions {
  readonly loginRequestBytes: number;
  /** Longest silence in the body of a login, milliseconds; a service may have its own. */
  readonly idleMs: number;
  readonly clock: Clock;
}

type BodyRead = Pick<LoginAttempt, 'bodyRead' | 'bodyComplete'>;

export function loginRequest(options: LoginRequestOptions): Middleware {
  return (context, next) => {
    const { request, service } = context;
    if (request.method !== 'POST' || context.upgrade || !service || !isLoginPath(service, context.path)) {
      return next(context);
    }
    const declared = Number(request.headers['content-length'] ?? 0);
    if (declared > options.loginRequestBytes) {
      context.login = { username: null, bodyRead: [], bodyComplete: false, seat: null };
      return next(context);
    }
    return readThenGoOn(context, options, next);
  };
}

async function readThenGoOn(context: RequestContext, options: LoginRequestOptions, next: Handler): Promise<void> {
  const { request, service } = context;
  // The username decides where the request goes, so the body is needed before a node could say "continue".
  if (request.headers.expect !== undefined) context.response.writeContinue();
  const read = await readUpTo(context, options);
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

/** Undefined = the client left before the body was whole. Rejects with `request_timeout` when it falls silent. */
function readUpTo(context: RequestContext, options: LoginRequestOptions): Promise<BodyRead | undefined> {
  const { request, service } = context;
  const { loginRequestBytes, clock } = options;
  const idleMs = service?.timeouts.idleMs ?? options.idleMs;
  return new Promise((resolve, reject) => {
    const bodyRead: Buffer[] = [];
    let bytes = 0;
    const arm = () =>
      clock.after(idleMs, () => {
        stop();
        reject(new GatewayError('request_timeout', 'the rest of the request did not come in time'));
      });
    let timer = arm();
    const stop = () => {
      timer.cancel();
      request.off('data', onData);
      request.off('end', onEnd);
      request.off('close', onClose);
    };
    const done = (result: BodyRead | undefined) => {
      stop();
      resolve(result);
    };
    const onData = (chunk: Buffer) => {
      timer.cancel();
      timer = arm();
      bodyRead.push(chunk);
      bytes += chunk.length;
      if (bytes <= loginRequestBytes) return;
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
