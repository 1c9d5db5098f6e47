/** Decides which node a request of a stateless service goes to: any that is fit, by the service's balance. */
import type { Middleware } from '../context.ts';
import type { Node, Service } from '../model.ts';

export interface Balancer {
  /** Throws `no_node_available`. */
  choose(service: Service, hashKey: string): Node;
}

export function balance(balancer: Balancer): Middleware {
  return (context, next) => {
    const { service } = context;
    if (service?.affinity !== 'none') return next(context);
    const sent = context.request.headers['x-hash-key'];
    const hashKey = typeof sent === 'string' && sent !== '' ? sent : context.clientAddress;
    context.node = balancer.choose(service, hashKey);
    context.decision = 'balanced';
    return next(context);
  };
}
