/** The NOTIFY payloads that the triggers of gateway_user_route send: which cached bindings are void. */
import { normalizeUsername } from '../support/username.ts';
import type { BindingChange, BindingKey } from './binding-store.ts';

/** The channel of schema/gateway.sql. */
export const BINDINGS_CHANNEL = 'gateway_bindings';

/** Undefined = all of them may be void: a bulk change, or a payload of an unknown form. */
export function readBindingNotification(payload: string): BindingChange | undefined {
  let parsed: unknown;
  try {
    parsed = JSON.parse(payload);
  } catch {
    // '*', and whatever a newer schema may send: forgetting too much is always right.
    return undefined;
  }
  if (!isNotification(parsed)) return undefined;
  const { s: serviceId, u, n, e, d } = parsed;
  const keys: BindingKey[] = [
    ...u.map((userId): BindingKey => ({ kind: 'id', serviceId, userId })),
    ...n.map((name): BindingKey => ({ kind: 'name', serviceId, username: normalizeUsername(name) })),
  ];
  // A row that changed its user id says nothing of the other id's epoch.
  return u.length <= 1 ? { keys, leastEpoch: d === 1 ? e + 1 : e } : { keys };
}

interface Notification {
  readonly s: string;
  readonly u: readonly string[];
  readonly n: readonly string[];
  readonly e: number;
  /** 1 = the row was deleted. */
  readonly d?: number;
}

function isNotification(value: unknown): value is Notification {
  return (
    typeof value === 'object' &&
    value !== null &&
    's' in value &&
    typeof value.s === 'string' &&
    'u' in value &&
    isStrings(value.u) &&
    'n' in value &&
    isStrings(value.n) &&
    'e' in value &&
    typeof value.e === 'number'
  );
}

function isStrings(value: unknown): value is readonly string[] {
  return Array.isArray(value) && value.every((one) => typeof one === 'string');
}
