/** `audit`: who changed what, newest first. */
import type { Json } from './admin-client.ts';
import { UsageError } from './cli-error.ts';
import type { Command, Invocation } from './command.ts';
import { CONNECT_OPTIONS_AND_TOKEN, withClient } from './connect.ts';
import { grouped } from './progress.ts';
import { Table } from './table.ts';

const DEFAULT_ENTRIES = 50;
const PAGE_ROWS = 1_000;

export const audit: Command = {
  name: 'audit',
  summary: 'Show who changed what and why, newest first',
  usage: '[--user-id ID] [--limit N]',
  options: {
    'user-id': { type: 'string', short: 'u', value: 'ID', help: 'only what concerns the binding of this user' },
    limit: { type: 'string', value: 'N', help: `at most so many; ${DEFAULT_ENTRIES} unless given` },
    ...CONNECT_OPTIONS_AND_TOKEN,
  },
  mostWords: 0,
  notes: ['Refused attempts are in it as well. With --json one JSON object a line (NDJSON).'],
  examples: ['sticky-gateway audit --limit 20', 'sticky-gateway audit --user-id 42'],
  run: (invocation) =>
    withClient(invocation, async (client) => {
      const { out, err, json } = invocation;
      const most = readLimit(invocation);
      const userId = invocation.text('user-id');
      const table = new Table();
      let shown = 0;
      let after: string | null = null;
      do {
        const page: Json = await client.get('/api/audit', {
          limit: String(userId === undefined ? Math.min(PAGE_ROWS, most - shown) : PAGE_ROWS),
          after: after ?? undefined,
        });
        const entries = (page['entries'] as readonly Json[])
          .filter((entry) => concerns(entry, userId))
          .slice(0, most - shown);
        const lines = json ? entries.map((entry) => JSON.stringify(entry)) : table.lines(entries.map(rowOf));
        if (lines.length > 0) await out.write(`${lines.join('\n')}\n`);
        shown += entries.length;
        after = page['next'] as string | null;
      } while (after !== null && shown < most);
      if (shown === 0 && !json) err.say('nothing of this kind in the audit');
      return 0;
    }),
};

function readLimit({ text, command }: Invocation): number {
  const limit = text('limit') ?? String(DEFAULT_ENTRIES);
  if (!/^[1-9]\d{0,14}$/.test(limit))
    throw new UsageError(`--limit must be a whole number from 1 on, not '${limit}'`, command);
  return Number(limit);
}

function concerns({ target }: Json, userId: string | undefined): boolean {
  return userId === undefined || String(target).endsWith(`/bindings/${userId}`);
}

function rowOf(entry: Json): string[] {
  const { time, actor, address, action, target, outcome, before, after, reason } = entry;
  const inserted = (after as Json | null)?.['inserted'];
  const change = typeof inserted === 'number' ? `${grouped(inserted)} bound` : changeOf(before, after);
  const facts = [outcome === 'done' ? change : String(outcome), reason === null ? '' : `"${String(reason)}"`];
  return [
    String(time),
    `${String(actor)} (${String(address)})`,
    String(action),
    String(target),
    facts.filter((fact) => fact !== '').join(' '),
  ];
}

/** What differs between the two, as far as it is plain values; a binding that came or went by its node. */
function changeOf(before: unknown, after: unknown): string {
  const [old, young] = [plainValues(before), plainValues(after)];
  if (old === null || young === null) {
    const nodeId = (old ?? young)?.get('nodeId');
    if (nodeId === undefined) return '';
    return old === null ? `- -> ${nodeId}` : `${nodeId} -> -`;
  }
  const changes: string[] = [];
  for (const [key, value] of young) {
    const was = old.get(key);
    if (was === value || IN_EVERY_CHANGE.has(key)) continue;
    changes.push(key === 'nodeId' ? `${was} -> ${value}` : `${key}: ${was ?? '-'} -> ${value}`);
  }
  return changes.length === 0 ? 'nothing changed' : changes.slice(0, MOST_CHANGES).join(', ');
}

/** They follow from what was changed. */
const IN_EVERY_CHANGE: ReadonlySet<string> = new Set(['epoch', 'updatedAt', 'createdAt', 'updateTime', 'createTime']);
const MOST_CHANGES = 5;

function plainValues(value: unknown): Map<string, string> | null {
  if (typeof value !== 'object' || value === null) return null;
  return new Map(
    Object.entries(value).flatMap(([key, item]) => (typeof item === 'object' ? [] : [[key, String(item)] as const])),
  );
}
