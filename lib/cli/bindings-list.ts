/** `bindings list`: who is on which node, page by page, however many there are. */
import { chooseService, SERVICE_OPTION, servicePath } from './choose-service.ts';
import { UsageError } from './cli-error.ts';
import type { Command, Invocation } from './command.ts';
import { CONNECT_OPTIONS_AND_TOKEN, withClient } from './connect.ts';
import { Table } from './table.ts';
import { type BindingView, USER_OPTIONS } from './user.ts';

const PAGE_ROWS = 1_000;

export const bindingsList: Command = {
  name: 'bindings list',
  summary: 'Show which user is on which node',
  usage: '[USER-ID] [--node NODE] [--username NAME] [--limit N]',
  options: {
    node: { type: 'string', short: 'n', value: 'NODE', help: 'only users of this node' },
    ...USER_OPTIONS,
    limit: { type: 'string', value: 'N', help: 'at most so many; else all' },
    ...SERVICE_OPTION,
    ...CONNECT_OPTIONS_AND_TOKEN,
  },
  mostWords: 1,
  notes: ['With --json one JSON object a line (NDJSON): {"userId","username","nodeId","epoch","frozen"}.'],
  examples: [
    'sticky-gateway bindings list --node node-2',
    'sticky-gateway bindings list --username alice',
    'sticky-gateway bindings list --node node-2 --json | wc -l',
  ],
  run: (invocation) =>
    withClient(invocation, async (client) => {
      const most = readLimit(invocation);
      const service = await chooseService(invocation, client);
      const { text, words, out, err, json, style } = invocation;
      const table = new Table();
      let shown = 0;
      let after: string | null = null;
      do {
        const page = await client.get(servicePath(service, 'bindings'), {
          userId: text('user-id') ?? words[0],
          username: text('username'),
          nodeId: text('node'),
          limit: String(Math.min(PAGE_ROWS, most - shown)),
          after: after ?? undefined,
        });
        const bindings = page['bindings'] as readonly BindingView[];
        const rows = bindings.map(rowOf);
        const header = ['USER ID', 'USERNAME', 'NODE', 'EPOCH', 'FROZEN'].map((title) => ({
          text: title,
          paint: style.bold,
        }));
        const lines = json
          ? bindings.map((binding) => JSON.stringify(binding))
          : table.lines(shown === 0 && rows.length > 0 ? [header, ...rows] : rows);
        if (lines.length > 0) await out.write(`${lines.join('\n')}\n`);
        shown += bindings.length;
        after = page['next'] as string | null;
      } while (after !== null && shown < most);
      if (shown === 0 && !json) err.say(`no such binding in service '${service.id}'`);
      return 0;
    }),
};

function readLimit({ text, command }: Invocation): number {
  const limit = text('limit');
  if (limit === undefined) return Number.MAX_SAFE_INTEGER;
  if (!/^[1-9]\d{0,14}$/.test(limit))
    throw new UsageError(`--limit must be a whole number from 1 on, not '${limit}'`, command);
  return Number(limit);
}

function rowOf({ userId, username, nodeId, epoch, frozen }: BindingView): string[] {
  return [userId ?? '-', username ?? '-', nodeId, String(epoch), frozen ? 'frozen' : ''];
}
