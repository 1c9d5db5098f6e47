/**
 * Looks at the answer to a login; if it is a success, the user is bound and the token kept before the client gets the
 * answer, which passes through untouched. Whatever goes wrong here, the answer is released.
 */
import type { IncomingMessage } from 'node:http';
import type { BindResult } from '../bindings/binding-store.ts';
import type { UnfinishedLogins } from '../bindings/unfinished-logins.ts';
import type { Middleware, RequestContext } from '../context.ts';
import type { Route } from '../model.ts';
import { describeError, type Logger, maskToken } from '../observe/log.ts';
import type { Metrics } from '../observe/metrics.ts';
import type { Clock } from '../support/clock.ts';
import { withoutPrefix } from '../tokens/extract-token.ts';
import { type LoginSuccess, readLoginResponse } from './login-mapping.ts';

/** Longest wait for the stores before the answer is released all the same. */
const BIND_TIMEOUT_MS = 2_000;

export interface LoginResponseOptions {
  readonly bindings: {
    bind(serviceId: string, userId: string, username: string | null, nodeId: string): Promise<BindResult>;
  };
  /** Below a route: the name of another version in which the user has a binding, when they have none here. */
  readonly versions: { findOther(route: Route, serviceId: string, userId: string): Promise<string | undefined> };
  readonly tokens: { remember(realm: string, token: string, userId: string): Promise<void> };
  readonly unfinished: UnfinishedLogins;
  readonly loginResponseBytes: number;
  /** identity.token.prefix: a token that the answer gives with it is kept as requests are looked up, without. */
  readonly tokenPrefix: string | null;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly metrics: Metrics;
}

type Relay = (chunksRead: readonly Buffer[]) => void;

export function loginResponse(options: LoginResponseOptions): Middleware {
  const inspector = new LoginInspector(options);
  return (context, next) => {
    if (context.login && !context.login.bodyOnly) context.interceptor = (...parts) => inspector.inspect(...parts);
    return next(context);
  };
}

class LoginInspector {
  readonly #options: LoginResponseOptions;

  constructor(options: LoginResponseOptions) {
    this.#options = options;
  }

  inspect(context: RequestContext, nodeResponse: IncomingMessage, relay: Relay): void {
    const seat = context.login?.seat;
    seat?.hold();
    this.#holdThenRelay(context, nodeResponse, relay)
      .catch((error: unknown) => context.fail(error))
      .finally(() => seat?.leave());
  }

