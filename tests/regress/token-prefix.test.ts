/** A login that answers `Authorization: Bearer x` was kept under `Bearer x`, while requests are looked up under `x`. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import { BackendNode, sendJson } from '../support/backend-node.ts';
import { openStores, startGateway } from '../support/gateway-fixture.ts';

for (const given of ['Bearer t-123456789', 't-123456789']) {
  it(`a token given as '${given}' is known when it comes back with its prefix`, async () => {
    const node = await new BackendNode('n1').start();
    node.loginAnswer = (username, response) => {
      response.setHeader('Authorization', given);
      sendJson(response, { code: 200, data: { userId: '7', username } });
    };
    const stores = await openStores('embedded');
    const gateway = await startGateway({
      stores,
      nodes: [node],
      config: 'identity: { token: { header: Authorization, prefix: Bearer } }',
      service: '    login: { response: { token: "header:Authorization" } }',
    });
    try {
      assert.equal((await gateway.login('alice')).status, 200);
      const answer = await gateway.get('/js/a/x', undefined, { Authorization: 'Bearer t-123456789' });
      assert.equal(answer.status, 200);
      assert.equal(node.journal.at(-1)?.headers['x-gateway-epoch'], '1', 'the request is bound');
    } finally {
      await gateway.stop();
      await stores.close();
      await node.stop();
    }
  });
}
