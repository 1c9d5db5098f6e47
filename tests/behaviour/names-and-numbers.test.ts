/** User ids are digits, not numbers, and usernames are hints: neither may bring anybody to somebody else's node. */
import assert from 'node:assert/strict';
import { after, before, beforeEach, describe, it } from 'node:test';
import { Client } from 'pg';
import { Journal } from '../../lib/bindings/journal.ts';
import { JournalBindings } from '../../lib/bindings/journal-bindings.ts';
import { silentLogger } from '../../lib/observe/log.ts';
import { systemClock } from '../../lib/support/clock.ts';
import { BackendNode, newToken } from '../support/backend-node.ts';
import { counterOf } from '../support/counter-of.ts';
import {
  type GatewayFixture,
  openStores,
  STORE_KINDS,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';
import type { Answer } from '../support/http-client.ts';

interface Row {
  readonly userId: string | null;
  readonly username: string | null;
  readonly nodeId: string;
  readonly epoch: number;
}

for (const kind of STORE_KINDS) {
  describe(`names and numbers on the ${kind} store`, () => {
    const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
    let stores: StoreSetup;
    let gateway: GatewayFixture;

    before(async () => {
      for (const node of nodes) await node.start();
    });
    after(async () => {
      await gateway?.stop();
      await stores?.close();
      for (const node of nodes) await node.stop();
    });
    /** Every test has its own users, on stores of its own where the rows are counted. */
    beforeEach(async () => {
      await gateway?.stop();
      await stores?.close();
      stores = await openStores(kind);
      gateway = await startGateway({ stores, nodes });
      for (const node of nodes) node.journal.length = 0;
    });

    const servedBy = (answer: Answer) => String(answer.headers['x-gateway-node']);

    /** Logs in while the node says who that is, with the user id written into the JSON as it stands here. */
    async function logIn(username: string, userId: string, answered = username) {
      const token = newToken();
      for (const node of nodes) {
        node.loginAnswer = (_, response) => {
          response.writeHead(200, { 'Content-Type': 'application/json' });
          const name = JSON.stringify(answered);
          response.end(`{"code":200,"data":{"token":"${token}","userId":${userId},"username":${name}}}`);
        };
      }
      const answer = await gateway.login(username);
      assert.equal(answer.status, 200, answer.text);
      return { token, node: servedBy(answer) };
    }

    const homeOf = async (token: string) => servedBy(await gateway.get('/js/a/notes', token));

    async function rows(): Promise<Row[]> {
      if (stores.postgresUrl !== null) {
        const client = new Client({ connectionString: stores.postgresUrl });
        await client.connect();
        const found = await client.query(
          `SELECT user_id::text AS "userId", username, node_id AS "nodeId", epoch::int FROM gateway_user_route ORDER BY id`,
        );
        await client.end();
        return found.rows;
      }
      // The journal on disk is the embedded store's table.
      await gateway.stop();
      const journal = await Journal.open(stores.dataDir, { clock: systemClock, logger: silentLogger });
      const page = await new JournalBindings(journal).list('demo', {});
      await journal.stop();
      gateway = await startGateway({ stores, nodes });
      return page.bindings.map(({ userId, username, nodeId, epoch }) => ({ userId, username, nodeId, epoch }));
    }

    /** A row that holds a username and nothing else, as an import leaves it. */
    async function importByName(username: string, nodeId: string): Promise<void> {
      if (stores.postgresUrl !== null) {
        const client = new Client({ connectionString: stores.postgresUrl });
        await client.connect();
        await client.query('INSERT INTO gateway_user_route (service_id, username, node_id) VALUES ($1, $2, $3)', [
          'demo',
          username,
          nodeId,
        ]);
        await client.end();
        return;
      }
      await gateway.stop();
      const journal = await Journal.open(stores.dataDir, { clock: systemClock, logger: silentLogger });
      await new JournalBindings(journal).insertAbsent('demo', [{ userId: null, username, nodeId }]);
      await journal.stop();
      gateway = await startGateway({ stores, nodes });
    }

    it('are two users when their 19-digit ids differ in the last digit', async () => {
      const one = await logIn('lilei', '1790000000000000001');
      const two = await logIn('hanmeimei', '1790000000000000002');
      assert.notEqual(one.node, two.node, 'round robin: two users, two nodes');
      assert.equal(await homeOf(one.token), one.node);
      assert.equal(await homeOf(two.token), two.node);
      assert.deepEqual(
        (await rows()).map((row) => [row.userId, row.nodeId]),
        [
          ['1790000000000000001', one.node],
          ['1790000000000000002', two.node],
        ],
      );
      assert.equal(await homeOf(one.token), one.node);
      assert.equal(await homeOf(two.token), two.node);
    });

    it('are one user whether the id comes as a number or as a string', async () => {
      const one = await logIn('lilei', '1790000000000000001');
      const two = await logIn('lilei', '"1790000000000000001"');
      assert.equal(two.node, one.node);
      assert.equal((await rows()).length, 1);
    });

    it('are users under every id that JSON can hold, and under no id that is no identifier', async () => {
      const good = ['0', '-7', '9223372036854775807', '92233720368547758070', '"a:b c"', '"李雷"', '"00017"', '17'];
      const expected: string[] = [];
      for (const [index, id] of good.entries()) {
        const { token, node } = await logIn(`good${index}`, id);
        assert.equal(await homeOf(token), node, id);
        expected.push(id.replaceAll('"', ''));
      }
      for (const [index, id] of ['true', 'null', '{}', '[]', '""'].entries()) await logIn(`bad${index}`, id);
      const ids = (await rows()).map((row) => row.userId);
      assert.deepEqual(ids.sort(), expected.sort());
    });

    it('keep the node of a row that was imported with a username only, and complete it', async () => {
      await importByName('Zhang', 'n3');
      const first = await logIn('zhang', '1790000000000000009', 'ZHANG');
      assert.equal(first.node, 'n3');
      assert.equal(await homeOf(first.token), 'n3');
      const [row, ...more] = await rows();
      assert.deepEqual(more, []);
      assert.deepEqual(
        [row?.userId, row?.username?.toLowerCase(), row?.nodeId],
        ['1790000000000000009', 'zhang', 'n3'],
      );
      assert.equal((await logIn('zhang', '1790000000000000009')).node, 'n3');
      assert.equal((await rows()).length, 1);
    });

    it('keep the node of an imported row although the login names the user otherwise', async () => {
      await importByName('wang', 'n2');
      // A phone number logs in: only the answer tells the name, after the node was chosen.
      const first = await logIn('13800000000', '"w1"', 'wang');
      assert.equal(await homeOf(first.token), 'n2');
      assert.deepEqual(
        (await rows()).map((row) => [row.userId, row.username, row.nodeId]),
        [['w1', 'wang', 'n2']],
      );
    });

    it('do not move a user who was renamed', async () => {
      const old = await logIn('oldname', '"r1"');
      for (let turn = 0; turn < 3; turn += 1) {
        const renamed = await logIn('newname', '"r1"');
        assert.equal(await homeOf(renamed.token), old.node);
      }
      assert.equal(await homeOf(old.token), old.node);
      assert.equal((await logIn('newname', '"r1"')).node, old.node, 'the login itself goes home by the new name');
      assert.deepEqual(
        (await rows()).map((row) => [row.userId, row.username, row.nodeId, row.epoch]),
        [['r1', 'newname', old.node, 1]],
      );
    });

    it('bring nobody to the node of the one who had the name before', async () => {
      const old = await logIn('passed-on', '"p1"');
      await logIn('other-name', '"p1"');
      const seen = new Set<string>();
      // Round robin has three nodes: whoever is new gets each of them in turn, not the old one each time.
      for (let turn = 2; turn < 5; turn += 1) {
        const { token, node } = await logIn('passed-on', `"p${turn}"`);
        assert.equal(await homeOf(token), node);
        seen.add(node);
        await logIn(`left-it-${turn}`, `"p${turn}"`);
      }
      assert.ok(seen.size > 1, [...seen].join(', '));
      assert.equal(await homeOf(old.token), old.node, 'and nobody was moved');
      const all = await rows();
      assert.equal(all.length, 4);
      assert.equal(all.filter((row) => row.username === 'passed-on').length, 0);
    });

    it('take a name off its old owner when somebody else comes with it, and keep both apart', async () => {
      const old = await logIn('shared', '"s1"');
      const other = await logIn('shared', '"s2"');
      const otherHome = await homeOf(other.token);
      assert.equal(otherHome, other.node, 'bound where the login was served');
      assert.equal(await homeOf(old.token), old.node);
      const all = await rows();
      assert.deepEqual(
        all.map((row) => [row.userId, row.username]),
        [
          ['s1', null],
          ['s2', 'shared'],
        ],
      );
    });

    it('let the user id win when id and name have different nodes, and say so', async () => {
      const first = await logIn('twofold-old', '"t1"');
      const elsewhere = nodes.find((node) => node.id !== first.node)!.id;
      await importByName('twofold', elsewhere);
      const second = await logIn('twofold', '"t1"');
      assert.equal(await homeOf(second.token), first.node);
      assert.equal(counterOf(gateway, 'gateway_binding_conflicts_total'), 1);
      assert.equal(gateway.events('binding_conflict').length, 1);
      assert.deepEqual(
        (await rows()).map((row) => [row.userId, row.username, row.nodeId]),
        [['t1', 'twofold', first.node]],
      );
    });

    it('are compared without regard to case, in other alphabets too', async () => {
      for (const [one, other] of [
        ['Müller', 'MÜLLER'],
        ['Ольга', 'ОЛЬГА'],
        ['Alice', 'aLICE'],
      ] as const) {
        const first = await logIn(one, JSON.stringify(`id-${one}`));
        for (let turn = 0; turn < 3; turn += 1) {
          assert.equal((await logIn(other, JSON.stringify(`id-${one}`))).node, first.node, other);
        }
      }
      assert.equal((await rows()).length, 3);
    });
  });
}
