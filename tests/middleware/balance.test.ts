import assert from 'node:assert/strict';
import { beforeEach, describe, it } from 'node:test';
import { GatewayError } from '../../lib/errors.ts';
import { type Balancer, balance } from '../../lib/middleware/balance.ts';
import type { Affinity, Service } from '../../lib/model.ts';
import { serviceOf } from '../balance/services.ts';
import { contextOf, runStage } from '../support/stage.ts';

describe('balance', () => {
  let asked: [string, string][];
  const balancer: Balancer = {
    choose(service, hashKey) {
      asked.push([service.id, hashKey]);
      return service.nodes[0]!;
    },
    another: (service, hashKey, tried, fit) => {
      asked.push([service.id, `${hashKey} ${tried.map(({ id }) => id).join()} ${fit}`]);
      return undefined;
    },
  };

  beforeEach(() => {
    asked = [];
  });

  const service = (affinity: Affinity): Service => serviceOf({ id: 's', affinity, nodes: [{ id: 'n' }] });

  function contextFor(of: Service | null, rawHeaders: readonly string[] = []) {
    const context = contextOf({ rawHeaders });
    context.service = of;
    context.clientAddress = '192.0.2.1';
    return context;
  }

  it('chooses a node for a stateless service', () => {
    const context = contextFor(service('none'));
    assert.deepEqual(runStage(balance(balancer), context), { nexts: 1, passedOn: true });
    assert.deepEqual([context.node?.id, context.decision, context.epoch], ['n', 'balanced', 0]);
    assert.deepEqual(asked, [['s', '192.0.2.1']]);
  });

  it('leaves the users of other services alone, and requests without a service', () => {
    for (const of of [service('user'), null]) {
      const context = contextFor(of);
      assert.deepEqual(runStage(balance(balancer), context), { nexts: 1, passedOn: true });
      assert.deepEqual([context.node, context.decision, context.otherNode], [null, null, null]);
    }
    assert.deepEqual(asked, []);
  });

  it('leaves a way to other nodes, with the same key', () => {
    const context = contextFor(service('none'), ['X-Hash-Key', 'tenant 7']);
    runStage(balance(balancer), context);
    context.otherNode?.(context, [context.node!], true);
    assert.deepEqual(asked.at(-1), ['s', 'tenant 7 n true']);
  });

  it('waits where the choice does, and passes a refusal on', async () => {
    const of = service('none');
    let next = 0;
    const context = contextFor(of);
    await balance({ choose: async () => of.nodes[0]!, another: () => undefined })(context, () => {
      next += 1;
    });
    assert.deepEqual([next, context.node?.id, context.decision], [1, 'n', 'balanced']);
    const refusing = { choose: () => Promise.reject(new Error('none')), another: () => undefined };
    await assert.rejects(async () => balance(refusing)(contextFor(of), () => assert.fail('it went on')), /none/);
  });

  it('takes X-Hash-Key for the key, unless it is empty', () => {
    runStage(balance(balancer), contextFor(service('none'), ['X-Hash-Key', 'tenant 7']));
    runStage(balance(balancer), contextFor(service('none'), ['x-hash-key', '']));
    runStage(balance(balancer), contextFor(service('none'), ['X-Hash-Key', 'a', 'X-Hash-Key', 'b']));
    assert.deepEqual(
      asked.map(([, key]) => key),
      ['tenant 7', '192.0.2.1', 'a, b'],
    );
  });

  it('sends no request on when there is no node', () => {
    const refusing: Balancer = {
      choose() {
        throw new GatewayError('no_node_available', 'none');
      },
      another: () => undefined,
    };
    const context = contextFor(service('none'));
    assert.throws(() => runStage(balance(refusing), context), { code: 'no_node_available' });
    assert.deepEqual([context.node, context.decision], [null, null]);
  });
});
