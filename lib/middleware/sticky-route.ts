/**
 * Decides which node a request of a bound service goes to: the decision table of the contract, row by row. A bound
 * user goes to their node or gets an error; nothing here ever picks another node for them.
 */
import type { CachedBinding, FoundBinding } from '../bindings/binding-service.ts';
import type { BindResult } from '../bindings/binding-store.ts';
import type { LoginCandidates } from '../bindings/login-candidates.ts';
import type { DecisionKind, Handler, Middleware, RequestContext } from '../context.ts';
import { GatewayError } from '../errors.ts';
import type { Node, Service } from '../model.ts';
import type { Clock } from '../support/clock.ts';
import { normalizeUsername } from '../support/username.ts';

/** Longest wait of a bound user's request for the probe of a node that is DOWN. */
const ON_DEMAND_WAIT_MS = 300;

export interface StickyRouteOptions {
  readonly tokens: {
    cached(realm: string, token: string): string | null | undefined;
    resolve(realm: string, token: string): Promise<string | null>;
  };
  readonly bindings: {
    cachedByUserId(serviceId: string, userId: string): CachedBinding | undefined;
    findByUserId(serviceId: string, userId: string): Promise<FoundBinding>;
    findByUsername(serviceId: string, username: string): Promise<FoundBinding>;
    bind(serviceId: string, userId: string, username: string | null, nodeId: string): Promise<BindResult>;
  };
  readonly health: {
    isUsable(healthKey: string): boolean;
    /** At most one extra probe a second and node; resolves at once when there is nothing to wait for. */
    probeNow(node: Node): Promise<void>;
  };
  readonly placement: {
    /** Reserves a place on what it returns. Throws or rejects with `no_node_available` or `no_capacity`. */
    choose(service: Service): Node | Promise<Node>;
    release(node: Node): void;
    /** Throws `no_node_available`. */
    anonymous(service: Service): Node;
  };
  readonly candidates: LoginCandidates;
  /** True = a login of this user may still be to be bound, to the node that let them in. */
  readonly loginPending: (serviceId: string, userId: string) => boolean;
  readonly extractToken: (context: RequestContext) => string | null;
  readonly rejectUnknownTokens: boolean;
  readonly clock: Clock;
}

export function stickyRoute(options: StickyRouteOptions): Middleware {
  const router = new StickyRouter(options);
  return (context, next) => {
    const service = context.service;
    if (service?.affinity !== 'user') return next(context);
    return context.login && !context.login.bodyOnly
      ? router.routeLogin(context, service, next)
      : router.route(context, service, next);
  };
}

class StickyRouter {
  readonly #options: StickyRouteOptions;

  constructor(options: StickyRouteOptions) {
    this.#options = options;
  }

  /** Stays in its tick as long as token and binding are in the local caches. */
  route(context: RequestContext, service: Service, next: Handler): void | Promise<void> {
    if (context.identified) return this.#routeIdentified(context, service, next);
    const token = this.#options.extractToken(context);
    context.token = token;
    if (token === null) return this.#anonymous(context, service, next);
    const userId = this.#options.tokens.cached(realmOf(context), token);
    if (userId === undefined) return this.#resolveThenRoute(context, service, token, next);
    return this.#routeUser(context, service, userId, next);
  }

