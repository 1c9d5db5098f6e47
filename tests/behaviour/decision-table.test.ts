/** Which node, row by row: what a request carries, what is known of its user, and the one answer that follows. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, before, beforeEach, describe, it } from 'node:test';
import type { NodeDefinition, RegistryDefinition } from '../../lib/model.ts';
import { BackendNode, newToken, userIdOf } from '../support/backend-node.ts';
import {
  type GatewayFixture,
  openStores,
  STORE_KINDS,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';
import { type Answer, call } from '../support/http-client.ts';
import { waitUntil } from '../support/wait-until.ts';

/** One failure is enough, and after that only requests ask: what a test switches off stays off until it says so. */
const CONFIG = 'health: { interval: 1h, failures: 1, onDemand: 1ms }\nregistry: { pollInterval: 1h }';
const REQUEST_ID = 'the-request-of-the-test';

type Switches = Partial<Pick<NodeDefinition, 'enabled' | 'draining'>>;

/** The whole of an error answer: status, fields and body, nothing more and nothing less. */
function assertRefused(answer: Answer, status: number, error: string, nodeId?: string): void {
  assert.equal(`${answer.status} ${answer.json()['error']}`, `${status} ${error}`);
  const body = answer.json();
  const message = body['message'];
  assert.ok(typeof message === 'string' && message.length > 0, 'there is a message');
  assert.doesNotMatch(answer.text, /127\.0\.0\.1|http:|\bat .*\.ts/, 'neither address nor stack');
  const requestId = answer.headers['x-request-id'];
  assert.deepEqual(Object.entries(body), [
    ['code', status],
    ['error', error],
    ['message', message],
    ...(nodeId === undefined ? [] : [['nodeId', nodeId]]),
    ['requestId', requestId],
  ]);
  assert.match(String(answer.headers['content-type']), /^application\/json/);
  assert.equal(answer.headers['cache-control'], 'no-store');
}

function assertRetryAfter(answer: Answer): void {
  assert.match(String(answer.headers['retry-after']), /^[1-9]\d*$/, 'Retry-After is a number of seconds');
}

