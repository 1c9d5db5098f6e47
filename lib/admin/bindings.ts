/** Calls on the bindings of a service, one user at a time. Whole files are imported and exported elsewhere. */
import type { BindingQuery, BindingStore } from '../bindings/binding-store.ts';
import type { Binding, Service } from '../model.ts';
import type { JsonObject } from '../support/json-digits.ts';
import { unstorable } from '../support/storable-text.ts';
import { AdminError, badField, notFound } from './admin-error.ts';
import { type AdminCall, type CallHandler, dryRunMark } from './call.ts';
import { type SnapshotSource, snapshotOf } from './definitions.ts';

const MOST_PER_PAGE = 1_000;
const PER_PAGE = 100;

/** Changes of a binding that this gateway, and every other, hears of. */
export interface BindingChanges {
  move(serviceId: string, userId: string, nodeId: string): Promise<Binding>;
  remove(serviceId: string, userId: string): Promise<Binding | undefined>;
  setFrozen(serviceId: string, userId: string, frozen: boolean): Promise<Binding | undefined>;
}

export interface BindingCallOptions {
  readonly registry: SnapshotSource;
  readonly bindings: BindingChanges;
  /** Asked past every cache. */
  readonly store: Pick<BindingStore, 'list'>;
}

export type BindingCalls = Record<'list' | 'put' | 'change' | 'remove', CallHandler>;

export function bindingCalls({ registry, bindings, store }: BindingCallOptions): BindingCalls {
  const find = async (service: Service, userId: string): Promise<Binding | null> =>
    (await store.list(service.id, { userId, limit: 1 })).bindings[0] ?? null;
  return {
    list: async (call) => {
      const service = serviceOfCall(registry, call);
      const page = await store.list(service.id, queryOf(call));
      return { status: 200, body: { bindings: page.bindings.map(viewBinding), next: page.next } };
    },

    put: async (call) => {
      const service = boundService(registry, call);
      const userId = userIdOf(call);
      const body = await bodyOf(call, ['nodeId', 'reason']);
      const { nodeId } = body;
      if (typeof nodeId !== 'string') throw badField('nodeId', 'is missing: the id of a node of this service');
      if (!service.nodesById.has(nodeId)) throw badField('nodeId', `names no node of service '${service.id}'`);
      const before = await find(service, userId);
      call.audit.before = before;
      const after = call.dryRun
        ? expected(service, userId, nodeId, before)
        : await bindings.move(service.id, userId, nodeId);
      call.audit.after = after;
      return {
        status: before || call.dryRun ? 200 : 201,
        body: { binding: viewBinding(after), before: before && viewBinding(before), ...dryRunMark(call) },
      };
    },

    change: async (call) => {
      const service = boundService(registry, call);
      const userId = userIdOf(call);
      const { frozen } = await bodyOf(call, ['frozen', 'reason']);
      if (typeof frozen !== 'boolean') throw badField('frozen', 'must be true or false');
      const before = await find(service, userId);
      call.audit.before = before;
      const after = call.dryRun
        ? before && { ...before, frozen }
        : await bindings.setFrozen(service.id, userId, frozen);
      if (!before || !after) throw notFound(`binding of user '${userId}' in service '${service.id}'`);
      call.audit.after = after;
      return {
        status: 200,
        body: { binding: viewBinding(after), before: viewBinding(before), ...dryRunMark(call) },
      };
    },

    remove: async (call) => {
      const service = serviceOfCall(registry, call);
      const userId = userIdOf(call);
      const before = call.dryRun ? await find(service, userId) : await bindings.remove(service.id, userId);
      if (!before) throw notFound(`binding of user '${userId}' in service '${service.id}'`);
      call.audit.before = before;
      return { status: 200, body: { removed: viewBinding(before), ...dryRunMark(call) } };
    },
  };
}

/** What a move would come to. */
function expected(service: Service, userId: string, nodeId: string, before: Binding | null): Binding {
  if (!before) return { serviceId: service.id, userId, username: null, nodeId, epoch: 1, frozen: false };
  return before.nodeId === nodeId ? before : { ...before, nodeId, epoch: before.epoch + 1 };
}

export function viewBinding({ userId, username, nodeId, epoch, frozen }: Binding): Record<string, unknown> {
  return { userId, username, nodeId, epoch, frozen };
}

export function serviceOfCall(registry: SnapshotSource, call: AdminCall): Service {
  const service = snapshotOf(registry).services.get(call.param('service'));
  if (!service) throw notFound(`service '${call.param('service')}'`);
  return service;
}

/** A service that looks at bindings. */
export function boundService(registry: SnapshotSource, call: AdminCall): Service {
  const service = serviceOfCall(registry, call);
  if (service.affinity === 'user') return service;
  throw new AdminError('conflict', `service '${service.id}' has affinity: none, so nobody is bound in it`);
}

function userIdOf(call: AdminCall): string {
  const userId = call.param('userId');
  const mistake = unstorable(userId);
  if (mistake) throw badField('userId', mistake);
  return userId;
}

async function bodyOf(call: AdminCall, keys: readonly string[]): Promise<JsonObject> {
  const body = await call.json();
  const unknown = Object.keys(body).find((key) => !keys.includes(key));
  if (unknown !== undefined) throw badField(unknown, 'unknown key');
  call.giveReason('reason', body['reason']);
  return body;
}

function queryOf(call: AdminCall): BindingQuery {
  const { query } = call;
  const after = query.get('after');
  if (after !== null && !/^\d{1,19}$/.test(after)) throw badField('after', 'must be the next of a page');
  const named = (name: 'userId' | 'username' | 'nodeId') => {
    const value = query.get(name);
    return value === null || value === '' ? {} : { [name]: value };
  };
  return {
    limit: call.limit(MOST_PER_PAGE, PER_PAGE),
    ...named('userId'),
    ...named('username'),
    ...named('nodeId'),
    ...(after === null ? {} : { after }),
  };
}