  async #holdThenRelay(context: RequestContext, nodeResponse: IncomingMessage, relay: Relay): Promise<void> {
    const status = nodeResponse.statusCode ?? 0;
    if (status < 200 || status > 299) {
      relay([]);
      return;
    }
    const held = await hold(nodeResponse, this.#options.loginResponseBytes);
    // Broke off: the forward stage has answered already.
    if (!held) return;
    if (held.complete) await this.#bindIfSuccess(context, nodeResponse, held.chunks);
    else {
      this.#options.logger.warn('login_response_too_large', {
        requestId: context.requestId,
        service: context.service?.id,
        limitBytes: this.#options.loginResponseBytes,
      });
      this.#count('too_large');
    }
    relay(held.chunks);
  }

  async #bindIfSuccess(context: RequestContext, nodeResponse: IncomingMessage, chunks: readonly Buffer[]) {
    const { service, match, node, login } = context;
    if (!service || !match || !node || !login) return;
    let success: LoginSuccess | 'unusable' | null;
    try {
      success = await readLoginResponse(
        {
          status: nodeResponse.statusCode ?? 0,
          rawHeaders: nodeResponse.rawHeaders,
          body: Buffer.concat(chunks),
        },
        service.login.response,
        login.username,
      );
    } catch (error) {
      this.#options.logger.warn('login_response_unreadable', {
        requestId: context.requestId,
        error: describeError(error),
      });
      success = null;
    }
    if (success === 'unusable') {
      // The node has let somebody in, but the gateway cannot know them again.
      this.#options.logger.warn('login_user_unusable', {
        requestId: context.requestId,
        service: service.id,
        fix: 'the user id, and the username if login.response names one, are to be texts of 1 to 256 characters or whole numbers',
      });
      this.#count('unusable');
      return;
    }
    if (!success) {
      this.#count('not_a_success');
      return;
    }
    context.userId = success.userId;
    await this.#keep(context, success, service.id, match.realm, node.id);
  }

  async #keep(context: RequestContext, success: LoginSuccess, serviceId: string, realm: string, nodeId: string) {
    const { bindings, tokens } = this.#options;
    const { userId, username } = success;
    const { tokenPrefix } = this.#options;
    const token =
      success.token === null || tokenPrefix === null
        ? success.token
        : (withoutPrefix(success.token, tokenPrefix) ?? success.token);
    const bind = async (): Promise<BindResult | null> => {
      const home = await this.#otherHome(context, serviceId, userId);
      return home === undefined ? bindings.bind(serviceId, userId, username, nodeId) : null;
    };
    const allSteps: (() => Promise<unknown>)[] =
      token === null ? [bind] : [bind, () => tokens.remember(realm, token, userId)];
    const kept = Promise.allSettled(allSteps.map((step) => step()));
    const results = await this.#within(kept);
    if (results === undefined) {
      this.#count('bind_timeout');
      this.#options.logger.error('login_bind_slow', {
        requestId: context.requestId,
        service: serviceId,
        user: userId,
        timeoutMs: BIND_TIMEOUT_MS,
      });
      // It may still end well.
      kept.then((late) => this.#finishLater(context.requestId, late, allSteps, serviceId, userId));
      return;
    }
    const bound = results[0];
    const result = bound?.status === 'fulfilled' ? (bound.value as BindResult | null) : undefined;
    if (result === null) this.#count('bound_in_other_version');
    if (result) {
      const { binding } = result;
      context.epoch = binding.epoch;
      this.#count('bound');
      this.#options.logger.info('login_bound', {
        requestId: context.requestId,
        service: serviceId,
        user: userId,
        node: binding.nodeId,
        servedBy: nodeId,
        epoch: binding.epoch,
        token: token === null ? undefined : maskToken(token),
      });
    }
    this.#finishLater(context.requestId, results, allSteps, serviceId, userId);
  }

  /**
   * A name that led to one version may belong to a user who lives in another (a login by mail address, a renamed user,
   * a body without a name): a binding here would be their second home. Whoever was sent here by a rule gets one.
   */
  async #otherHome(context: RequestContext, serviceId: string, userId: string): Promise<string | undefined> {
    const route = context.match?.route;
    if (!route || context.versionReason === 'rule') return undefined;
    const version = await this.#options.versions.findOther(route, serviceId, userId);
    if (version !== undefined) {
      this.#options.logger.info('login_bound_in_other_version', {
        requestId: context.requestId,
        service: serviceId,
        user: userId,
        route: route.id,
        version,
      });
    }
    return version;
  }

  /** Tells of what failed, in time or late, and leaves it to be tried again. */
  #finishLater(
    requestId: string,
    results: readonly PromiseSettledResult<unknown>[],
    steps: readonly (() => Promise<unknown>)[],
    serviceId: string,
    userId: string,
  ): void {
    for (const result of results) {
      if (result.status === 'fulfilled') continue;
      this.#count('bind_failed');
      this.#options.logger.error('login_bind_failed', {
        requestId,
        service: serviceId,
        user: userId,
        error: describeError(result.reason),
      });
    }
    const left = steps.filter((_, index) => results[index]?.status === 'rejected');
    if (left.length > 0) this.#options.unfinished.add({ serviceId, userId, steps: left });
  }

  #within<T>(work: Promise<T>): Promise<T | undefined> {
    return new Promise((resolve, reject) => {
      const timer = this.#options.clock.after(BIND_TIMEOUT_MS, () => resolve(undefined));
      work.then(resolve, reject).finally(() => timer.cancel());
    });
  }

  #count(result: string): void {
    this.#options.metrics
      .counter('gateway_logins_total', 'Answers to logins, by what became of them', { result })
      .inc();
  }
}

interface Held {
  readonly chunks: readonly Buffer[];
  /** False = more than the limit; the rest is still in the response. */
  readonly complete: boolean;
}

/** Undefined = the node broke off. */
function hold(nodeResponse: IncomingMessage, limitBytes: number): Promise<Held | undefined> {
  return new Promise((resolve) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    const done = (held: Held | undefined) => {
      nodeResponse.off('data', onData);
      nodeResponse.off('end', onEnd);
      nodeResponse.off('close', onClose);
      resolve(held);
    };
    const onData = (chunk: Buffer) => {
      chunks.push(chunk);
      bytes += chunk.length;
      if (bytes <= limitBytes) return;
      nodeResponse.pause();
      done({ chunks, complete: false });
    };
    const onEnd = () => done({ chunks, complete: true });
    const onClose = () => done(undefined);
    nodeResponse.on('data', onData);
    nodeResponse.on('end', onEnd);
    nodeResponse.on('close', onClose);
  });
}
