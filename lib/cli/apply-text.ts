/** Changes as people read them: + what comes, ~ what changes, - what goes. */
import { type Change, type Form, nodesOf } from './diff.ts';
import type { Style } from './style.ts';
import { printable } from './table.ts';

export function describeChange(change: Change, users: ReadonlyMap<string, number>, style: Style): string[] {
  const { action, kind, id, serviceId, before, after, fields } = change;
  const name = printable(kind === 'node' ? `node ${id} of service ${serviceId}` : `${kind} ${id}`);
  if (action === 'add') {
    const nodes = nodesOf(after).map((node) =>
      style.green(`    + node ${printable(String(node['id']))} ${addressOf(node)}`),
    );
    return [style.green(`+ ${name} ${addressOf(after)}`.trimEnd()), ...nodes];
  }
  if (action === 'remove') {
    const ids = kind === 'service' ? nodesOf(before).map((node) => String(node['id'])) : [id];
    const bound = kind === 'route' ? 0 : ids.reduce((sum, one) => sum + (users.get(one) ?? 0), 0);
    const note =
      bound === 0
        ? ''
        : `: ${bound} ${bound === 1 ? 'user is' : 'users are'} bound there, so the gateway will refuse it`;
    return [style.red(`- ${name}${note}`)];
  }
  return [
    style.yellow(`~ ${name}`),
    ...fields.map(
      (one) =>
        `    ${printable(one.field)}: ${style.red(valueText(one.before))} -> ${style.green(valueText(one.after))}`,
    ),
  ];
}

/** `add node n3 of service ai-server` */
export function titleOf({ action, kind, id, serviceId }: Change): string {
  return printable(`${action} ${kind} ${id}${serviceId === null ? '' : ` of service ${serviceId}`}`);
}

function addressOf(form: Form | null): string {
  const address = form?.['baseUrl'] ?? form?.['pathPrefix'];
  return typeof address === 'string' ? printable(address) : '';
}

function valueText(value: unknown): string {
  if (value === undefined) return '(none)';
  return printable(typeof value === 'string' && /^[^\s"]+$/.test(value) ? value : JSON.stringify(value));
}