for (const kind of STORE_KINDS) {
  describe(`a request on the ${kind} store`, () => {
    const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
    let stores: StoreSetup;
    let gateway: GatewayFixture;
    let original: RegistryDefinition;
    let users = 0;

    before(async () => {
      for (const node of nodes) await node.start();
      stores = await openStores(kind);
      gateway = await startGateway({ stores, nodes, config: CONFIG });
      original = gateway.gateway.registry.snapshot!.definition;
    });
    after(async () => {
      await gateway?.stop();
      await stores?.close();
      for (const node of nodes) await node.stop();
    });
    beforeEach(() => {
      for (const node of nodes) {
        node.journal.length = 0;
        node.handler = undefined;
        node.loginAnswer = undefined;
      }
    });

    const bindings = () => gateway.gateway.parts.bindings;
    const seen = () => nodes.reduce((sum, node) => sum + node.journal.length, 0);
    const servedBy = (answer: Answer) => String(answer.headers['x-gateway-node']);
    const nodeOf = (id: string) => nodes.find((node) => node.id === id)!;

    function define(change: (service: RegistryDefinition['services'][number]) => object, of = gateway): void {
      const services = original.services.map((service) => ({ ...service, ...change(service) }));
      of.gateway.registry.swap({ ...original, services }, { loadedAtMs: Date.now(), stale: false });
    }
    const restore = () => define(() => ({}));

    function switchNode(id: string, switches: Switches | 'gone'): void {
      define((service) => ({
        nodes:
          switches === 'gone'
            ? service.nodes.filter((node) => node.id !== id)
            : service.nodes.map((node) => (node.id === id ? { ...node, ...switches } : node)),
      }));
    }

    async function newUser(): Promise<{ name: string; token: string; home: BackendNode }> {
      users += 1;
      const name = `user${users}`;
      const token = await gateway.tokenOf(name);
      const home = nodeOf(servedBy(await gateway.get('/js/a/notes', token)));
      for (const node of nodes) node.journal.length = 0;
      return { name, token, home };
    }

    /** Waits until the gateway has noticed: the refusals before that are its way to notice. */
    async function takeDown(node: BackendNode): Promise<void> {
      const { token } = await userOn(node);
      await node.stop();
      await waitUntil('the node to count as down', async () => {
        const answer = await gateway.get('/js/a/notes', token);
        return answer.status === 503 && answer.json()['error'] === 'node_down';
      });
    }

    async function bringBack(node: BackendNode): Promise<void> {
      const { token } = await userOn(node);
      await node.start();
      await waitUntil('the node to serve again', async () => (await gateway.get('/js/a/notes', token)).status === 200);
    }

    /** Somebody whose binding was made past the login, so that it can be on any node in any state. */
    async function userOn(node: BackendNode): Promise<{ userId: string; token: string }> {
      const userId = `placed-${randomUUID()}`;
      const token = newToken();
      await bindings().move('demo', userId, node.id);
      await gateway.gateway.parts.tokens.remember('demo', token, userId);
      return { userId, token };
    }

    async function unboundUser(): Promise<{ userId: string; token: string }> {
      const userId = `unbound-${randomUUID()}`;
      const token = newToken();
      await gateway.gateway.parts.tokens.remember('demo', token, userId);
      return { userId, token };
    }

    describe('that is a login', () => {
      it('goes to the bound node when the username is bound, however it is written', async () => {
        const { name, home } = await newUser();
        for (let turn = 0; turn < 4; turn += 1) {
          assert.equal(servedBy(await gateway.login(turn % 2 ? name.toUpperCase() : name)), home.id);
        }
        assert.equal(home.journal.length, 4);
        assert.equal(home.journal[0]?.headers['x-gateway-epoch'], '1');
      });

      it('goes to one candidate after the other when the username is unbound, and carries no epoch', async () => {
        const homes = new Set<string>();
        for (let turn = 0; turn < 3; turn += 1) homes.add(servedBy(await gateway.login(`fresh${turn}`)));
        assert.equal(homes.size, 3, [...homes].join(', '));
        for (const node of nodes) assert.equal(node.journal[0]?.headers['x-gateway-epoch'], undefined);
      });

      it('goes to a candidate when it names nobody', async () => {
        const answers = [];
        for (let turn = 0; turn < 3; turn += 1) {
          const body = '{"phone":"1"}';
          answers.push(await call(gateway.port, '/js/a/auth/login', { method: 'POST', body }));
        }
        assert.equal(new Set(answers.map(servedBy)).size, 3);
      });

      it('has no candidate among nodes that are disabled, draining or down', async () => {
        switchNode('n1', { enabled: false });
        for (let turn = 0; turn < 3; turn += 1) assert.notEqual(servedBy(await gateway.login(`e${turn}`)), 'n1');
        switchNode('n1', { draining: true });
        for (let turn = 0; turn < 3; turn += 1) assert.notEqual(servedBy(await gateway.login(`d${turn}`)), 'n1');
        restore();
        await takeDown(nodeOf('n1'));
        for (let turn = 0; turn < 3; turn += 1) assert.notEqual(servedBy(await gateway.login(`w${turn}`)), 'n1');
        await bringBack(nodeOf('n1'));
      });

      it('gets 503 no_node_available when no node takes users', async () => {
        define((service) => ({ nodes: service.nodes.map((node) => ({ ...node, draining: true })) }));
        const answer = await gateway.login('nobody-takes-me');
        restore();
        assertRefused(answer, 503, 'no_node_available');
        assertRetryAfter(answer);
        assert.equal(seen(), 0);
      });

      it('gets 503 when the bound node is down, and goes to no other', async () => {
        const { name, home } = await newUser();
        await takeDown(home);
        for (const node of nodes) node.journal.length = 0;
        const answer = await gateway.login(name);
        assertRefused(answer, 503, 'node_down', home.id);
        assertRetryAfter(answer);
        assert.equal(seen(), 0);
        await bringBack(home);
      });
    });

    describe('of a bound user', () => {
      it('goes to the bound node, with the epoch', async () => {
        const { name, token, home } = await newUser();
        assert.equal(servedBy(await gateway.get('/js/a/notes', token)), home.id);
        assert.equal(home.withToken(token)[0]?.headers['x-gateway-epoch'], '1');
        const target = nodes.find((node) => node !== home)!;
        await bindings().move('demo', userIdOf(name), target.id);
        assert.equal(servedBy(await gateway.get('/js/a/notes', token)), target.id);
        assert.equal(target.withToken(token)[0]?.headers['x-gateway-epoch'], '2');
      });

      it('goes to the bound node although that is draining', async () => {
        const { token, home } = await newUser();
        switchNode(home.id, { draining: true });
        assert.equal(servedBy(await gateway.get('/js/a/notes', token)), home.id);
        restore();
      });

      it('gets 503 node_down while the node is down', async () => {
        const { token, home } = await newUser();
        await takeDown(home);
        for (const node of nodes) node.journal.length = 0;
        const answer = await gateway.get('/js/a/notes', token, { 'X-Request-Id': REQUEST_ID });
        assertRefused(answer, 503, 'node_down', home.id);
        assert.equal(answer.json()['requestId'], REQUEST_ID);
        assertRetryAfter(answer);
        assert.equal(seen(), 0);
        await bringBack(home);
      });

      it('gets 503 node_disabled while the node is switched off', async () => {
        const { token, home } = await newUser();
        switchNode(home.id, { enabled: false });
        const answer = await gateway.get('/js/a/notes', token);
        restore();
        assertRefused(answer, 503, 'node_disabled', home.id);
        assert.equal(seen(), 0);
      });

      it('gets 503 node_unknown when the node is not in the definition any more', async () => {
        const { token, home } = await newUser();
        switchNode(home.id, 'gone');
        const answer = await gateway.get('/js/a/notes', token);
        restore();
        assertRefused(answer, 503, 'node_unknown', home.id);
        assert.equal(seen(), 0);
      });

      it('gets 503 user_frozen until the user is thawed', async () => {
        const { name, token, home } = await newUser();
        await bindings().setFrozen('demo', userIdOf(name), true);
        const answer = await gateway.get('/js/a/notes', token);
        assertRefused(answer, 503, 'user_frozen', home.id);
        assertRetryAfter(answer);
        assertRefused(await gateway.login(name), 503, 'user_frozen', home.id);
        assert.equal(seen(), 0);
        await bindings().setFrozen('demo', userIdOf(name), false);
        assert.equal(servedBy(await gateway.get('/js/a/notes', token)), home.id);
      });
    });

    describe('of a user without a binding', () => {
      it('gets 503 user_not_bound without a default node, and does not wait for better times', async () => {
        const { token } = await unboundUser();
        const answer = await gateway.get('/js/a/notes', token);
        assertRefused(answer, 503, 'user_not_bound');
        assert.equal(answer.headers['retry-after'], undefined);
        assert.equal(seen(), 0);
      });

      it('is bound to the default node and goes there, once and for all', async () => {
        define(() => ({ defaultNodeId: 'n2' }));
        const { userId, token } = await unboundUser();
        const answers = await Promise.all(Array.from({ length: 5 }, () => gateway.get('/js/a/notes', token)));
        define(() => ({ defaultNodeId: 'n3' }));
        answers.push(await gateway.get('/js/a/notes', token));
        restore();
        assert.deepEqual([...new Set(answers.map(servedBy))], ['n2']);
        assert.deepEqual([...new Set(nodeOf('n2').journal.map((entry) => entry.headers['x-gateway-epoch']))], ['1']);
        const { binding } = await bindings().findByUserId('demo', userId);
        assert.deepEqual([binding?.nodeId, binding?.epoch], ['n2', 1]);
        // Another gateway on the same stores finds the row, so it is no invention of this one's cache.
        if (kind !== 'embedded') {
          const other = await startGateway({ stores, nodes, config: CONFIG });
          assert.equal(servedBy(await other.get('/js/a/notes', token)), 'n2');
          await other.stop();
        }
      });

      const refusals: [string, string, Switches][] = [
        ['disabled', 'node_disabled', { enabled: false }],
        ['draining', 'no_capacity', { draining: true }],
      ];
      for (const [state, error, switches] of refusals) {
        it(`is refused and not bound while the default node is ${state}`, async () => {
          define((service) => ({
            defaultNodeId: 'n2',
            nodes: service.nodes.map((node) => (node.id === 'n2' ? { ...node, ...switches } : node)),
          }));
          const { userId, token } = await unboundUser();
          const answer = await gateway.get('/js/a/notes', token);
          restore();
          assertRefused(answer, 503, error, 'n2');
          assert.equal((await bindings().findByUserId('demo', userId)).binding, undefined);
          assert.equal(seen(), 0);
        });
      }

      it('is refused and not bound while the default node is down', async () => {
        await takeDown(nodeOf('n2'));
        for (const node of nodes) node.journal.length = 0;
        define(() => ({ defaultNodeId: 'n2' }));
        const { userId, token } = await unboundUser();
        const answer = await gateway.get('/js/a/notes', token);
        restore();
        assertRefused(answer, 503, 'node_down', 'n2');
        assertRetryAfter(answer);
        assert.equal((await bindings().findByUserId('demo', userId)).binding, undefined);
        assert.equal(seen(), 0);
        await bringBack(nodeOf('n2'));
      });
    });

    describe('of nobody', () => {
      const who: [string, () => string | undefined][] = [
        ['has no token', () => undefined],
        ['has an empty token', () => ''],
        ['has a token that belongs to nobody', newToken],
      ];
      for (const [title, token] of who) {
        it(`goes round the nodes when it ${title}, and carries no epoch`, async () => {
          const served: string[] = [];
          for (let turn = 0; turn < 6; turn += 1) served.push(servedBy(await gateway.get('/js/a/notes', token())));
          assert.equal(new Set(served.slice(0, 3)).size, 3, served.join(', '));
          assert.deepEqual(served.slice(0, 3), served.slice(3), 'in a fixed order');
          for (const node of nodes) assert.equal(node.journal[0]?.headers['x-gateway-epoch'], undefined);
        });
      }

      it('goes only to nodes that are enabled, not draining and not down', async () => {
        await takeDown(nodeOf('n2'));
        for (const node of nodes) node.journal.length = 0;
        for (const switches of [{ enabled: false }, { draining: true }]) {
          switchNode('n1', switches);
          for (let turn = 0; turn < 4; turn += 1) assert.equal(servedBy(await gateway.get('/js/a/notes')), 'n3');
        }
        switchNode('n1', 'gone');
        assert.equal(servedBy(await gateway.get('/js/a/notes')), 'n3');
        define((service) => ({ nodes: service.nodes.filter((node) => node.id === 'n2') }));
        const answer = await gateway.get('/js/a/notes');
        restore();
        assertRefused(answer, 503, 'no_node_available');
        assertRetryAfter(answer);
        await bringBack(nodeOf('n2'));
      });

      it('gets 401 token_rejected for an unknown token where that is configured', async () => {
        const strictStores = await openStores('embedded');
        const strict = await startGateway({
          stores: strictStores,
          nodes,
          config: 'identity: { unknownToken: reject }',
        });
        const token = await strict.tokenOf('strict');
        for (const node of nodes) node.journal.length = 0;
        const answer = await strict.get('/js/a/notes', newToken());
        assertRefused(answer, 401, 'token_rejected');
        assert.equal(seen(), 0);
        assert.equal((await strict.get('/js/a/notes')).status, 200, 'no token is no unknown token');
        assert.equal((await strict.get('/js/a/notes', token)).status, 200);
        await strict.stop();
        await strictStores.close();
      });
    });

    describe('to a service', () => {
      it('gets 503 service_disabled while that is switched off', async () => {
        const { token } = await newUser();
        define(() => ({ enabled: false }));
        const answers = [await gateway.get('/js/a/notes', token), await gateway.get('/js/a'), await gateway.login('x')];
        restore();
        for (const answer of answers) assertRefused(answer, 503, 'service_disabled');
        assert.equal(seen(), 0);
      });

      it('gets 404 no_route beside every prefix, on segment boundaries', async () => {
        for (const path of ['/', '/js', '/js/ab', '/js/ab/notes', '/js/A/notes', '/x/js/a/notes', '/js%2Fa/notes']) {
          const answer = await gateway.get(path);
          assertRefused(answer, 404, 'no_route');
          assert.equal(answer.headers['retry-after'], undefined);
        }
        assert.equal(seen(), 0);
        for (const path of ['/js/a', '/js/a/', '/js/a?x=1']) assert.equal((await gateway.get(path)).status, 200, path);
      });
    });

    describe('and its answer', () => {
      it('name the true node, whatever the node or the client says', async () => {
        const { token, home } = await newUser();
        home.handler = (_request, response) => {
          response.writeHead(200, ['X-Gateway-Node', 'liar', 'x-gateway-node', 'liar2', 'X-Own', 'kept']);
          response.end('ok');
        };
        const answer = await gateway.get('/js/a/notes', token, {
          'X-Gateway-Node': 'client',
          'x-gateway-epoch': '99',
          'X-Gateway-User': 'root',
        });
        const named = answer.rawHeaders.filter((_, at) => /^x-gateway-node$/i.test(answer.rawHeaders[at - 1] ?? ''));
        assert.deepEqual(named, [home.id]);
        assert.equal(answer.headers['x-own'], 'kept');
        const raw = home.journal[0]!.rawHeaders;
        const internal = raw.filter((_, at) => /^x-gateway-/i.test(raw[at - (at % 2)] ?? ''));
        assert.deepEqual(internal, ['X-Gateway-Epoch', '1']);
      });

      it('are a page for a browser and JSON for a script when the gateway refuses', async () => {
        const browser = 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8';
        const page = await gateway.get('/nowhere', undefined, { Accept: browser, 'X-Request-Id': REQUEST_ID });
        assert.equal(page.status, 404);
        assert.match(String(page.headers['content-type']), /^text\/html/);
        assert.match(page.text, /no_route/);
        assert.match(page.text, new RegExp(REQUEST_ID));
        for (const accept of ['*/*', 'application/json', 'application/json, text/plain, */*']) {
          assertRefused(await gateway.get('/nowhere', undefined, { Accept: accept }), 404, 'no_route');
        }
        const head = await call(gateway.port, '/nowhere', { method: 'HEAD' });
        assert.deepEqual([head.status, head.body.length], [404, 0]);
        assert.ok(Number(head.headers['content-length']) > 0);
      });
    });
  });
}
