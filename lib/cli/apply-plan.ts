/**
 * The order in which changes are pushed. What comes stands before what goes, so that nothing is missing in between;
 * only a name, prefix or address that passes from one thing to another has to be let go of first.
 */
import { apiPath } from './choose-service.ts';
import { type Change, type Form, nodesOf, withoutNodes } from './diff.ts';

export interface Step {
  readonly change: Change;
  readonly method: 'POST' | 'PUT' | 'DELETE';
  readonly path: string;
  readonly body: Form | undefined;
  /** Steps that must have been done before. */
  readonly after: readonly Step[];
  /** True = what has to be done before it has to be done after it as well: it cannot be done. */
  readonly circular: boolean;
}

/** Ranks of changes where nothing else decides. */
const RANK: Readonly<Record<string, number>> = {
  'add service': 0,
  'add node': 1,
  'change node': 2,
  'change service': 3,
  'change route': 4,
  'add route': 5,
  'remove route': 6,
  'remove node': 7,
  'remove service': 8,
};

export function planSteps(changes: readonly Change[]): readonly Step[] {
  const ranked = [...changes].sort((left, right) => rankOf(left) - rankOf(right));
  const claims = new Map(ranked.map((change) => [change, claimsOf(change)]));
  const before = new Map(
    ranked.map((change) => [
      change,
      ranked.filter((other) => {
        if (other === change) return false;
        const [own, theirs] = [claims.get(change), claims.get(other)];
        if (!own || !theirs) return false;
        return overlap(own.takes, theirs.frees) || overlap(own.needs, theirs.gives) || overlap(own.gone, theirs.drops);
      }),
    ]),
  );
  const steps = new Map<Change, Step>();
  const ordered: Step[] = [];
  let left = ranked;
  while (left.length > 0) {
    const free = left.find((change) => (before.get(change) ?? []).every((other) => steps.has(other)));
    const change = free ?? (left[0] as Change);
    const after = (before.get(change) ?? []).flatMap((other) => steps.get(other) ?? []);
    const step: Step = { ...callOf(change), change, after, circular: free === undefined };
    steps.set(change, step);
    ordered.push(step);
    left = left.filter((other) => other !== change);
  }
  return ordered;
}

function rankOf({ action, kind }: Change): number {
  return RANK[`${action} ${kind}`] ?? 0;
}

function overlap(left: readonly string[], right: readonly string[]): boolean {
  return left.some((one) => right.includes(one));
}

interface Claims {
  /** What only one thing can have. */
  readonly takes: readonly string[];
  readonly frees: readonly string[];
  /** What has to be there for it, and what is there after it. */
  readonly needs: readonly string[];
  readonly gives: readonly string[];
  /** What nothing may refer to any more before it, and what is no more referred to after it. */
  readonly gone: readonly string[];
  readonly drops: readonly string[];
}

function claimsOf({ action, kind, id, serviceId, before, after }: Change): Claims {
  // Nodes of a service that stays have changes of their own.
  const part = (form: Form) => (action === 'change' ? withoutNodes(form) : form);
  const old = before ? holds(kind, serviceId, part(before)) : [];
  const young = after ? holds(kind, serviceId, part(after)) : [];
  const [referred, refers] = [before ? refersTo(kind, before) : [], after ? refersTo(kind, after) : []];
  const own = kind === 'node' ? [`node ${id}`] : kind === 'service' ? [`service ${id}`] : [];
  const comes = kind === 'service' && after ? [...own, ...nodesOf(after).map((node) => `node ${node['id']}`)] : own;
  return {
    takes: young.filter((one) => !old.includes(one)),
    frees: old.filter((one) => !young.includes(one)),
    needs: refers.filter((one) => !referred.includes(one)),
    gives: action === 'add' ? comes : [],
    gone: action === 'remove' ? own : [],
    drops: referred.filter((one) => !refers.includes(one)),
  };
}

function holds(kind: Change['kind'], serviceId: string | null, form: Form): string[] {
  if (kind === 'node') return [`node id ${form['id']}`, `address ${serviceId} ${form['baseUrl']}`];
  const prefix = form['pathPrefix'] === null ? [] : [`prefix ${form['pathPrefix']}`];
  const ids = kind === 'service' ? nodesOf(form).map((node) => `node id ${node['id']}`) : [];
  return [`id ${form['id']}`, ...prefix, ...(kind === 'service' ? ids : [])];
}

function refersTo(kind: Change['kind'], form: Form): string[] {
  if (kind === 'service') return form['defaultNodeId'] ? [`node ${form['defaultNodeId']}`] : [];
  if (kind === 'node') return [];
  return ((form['versions'] ?? []) as readonly Form[]).map(({ service }) => `service ${service}`);
}

function callOf({ action, kind, id, serviceId, after }: Change): Pick<Step, 'method' | 'path' | 'body'> {
  const list =
    kind === 'service'
      ? apiPath('services')
      : kind === 'route'
        ? apiPath('routes')
        : apiPath('services', serviceId ?? '', 'nodes');
  if (action === 'add') return { method: 'POST', path: list, body: after ?? undefined };
  const path = `${list}/${encodeURIComponent(id)}`;
  if (action === 'remove') return { method: 'DELETE', path, body: undefined };
  // Nodes have steps of their own; without a list of them they stay as they are.
  return { method: 'PUT', path, body: after ? withoutNodes(after) : undefined };
}
