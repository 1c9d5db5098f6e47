/** Which user a command is about, and the binding they have. */
import type { AdminClient } from './admin-client.ts';
import { type ServiceView, servicePath } from './choose-service.ts';
import { CommandFailure, UsageError } from './cli-error.ts';
import type { CommandOptions, Invocation } from './command.ts';

export const USER_OPTIONS: CommandOptions = {
  'user-id': { type: 'string', short: 'u', value: 'ID', help: 'the user, by id (the same as a plain word)' },
  username: { type: 'string', value: 'NAME', help: 'the user, by name' },
};

export interface BindingView {
  readonly userId: string | null;
  readonly username: string | null;
  readonly nodeId: string;
  readonly epoch: number;
  readonly frozen: boolean;
}

export type NamedUser =
  /** `plain` = it was a word without an option: it may have been meant as a name. */
  | { readonly kind: 'id'; readonly id: string; readonly plain: boolean }
  | { readonly kind: 'name'; readonly name: string };

/** Throws UsageError unless exactly one user is named. */
export function readUser({ words, text, command }: Invocation): NamedUser {
  const [word] = words;
  const id = text('user-id');
  const name = text('username');
  const given = [word, id, name].filter((value) => value !== undefined);
  if (given.length === 0) throw new UsageError('which user? Give USER-ID or --username NAME', command);
  if (given.length > 1)
    throw new UsageError('the user is named twice: give one of USER-ID, --user-id, --username', command);
  if (name !== undefined) return { kind: 'name', name };
  return { kind: 'id', id: id ?? word ?? '', plain: id === undefined };
}

export async function findBinding(
  client: AdminClient,
  service: ServiceView,
  query: { readonly userId: string } | { readonly username: string },
): Promise<BindingView | null> {
  const { bindings } = await client.get(servicePath(service, 'bindings'), { ...query, limit: '1' });
  return (bindings as readonly BindingView[])[0] ?? null;
}

export interface FoundUser {
  readonly userId: string;
  readonly binding: BindingView | null;
}

/**
 * The user's id and binding. A plain word that is nobody's id but somebody's name is refused: it would bind a user who
 * does not exist. Rejects with CommandFailure.
 */
export async function findUser(client: AdminClient, service: ServiceView, user: NamedUser): Promise<FoundUser> {
  if (user.kind === 'id') {
    const binding = await findBinding(client, service, { userId: user.id });
    if (binding || !user.plain) return { userId: user.id, binding };
    const namesake = await findBinding(client, service, { username: user.id });
    if (!namesake) return { userId: user.id, binding };
    throw new CommandFailure({
      code: 'not_found',
      message: `no user with the id '${user.id}' is bound in service '${service.id}', but one with that name is`,
      hint: `did you mean --username ${shellWord(user.id)}? (to bind a new user with this id, write --user-id)`,
    });
  }
  const binding = await findBinding(client, service, { username: user.name });
  if (!binding) throw notBound(service, `user '${user.name}'`);
  if (binding.userId === null)
    throw new CommandFailure({
      code: 'no_user_id',
      message: `'${user.name}' was imported by name only, and is on '${binding.nodeId}' from their first login on`,
      hint: 'until that login gives the user id there is nothing to change; a row of another node cannot be imported over it',
    });
  return { userId: binding.userId, binding };
}

export function notBound(service: ServiceView, user: string): CommandFailure {
  return new CommandFailure({
    code: 'not_found',
    message: `${user} is not bound in service '${service.id}'`,
    hint: 'sticky-gateway bindings list shows who is; a user is bound at their first login, or by bindings set',
  });
}

/** `u-42 (alice)` */
export function userLabel({ userId, username }: Pick<BindingView, 'userId' | 'username'>): string {
  if (userId === null) return `${username} (no id yet)`;
  return username === null ? userId : `${userId} (${username})`;
}

/** As a shell reads it back. */
export function shellWord(text: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** `--user-id 42`, in a form that stands for ids that begin with a dash. */
export function userIdOption(userId: string): string {
  return userId.startsWith('-') ? `--user-id=${shellWord(userId)}` : `--user-id ${shellWord(userId)}`;
}
