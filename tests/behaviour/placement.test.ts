/** Where new users of a bound service go, through a real gateway: by each policy, up to maxUsers, never to a draining node. */
import assert from 'node:assert/strict';
import { after, afterEach, before, describe, it } from 'node:test';
import type { NodeDefinition, Placement } from '../../lib/model.ts';
import { BackendNode, loginSuccess, sendJson, userIdOf } from '../support/backend-node.ts';
import {
  type GatewayFixture,
  openStores,
  STORE_KINDS,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';
import type { Answer } from '../support/http-client.ts';
import { waitUntil } from '../support/wait-until.ts';

for (const kind of STORE_KINDS) {
  describe(`new users on the ${kind} store`, () => {
    const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
    let stores: StoreSetup;
    let gateway: GatewayFixture;
    let users = 0;
    const names = new Set<string>();

    before(async () => {
      for (const node of nodes) await node.start();
    });
    after(async () => {
      for (const node of nodes) await node.stop();
    });
    afterEach(async () => {
      for (const node of nodes) node.loginAnswer = undefined;
      await gateway?.stop();
      await stores?.close();
    });

    async function start(placement: Placement, switches: Record<string, string> = {}): Promise<void> {
      names.clear();
      stores = await openStores(kind);
      gateway = await startGateway({
        stores,
        nodes,
        service: `    placement: ${placement}`,
        nodeOptions: switches,
        config: 'health: { interval: 1h, failures: 1000000 }',
      });
    }

    /** The next new user logs in; the node that let them in. */
    async function place(): Promise<string> {
      users += 1;
      const answer = await login(`user${users}`);
      assert.equal(answer.status, 200, answer.text);
      return String(answer.headers['x-gateway-node']);
    }

    async function placeMany(count: number): Promise<string[]> {
      const placed: string[] = [];
      for (let index = 0; index < count; index += 1) placed.push(await place());
      return placed;
    }

    /** Node id -> users of this test who are bound there. */
    async function bound(): Promise<Record<string, number>> {
      const counts: Record<string, number> = {};
      for (const name of names) {
        const { binding } = await gateway.gateway.parts.bindings.findByUserId('demo', userIdOf(name));
        if (binding) counts[binding.nodeId] = (counts[binding.nodeId] ?? 0) + 1;
      }
      return counts;
    }

    function login(name: string): Promise<Answer> {
      names.add(name);
      return gateway.login(name);
    }

    const errorOf = (answer: Answer) => `${answer.status} ${answer.json()['error']}`;

    function switchNode(id: string, switches: Partial<NodeDefinition>): void {
      const { registry } = gateway.gateway;
      const { definition } = registry.snapshot!;
      const services = definition.services.map((service) => ({
        ...service,
        nodes: service.nodes.map((node) => (node.id === id ? { ...node, ...switches } : node)),
      }));
      registry.swap({ ...definition, services }, { loadedAtMs: Date.now(), stale: false });
    }

    it('round-robin: one after the other, draining nodes left out, also after the switch is back', async () => {
      await start('round-robin');
      assert.deepEqual(await placeMany(6), ['n1', 'n2', 'n3', 'n1', 'n2', 'n3']);
      const [first] = await placeMany(1);
      assert.equal(first, 'n1');
      switchNode('n2', { draining: true });
      assert.deepEqual(await placeMany(4), ['n3', 'n1', 'n3', 'n1']);
      switchNode('n2', { draining: false });
      assert.deepEqual(await placeMany(3), ['n2', 'n3', 'n1']);
    });

    it('weighted: by weight, 3:2:1 as A B A C B A', async () => {
      await start('weighted', { n1: 'weight: 3', n2: 'weight: 2', n3: 'weight: 1' });
      assert.deepEqual(await placeMany(6), ['n1', 'n2', 'n1', 'n3', 'n2', 'n1']);
      switchNode('n1', { weight: 0 });
      assert.equal((await placeMany(6)).includes('n1'), false);
    });

    it('least-users: a node that joins gets all until it has as many as the others', async () => {
      await start('least-users', { n3: 'draining: true' });
      const placed = await placeMany(6);
      assert.deepEqual(await bound(), { n1: 3, n2: 3 });
      assert.equal(placed.includes('n3'), false);
      switchNode('n3', { draining: false });
      assert.deepEqual(await placeMany(3), ['n3', 'n3', 'n3']);
      await placeMany(3);
      assert.deepEqual(await bound(), { n1: 4, n2: 4, n3: 4 });
    });

    for (const placement of ['round-robin', 'least-users', 'weighted'] as const) {
      it(`${placement}: of logins that arrive together for the last places just so many get one`, async () => {
        await start(placement, { n1: 'maxUsers: 1', n2: 'maxUsers: 2', n3: 'draining: true' });
        // None is answered before all that can be have arrived, so that every place is taken by a login under way.
        const held: (() => void)[] = [];
        for (const node of nodes) {
          node.loginAnswer = (username, response) => {
            held.push(() => sendJson(response, loginSuccess(username)));
            if (held.length === 3) for (const release of held) release();
          };
        }
        const answers = await Promise.all(Array.from({ length: 8 }, (_, index) => login(`racer${index}`)));
        const refused = answers.filter(({ status }) => status !== 200);
        assert.deepEqual([...new Set(refused.map(errorOf))], ['503 no_capacity']);
        for (const answer of refused) assert.ok(Number(answer.headers['retry-after']) > 0);
        assert.equal(refused.length, 5);
        assert.deepEqual(await bound(), { n1: 1, n2: 2 });
        // Again, now that they are rows and no longer on their way; those who have a place keep it.
        for (const [index, answer] of answers.entries()) {
          for (const node of nodes) node.loginAnswer = undefined;
          const again = await login(`racer${index}`);
          assert.equal(again.status, answer.status);
          assert.equal(again.headers['x-gateway-node'], answer.headers['x-gateway-node']);
        }
        assert.deepEqual(await bound(), { n1: 1, n2: 2 });
      });
    }

    it('a place whose login the node refused is free for the next user', async () => {
      await start('round-robin', { n1: 'maxUsers: 1', n2: 'draining: true', n3: 'enabled: false' });
      nodes[0]!.loginAnswer = (_, response) => sendJson(response, { code: 40_001 });
      assert.equal((await login('mistyped')).status, 200);
      assert.deepEqual(await bound(), {});
      nodes[0]!.loginAnswer = undefined;
      // The place counts as taken until a count is sure of it.
      const answer = await waitUntil('the place to be free', async () => {
        const each = await login('rightful');
        return each.status === 200 ? each : undefined;
      });
      assert.equal(answer.headers['x-gateway-node'], 'n1');
      assert.deepEqual(await bound(), { n1: 1 });
      switchNode('n1', { maxUsers: 2 });
      assert.equal((await login('another')).status, 200, 'a raised limit is in force at once');
    });
  });
}
