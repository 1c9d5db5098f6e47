/** The keys under which a binding is cached, and their names in a map. Redis has names of its own. */
import type { Binding } from '../model.ts';
import { normalizeUsername } from '../support/username.ts';
import type { BindingKey } from './binding-store.ts';

export function keysOf(binding: Binding): BindingKey[] {
  const keys: BindingKey[] = [];
  if (binding.userId !== null) keys.push({ kind: 'id', serviceId: binding.serviceId, userId: binding.userId });
  if (binding.username !== null) {
    keys.push({ kind: 'name', serviceId: binding.serviceId, username: normalizeUsername(binding.username) });
  }
  return keys;
}

/** Service ids hold no ':', so the names cannot collide. */
export function cacheName(key: BindingKey): string {
  return key.kind === 'id' ? `${key.serviceId}:i:${key.userId}` : `${key.serviceId}:n:${key.username}`;
}
