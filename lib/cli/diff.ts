/**
 * What a file would change in the services and routes of a gateway, as single changes: things added and removed,
 * fields from old to new. It neither reads nor writes any of it.
 */

/** A definition in the form of the file. */
export type Form = Readonly<Record<string, unknown>>;

export interface FieldChange {
  /** `login.response.token` */
  readonly field: string;
  readonly before: unknown;
  readonly after: unknown;
}

export interface Change {
  readonly action: 'add' | 'change' | 'remove';
  readonly kind: 'service' | 'node' | 'route';
  readonly id: string;
  /** Of a node; else null. */
  readonly serviceId: string | null;
  /** What is there; null = nothing. */
  readonly before: Form | null;
  /** What is to be there; null = nothing. */
  readonly after: Form | null;
  /** Of a change. */
  readonly fields: readonly FieldChange[];
}

export interface Definitions {
  /** With `nodes`. */
  readonly services: readonly Form[];
  readonly routes: readonly Form[];
}

/** Nodes of services that come or go as a whole have no changes of their own. The order of things is no difference. */
export function diffDefinitions(before: Definitions, after: Definitions): readonly Change[] {
  return [
    ...diffLists('service', null, before.services, after.services).flatMap((change) =>
      change.action === 'change' || change.action === null
        ? [
            ...(change.action === 'change' ? [change as Change] : []),
            ...diffLists('node', change.id, nodesOf(change.before), nodesOf(change.after)).filter(isChange),
          ]
        : [change as Change],
    ),
    ...diffLists('route', null, before.routes, after.routes).filter(isChange),
  ];
}

type Compared = Omit<Change, 'action'> & { readonly action: Change['action'] | null };

function isChange(compared: Compared): compared is Change {
  return compared.action !== null;
}

/** Null as the action = the same. */
function diffLists(
  kind: Change['kind'],
  serviceId: string | null,
  before: readonly Form[],
  after: readonly Form[],
): Compared[] {
  const old = new Map(before.map((one) => [one['id'], one]));
  const kept = new Set(after.map((one) => one['id']));
  return [
    ...after.map((one): Compared => {
      const was = old.get(one['id']) ?? null;
      const fields = was ? diffFields(withoutNodes(was), withoutNodes(one)) : [];
      const action = was === null ? 'add' : fields.length > 0 ? 'change' : null;
      return { action, kind, id: String(one['id']), serviceId, before: was, after: one, fields };
    }),
    ...before
      .filter((one) => !kept.has(one['id']))
      .map(
        (one): Compared => ({
          action: 'remove',
          kind,
          id: String(one['id']),
          serviceId,
          before: one,
          after: null,
          fields: [],
        }),
      ),
  ];
}

export function withoutNodes({ nodes: _nodes, ...rest }: Form): Form {
  return rest;
}

export function nodesOf(service: Form | null): readonly Form[] {
  return (service?.['nodes'] ?? []) as readonly Form[];
}

/** Field by field, into objects; lists are one value each, but `versions` of a route, which have names. */
export function diffFields(before: Form, after: Form, prefix = ''): readonly FieldChange[] {
  const keys = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  return keys.flatMap((key): readonly FieldChange[] => {
    const field = prefix + key;
    const [left, right] = [before[key], after[key]];
    if (isSame(left, right)) return [];
    if (isForm(left) && isForm(right)) return diffFields(left, right, `${field}.`);
    const [old, young] = [versionsOf(key, left), versionsOf(key, right)];
    if (!old || !young) return [{ field, before: left, after: right }];
    const changes = diffFields(old, young, `${field}.`);
    // The same versions in another order.
    return changes.length > 0 ? changes : [{ field, before: Object.keys(old), after: Object.keys(young) }];
  });
}

function versionsOf(key: string, value: unknown): Form | null {
  if (key !== 'versions' || !Array.isArray(value)) return null;
  return Object.fromEntries((value as readonly Form[]).map(({ version, ...rest }) => [String(version), rest]));
}

function isForm(value: unknown): value is Form {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** The order of keys is no difference. */
export function isSame(left: unknown, right: unknown): boolean {
  if (Array.isArray(left) && Array.isArray(right))
    return left.length === right.length && left.every((item, index) => isSame(item, right[index]));
  if (isForm(left) && isForm(right)) {
    const keys = new Set([...Object.keys(left), ...Object.keys(right)]);
    return [...keys].every((key) => isSame(left[key], right[key]));
  }
  return left === right;
}
