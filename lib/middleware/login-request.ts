/**
 * Recognises a login and reads as much of its body as it may hold, to learn who wants to log in. The bytes themselves
 * are forwarded as they came. Below a route whose version is not chosen yet, every version's login counts.
 */
import type { Handler, LoginAttempt, Middleware, RequestContext } from '../context.ts';
import { GatewayError } from '../errors.ts';
import type { Route, Service } from '../model.ts';
import { isLoginPath } from '../proxy/targets.ts';
import type { Clock } from '../support/clock.ts';
import { readLoginUsername } from './login-mapping.ts';

export interface LoginRequestOptions {
  readonly loginRequestBytes: number;
  /** Longest silence in the body of a login, milliseconds; a service may have its own. */
  readonly idleMs: number;
  readonly clock: Clock;
  /** Services that may yet be chosen, in the order of the route. */
  readonly servicesOf: (route: Route) => readonly Service[];
}

type BodyRead = Pick<LoginAttempt, 'bodyRead' | 'bodyComplete'>;

export function loginRequest(options: LoginRequestOptions): Middleware {
  return (context, next) => {
    const { request } = context;
    if (request.method !== 'POST' || context.upgrade) return next(context);
    const services = servicesWithLogin(context, options);
    const [service] = services;
    if (!service) return next(context);
    const declared = Number(request.headers['content-length'] ?? 0);
    if (declared > options.loginRequestBytes) {
      context.login = attempt(context, services, { bodyRead: [], bodyComplete: false });
      return next(context);
    }
    return readThenGoOn(context, services, service.timeouts.idleMs ?? options.idleMs, options, next);
  };
}

function servicesWithLogin({ match, service, path }: RequestContext, options: LoginRequestOptions): Service[] {
  const route = match?.route ?? null;
  const routePrefix = route === null ? null : (match?.prefix ?? null);
  const open = service ? [service] : route ? options.servicesOf(route) : [];
  return open.filter((one) => isLoginPath(one, path, routePrefix));
}

async function readThenGoOn(
  context: RequestContext,
  services: readonly Service[],
  idleMs: number,
  options: LoginRequestOptions,
  next: Handler,
): Promise<void> {
  // The username decides where the request goes, so the body is needed before a node could say "continue".
  if (context.request.headers.expect !== undefined) context.response.writeContinue();
  const read = await readUpTo(context, idleMs, options);
  if (!read) return;
  context.login = attempt(context, services, read);
  return next(context);
}

function attempt(context: RequestContext, services: readonly Service[], read: BodyRead): LoginAttempt {
  const { headers } = context.request;
  const body = read.bodyComplete ? Buffer.concat(read.bodyRead) : null;
  const byPath = new Map<string, string | null>();
  const usernames = new Map<string, string | null>();
  for (const { id, login } of services) {
    const path = login.request.username;
    let username = byPath.get(path);
    if (username === undefined) {
      username = body && readLoginUsername(headers['content-type'], headers['content-encoding'], body, path);
      byPath.set(path, username);
    }
    usernames.set(id, username);
  }
  const { service } = context;
  return { username: (service && usernames.get(service.id)) ?? null, usernames, bodyOnly: false, seat: null, ...read };
}

/** Undefined = the client left before the body was whole. Rejects with `request_timeout` when it falls silent. */
function readUpTo(
  context: RequestContext,
  idleMs: number,
  options: LoginRequestOptions,
): Promise<BodyRead | undefined> {
  const { request } = context;
  const { loginRequestBytes, clock } = options;
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
