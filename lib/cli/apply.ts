/**
 * `apply`: brings services and routes of a running gateway to what the file says, one change at a time, and tells of
 * each whether it was made. Which changes there are and in which order lies with diff.ts and apply-plan.ts.
 */
import { readConfigFile } from '../config/load.ts';
import { serviceForm } from '../config/stored-definitions.ts';
import type { RegistryDefinition } from '../model.ts';
import type { AdminClient } from './admin-client.ts';
import { planSteps, type Step } from './apply-plan.ts';
import { describeChange, titleOf } from './apply-text.ts';
import { reasonOf, WRITE_OPTIONS } from './bindings-set.ts';
import { requireConfig } from './check.ts';
import { servicePath } from './choose-service.ts';
import { CommandFailure } from './cli-error.ts';
import { type Command, type Invocation, show } from './command.ts';
import { confirm, YES_OPTION } from './confirm.ts';
import { CONNECT_OPTIONS_AND_TOKEN, withClient } from './connect.ts';
import { type Change, type Definitions, diffDefinitions, type Form, isSame } from './diff.ts';
import { printable } from './table.ts';

export const apply: Command = {
  name: 'apply',
  summary: "Bring the gateway's services and routes to what the file says",
  usage: '--config FILE [--dry-run] [--yes]',
  options: { ...CONNECT_OPTIONS_AND_TOKEN, ...YES_OPTION, ...WRITE_OPTIONS },
  mostWords: 0,
  notes: [
    'Shows what differs, asks, and makes the changes: what comes before what goes. Settings other than services',
    'and routes are not touched. A node or service with bound users is not removed: the gateway refuses that.',
    'Exit code 1 if anything was not applied; what it was is told.',
  ],
  examples: [
    'sticky-gateway apply --config gateway.yaml --dry-run',
    'sticky-gateway apply --config gateway.yaml --yes --reason "third node"',
  ],
  run: async (invocation) => {
    const file = requireConfig(invocation);
    const { registryDefinition } = await readConfigFile(file, invocation.env);
    const wanted = formsOf(registryDefinition);
    return withClient(invocation, (client) => run(invocation, client, file, wanted));
  },
};

/** What became of a change. */
interface Outcome {
  readonly change: Change;
  readonly status: 'planned' | 'applied' | 'refused' | 'unknown' | 'skipped';
  readonly error: { readonly code: string; readonly message: string; readonly details?: object } | null;
}

/** Node id -> bound users. */
type Users = ReadonlyMap<string, number>;

async function run(invocation: Invocation, client: AdminClient, file: string, wanted: Definitions): Promise<number> {
  const { out, json, style } = invocation;
  const current = await readCurrent(client);
  const changes = diffDefinitions(current, wanted);
  if (changes.length === 0) {
    await show(invocation, { changes: [], applied: 0, failed: 0 }, () => [
      `${client.address} has what ${file} says: nothing to do`,
    ]);
    return 0;
  }
  const users = await usersOf(client, changes);
  if (!json) {
    const blocks = changes.map((change) => describeChange(change, users, style).join('\n'));
    await out.line(`${blocks.join('\n')}\n\n${summary(changes)}`);
  }
  if (invocation.flag('dry-run')) {
    const planned = changes.map((change): Outcome => ({ change, status: 'planned', error: null }));
    if (json) await out.line(JSON.stringify(documentOf(planned, users)));
    return 0;
  }
  if (
    !(await confirm(
      invocation,
      `Make ${changes.length === 1 ? 'this change' : `these ${changes.length} changes`} at ${client.address}?`,
    ))
  )
    throw new CommandFailure({ code: 'declined', message: 'nothing was changed' });
  // Whoever answered has decided on what was shown.
  if (!isSame(await readCurrent(client), current))
    throw new CommandFailure({
      code: 'changed_meanwhile',
      message: 'somebody else has changed services or routes meanwhile; nothing was applied',
      hint: 'run apply again to see what differs now',
    });
  const outcomes = await push(invocation, client, planSteps(changes));
  if (json) await out.line(JSON.stringify(documentOf(outcomes, users)));
  return conclude(invocation, outcomes);
}

function formsOf({ services, routes }: RegistryDefinition): Definitions {
  // As they come back from the gateway: plain JSON.
  return JSON.parse(JSON.stringify({ services: services.map(serviceForm), routes })) as Definitions;
}

async function readCurrent(client: AdminClient): Promise<Definitions> {
  const { services } = await client.get('/api/services');
  const { routes } = await client.get('/api/routes');
  return { services: services as readonly Form[], routes: routes as readonly Form[] };
}

