/** Calls that look at the gateway as a whole: health, audit, configuration, reload. */
import type { GatewayOptions } from '../config/options.ts';
import { OperatorError } from '../errors.ts';
import type { HealthDetails } from '../health/health-registry.ts';
import { AdminError, badField } from './admin-error.ts';
import type { AuditLog, StoredAuditEntry } from './audit-log.ts';
import { type CallHandler, dryRunMark } from './call.ts';
import { viewConfig } from './config-view.ts';
import { type SnapshotSource, snapshotOf } from './definitions.ts';
import { viewHealth } from './nodes.ts';

const MOST_PER_PAGE = 1_000;
const PER_PAGE = 100;

export interface OperationCallOptions {
  readonly registry: SnapshotSource;
  readonly health: { details(healthKey: string): HealthDetails };
  readonly audit: AuditLog;
  readonly options: GatewayOptions;
  /** Reads file and registry anew; rejects with OperatorError for what cannot be taken over. False = the store was not read. */
  readonly reload: () => Promise<boolean>;
  /** Checks the file without taking it over. */
  readonly check: () => Promise<void>;
}

export type OperationCalls = Record<'whoami' | 'health' | 'audit' | 'config' | 'reload', CallHandler>;

export function operationCalls(parts: OperationCallOptions): OperationCalls {
  return {
    whoami: ({ principal: { name, role } }) => ({
      status: 200,
      body: { name, role, readOnly: parts.options.admin.tokens.length === 0 },
    }),

    health: () => {
      const snapshot = snapshotOf(parts.registry);
      return {
        status: 200,
        body: {
          snapshot: {
            version: snapshot.version,
            loadedAt: new Date(snapshot.loadedAtMs).toISOString(),
            stale: snapshot.stale,
          },
          nodes: [...snapshot.nodes.values()].map((node) => ({
            serviceId: node.serviceId,
            nodeId: node.id,
            enabled: node.enabled,
            draining: node.draining,
            ...viewHealth(parts.health.details(node.healthKey)),
          })),
        },
      };
    },

    audit: async (call) => {
      const after = call.query.get('after') ?? undefined;
      if (after !== undefined && !/^\d{1,18}$/.test(after)) throw badField('after', 'must be the next of a page');
      const page = await parts.audit.page(call.limit(MOST_PER_PAGE, PER_PAGE), after);
      return { status: 200, body: { entries: page.entries.map(viewEntry), next: page.next } };
    },

    config: () => ({ status: 200, body: viewConfig(parts.options) }),

    reload: async (call) => {
      try {
        if (call.dryRun) await parts.check();
        else if (!(await parts.reload()))
          throw new AdminError('store_unavailable', 'the registry could not be read from its store', {
            headers: { 'Retry-After': '2' },
          });
      } catch (error) {
        // The file is at fault, not the request.
        if (error instanceof OperatorError) throw new AdminError('conflict', error.message, { cause: error });
        throw error;
      }
      return { status: 200, body: { version: snapshotOf(parts.registry).version, ...dryRunMark(call) } };
    },
  };
}

function viewEntry({ timeMs, ...entry }: StoredAuditEntry): Record<string, unknown> {
  return { ...entry, time: new Date(timeMs).toISOString() };
}
