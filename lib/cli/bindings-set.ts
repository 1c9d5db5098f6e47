/** `bindings set` and `bindings move`: puts one user on a node. Moving copies no data, and says so. */
import { didYouMean } from '../config/fields.ts';
import type { AdminClient, Json } from './admin-client.ts';
import { chooseService, SERVICE_OPTION, type ServiceView, servicePath } from './choose-service.ts';
import { CommandFailure, UsageError } from './cli-error.ts';
import { type Command, type CommandOptions, type Invocation, show } from './command.ts';
import { CONNECT_OPTIONS_AND_TOKEN, withClient } from './connect.ts';
import { printable } from './table.ts';
import {
  type BindingView,
  findUser,
  notBound,
  readUser,
  shellWord,
  USER_OPTIONS,
  userIdOption,
  userLabel,
} from './user.ts';

export const WRITE_OPTIONS: CommandOptions = {
  reason: { type: 'string', short: 'r', value: 'TEXT', help: 'why, for the audit' },
  'dry-run': { type: 'boolean', help: 'say what would happen, change nothing' },
};

const OPTIONS: CommandOptions = {
  node: { type: 'string', short: 'n', value: 'NODE', help: 'the node to go to' },
  ...USER_OPTIONS,
  ...WRITE_OPTIONS,
  ...SERVICE_OPTION,
  ...CONNECT_OPTIONS_AND_TOKEN,
};
const NOTES = [
  'Takes effect at once, on every gateway. What the user has on the old node is not copied: do that first.',
];

export const bindingsSet: Command = {
  name: 'bindings set',
  summary: 'Bind a user to a node, or move them there',
  usage: '(USER-ID | --username NAME) --node NODE',
  options: OPTIONS,
  mostWords: 1,
  notes: NOTES,
  examples: ['sticky-gateway bindings set 42 --node node-2 --reason "new customer"'],
  run: (invocation) => put(invocation, false),
};

export const bindingsMove: Command = {
  name: 'bindings move',
  summary: 'Move a user who is bound to another node',
  usage: '(USER-ID | --username NAME) --node NODE',
  options: OPTIONS,
  mostWords: 1,
  notes: NOTES,
  examples: [
    'sticky-gateway bindings move --username alice --node node-2 --reason "disk of node-1 is full"',
    'sticky-gateway bindings move 42 --node node-2 --dry-run',
  ],
  run: (invocation) => put(invocation, true),
};

function put(invocation: Invocation, mustBeBound: boolean): Promise<number> {
  const user = readUser(invocation);
  const nodeId = invocation.text('node');
  if (nodeId === undefined) throw new UsageError('--node NODE is missing', invocation.command);
  return withClient(invocation, async (client) => {
    const service = await chooseService(invocation, client);
    const node = await findNode(client, service, nodeId);
    const { userId, binding } = await findUser(client, service, user);
    if (!binding && mustBeBound) throw notBound(service, `user '${userId}'`);
    const { body } = await client.send('PUT', servicePath(service, 'bindings', userId), {
      query: { dryRun: invocation.flag('dry-run') ? '1' : undefined },
      body: { nodeId, ...reasonOf(invocation) },
    });
    await show(invocation, body, () => tell(invocation, service, node, body));
    return 0;
  });
}

export function reasonOf({ text }: Invocation): { reason?: string } {
  const reason = text('reason');
  return reason === undefined ? {} : { reason };
}

async function findNode(client: AdminClient, service: ServiceView, nodeId: string): Promise<Json> {
  const { nodes } = await client.get(servicePath(service, 'nodes'));
  const found = (nodes as readonly Json[]).find((node) => node['id'] === nodeId);
  if (found) return found;
  const ids = (nodes as readonly Json[]).map((node) => String(node['id']));
  const hint = didYouMean(nodeId, ids) || `: there are ${ids.join(', ') || 'none'}`;
  throw new CommandFailure({ code: 'not_found', message: `service '${service.id}' has no node '${nodeId}'${hint}` });
}

function tell(invocation: Invocation, service: ServiceView, node: Json, body: Json): string[] {
  const { style } = invocation;
  const after = body['binding'] as BindingView;
  const before = body['before'] as BindingView | null;
  const would = body['dryRun'] === true ? 'would be ' : '';
  const who = printable(userLabel(after));
  if (before?.nodeId === after.nodeId)
    return [`${who} is on ${after.nodeId} already: nothing ${would ? 'would change' : 'changed'}`];
  const lines = before
    ? [`${who}: ${would}moved from ${before.nodeId} to ${after.nodeId} (service ${service.id}, epoch ${after.epoch})`]
    : [`${who}: ${would}bound to ${after.nodeId} (service ${service.id})`];
  const state = String((node['health'] as Json)['state']);
  if (node['enabled'] === false || state === 'DOWN')
    lines.push(
      style.yellow(
        `  ${after.nodeId} is ${node['enabled'] === false ? 'disabled' : 'DOWN'}: until that changes they get 503`,
      ),
    );
  if (after.frozen) lines.push(style.yellow('  they are frozen: they get 503 until bindings unfreeze'));
  if (before) lines.push(`  data on ${before.nodeId} is not copied by this`);
  if (before && !would) lines.push(style.dim(`  undo: ${undoLine('move', service, after, before.nodeId)}`));
  return lines;
}

/** The command that puts back what was before. */
export function undoLine(
  verb: 'move' | 'set' | 'freeze' | 'unfreeze',
  service: ServiceView,
  user: BindingView,
  nodeId?: string,
): string {
  const node = nodeId === undefined ? '' : ` --node ${shellWord(nodeId)}`;
  return printable(`sticky-gateway bindings ${verb} ${userIdOption(user.userId ?? '')}${node} --service ${service.id}`);
}
