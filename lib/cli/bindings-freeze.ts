/** `bindings freeze` and `bindings unfreeze`: holds one user off (503 user_frozen), or lets them go on. */

import { reasonOf, undoLine, WRITE_OPTIONS } from './bindings-set.ts';
import { chooseService, SERVICE_OPTION, servicePath } from './choose-service.ts';
import { type Command, type CommandOptions, type Invocation, show } from './command.ts';
import { CONNECT_OPTIONS_AND_TOKEN, withClient } from './connect.ts';
import { printable } from './table.ts';
import { type BindingView, findUser, notBound, readUser, USER_OPTIONS, userLabel } from './user.ts';

const OPTIONS: CommandOptions = { ...USER_OPTIONS, ...WRITE_OPTIONS, ...SERVICE_OPTION, ...CONNECT_OPTIONS_AND_TOKEN };

export const bindingsFreeze: Command = {
  name: 'bindings freeze',
  summary: 'Hold a user off with 503 user_frozen, while their data is moved',
  usage: '(USER-ID | --username NAME)',
  options: OPTIONS,
  mostWords: 1,
  notes: [],
  examples: ['sticky-gateway bindings freeze --username alice --reason "copying to node-2"'],
  run: (invocation) => setFrozen(invocation, true),
};

export const bindingsUnfreeze: Command = {
  name: 'bindings unfreeze',
  summary: 'Let a frozen user go on',
  usage: '(USER-ID | --username NAME)',
  options: OPTIONS,
  mostWords: 1,
  notes: [],
  examples: ['sticky-gateway bindings unfreeze --username alice'],
  run: (invocation) => setFrozen(invocation, false),
};

function setFrozen(invocation: Invocation, frozen: boolean): Promise<number> {
  const user = readUser(invocation);
  return withClient(invocation, async (client) => {
    const service = await chooseService(invocation, client);
    const { userId, binding } = await findUser(client, service, user);
    if (!binding) throw notBound(service, `user '${userId}'`);
    const { body } = await client.send('PATCH', servicePath(service, 'bindings', userId), {
      query: { dryRun: invocation.flag('dry-run') ? '1' : undefined },
      body: { frozen, ...reasonOf(invocation) },
    });
    await show(invocation, body, () => {
      const after = body['binding'] as BindingView;
      const before = body['before'] as BindingView;
      const who = printable(userLabel(after));
      if (before.frozen === frozen) return [`${who} is ${frozen ? 'frozen' : 'not frozen'} already: nothing changed`];
      const what = frozen ? 'frozen: they get 503 user_frozen' : `let go on, on ${after.nodeId}`;
      if (body['dryRun'] === true) return [`${who}: would be ${what}`];
      const undo = undoLine(frozen ? 'unfreeze' : 'freeze', service, after);
      return [`${who}: ${what}`, invocation.style.dim(`  undo: ${undo}`)];
    });
    return 0;
  });
}
