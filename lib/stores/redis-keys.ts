/** The names of the gateway's keys in Redis. They are part of the contract: other people's scripts use them. */

/** Realms hold no ':', so a key names one realm and one token only. */
export function tokenKey(realm: string, token: string): string {
  return `gateway:token:${realm}:${token}`;
}

export function userRouteKey(serviceId: string, userId: string): string {
  return `gateway:route:user:${serviceId}:${userId}`;
}

/** `username` is normalized. */
export function nameRouteKey(serviceId: string, username: string): string {
  return `gateway:route:name:${serviceId}:${username}`;
}

/** The channel on which gateways tell each other of changed bindings. */
export const CHANGES_CHANNEL = 'gateway:changes';
