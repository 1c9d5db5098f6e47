/** Faults that clients once caused by the way they left: a gateway that ended, and requests that never did. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import * as net from 'node:net';
import { after, before, describe, it } from 'node:test';
import { BackendNode } from '../support/backend-node.ts';
import { counterOf } from '../support/counter-of.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import { waitUntil } from '../support/wait-until.ts';

const REQUEST = 'GET /js/a/x HTTP/1.1\r\nHost: demo\r\n\r\n';

describe('a client that leaves', () => {
  const node = new BackendNode('n1');
  let stores: StoreSetup;
  let gateway: GatewayFixture;

  before(async () => {
    await node.start();
    stores = await openStores('embedded');
    gateway = await startGateway({ stores, nodes: [node] });
  });
  after(async () => {
    await gateway?.stop();
    await stores?.close();
    await node.stop();
  });

  async function connect(): Promise<net.Socket> {
    const socket = net.connect(gateway.port, '127.0.0.1');
    // It is this end that breaks off.
    socket.on('error', () => undefined);
    await once(socket, 'connect');
    return socket;
  }

  it('by a reset right after CONNECT does not end the gateway with an uncaught error', async () => {
    let uncaught: Error | undefined;
    const take = (error: Error) => {
      uncaught = error;
    };
    process.on('uncaughtException', take);
    for (let round = 0; round < 50; round += 1) {
      const socket = await connect();
      const closed = once(socket, 'close');
      socket.write('CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n', () => socket.resetAndDestroy());
      await closed;
    }
    assert.equal((await gateway.get('/js/a/x')).status, 200);
    process.off('uncaughtException', take);
    assert.equal(uncaught, undefined);
  });

  for (const how of ['reset', 'end'] as const) {
    it(`with pipelined requests unanswered leaves none of them open (${how})`, async () => {
      const pipelined = 20;
      node.journal.length = 0;
      node.mode = 'slow';
      const socket = await connect();
      socket.write(REQUEST.repeat(pipelined));
      await waitUntil('all requests at the node', () => node.journal.length === pipelined);
      if (how === 'reset') socket.resetAndDestroy();
      else socket.end();
      await waitUntil('none in flight', () => counterOf(gateway, 'gateway_requests_in_flight') === 0);
      await waitUntil('none at the node', () => gateway.gateway.parts.forwarder.inFlight === 0);
      node.mode = 'up';
      const lines = await waitUntil('their access lines', () => {
        const found = gateway.events('request').filter((line) => line['status'] === 499);
        return found.length > 0 && found;
      });
      assert.ok(lines.length >= pipelined - 1, `${lines.length} of ${pipelined}`);
    });
  }
});
