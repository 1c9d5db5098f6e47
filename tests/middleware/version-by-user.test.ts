/** Corners of choosing a version by user that a whole gateway cannot be brought to reliably. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { VersionChooser } from '../../lib/canary/version-chooser.ts';
import type { RequestContext } from '../../lib/context.ts';
import { GatewayError } from '../../lib/errors.ts';
import { versionByRule } from '../../lib/middleware/version-by-rule.ts';
import { type VersionByUserOptions, versionByUser } from '../../lib/middleware/version-by-user.ts';
import { type RouteSketch, routeOf } from '../canary/routes.ts';
import { contextOf as requestContext, runStage } from '../support/stage.ts';

const VERSIONS = new VersionChooser({
  turns: () => assert.fail('nobody takes turns here'),
  isUsable: () => true,
});

/** Tokens and bindings that must not be asked, unless a test says so. */
function options(more: Partial<VersionByUserOptions> = {}): VersionByUserOptions {
  return {
    tokens: { cached: () => undefined, resolve: async () => assert.fail('no token is looked up') },
    versions: VERSIONS,
    boundVersions: {
      cached: () => undefined,
      find: async () => assert.fail('no binding is looked up'),
      findByUsername: async () => assert.fail('no name is looked up'),
    },
    extractToken: () => 'token',
    ...more,
  };
}

function contextOf(sketch: RouteSketch): RequestContext {
  const context = requestContext({ url: '/api/x' });
  context.match = { realm: 'api', prefix: '/api', service: null, route: routeOf(sketch) };
  return context;
}

const away = async () => {
  throw new GatewayError('identity_unavailable', 'away');
};

describe('the version by user stage', () => {
  it('leaves alone what is below no route, and what a rule has decided', () => {
    const stage = versionByUser(options({ extractToken: () => assert.fail('no token is read') }));
    const plain = requestContext({});
    assert.deepEqual(runStage(stage, plain), { nexts: 1, passedOn: true });
    const decided = contextOf({ weights: { v1: 1 } });
    assert.deepEqual(runStage(versionByRule(VERSIONS), decided), { nexts: 1, passedOn: true });
    assert.deepEqual([decided.version, decided.versionReason, decided.service?.id], ['v1', 'only', 's-v1']);
    assert.deepEqual(runStage(stage, decided), { nexts: 1, passedOn: true });
  });

  it('asks for no binding where no version binds anybody, and stays in its tick', () => {
    const context = contextOf({ weights: { v1: 1, v2: 1 }, affinity: 'none' });
    const tokens = { cached: () => 'alice', resolve: async () => assert.fail('no token is looked up') };
    assert.deepEqual(runStage(versionByUser(options({ tokens })), context), { nexts: 1, passedOn: true });
    assert.deepEqual([context.userId, context.identified, context.versionReason], ['alice', true, 'weight']);
  });

  it('hashes a token that cannot be looked up where nobody is bound', async () => {
    const sketch = { weights: { v1: 1, v2: 1 }, affinity: 'none' } as const;
    const stage = versionByUser(options({ tokens: { cached: () => undefined, resolve: away } }));
    const context = contextOf(sketch);
    let nexts = 0;
    await stage(context, () => {
      nexts += 1;
    });
    assert.equal(context.version, VERSIONS.byWeight(VERSIONS.planOf(routeOf(sketch)), 'token').id);
    assert.deepEqual([nexts, context.identified, context.userId], [1, false, null]);
  });

  it('does not guess for such a token as soon as one version binds users, even one that only rules lead to', async () => {
    const sketch = { weights: { v1: 1, v2: 0 }, affinities: { v1: 'none', v2: 'user' } } as const;
    const stage = versionByUser(options({ tokens: { cached: () => undefined, resolve: away } }));
    await assert.rejects(async () => stage(contextOf(sketch), () => assert.fail('nothing is forwarded')), {
      code: 'identity_unavailable',
    });
  });
});