/** Of the services that something is removed from. */
async function usersOf(client: AdminClient, changes: readonly Change[]): Promise<Users> {
  const ids = new Set(
    changes
      .filter(({ action }) => action === 'remove')
      .flatMap(({ kind, id, serviceId }) => (kind === 'service' ? [id] : (serviceId ?? []))),
  );
  const users = new Map<string, number>();
  for (const id of ids) {
    const { nodes } = await client.get(servicePath({ id }, 'nodes'));
    for (const node of nodes as readonly Form[])
      if (typeof node['users'] === 'number') users.set(String(node['id']), node['users']);
  }
  return users;
}

function summary(changes: readonly Change[]): string {
  const count = (action: Change['action']) => changes.filter((change) => change.action === action).length;
  return `${count('add')} to add, ${count('change')} to change, ${count('remove')} to remove`;
}

/** Failures after which there is no use in going on: the next step would meet the same. */
const HOPELESS = new Set([
  'unauthorized',
  'forbidden',
  'ip_not_allowed',
  'too_many_requests',
  'no_gateway',
  'unreachable',
  'broke_off',
  'not_a_gateway',
  'not_ready',
  'store_unavailable',
]);
/** The request went out, and the answer never came. */
const UNCERTAIN = new Set(['unreachable', 'broke_off', 'not_a_gateway']);

async function push(invocation: Invocation, client: AdminClient, steps: readonly Step[]): Promise<readonly Outcome[]> {
  const outcomes = new Map<Step, Outcome>();
  const query = reasonOf(invocation);
  let given = false;
  for (const step of steps) {
    const reason = given ? 'not tried, see above' : whySkip(step, outcomes);
    const outcome: Outcome =
      reason === null
        ? await send(client, step, query)
        : { change: step.change, status: 'skipped', error: { code: 'skipped', message: reason } };
    given ||= outcome.error !== null && HOPELESS.has(outcome.error.code);
    outcomes.set(step, outcome);
    // Told as it happens, and to whoever still reads: the work itself goes on to its end.
    if (!invocation.json) invocation.out.say(lineOf(invocation, outcome));
  }
  return [...outcomes.values()];
}

function whySkip(step: Step, outcomes: ReadonlyMap<Step, Outcome>): string | null {
  if (step.circular) return 'it swaps a name, prefix or address with another: give one of them a spare value first';
  const missing = step.after.find((other) => outcomes.get(other)?.status !== 'applied');
  if (missing) return `it needs this first: ${titleOf(missing.change)}`;
  const failed = [...outcomes.values()].find(
    ({ change, status }) => change.action !== 'remove' && status !== 'applied',
  );
  if (step.change.action === 'remove' && failed)
    return `nothing is taken away while something that was to come is not there: ${titleOf(failed.change)}`;
  return null;
}

async function send(
  client: AdminClient,
  { change, method, path, body }: Step,
  query: { reason?: string },
): Promise<Outcome> {
  try {
    await client.send(method, path, { query, ...(body === undefined ? {} : { body }) });
    return { change, status: 'applied', error: null };
  } catch (error) {
    if (!(error instanceof CommandFailure)) throw error;
    const { code, message, details, hint } = error;
    const text = hint === undefined ? message : `${message} (${hint})`;
    return { change, status: UNCERTAIN.has(code) ? 'unknown' : 'refused', error: { code, message: text, details } };
  }
}

function lineOf({ style }: Invocation, { change, status, error }: Outcome): string {
  const what = titleOf(change);
  if (status === 'applied') return style.green(`done: ${what}`);
  const word = status === 'unknown' ? 'not known whether applied' : status === 'skipped' ? 'not applied' : 'refused';
  return style.red(`${word}: ${what}: ${printable(error?.message ?? '')}`);
}

function documentOf(outcomes: readonly Outcome[], users: Users): Form {
  const applied = outcomes.filter(({ status }) => status === 'applied').length;
  return {
    changes: outcomes.map(({ change, status, error }) => ({
      ...change,
      ...(change.action === 'remove' && users.has(change.id) ? { users: users.get(change.id) } : {}),
      status,
      error,
    })),
    applied,
    failed: outcomes.filter(({ status }) => status !== 'applied' && status !== 'planned').length,
  };
}

function conclude({ out, json }: Invocation, outcomes: readonly Outcome[]): number {
  const failed = outcomes.filter(({ status }) => status !== 'applied').length;
  if (failed === 0) {
    if (!json) out.say(`\napplied: ${outcomes.length} of ${outcomes.length}`);
    return 0;
  }
  throw new CommandFailure({
    code: 'incomplete',
    message: `applied ${outcomes.length - failed} of ${outcomes.length} changes, ${failed} not`,
    hint: 'the lines above say which and why; apply may be run again at any time',
    details: { applied: outcomes.length - failed, failed },
  });
}
