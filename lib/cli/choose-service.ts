/** Which service a command is about: the one that was named, else the only one there is. */

import { didYouMean } from '../config/fields.ts';
import type { AdminClient, Json } from './admin-client.ts';
import { CommandFailure, UsageError } from './cli-error.ts';
import type { CommandOptions, Invocation } from './command.ts';

export const SERVICE_OPTION: CommandOptions = {
  service: { type: 'string', short: 's', value: 'ID', help: 'the service; not needed where there is only one' },
};

export interface ServiceView {
  readonly id: string;
  readonly name: string;
  readonly pathPrefix: string | null;
  readonly loginPath: string | null;
  readonly defaultNodeId: string | null;
  readonly enabled: boolean;
  readonly affinity: 'user' | 'none';
  readonly nodes: readonly Json[];
}

export async function listServices(client: AdminClient): Promise<readonly ServiceView[]> {
  return (await client.get('/api/services'))['services'] as readonly ServiceView[];
}

/** `bound` = only services that bind users count. Rejects with UsageError when there are several and none is named. */
export async function chooseService(invocation: Invocation, client: AdminClient, bound = true): Promise<ServiceView> {
  const services = await listServices(client);
  const named = invocation.text('service');
  if (named !== undefined) {
    const found = services.find(({ id }) => id === named);
    if (found) return found;
    const ids = services.map(({ id }) => id);
    const hint = didYouMean(named, ids) || `: there are ${ids.join(', ') || 'none'}`;
    throw new CommandFailure({ code: 'not_found', message: `there is no service '${named}'${hint}` });
  }
  const fit = services.filter(({ affinity }) => !bound || affinity === 'user');
  const [only, ...more] = fit;
  if (only && more.length === 0) return only;
  if (!only)
    throw new CommandFailure({
      code: 'not_found',
      message: `${client.address} has no service ${bound ? 'that binds users' : 'yet'}`,
    });
  throw new UsageError(
    `there are ${fit.length} services: name one with --service (${fit.map(({ id }) => id).join(', ')})`,
    invocation.command,
  );
}

/** A path of the API with what stands in it encoded. */
export function apiPath(...segments: readonly string[]): string {
  return `/api/${segments.map(encodeURIComponent).join('/')}`;
}

export function servicePath(service: { readonly id: string }, ...segments: readonly string[]): string {
  return apiPath('services', service.id, ...segments);
}
