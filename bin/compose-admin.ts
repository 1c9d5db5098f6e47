/** The part of the composition root that makes the admin API out of the gateway's parts. It starts nothing. */
import { AdminApi } from '../lib/admin/api.ts';
import { apiRoutes } from '../lib/admin/api-routes.ts';
import type { AuditLog } from '../lib/admin/audit-log.ts';
import { bindingCalls } from '../lib/admin/bindings.ts';
import { routeCalls } from '../lib/admin/canary-routes.ts';
import { AdminEvents } from '../lib/admin/events.ts';
import { explainCall } from '../lib/admin/explain.ts';
import { nodeCalls } from '../lib/admin/nodes.ts';
import { operationCalls } from '../lib/admin/operations.ts';
import type { RegistryEditor } from '../lib/admin/registry-editor.ts';
import { serviceCalls } from '../lib/admin/services.ts';
import { transferCalls } from '../lib/admin/transfer.ts';
import type { StatelessBalancer } from '../lib/balance/balancer.ts';
import type { Placement } from '../lib/balance/placement.ts';
import type { BindingImporter } from '../lib/bindings/binding-import.ts';
import type { BindingService } from '../lib/bindings/binding-service.ts';
import type { BindingStore } from '../lib/bindings/binding-store.ts';
import type { UnfinishedLogins } from '../lib/bindings/unfinished-logins.ts';
import type { BoundVersions } from '../lib/canary/bound-versions.ts';
import type { VersionChooser } from '../lib/canary/version-chooser.ts';
import type { GatewayOptions } from '../lib/config/options.ts';
import type { HealthRegistry } from '../lib/health/health-registry.ts';
import type { Logger } from '../lib/observe/log.ts';
import type { Stages } from '../lib/pipeline.ts';
import type { Connections } from '../lib/proxy/connections.ts';
import type { Registry } from '../lib/registry/registry.ts';
import type { Clock } from '../lib/support/clock.ts';
import { extractToken } from '../lib/tokens/extract-token.ts';
import type { TokenService } from '../lib/tokens/token-service.ts';

/** What differs by store. */
export interface AdminStores {
  readonly bindings: BindingStore;
  readonly editor: RegistryEditor;
  readonly importer: BindingImporter;
  readonly audit: AuditLog;
}

export interface AdminParts {
  readonly options: GatewayOptions;
  readonly stores: AdminStores;
  readonly registry: Registry;
  readonly bindings: BindingService;
  readonly tokens: TokenService;
  readonly unfinished: UnfinishedLogins;
  readonly health: HealthRegistry;
  readonly connections: Connections;
  readonly placement: Placement;
  readonly versions: VersionChooser;
  readonly boundVersions: BoundVersions;
  readonly balancer: StatelessBalancer;
  readonly stages: Omit<Stages, 'forward'>;
  readonly reload: () => Promise<boolean>;
  readonly check: () => Promise<void>;
  readonly clock: Clock;
  readonly logger: Logger;
}

export function composeAdmin(parts: AdminParts): { readonly api: AdminApi; readonly events: AdminEvents } {
  const { options, stores, registry, bindings, health, logger, clock } = parts;
  const { editor, importer, audit, bindings: store } = stores;
  const events = new AdminEvents({ health, registry, clock });
  const routes = apiRoutes({
    services: serviceCalls({ registry, editor, healthPath: options.health.path }),
    nodes: nodeCalls({ registry, editor, health, counts: store, traffic: parts.connections, logger }),
    bindings: bindingCalls({ registry, bindings, store }),
    transfer: transferCalls({ registry, importer, store }),
    routes: routeCalls({ registry, editor }),
    operations: operationCalls({ registry, health, audit, options, reload: parts.reload, check: parts.check }),
    explain: explainOf(parts),
    events: events.open,
  });
  const { listen, tokens } = options.admin;
  const scheme = listen?.tls ? 'https' : 'http';
  return { api: new AdminApi({ tokens, routes, audit, scheme, clock, logger }), events };
}

function explainOf(parts: AdminParts) {
  const { bindings, tokens, unfinished, health, placement, versions, boundVersions, balancer, stages, clock } = parts;
  const { identity } = parts.options;
  return explainCall({
    stages,
    sticky: {
      tokens,
      bindings,
      isUsable: (healthKey) => health.isUsable(healthKey),
      loginPending: (serviceId, userId) => unfinished.mayHave(serviceId, userId),
      placement: {
        choose: (service) => placement.preview(service),
        anonymous: (service) => placement.previewAnonymous(service),
      },
      extractToken: (context) => extractToken(context.request, identity.token),
      rejectUnknownTokens: identity.unknownToken === 'reject',
      clock,
    },
    versions: {
      versions: {
        planOf: (route) => versions.planOf(route),
        byWeight: (plan, subject) => versions.preview(plan, subject),
      },
      boundVersions,
    },
    balancer: { choose: (service, hashKey) => balancer.preview(service, hashKey), another: () => undefined },
    health,
  });
}
