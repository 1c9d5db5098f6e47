/** Decides which node a request of a stateless service goes to: any that is fit, by the service's balance. */
import type { Handler, Middleware, OtherNode, RequestContext } from '../context.ts';
import type { Node, Service } from '../model.ts';

export interface Balancer {
  /** Waits only when no node is known to be UP. Throws or rejects with `no_node_available`. */
  choose(service: Service, hashKey: string): Node | Promise<Node>;
  /** None of `tried`; `fit` = none that is DOWN. Undefined = none is left. */
  another(service: Service, hashKey: string, tried: readonly Node[], fit: boolean): Node | undefined;
}

export function balance(balancer: Balancer): Middleware {
  const otherNode: OtherNode = (context, tried, fit) =>
    context.service ? balancer.another(context.service, hashKeyOf(context), tried, fit) : undefined;
  const send = (context: RequestContext, node: Node, next: Handler): void | Promise<void> => {
    context.node = node;
    context.decision = 'balanced';
    context.otherNode = otherNode;
    return next(context);
  };
  return (context, next) => {
    const { service } = context;
    if (service?.affinity !== 'none') return next(context);
    const chosen = balancer.choose(service, hashKeyOf(context));
    return chosen instanceof Promise ? chosen.then((node) => send(context, node, next)) : send(context, chosen, next);
  };
}

/** Only consistent hashing looks at it. */
function hashKeyOf(context: RequestContext): string {
  const sent = context.request.headers['x-hash-key'];
  return typeof sent === 'string' && sent !== '' ? sent : context.clientAddress;
}
