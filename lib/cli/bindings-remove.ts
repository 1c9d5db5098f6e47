/** `bindings remove`: takes the binding off a user, whose next login places them anew. Asks first. */
import { reasonOf, undoLine, WRITE_OPTIONS } from './bindings-set.ts';
import { chooseService, SERVICE_OPTION, servicePath } from './choose-service.ts';
import { CommandFailure } from './cli-error.ts';
import { type Command, show } from './command.ts';
import { confirm, YES_OPTION } from './confirm.ts';
import { CONNECT_OPTIONS_AND_TOKEN, withClient } from './connect.ts';
import { printable } from './table.ts';
import { type BindingView, findUser, notBound, readUser, USER_OPTIONS, userLabel } from './user.ts';

export const bindingsRemove: Command = {
  name: 'bindings remove',
  summary: 'Unbind a user: their next login places them anew',
  usage: '(USER-ID | --username NAME) [--yes]',
  options: { ...USER_OPTIONS, ...YES_OPTION, ...WRITE_OPTIONS, ...SERVICE_OPTION, ...CONNECT_OPTIONS_AND_TOKEN },
  mostWords: 1,
  notes: ['The new place may be another node than the one that has their data: to move a user use bindings move.'],
  examples: ['sticky-gateway bindings remove 42 --reason "account closed"'],
  run: (invocation) => {
    const user = readUser(invocation);
    const dryRun = invocation.flag('dry-run');
    return withClient(invocation, async (client) => {
      const service = await chooseService(invocation, client, false);
      const { userId, binding } = await findUser(client, service, user);
      if (!binding) throw notBound(service, `user '${userId}'`);
      const question = `Unbind ${printable(userLabel(binding))} from ${binding.nodeId}? Their next login may place them elsewhere.`;
      if (!dryRun && !(await confirm(invocation, question)))
        throw new CommandFailure({ code: 'declined', message: 'nothing was changed' });
      const { body } = await client.send('DELETE', servicePath(service, 'bindings', userId), {
        query: { dryRun: dryRun ? '1' : undefined, ...reasonOf(invocation) },
      });
      await show(invocation, body, () => {
        const removed = body['removed'] as BindingView;
        const who = printable(userLabel(removed));
        if (dryRun) return [`${who}: would be unbound from ${removed.nodeId}`];
        const undo = undoLine('set', service, removed, removed.nodeId);
        return [`${who}: unbound from ${removed.nodeId}`, invocation.style.dim(`  undo: ${undo}`)];
      });
      return 0;
    });
  },
};
