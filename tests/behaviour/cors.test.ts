/** CORS through a gateway: off, the nodes answer for themselves; on, the gateway does, and only once. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { BackendNode } from '../support/backend-node.ts';
import { openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import { call } from '../support/http-client.ts';

describe('CORS', () => {
  const node = new BackendNode('n1');
  let stores: StoreSetup;
  before(async () => {
    await node.start();
    node.handler = (_request, response) => {
      response.writeHead(200, {
        'Access-Control-Allow-Origin': 'https://of-the-node.test',
        'Access-Control-Max-Age': '1',
      });
      response.end('ok');
    };
    stores = await openStores('embedded');
  });
  after(async () => {
    await node.stop();
    await stores?.close();
  });

  const origin = { Origin: 'https://a.test' };
  const preflight = { ...origin, 'Access-Control-Request-Method': 'PUT' };

  it('is the business of the nodes unless it is switched on', async () => {
    const gateway = await startGateway({ stores, nodes: [node] });
    const answer = await gateway.get('/js/a/x', undefined, origin);
    assert.equal(answer.headers['access-control-allow-origin'], 'https://of-the-node.test');
    const asked = node.journal.length;
    await call(gateway.port, '/js/a/x', { method: 'OPTIONS', headers: preflight });
    assert.equal(node.journal.length, asked + 1, 'the preflight went to the node');
    await gateway.stop();
  });

  it('is answered by the gateway when it is switched on: preflights, answers and errors, one field each', async () => {
    const config = 'cors: { enabled: true, allowedOriginPatterns: ["https://a.test"] }';
    const gateway = await startGateway({ stores, nodes: [node], config });
    const answer = await gateway.get('/js/a/x', undefined, origin);
    const sent = answer.rawHeaders.filter(
      (name, index) => index % 2 === 0 && /^access-control-allow-origin$/i.test(name),
    );
    assert.equal(sent.length, 1);
    assert.equal(answer.headers['access-control-allow-origin'], 'https://a.test');
    assert.equal(answer.headers['access-control-max-age'], undefined, "the node's field is gone");
    const asked = node.journal.length;
    const options = await call(gateway.port, '/js/a/x', { method: 'OPTIONS', headers: preflight });
    assert.equal(options.status, 204);
    assert.equal(options.headers['access-control-allow-methods'], 'PUT');
    assert.ok(options.headers['x-request-id'], 'with a request id');
    assert.equal(node.journal.length, asked, 'the node was not asked');
    const plain = await call(gateway.port, '/js/a/x', { method: 'OPTIONS', headers: origin });
    assert.equal(plain.status, 200, 'an OPTIONS that is no preflight is forwarded');
    const lost = await gateway.get('/nowhere', undefined, origin);
    assert.deepEqual([lost.status, lost.headers['access-control-allow-origin']], [404, 'https://a.test']);
    await gateway.stop();
  });
});
