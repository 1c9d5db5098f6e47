/** Forty logins of one new user at once start one home, on every kind of store: journals, counters and rows agree. */
import assert from 'node:assert/strict';
import * as http from 'node:http';
import { after, before, describe, it } from 'node:test';
import { Client } from 'pg';
import { Journal } from '../../lib/bindings/journal.ts';
import { JournalBindings } from '../../lib/bindings/journal-bindings.ts';
import { silentLogger } from '../../lib/observe/log.ts';
import { systemClock } from '../../lib/support/clock.ts';
import { BackendNode, loginSuccess, sendJson, userIdOf } from '../support/backend-node.ts';
import { counterOf } from '../support/counter-of.ts';
import {
  type GatewayFixture,
  openStores,
  STORE_KINDS,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';
import { type Answer, call } from '../support/http-client.ts';

const ROUNDS = 200;
const LOGINS = 40;
const REQUESTS_EACH = 5;
const SERVICE = 'demo';

/** Yields up to three turns of the event loop, or waits a millisecond or two: every interleaving comes up. */
async function jitter(): Promise<void> {
  const draw = Math.random();
  if (draw < 0.2) await new Promise((resolve) => setTimeout(resolve, Math.random() * 3));
  else for (let turns = Math.floor(draw * 4); turns > 0; turns -= 1) await new Promise(setImmediate);
}

for (const kind of STORE_KINDS) {
  describe(`racing logins on the ${kind} store`, () => {
    const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
    const agent = new http.Agent({ keepAlive: true, maxSockets: 80 });
    /** What each login was answered by its node, byte for byte, by token. */
    const sentByNodes = new Map<string, string>();
    let stores: StoreSetup;
    let gateway: GatewayFixture;

    before(async () => {
      for (const node of nodes) {
        node.loginAnswer = (username, response) => {
          const body = loginSuccess(username) as { data: { token: string } };
          sentByNodes.set(body.data.token, JSON.stringify(body));
          jitter().then(() => sendJson(response, body));
        };
        await node.start();
      }
      stores = await openStores(kind);
      gateway = await startGateway({ stores, nodes });
    });
    after(async () => {
      agent.destroy();
      await gateway?.stop();
      await stores?.close();
      for (const node of nodes) await node.stop();
    });

    async function logInAndWork(username: string, answers: Answer[], tokens: string[]): Promise<void> {
      await jitter();
      const answer = await call(gateway.port, '/js/a/auth/login', {
        method: 'POST',
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ username }),
        agent,
      });
      assert.equal(answer.status, 200, answer.text);
      const { token } = answer.json()['data'] as { token: string };
      assert.equal(answer.text, sentByNodes.get(token), "the node's body is untouched");
      tokens.push(token);
      for (let index = 0; index < REQUESTS_EACH; index += 1) {
        answers.push(await call(gateway.port, '/js/a/notes', { headers: { 'x-token': token }, agent }));
      }
    }

    async function race(username: string): Promise<void> {
      for (const node of nodes) node.journal.length = 0;
      sentByNodes.clear();
      const answers: Answer[] = [];
      const tokens: string[] = [];
      await Promise.all(Array.from({ length: LOGINS }, () => logInAndWork(username, answers, tokens)));
      assert.equal(new Set(tokens).size, LOGINS);
      assert.deepEqual([...new Set(answers.map((answer) => answer.status))], [200]);
      const served = [...new Set(answers.map((answer) => answer.headers['x-gateway-node']))];
      assert.equal(served.length, 1, `${username} was served by ${served.join(', ')}`);
      for (const node of nodes) {
        const home = node.id === served[0];
        const requests = tokens.reduce((sum, token) => sum + node.withToken(token).length, 0);
        assert.equal(requests, home ? LOGINS * REQUESTS_EACH : 0, `requests of ${username} on ${node.id}`);
        const logins = node.journal.filter((entry) => entry.method === 'POST').length;
        assert.equal(logins, home ? LOGINS : 0, `logins of ${username} on ${node.id}`);
      }
      const { binding } = await gateway.gateway.parts.bindings.findByUserId(SERVICE, userIdOf(username));
      assert.equal(binding?.nodeId, served[0]);
      assert.equal(binding?.epoch, 1);
    }

    it(`gives a new user one home in each of ${ROUNDS} races`, async () => {
      for (let round = 0; round < ROUNDS; round += 1) await race(`alice-${round}`);
      assert.equal(counterOf(gateway, 'gateway_binds_total{result="won"}'), ROUNDS, 'one row made in each race');
      assert.equal(counterOf(gateway, 'gateway_binds_total{result="lost"}'), ROUNDS * (LOGINS - 1));
    });

    it('leaves exactly one row of each user behind', async () => {
      if (stores.postgresUrl !== null) {
        const client = new Client({ connectionString: stores.postgresUrl });
        await client.connect();
        const { rows } = await client.query(
          'SELECT count(*)::int AS "all", count(DISTINCT user_id)::int AS users, max(epoch)::int AS epoch FROM gateway_user_route',
        );
        await client.end();
        assert.deepEqual(rows, [{ all: ROUNDS, users: ROUNDS, epoch: 1 }]);
        return;
      }
      await gateway.stop();
      const journal = await Journal.open(stores.dataDir, { clock: systemClock, logger: silentLogger });
      const counts = await new JournalBindings(journal).countByNode(SERVICE);
      await journal.stop();
      assert.equal(
        [...counts.values()].reduce((sum, count) => sum + count, 0),
        ROUNDS,
      );
    });
  });
}
