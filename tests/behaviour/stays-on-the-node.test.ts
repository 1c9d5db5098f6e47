/** The main promise: a user logs in and stays on their node, on every kind of store. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { BackendNode } from '../support/backend-node.ts';
import {
  type GatewayFixture,
  openStores,
  STORE_KINDS,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';

for (const kind of STORE_KINDS) {
  describe(`a user on the ${kind} store`, () => {
    const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
    let stores: StoreSetup;
    let gateway: GatewayFixture;

    before(async () => {
      for (const node of nodes) await node.start();
      stores = await openStores(kind);
      gateway = await startGateway({ stores, nodes });
    });
    after(async () => {
      await gateway?.stop();
      await stores?.close();
      for (const node of nodes) await node.stop();
    });

    it('is bound to the node that let them in, and every later request goes there', async () => {
      const token = await gateway.tokenOf('alice');
      const answers = await Promise.all(Array.from({ length: 30 }, () => gateway.get('/js/a/notes', token)));
      const served = new Set(answers.map((answer) => answer.headers['x-gateway-node']));
      assert.equal(served.size, 1, `served by ${[...served].join(', ')}`);
      const home = nodes.find((node) => served.has(node.id));
      assert.equal(home?.withToken(token).length, 30, 'the home saw every request');
      for (const node of nodes) if (node !== home) assert.equal(node.withToken(token).length, 0, `${node.id} is clean`);
      assert.equal(home?.withToken(token)[0]?.headers['x-gateway-epoch'], '1');
    });

    it('gets 503 node_down while the node is away, from no other node, and is back with the node', async () => {
      const token = await gateway.tokenOf('bob');
      const first = await gateway.get('/js/a/notes', token);
      const home = nodes.find((node) => node.id === first.headers['x-gateway-node']);
      assert.ok(home, 'bob has a home');
      await home.stop();
      let refused = await gateway.get('/js/a/notes', token);
      for (let attempt = 0; attempt < 10 && refused.status !== 503; attempt += 1)
        refused = await gateway.get('/js/a/notes', token);
      assert.equal(refused.status, 503);
      assert.equal(refused.json()['error'], 'node_down');
      assert.equal(refused.json()['nodeId'], home.id);
      assert.ok(refused.headers['retry-after'], 'Retry-After is there');
      await home.start();
      let status = 0;
      for (const until = Date.now() + 5_000; Date.now() < until && status !== 200; ) {
        status = (await gateway.get('/js/a/notes', token)).status;
        if (status !== 200) await new Promise((resolve) => setTimeout(resolve, 100));
      }
      assert.equal(status, 200, 'served again with nobody doing anything');
      for (const node of nodes) if (node !== home) assert.equal(node.withToken(token).length, 0, `${node.id} is clean`);
    });
  });
}
