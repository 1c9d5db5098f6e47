/** Where a login's answer says who it is: token in the body, a cookie or a header, a username or none. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { BackendNode, newToken, sendJson } from '../support/backend-node.ts';
import {
  type GatewayFixture,
  openStores,
  STORE_KINDS,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';
import { type Answer, call } from '../support/http-client.ts';

/** The mapping of each service; its id is its prefix too. */
const MAPPINGS: Readonly<Record<string, string>> = {
  cookie: '{ success: { code: 200 }, userId: data.userId, username: data.username, token: "cookie:SESSION" }',
  header: '{ success: { code: 200 }, userId: data.userId, username: data.username, token: "header:X-Auth-Token" }',
  nameless: '{ success: { ok: true }, userId: id, username: null, token: token }',
  tokenless: '{ success: { code: 200 }, userId: data.userId, username: data.username, token: null }',
  deep: '{ success: { "status.code": "OK", "status.retry": null }, userId: user.ids.main, username: user.name, token: auth.token }',
};
const IDENTITY = 'identity: { token: { header: x-token, cookie: SESSION } }';

for (const kind of STORE_KINDS) {
  describe(`the mapping of a login's answer on the ${kind} store`, () => {
    const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
    let stores: StoreSetup;
    let gateway: GatewayFixture;
    let extraFields: Record<string, string | string[]> = {};
    let body: unknown = {};

    before(async () => {
      for (const node of nodes) {
        await node.start();
        node.handler = (request, response) => {
          for (const [name, value] of Object.entries(extraFields)) response.setHeader(name, value);
          sendJson(response, request.method === 'POST' ? body : { node: node.id });
        };
      }
      stores = await openStores(kind);
      const services = ['services:'];
      for (const [id, mapping] of Object.entries(MAPPINGS)) {
        services.push(
          `  - { id: ${id}, pathPrefix: /${id}, loginPath: /login, healthPath: /health,`,
          `      login: { request: { username: user.name }, response: ${mapping} },`,
          '      nodes: [',
          ...nodes.map((node) => `        { id: ${id}-${node.id}, baseUrl: "${node.baseUrl}" },`),
          '      ] }',
        );
      }
      gateway = await startGateway({ stores, nodes, config: IDENTITY, services: services.join('\n') });
    });
    after(async () => {
      await gateway?.stop();
      await stores?.close();
      for (const node of nodes) await node.stop();
    });

    function logIn(service: string, username: string, answer: unknown, fields = {}): Promise<Answer> {
      body = answer;
      extraFields = fields;
      return call(gateway.port, `/${service}/login`, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ user: { name: username } }),
      });
    }

    async function assertHome(answer: Answer, service: string, headers: Record<string, string>): Promise<void> {
      extraFields = {};
      for (let turn = 0; turn < 4; turn += 1) {
        const next = await call(gateway.port, `/${service}/notes`, { headers });
        assert.equal(next.headers['x-gateway-node'], answer.headers['x-gateway-node']);
      }
    }

    const success = (username: string, userId: string) => ({ code: 200, data: { userId, username } });

    it('finds the token in the cookie that is in force, and the same cookie leads home', async () => {
      const token = newToken();
      const cookies = [
        'SESSION=old; Path=/; Max-Age=0',
        'OTHER=x; Path=/',
        `SESSION=${token}; Path=/; HttpOnly; Expires=Wed, 01 Jan 2098 00:00:00 GMT`,
      ];
      const answer = await logIn('cookie', 'alice', success('alice', 'c1'), { 'Set-Cookie': cookies });
      assert.deepEqual(answer.headers['set-cookie'], cookies, 'the cookies pass as they are');
      await assertHome(answer, 'cookie', { Cookie: `OTHER=x; SESSION=${token}` });
    });

    it('binds the user although the cookie only ends an old session', async () => {
      const answer = await logIn('cookie', 'bob', success('bob', 'c2'), { 'Set-Cookie': 'SESSION=; Max-Age=0' });
      const { binding } = await gateway.gateway.parts.bindings.findByUserId('cookie', 'c2');
      assert.equal(binding?.nodeId, answer.headers['x-gateway-node']);
    });

    it('finds the token in a field of the head', async () => {
      const token = newToken();
      const answer = await logIn('header', 'alice', success('alice', 'h1'), { 'x-auth-token': token });
      assert.equal(answer.headers['x-auth-token'], token);
      await assertHome(answer, 'header', { 'x-token': token });
    });

    it("takes the request's username where the answer has none", async () => {
      const token = newToken();
      const answer = await logIn('nameless', 'Carol', { ok: true, id: 77, token });
      await assertHome(answer, 'nameless', { 'x-token': token });
      for (let turn = 0; turn < 3; turn += 1) {
        const again = await logIn('nameless', 'CAROL', { ok: true, id: 77, token: newToken() });
        assert.equal(again.headers['x-gateway-node'], answer.headers['x-gateway-node'], 'known by the name');
      }
    });

    it('binds by the user id alone where nobody tells a username', async () => {
      body = { ok: true, id: 'nobody-tells', token: newToken() };
      const answer = await call(gateway.port, '/nameless/login', { method: 'POST', body: '{}' });
      const { binding } = await gateway.gateway.parts.bindings.findByUserId('nameless', 'nobody-tells');
      assert.equal(binding?.nodeId, answer.headers['x-gateway-node']);
    });

    it('binds without a token where the mapping has none, and keeps none', async () => {
      const token = newToken();
      const value = { code: 200, data: { userId: 't1', username: 'alice', token } };
      const answer = await logIn('tokenless', 'alice', value);
      const { binding } = await gateway.gateway.parts.bindings.findByUserId('tokenless', 't1');
      assert.equal(binding?.nodeId, answer.headers['x-gateway-node']);
      assert.equal(await gateway.gateway.parts.tokens.resolve('tokenless', token), null);
    });

    it('follows dotted paths and wants every success field equal', async () => {
      const token = newToken();
      const value = (code: string, retry: unknown, main: string) => ({
        status: { code, retry },
        user: { ids: { main }, name: `name-${main}` },
        auth: { token },
      });
      for (const [code, retry] of [
        ['OK', 1],
        ['ok', null],
        ['OK', undefined],
      ] as const) {
        await logIn('deep', 'dora', value(code, retry, 'd0'));
        assert.equal((await gateway.gateway.parts.bindings.findByUserId('deep', 'd0')).binding, undefined);
      }
      const answer = await logIn('deep', 'dora', value('OK', null, 'd1'));
      await assertHome(answer, 'deep', { 'x-token': token });
    });

    it("keeps one service's tokens and bindings from another's", async () => {
      const token = newToken();
      await logIn('header', 'eve', success('eve', 'e1'), { 'x-auth-token': token });
      assert.equal(await gateway.gateway.parts.tokens.resolve('header', token), 'e1');
      assert.equal(await gateway.gateway.parts.tokens.resolve('cookie', token), null);
      assert.equal((await gateway.gateway.parts.bindings.findByUserId('cookie', 'e1')).binding, undefined);
    });
  });
}
