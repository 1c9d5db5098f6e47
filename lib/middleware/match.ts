/**
 * Takes the snapshot, checks the request target and finds the service or the route whose prefix it lies under. Which of
 * a route's versions answers is for the version stages to say.
 */
import type { Middleware } from '../context.ts';
import { GatewayError } from '../errors.ts';
import type { Snapshot } from '../model.ts';
import { checkTarget, parseAbsolute, pathOf } from '../proxy/targets.ts';

export function match(registry: { readonly snapshot: Snapshot | undefined }): Middleware {
  return (context, next) => {
    const url = context.request.url ?? '';
    const fault = context.framingFault ?? checkTarget(url);
    if (fault !== null) throw new GatewayError('bad_request', fault);
    // RFC 9112 section 3.2.2: the authority of an absolute-form target replaces Host.
    const absolute = parseAbsolute(url);
    context.target = absolute ? absolute.target : url;
    context.host = absolute ? absolute.authority : context.request.headers.host;
    context.path = pathOf(context.target);
    const { snapshot } = registry;
    if (!snapshot) throw new GatewayError('directory_unavailable', 'the services are not known yet');
    const found = snapshot.match(context.path);
    if (!found) throw new GatewayError('no_route', 'no service answers at this path');
    context.snapshot = snapshot;
    context.match = found;
    context.service = found.service;
    if (!(found.service ?? found.route).enabled)
      throw new GatewayError('service_disabled', 'this service is switched off');
    return next(context);
  };
}