  /** The choice of a version has asked who this is. */
  #routeIdentified(context: RequestContext, service: Service, next: Handler): void | Promise<void> {
    if (context.token === null) return this.#anonymous(context, service, next);
    return this.#routeUser(context, service, context.userId, next);
  }

  async #resolveThenRoute(context: RequestContext, service: Service, token: string, next: Handler): Promise<void> {
    const userId = await this.#options.tokens.resolve(realmOf(context), token);
    return this.#routeUser(context, service, userId, next);
  }

  #routeUser(context: RequestContext, service: Service, userId: string | null, next: Handler): void | Promise<void> {
    if (userId === null) {
      if (this.#options.rejectUnknownTokens) throw new GatewayError('token_rejected', 'this token belongs to nobody');
      return this.#anonymous(context, service, next);
    }
    context.userId = userId;
    const binding = this.#options.bindings.cachedByUserId(service.id, userId);
    if (binding === undefined) return this.#findThenSend(context, service, userId, next);
    context.answeredBy = 'local';
    return this.#sendBound(context, service, binding, 'bound', next);
  }

  async #findThenSend(context: RequestContext, service: Service, userId: string, next: Handler): Promise<void> {
    const { binding, answeredBy } = await this.#options.bindings.findByUserId(service.id, userId);
    context.answeredBy = answeredBy;
    if (binding) return this.#sendBound(context, service, binding, 'bound', next);
    return this.#bindToDefault(context, service, userId, next);
  }

  async #bindToDefault(context: RequestContext, service: Service, userId: string, next: Handler): Promise<void> {
    const node = service.defaultNodeId === null ? undefined : service.nodesById.get(service.defaultNodeId);
    if (this.#options.loginPending(service.id, userId)) {
      throw new GatewayError('directory_unavailable', 'the login of this user is still to be bound');
    }
    if (!node) throw new GatewayError('user_not_bound', 'this user has no node yet: log in again');
    // A new home is only started where a login would start one.
    if (!node.enabled) throw new GatewayError('node_disabled', 'the default node is switched off', { nodeId: node.id });
    if (node.draining)
      throw new GatewayError('no_capacity', 'the default node takes no new users', { nodeId: node.id });
    if (!(await this.#usable(node))) throw nodeDown(node);
    let bound: BindResult;
    try {
      bound = await this.#options.bindings.bind(service.id, userId, null, node.id);
    } catch (error) {
      throw new GatewayError('directory_unavailable', 'the user cannot be bound at the moment', {
        cause: error,
      });
    }
    const kind = bound.binding.nodeId === node.id ? 'default' : 'bound';
    return this.#sendBound(context, service, bound.binding, kind, next);
  }

  #sendBound(
    context: RequestContext,
    service: Service,
    binding: CachedBinding,
    kind: DecisionKind,
    next: Handler,
  ): void | Promise<void> {
    const { nodeId } = binding;
    if (binding.frozen) {
      throw new GatewayError('user_frozen', 'this user is being moved or looked after; try again later', {
        nodeId,
      });
    }
    const node = service.nodesById.get(nodeId);
    if (!node) throw new GatewayError('node_unknown', "this user's node is not known to the gateway", { nodeId });
    if (!node.enabled) throw new GatewayError('node_disabled', "this user's node is switched off", { nodeId });
    if (!this.#options.health.isUsable(node.healthKey)) return this.#probeThenSend(context, node, binding, kind, next);
    return send(context, node, binding.epoch, kind, next);
  }

  async #probeThenSend(
    context: RequestContext,
    node: Node,
    binding: CachedBinding,
    kind: DecisionKind,
    next: Handler,
  ): Promise<void> {
    if (!(await this.#usable(node))) throw nodeDown(node);
    return send(context, node, binding.epoch, kind, next);
  }

  /** Waits a moment for the on-demand probe of a node that is DOWN. */
  async #usable(node: Node): Promise<boolean> {
    const { health, clock } = this.#options;
    if (health.isUsable(node.healthKey)) return true;
    await new Promise<void>((resolve) => {
      const timer = clock.after(ON_DEMAND_WAIT_MS, resolve);
      health
        .probeNow(node)
        .then(resolve, resolve)
        .finally(() => timer.cancel());
    });
    return health.isUsable(node.healthKey);
  }

  async routeLogin(context: RequestContext, service: Service, next: Handler): Promise<void> {
    const username = context.login?.username ?? null;
    if (username === null) {
      const node = await this.#options.placement.choose(service);
      whenOver(context, () => this.#options.placement.release(node));
      return send(context, node, 0, 'candidate', next);
    }
    const seat = this.#options.candidates.join(service.id, normalizeUsername(username));
    whenOver(context, () => seat.leave());
    if (context.login) context.login.seat = seat;
    let found: FoundBinding | undefined;
    try {
      found = await this.#options.bindings.findByUsername(service.id, username);
    } catch (error) {
      // Nobody can say where this user belongs. The login itself may pass (nothing is bound while the store is away,
      // and the user's next requests get 503), but that is for the node to know, so it is only logged.
      context.directoryError = error;
    }
    if (found?.binding) {
      context.answeredBy = found.answeredBy;
      return this.#sendBound(context, service, found.binding, 'bound', next);
    }
    const node = await seat.choose(
      () => this.#options.placement.choose(service),
      (chosen) => this.#acceptable(service, chosen),
    );
    return send(context, node, 0, 'candidate', next);
  }

  /** Whether a candidate chosen a moment ago, for an overlapping login, still takes new users. */
  #acceptable(service: Service, node: Node): boolean {
    const now = service.nodesById.get(node.id);
    return now?.enabled === true && !now.draining && this.#options.health.isUsable(node.healthKey);
  }

  #anonymous(context: RequestContext, service: Service, next: Handler): void | Promise<void> {
    return send(context, this.#options.placement.anonymous(service), 0, 'anonymous', next);
  }
}

function send(
  context: RequestContext,
  node: Node,
  epoch: number,
  kind: DecisionKind,
  next: Handler,
): void | Promise<void> {
  context.node = node;
  context.epoch = epoch;
  context.decision = kind;
  return next(context);
}

function nodeDown(node: Node): GatewayError {
  return new GatewayError('node_down', "this user's node does not answer at the moment", { nodeId: node.id });
}

function realmOf(context: RequestContext): string {
  return context.match?.realm ?? '';
}

/** Calls back once: when the exchange with the node is over, or when the client has its answer and there was none. */
function whenOver(context: RequestContext, callback: () => void): void {
  let called = false;
  const once = () => {
    if (called) return;
    called = true;
    callback();
  };
  const before = context.settled;
  context.settled = () => {
    before?.();
    once();
  };
  context.response.once('close', () => {
    if (context.attempts === 0) once();
  });
}
