/**
 * Below a route: chooses the version where nobody needs to be known for it, because an explicit rule asks for one or
 * because there is only one. Everything else is left to the version by user stage.
 */
import type { PlannedVersion, RoutePlan } from '../canary/route-plan.ts';
import type { RuledRequest } from '../canary/rules.ts';
import type { Middleware, RequestContext, VersionReason } from '../context.ts';
import { GatewayError } from '../errors.ts';
import type { Route } from '../model.ts';

export interface RuleVersions {
  planOf(route: Route): RoutePlan;
  byRule(plan: RoutePlan, request: RuledRequest): PlannedVersion | undefined;
}

export function versionByRule(versions: RuleVersions): Middleware {
  return (context, next) => {
    const route = context.match?.route ?? null;
    if (route === null) return next(context);
    const plan = versions.planOf(route);
    const { rawHeaders } = context.request;
    const ruled = versions.byRule(plan, { rawHeaders, target: context.target });
    if (ruled) setVersion(context, ruled, 'rule');
    else if (plan.only) setVersion(context, plan.only, 'only');
    return next(context);
  };
}

/** From here on the request is one to the version's service. Throws GatewayError `service_disabled`. */
export function setVersion(context: RequestContext, version: PlannedVersion, reason: VersionReason): void {
  context.version = version.id;
  context.versionReason = reason;
  context.service = version.service;
  if (!version.service.enabled) throw new GatewayError('service_disabled', 'this service is switched off');
}
