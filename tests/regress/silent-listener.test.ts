/** A gateway whose listener fell silent without a word does not go on believing what Redis holds. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { BackendNode, userIdOf } from '../support/backend-node.ts';
import { counterOf } from '../support/counter-of.ts';
import { FailingStores, type ProxiedStores } from '../support/failing-stores.ts';
import { type GatewayFixture, startGateway } from '../support/gateway-fixture.ts';
import { waitUntil } from '../support/wait-until.ts';

const TTL_MS = 1_000;
const PATH = '/js/a/notes';

describe('a move that a gateway could not hear of because its listener is silent', () => {
  const nodes = [new BackendNode('n1'), new BackendNode('n2')];
  let stores: FailingStores;
  let way: ProxiedStores;
  let gateway: GatewayFixture;

  before(async () => {
    for (const node of nodes) await node.start();
    stores = await FailingStores.open();
    way = await stores.way();
    gateway = await startGateway({ stores: way.setup, nodes, config: `cache: { ttl: ${TTL_MS}ms }` });
  });
  after(async () => {
    await gateway?.stop();
    await stores?.close();
    for (const node of nodes) await node.stop();
  });

  it('is followed after the ttl although Redis holds the old node, and Redis is put right', async () => {
    const token = await gateway.tokenOf('alice');
    const old = String((await gateway.get(PATH, token)).headers['x-gateway-node']);
    const home = old === 'n1' ? 'n2' : 'n1';
    // Forgotten here: it is Redis that answers from now on.
    gateway.gateway.parts.bindings.drop({ keys: [{ kind: 'id', serviceId: 'demo', userId: userIdOf('alice') }] });
    assert.equal((await gateway.get(PATH, token)).headers['x-gateway-node'], old);
    assert.equal(counterOf(gateway, 'gateway_binding_lookups_total{layer="redis"}'), 1, 'Redis is believed');

    // Only the listener's connection is left, and that falls silent.
    await stores.endSessionsExceptListeners();
    await waitUntil('the pool to be empty', () => way.postgres.open === 1);
    await way.postgres.set('half-open');
    await stores.sql('UPDATE gateway_user_route SET node_id = $1', [home]);
    const movedAtMs = performance.now();
    await waitUntil('the ttl to be over', () => performance.now() - movedAtMs > TTL_MS);
    for (const node of nodes) node.journal.length = 0;
    const answers = new Set<unknown>();
    for (let turn = 0; turn < 5; turn += 1) answers.add((await gateway.get(PATH, token)).headers['x-gateway-node']);
    assert.deepEqual([...answers], [home]);
    assert.equal(nodes.find(({ id }) => id === old)?.journal.length, 0, 'not one request reached the old node');
    await waitUntil('Redis to hold the new node', async () =>
      (await stores.redis.command('GET', `gateway:route:user:demo:${userIdOf('alice')}`)).includes(`${home} 2`),
    );
  });
});
