/**
 * One call of the API from its head to its answer: origin, caller, route, role, handler, audit. What calls do lies
 * with their handlers, what there is to call in api-routes.ts.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { AdminToken } from '../config/options.ts';
import { requestIdOf } from '../middleware/request-id.ts';
import { describeError, type Logger } from '../observe/log.ts';
import type { Clock } from '../support/clock.ts';
import { AdminError, toAdminError } from './admin-error.ts';
import { sendError, sendReply } from './answer.ts';
import type { AuditLog } from './audit-log.ts';
import { Authenticator, mayAct } from './auth.ts';
import { AdminCall } from './call.ts';
import { refuseForeignOrigin } from './origins.ts';
import { type ApiRoute, type RouteMatch, Router } from './router.ts';

export interface AdminApiOptions {
  readonly tokens: readonly AdminToken[];
  readonly routes: readonly ApiRoute[];
  readonly audit: AuditLog;
  readonly scheme: 'http' | 'https';
  readonly clock: Clock;
  readonly logger: Logger;
}

/** Refusals of callers that nobody knows that are stored in one minute; all of them are logged. */
const MOST_STRANGERS = 60;
const MINUTE_MS = 60_000;

export class AdminApi {
  readonly #options: AdminApiOptions;
  readonly #router: Router;
  readonly #authenticator: Authenticator;
  #strangers = 0;
  #strangersUntilMs = 0;

  constructor(options: AdminApiOptions) {
    this.#options = options;
    this.#router = new Router(options.routes);
    this.#authenticator = new Authenticator(options.tokens, options.clock);
  }

  /** Answers in every case. `address`: of the peer. */
  async handle(request: IncomingMessage, response: ServerResponse, address: string): Promise<void> {
    const requestId = requestIdOf(request.headers['x-request-id']);
    const [path = '', ...rest] = (request.url ?? '').split('?');
    const found = this.#find(request.method ?? '', path);
    const match = found instanceof AdminError ? null : found;
    const call = new AdminCall({
      request,
      response,
      params: match?.params ?? {},
      query: new URLSearchParams(rest.join('?')),
      action: match?.route.action ?? '',
      target: targetOf(path),
      address,
      requestId,
      clock: this.#options.clock,
    });
    try {
      const reply = await this.#answer(call, found);
      if (reply) sendReply(call, reply);
    } catch (thrown) {
      const error = toAdminError(thrown);
      this.#report(call, error);
      if (match?.route.action != null && !isRehearsal(call)) await this.#recordRefusal(call, error);
      sendError(call, error);
    }
  }

  #find(method: string, path: string): RouteMatch | AdminError {
    try {
      return this.#router.find(method, path);
    } catch (error) {
      return toAdminError(error);
    }
  }

  async #answer(call: AdminCall, found: RouteMatch | AdminError) {
    const { request } = call;
    const { scheme } = this.#options;
    refuseForeignOrigin(request.headers, scheme, this.#authenticator.hasTokens);
    const writes = found instanceof AdminError ? !isSafe(request.method) : found.route.action !== null;
    call.principal = this.#authenticator.authenticate(call.address, request.headers.authorization, writes);
    if (found instanceof AdminError) throw found;
    const { route } = found;
    if (!mayAct(call.principal, route.role)) throw this.#forbidden(call, route);
    call.allowQuery(route.query);
    if (route.action !== null) call.giveReason('reason', call.query.get('reason'));
    const { dryRun } = call;
    const reply = await route.handler(call);
    if (route.action !== null && !dryRun) await this.#recordDone(call);
    return reply;
  }

  #forbidden(call: AdminCall, route: ApiRoute): AdminError {
    return new AdminError(
      'forbidden',
      this.#authenticator.hasTokens
        ? `this call needs the role ${route.role}; '${call.principal.name}' is ${call.principal.role}`
        : 'without admin.tokens the API is read-only: configure one and restart the gateway',
    );
  }

  async #recordDone(call: AdminCall): Promise<void> {
    const entry = call.entry('done');
    const { logger, audit } = this.#options;
    logger.info('admin_write', {
      requestId: call.requestId,
      actor: entry.actor,
      action: entry.action,
      target: entry.target,
    });
    if (call.audit.recorded) return;
    try {
      await audit.record(entry);
    } catch (error) {
      // The change is in force and cannot be taken back: what the store does not take is told to the log.
      logger.error('audit_not_written', { ...entry, error: describeError(error) });
    }
  }

  async #recordRefusal(call: AdminCall, error: AdminError): Promise<void> {
    const { logger, audit } = this.#options;
    const entry = call.entry(`${error.code}: ${error.message}`.slice(0, 2_000));
    logger.warn('admin_write_refused', {
      requestId: call.requestId,
      actor: entry.actor,
      address: call.address,
      action: entry.action,
      target: entry.target,
      error: error.code,
    });
    // Guessers are slowed down, and so is what they can write.
    if (error.code === 'too_many_requests' || (entry.actor === '-' && !this.#mayStoreStranger())) return;
    try {
      await audit.record(entry);
    } catch (failure) {
      logger.error('audit_not_written', { ...entry, error: describeError(failure) });
    }
  }

  #mayStoreStranger(): boolean {
    const nowMs = this.#options.clock.monotonic();
    if (nowMs >= this.#strangersUntilMs) {
      this.#strangers = 0;
      this.#strangersUntilMs = nowMs + MINUTE_MS;
    }
    this.#strangers += 1;
    return this.#strangers <= MOST_STRANGERS;
  }

  #report(call: AdminCall, error: AdminError): void {
    const fields = { requestId: call.requestId, path: `/api/${call.audit.target}`, error: error.code };
    if (error.code === 'internal') {
      const { cause } = error;
      this.#options.logger.error('internal_error', {
        ...fields,
        cause: cause instanceof Error ? cause.stack : String(cause),
      });
    } else if (error.cause !== undefined) {
      this.#options.logger.debug('admin_refused', { ...fields, cause: describeError(error.cause) });
    }
  }
}

function isSafe(method: string | undefined): boolean {
  return method === 'GET' || method === 'HEAD';
}

/** A dryRun that is not understood counts as the real thing. */
function isRehearsal(call: AdminCall): boolean {
  try {
    return call.dryRun;
  } catch {
    return false;
  }
}

/** `services/ai-server/nodes/node-1`; what cannot be decoded stays as it came. */
function targetOf(path: string): string {
  const rest = path.replace(/^\/api\//, '').slice(0, 512);
  try {
    return decodeURIComponent(rest);
  } catch {
    return rest;
  }
}
