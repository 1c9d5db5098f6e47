/** Corners of the decision that a whole gateway cannot be brought to reliably; its rows are in tests/behaviour. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { LoginCandidates } from '../../lib/bindings/login-candidates.ts';
import type { RequestContext } from '../../lib/context.ts';
import { type StickyRouteOptions, stickyRoute } from '../../lib/middleware/sticky-route.ts';
import type { Node, Service } from '../../lib/model.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { FakeClock } from '../support/fake-clock.ts';

const NODE = { id: 'n1', enabled: true, draining: false, healthKey: 'http://h/health' } as Node;
const SERVICE = {
  id: 's',
  affinity: 'user',
  defaultNodeId: 'n1',
  nodesById: new Map([['n1', NODE]]),
} as unknown as Service;

function contextOf(service: Service): RequestContext {
  return { service, match: { realm: 's' }, login: null } as unknown as RequestContext;
}

function options(more: Partial<StickyRouteOptions>): StickyRouteOptions {
  return {
    tokens: { cached: () => 'alice', resolve: async () => 'alice' },
    bindings: {
      cachedByUserId: () => undefined,
      findByUserId: async () => ({ binding: undefined, answeredBy: 'store' }),
      findByUsername: async () => ({ binding: undefined, answeredBy: 'store' }),
      bind: async () => assert.fail('nothing is bound'),
    },
    health: { isUsable: () => true, probeNow: async () => undefined },
    placement: { choose: () => NODE, release: () => undefined, anonymous: () => NODE },
    candidates: new LoginCandidates(() => undefined),
    loginPending: () => false,
    extractToken: () => 'token',
    rejectUnknownTokens: false,
    clock: new FakeClock(),
    ...more,
  };
}

describe('the sticky route stage', () => {
  it('does not send a user to the default node when they cannot be bound to it', async () => {
    const base = options({});
    const bind = async () => {
      throw new StoreUnavailable('postgres', new Error('away'));
    };
    const stage = stickyRoute({ ...base, bindings: { ...base.bindings, bind } });
    await assert.rejects(async () => stage(contextOf(SERVICE), () => assert.fail('nothing is forwarded')), {
      code: 'directory_unavailable',
    });
  });

  it('neither binds a user to the default node nor sends them to a login while one of theirs is to be bound', async () => {
    for (const service of [SERVICE, { ...SERVICE, defaultNodeId: null }]) {
      const stage = stickyRoute(options({ loginPending: (id, user) => id === service.id && user === 'alice' }));
      await assert.rejects(async () => stage(contextOf(service), () => assert.fail('nothing is forwarded')), {
        code: 'directory_unavailable',
      });
    }
  });

  it('follows the binding in force when another gateway bound the user elsewhere in the meantime', async () => {
    const other = { ...NODE, id: 'n2' };
    const service = {
      ...SERVICE,
      nodesById: new Map([
        ['n1', NODE],
        ['n2', other],
      ]),
    } as Service;
    const base = options({});
    const binding = { serviceId: 's', userId: 'alice', username: null, nodeId: 'n2', epoch: 4, frozen: false };
    const bind = async () => ({ binding, created: false, conflict: false, voided: [] });
    const context = contextOf(service);
    let forwarded = 0;
    await stickyRoute({ ...base, bindings: { ...base.bindings, bind } })(context, () => {
      forwarded += 1;
    });
    assert.deepEqual([forwarded, context.node?.id, context.decision, context.epoch], [1, 'n2', 'bound', 4]);
  });

  it('leaves services that bind nobody to the stage that follows', () => {
    let passed = 0;
    const stage = stickyRoute(options({ extractToken: () => assert.fail('no token is read') }));
    void stage(contextOf({ ...SERVICE, affinity: 'none' }), () => {
      passed += 1;
    });
    assert.equal(passed, 1);
  });

  it('waits for the probe of a node that is DOWN no longer than a moment', async () => {
    const clock = new FakeClock();
    const base = options({
      clock,
      health: { isUsable: () => false, probeNow: () => new Promise(() => undefined) },
    });
    const bindings = { ...base.bindings, cachedByUserId: () => ({ nodeId: 'n1', epoch: 1, frozen: false }) };
    const refused = assert.rejects(
      async () => stickyRoute({ ...base, bindings })(contextOf(SERVICE), () => undefined),
      {
        code: 'node_down',
        nodeId: 'n1',
      },
    );
    await clock.advanceAsync(300);
    await refused;
  });
});
