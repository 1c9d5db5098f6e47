/**
 * What would happen to a request: the stages of the pipeline themselves decide, on a request that was made up, with
 * looks in place of turns, places, probes and bindings. Nothing is sent, nobody is bound. Caches may learn what is true.
 */
import type { FoundBinding } from '../bindings/binding-service.ts';
import { LoginCandidates } from '../bindings/login-candidates.ts';
import { compose, type Middleware, type RequestContext } from '../context.ts';
import { toGatewayError } from '../errors.ts';
import type { HealthDetails } from '../health/health-registry.ts';
import { type Balancer, balance } from '../middleware/balance.ts';
import { renderError } from '../middleware/error-page.ts';
import { type StickyRouteOptions, stickyRoute } from '../middleware/sticky-route.ts';
import { type VersionByUserOptions, versionByUser } from '../middleware/version-by-user.ts';
import type { AdminCall, CallHandler } from './call.ts';
import { type ExplainInput, madeUpContext, pushLogin, readExplainInput } from './explain-request.ts';
import { viewHealth } from './nodes.ts';

export interface ExplainOptions {
  /** The stages that a real request goes through, as far as they change nothing. */
  readonly stages: Readonly<Record<'ipAllow' | 'cors' | 'match' | 'versionByRule' | 'loginRequest', Middleware>>;
  readonly sticky: Pick<
    StickyRouteOptions,
    'tokens' | 'loginPending' | 'extractToken' | 'rejectUnknownTokens' | 'clock'
  > & {
    readonly bindings: Pick<StickyRouteOptions['bindings'], 'cachedByUserId' | 'findByUserId' | 'findByUsername'>;
    readonly isUsable: (healthKey: string) => boolean;
    readonly placement: Pick<StickyRouteOptions['placement'], 'choose' | 'anonymous'>;
  };
  readonly versions: Pick<VersionByUserOptions, 'versions' | 'boundVersions'>;
  readonly balancer: Balancer;
  readonly health: { details(healthKey: string): HealthDetails };
}

type StageName =
  | 'ip-allow'
  | 'cors'
  | 'match'
  | 'version-by-rule'
  | 'login-request'
  | 'version-by-user'
  | 'sticky-route'
  | 'balance'
  | 'forward';

/** What the stages did on the way. */
interface Trace {
  /** The last one that was entered: it has decided. */
  stage: StageName;
  found: FoundBinding | null;
  wouldBind: boolean;
  wouldProbe: boolean;
}

export function explainCall(options: ExplainOptions): CallHandler {
  return async (call) => ({ status: 200, body: await explain(options, await readExplainInput(call), call) });
}

async function explain(
  options: ExplainOptions,
  input: ExplainInput,
  call: AdminCall,
): Promise<Record<string, unknown>> {
  const context = madeUpContext(input, call.requestId);
  const trace: Trace = { stage: 'match', found: null, wouldBind: false, wouldProbe: false };
  const at = (name: StageName, stage: Middleware): Middleware => {
    return (current, next) => {
      trace.stage = name;
      return stage(current, next);
    };
  };
  const { stages } = options;
  const decide = compose([
    ...(input.clientAddress === null ? [] : [at('ip-allow', stages.ipAllow)]),
    at('cors', stages.cors),
    at('match', stages.match),
    at('version-by-rule', stages.versionByRule),
    (current, next) => {
      if (input.username !== null) pushLogin(current, input.username);
      return next(current);
    },
    at('login-request', stages.loginRequest),
    at('version-by-user', versionByUser(versionRehearsal(options, input))),
    at('sticky-route', stickyRoute(rehearsal(options, input, trace))),
    at('balance', balance(options.balancer)),
    () => {
      trace.stage = 'forward';
    },
  ]);
  let error: unknown = null;
  try {
    await decide(context);
  } catch (thrown) {
    error = toGatewayError(thrown);
    if ((error as { code?: string }).code === 'internal') throw thrown;
  } finally {
    // Whoever waits for the end of the exchange is told that there was none.
    context.settled?.();
    context.response.emit('close');
  }
  return report(options, context, trace, error);
}

/** Where the request says itself whose it is, that counts; the token is another word for the user then. */
function identityOf(
  { sticky }: ExplainOptions,
  input: ExplainInput,
): Pick<StickyRouteOptions, 'tokens' | 'extractToken'> {
  const user = input.userId ?? input.username;
  if (user === null) return { tokens: sticky.tokens, extractToken: sticky.extractToken };
  return { tokens: { cached: () => user, resolve: async () => user }, extractToken: () => user };
}

