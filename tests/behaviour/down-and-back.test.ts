/** A node that is down, flaps and comes back: its users wait for it, nobody moves, and nobody has to do anything. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { Client } from 'pg';
import { BackendNode, userIdOf } from '../support/backend-node.ts';
import {
  type GatewayFixture,
  openStores,
  STORE_KINDS,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';
import type { Answer } from '../support/http-client.ts';

/** Consecutive failures that make a node DOWN, as configured by default: until then a refusal is 502, as it is seen. */
const FAILURES = 3;
const BACK_WITHIN_MS = 2_000;

for (const kind of STORE_KINDS) {
  describe(`a node that goes and comes back, on the ${kind} store`, () => {
    const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
    let stores: StoreSetup;
    let gateway: GatewayFixture;
    let token: string;
    let home: BackendNode;
    let bob: string;
    let bobHome: BackendNode;
    let row: unknown;

    before(async () => {
      for (const node of nodes) await node.start();
      stores = await openStores(kind);
      gateway = await startGateway({ stores, nodes });
      token = await gateway.tokenOf('alice');
      bob = await gateway.tokenOf('bob');
      home = await homeOf(token);
      bobHome = await homeOf(bob);
      assert.notEqual(home, bobHome, 'alice and bob have different homes');
      row = await readRow();
    });
    after(async () => {
      await gateway?.stop();
      await stores?.close();
      for (const node of nodes) await node.stop();
    });

    async function homeOf(of: string): Promise<BackendNode> {
      const served = (await gateway.get('/js/a/notes', of)).headers['x-gateway-node'];
      const node = nodes.find(({ id }) => id === served);
      assert.ok(node, 'it has a home');
      return node;
    }

    /** Alice's row with its times, or what the embedded store says of her. */
    async function readRow(): Promise<unknown> {
      if (stores.postgresUrl === null) {
        const { binding } = await gateway.gateway.parts.bindings.findByUserId('demo', userIdOf('alice'));
        return [binding?.nodeId, binding?.epoch, binding?.frozen];
      }
      const client = new Client({ connectionString: stores.postgresUrl });
      await client.connect();
      const { rows } = await client.query('SELECT * FROM gateway_user_route WHERE user_id = $1', [userIdOf('alice')]);
      await client.end();
      assert.equal(rows.length, 1);
      return rows[0];
    }

    const ask = () => gateway.get('/js/a/notes', token);
    const refusedBy = (answer: Answer) => `${answer.status} ${answer.json()['error']} ${answer.json()['nodeId']}`;

    function assertCleanAndOthersServed(others: readonly Answer[]): void {
      for (const node of nodes) if (node !== home) assert.equal(node.withToken(token).length, 0, `${node.id} is clean`);
      for (const answer of others) {
        assert.equal(answer.status, 200, answer.text);
        assert.equal(answer.headers['x-gateway-node'], bobHome.id);
      }
    }

    it('answers 503 with Retry-After while the node refuses, and nobody else notices', async () => {
      await home.stop();
      const others: Answer[] = [];
      const answers: Answer[] = [];
      for (let index = 0; index < 20; index += 1) {
        answers.push(await ask());
        others.push(await gateway.get('/js/a/notes', bob));
      }
      // Until the node counts as down each request finds out for itself.
      const early = answers.filter((answer) => answer.status === 502);
      assert.ok(early.length <= FAILURES, `${early.length} answers of 502`);
      for (const answer of answers.slice(FAILURES)) {
        assert.equal(refusedBy(answer), `503 node_down ${home.id}`);
        assert.ok(Number(answer.headers['retry-after']) > 0, 'Retry-After is there');
      }
      assertCleanAndOthersServed(others);
    });

    it('answers from the node or not at all while it flaps', async () => {
      const others: Answer[] = [];
      let served = 0;
      for (let turn = 0; turn < 12; turn += 1) {
        if (turn % 2 === 0) await home.start();
        else await home.stop();
        for (let index = 0; index < 8; index += 1) {
          const answer = await ask();
          if (answer.status === 200) {
            served += 1;
            assert.equal(answer.headers['x-gateway-node'], home.id);
            assert.equal(answer.json()['node'], home.id);
          } else assert.match(refusedBy(answer), new RegExp(`^50[23] node_(down|unreachable|broke_off) ${home.id}$`));
          others.push(await gateway.get('/js/a/notes', bob));
          // Long enough for the probe on demand, of which there is one a second, to find it up now and then.
          await new Promise((resolve) => setTimeout(resolve, 40));
        }
      }
      assert.ok(served > 0, 'the node was found up at least once');
      assertCleanAndOthersServed(others);
    });

    it('serves again within two seconds of demand, with nobody doing anything', async () => {
      for (let index = 0; index < FAILURES + 1; index += 1) await ask();
      assert.equal(refusedBy(await ask()), `503 node_down ${home.id}`);
      await home.start();
      const startedMs = performance.now();
      let answer = await ask();
      while (answer.status !== 200 && performance.now() - startedMs < 3 * BACK_WITHIN_MS) {
        assert.equal(refusedBy(answer), `503 node_down ${home.id}`);
        await new Promise((resolve) => setTimeout(resolve, 50));
        answer = await ask();
      }
      const tookMs = performance.now() - startedMs;
      assert.equal(answer.status, 200);
      assert.equal(answer.headers['x-gateway-node'], home.id);
      assert.ok(tookMs < BACK_WITHIN_MS, `it took ${Math.round(tookMs)} ms`);
      for (let index = 0; index < 20; index += 1) assert.equal((await ask()).status, 200);
      assertCleanAndOthersServed([await gateway.get('/js/a/notes', bob)]);
    });

    it('leaves the row and its epoch as they were', async () => {
      assert.deepEqual(await readRow(), row);
      assert.equal(home.withToken(token).at(-1)?.headers['x-gateway-epoch'], '1');
    });
  });
}
