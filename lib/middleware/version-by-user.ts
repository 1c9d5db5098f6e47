/**
 * Below a route, where no rule has chosen: the version in which the user is bound, else one by weight. Never guesses:
 * when it cannot be said where a user is bound, the request fails.
 */
import type { PlannedVersion, RoutePlan } from '../canary/route-plan.ts';
import type { Handler, LoginAttempt, Middleware, RequestContext } from '../context.ts';
import type { Route } from '../model.ts';
import { normalizeUsername } from '../support/username.ts';
import { setVersion } from './version-by-rule.ts';

export interface VersionByUserOptions {
  readonly tokens: {
    cached(realm: string, token: string): string | null | undefined;
    /** Rejects with `identity_unavailable`. */
    resolve(realm: string, token: string): Promise<string | null>;
  };
  readonly versions: {
    planOf(route: Route): RoutePlan;
    /** Throws `no_node_available` or `service_disabled`. */
    byWeight(plan: RoutePlan, subject: string | null): PlannedVersion;
  };
  readonly boundVersions: {
    cached(versions: readonly PlannedVersion[], userId: string): PlannedVersion | undefined;
    /** These two reject with `directory_unavailable`. */
    find(versions: readonly PlannedVersion[], userId: string): Promise<PlannedVersion | undefined>;
    findByUsername(
      versions: readonly PlannedVersion[],
      usernameOf: (version: PlannedVersion) => string,
    ): Promise<PlannedVersion | undefined>;
  };
  readonly extractToken: (context: RequestContext) => string | null;
}

export function versionByUser(options: VersionByUserOptions): Middleware {
  const versions = new UserVersions(options);
  return (context, next) => {
    const route = context.match?.route ?? null;
    if (route === null || context.service !== null) return next(context);
    return versions.choose(context, options.versions.planOf(route), next);
  };
}

class UserVersions {
  readonly #options: VersionByUserOptions;

  constructor(options: VersionByUserOptions) {
    this.#options = options;
  }

  /** Stays in its tick as long as the token, and the versions in which its user is bound or not, are cached. */
  choose(context: RequestContext, plan: RoutePlan, next: Handler): void | Promise<void> {
    const { login, match } = context;
    const username = login && knownUsername(login);
    if (login && username !== null) return this.#ofLogin(context, plan, login, username, next);
    const { tokens, extractToken } = this.#options;
    const token = extractToken(context);
    context.token = token;
    if (token === null) {
      context.identified = true;
      return this.#byWeight(context, plan, null, next);
    }
    const realm = match?.realm ?? '';
    const userId = tokens.cached(realm, token);
    if (userId === undefined) return this.#resolveThenChoose(context, plan, realm, token, next);
    return this.#ofUser(context, plan, userId, next);
  }

  async #resolveThenChoose(
    context: RequestContext,
    plan: RoutePlan,
    realm: string,
    token: string,
    next: Handler,
  ): Promise<void> {
    let userId: string | null;
    try {
      userId = await this.#options.tokens.resolve(realm, token);
    } catch (error) {
      // Where nobody is bound no data can be missed; the token at least stays with one version.
      if (plan.bound.length === 0) return this.#byWeight(context, plan, token, next);
      throw error;
    }
    return this.#ofUser(context, plan, userId, next);
  }

  #ofUser(context: RequestContext, plan: RoutePlan, userId: string | null, next: Handler): void | Promise<void> {
    context.identified = true;
    context.userId = userId;
    if (userId === null || plan.bound.length === 0) return this.#byWeight(context, plan, userId, next);
    const version = this.#options.boundVersions.cached(plan.bound, userId);
    if (version === undefined) return this.#findThenGoOn(context, plan, userId, next);
    return goOn(context, version, 'bound', next);
  }

  async #findThenGoOn(context: RequestContext, plan: RoutePlan, userId: string, next: Handler): Promise<void> {
    const version = await this.#options.boundVersions.find(plan.bound, userId);
    if (version) return goOn(context, version, 'bound', next);
    return this.#byWeight(context, plan, userId, next);
  }

  async #ofLogin(
    context: RequestContext,
    plan: RoutePlan,
    { usernames }: LoginAttempt,
    username: string,
    next: Handler,
  ): Promise<void> {
    // Unlike below a single service, a login does not pass while the directory is away: bound later, when it is back,
    // in a version that was guessed, its user would have two homes.
    const version = await this.#options.boundVersions.findByUsername(
      plan.bound,
      ({ service }) => usernames.get(service.id) ?? username,
    );
    if (version) return goOn(context, version, 'bound', next);
    return this.#byWeight(context, plan, normalizeUsername(username), next);
  }

  #byWeight(context: RequestContext, plan: RoutePlan, subject: string | null, next: Handler): void | Promise<void> {
    return goOn(context, this.#options.versions.byWeight(plan, subject), 'weight', next);
  }
}

/** As the first version with a login at this path reads it; the order is the route's, so gateways agree. */
function knownUsername({ usernames }: LoginAttempt): string | null {
  for (const username of usernames.values()) if (username !== null) return username;
  return null;
}

function goOn(
  context: RequestContext,
  version: PlannedVersion,
  reason: 'bound' | 'weight',
  next: Handler,
): void | Promise<void> {
  setVersion(context, version, reason);
  const { login } = context;
  if (login) {
    const username = login.usernames.get(version.service.id);
    context.login = { ...login, username: username ?? null, bodyOnly: username === undefined };
  }
  return next(context);
}