function versionRehearsal(options: ExplainOptions, input: ExplainInput): VersionByUserOptions {
  const { versions, boundVersions } = options.versions;
  const { username } = input;
  const identity = identityOf(options, input);
  if (username === null) return { ...identity, versions, boundVersions };
  return {
    ...identity,
    versions,
    boundVersions: {
      findByUsername: (...asked) => boundVersions.findByUsername(...asked),
      // Of a user whose id was not given the name is all there is to look for.
      cached: () => undefined,
      find: (plans) => boundVersions.findByUsername(plans, () => username),
    },
  };
}

/** The sticky route's own dependencies, with looks where it would change something. */
function rehearsal(options: ExplainOptions, input: ExplainInput, trace: Trace): StickyRouteOptions {
  const { sticky } = options;
  const note = (found: FoundBinding): FoundBinding => {
    trace.found = found;
    return found;
  };
  return {
    ...identityOf(options, input),
    loginPending: sticky.loginPending,
    rejectUnknownTokens: sticky.rejectUnknownTokens,
    clock: sticky.clock,
    bindings: {
      cachedByUserId: (serviceId, userId) => {
        if (input.username !== null) return undefined;
        const binding = sticky.bindings.cachedByUserId(serviceId, userId);
        if (binding) note({ binding, answeredBy: 'local' });
        return binding;
      },
      // Of a user whose id was not given the name is all there is to look for.
      findByUserId: async (serviceId, userId) =>
        note(
          input.username === null
            ? await sticky.bindings.findByUserId(serviceId, userId)
            : await sticky.bindings.findByUsername(serviceId, input.username),
        ),
      findByUsername: async (serviceId, username) => note(await sticky.bindings.findByUsername(serviceId, username)),
      // Asked for only when nobody is bound: the row would be made.
      bind: async (serviceId, userId, username, nodeId) => {
        trace.wouldBind = true;
        const binding = { serviceId, userId, username, nodeId, epoch: 0, frozen: false };
        return { binding, created: true, conflict: false, voided: [] };
      },
    },
    health: {
      isUsable: sticky.isUsable,
      probeNow: async () => {
        trace.wouldProbe = true;
      },
    },
    placement: { ...sticky.placement, release: () => undefined },
    candidates: new LoginCandidates(() => undefined),
  };
}

/** Nobody's requests are spread over the versions of a route by its weight rules, each by a draw of its own. */
function drawsVersion({ match, userId, login, versionReason }: RequestContext): boolean {
  if (versionReason !== 'weight' || userId !== null || (login && login.username !== null)) return false;
  return match?.route?.rules.some(({ type }) => type === 'weight') ?? false;
}

function report(
  options: ExplainOptions,
  context: RequestContext,
  trace: Trace,
  error: unknown,
): Record<string, unknown> {
  const { service, match, node } = context;
  const failed = error === null ? null : toGatewayError(error);
  const answered = failed === null && trace.stage === 'cors';
  const found = trace.found?.binding;
  const nodeId = node?.id ?? failed?.nodeId ?? found?.nodeId;
  const shown = nodeId === undefined ? undefined : (node ?? service?.nodesById.get(nodeId));
  return {
    outcome: failed ? 'error' : answered ? 'answered' : 'forward',
    // Forwarding only carries out what was decided before.
    stage: trace.stage !== 'forward' ? trace.stage : context.decision === 'balanced' ? 'balance' : 'sticky-route',
    snapshot: context.snapshot && { version: context.snapshot.version, stale: context.snapshot.stale },
    realm: match?.realm ?? null,
    route: match?.route?.id ?? null,
    version: context.version,
    versionReason: context.versionReason,
    serviceId: service?.id ?? null,
    login: context.login && { username: context.login.username },
    userId: context.userId,
    decision: failed ? null : context.decision,
    answeredBy: trace.found?.answeredBy ?? null,
    binding: found ? { nodeId: found.nodeId, epoch: found.epoch, frozen: found.frozen } : null,
    wouldBind: trace.wouldBind || context.decision === 'candidate',
    wouldProbe: trace.wouldProbe,
    drawnAtRandom: (context.decision === 'balanced' && service?.balance === 'random') || drawsVersion(context),
    node: shown
      ? {
          id: shown.id,
          enabled: shown.enabled,
          draining: shown.draining,
          health: viewHealth(options.health.details(shown.healthKey)),
        }
      : null,
    error: failed && JSON.parse(renderError(failed, context.requestId, undefined).body.toString('utf8')),
  };
}
