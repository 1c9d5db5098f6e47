/** Finds the client's address and turns away those that may not come in. */
import type { Middleware } from '../context.ts';
import { GatewayError } from '../errors.ts';
import { type AddressList, clientAddress, plainAddress } from '../support/ip.ts';

const NO_HOPS: readonly string[] = [];

export function ipAllow(allowed: AddressList, trustedProxies: AddressList): Middleware {
  return (context, next) => {
    // Undefined when the client has gone already; then nobody reads the answer.
    const peer = plainAddress(context.request.socket.remoteAddress ?? '');
    context.peerAddress = peer;
    context.trustedPeer = trustedProxies.size > 0 && trustedProxies.has(peer);
    context.clientAddress = context.trustedPeer
      ? clientAddress(peer, context.request.headersDistinct['x-forwarded-for'] ?? NO_HOPS, trustedProxies)
      : peer;
    if (allowed.size > 0 && !allowed.has(context.clientAddress)) {
      throw new GatewayError('ip_not_allowed', 'this address may not use the gateway');
    }
    return next(context);
  };
}
