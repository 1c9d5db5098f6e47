/** Two gateways as two processes: one user has one node, whoever asks whom, and whatever one of them misses. */
import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import { after, before, beforeEach, describe, it } from 'node:test';
import { BackendNode, newToken, userIdOf } from '../support/backend-node.ts';
import { Seeded } from '../support/seeded.ts';
import { type Member, outcome, TwoGateways, tokenIn } from '../support/two-gateways.ts';
import { waitUntil } from '../support/wait-until.ts';

const PATH = '/js/a/notes';
const TTL_MS = 1_000;
const STALE_IF_ERROR_MS = 4_000;
const RACES = 25;
const SLOW_RACES = 6;
const LOGINS = 40;
const REQUESTS_EACH = 5;
const COLD_USERS = 1_000;
const POOL_SIZE = 10;

describe('two gateways', () => {
  const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
  const random = new Seeded(1);
  let pair: TwoGateways;
  let first: Member;
  let second: Member;

  before(async () => {
    for (const node of nodes) await node.start();
    pair = await TwoGateways.open(nodes, `cache: { ttl: ${TTL_MS}ms, staleIfError: ${STALE_IF_ERROR_MS}ms }`);
    ({ first, second } = pair);
  });
  beforeEach(() => {
    for (const node of nodes) node.journal.length = 0;
  });
  after(async () => {
    await pair?.close();
    for (const node of nodes) await node.stop();
  });

  /** Up to three turns of the loop, or a millisecond or two: every interleaving comes up. */
  async function jitter(): Promise<void> {
    if (random.oneIn(5)) await new Promise((resolve) => setTimeout(resolve, random.below(3)));
    for (let turns = random.below(4); turns > 0; turns -= 1) await new Promise(setImmediate);
  }

  const nodesThatSaw = (token: string) =>
    nodes.filter((node) => node.withToken(token).length > 0).map((node) => node.id);

  async function race(username: string): Promise<void> {
    for (const node of nodes) node.journal.length = 0;
    const served: string[] = [];
    const tokens: string[] = [];
    await Promise.all(
      Array.from({ length: LOGINS }, async (_, index) => {
        await jitter();
        const login = await (index % 2 === 0 ? first : second).login(username);
        const token = tokenIn(login);
        tokens.push(token);
        for (let turn = 0; turn < REQUESTS_EACH; turn += 1) {
          served.push(outcome(await random.pick(pair.members).get(PATH, token)));
        }
      }),
    );
    const rows = await pair.stores.rowsOf(userIdOf(username));
    assert.equal(rows.length, 1, `rows of ${username}`);
    const [home, epoch] = rows[0]!.split(' ');
    assert.equal(epoch, '1');
    assert.deepEqual([...new Set(served)], [home], `${username} belongs to ${home}`);
    for (const token of tokens) assert.deepEqual(nodesThatSaw(token), [home]);
  }

  it(`give a new user one home in each of ${RACES} races of ${LOGINS} first logins, half through each`, async () => {
    for (let round = 0; round < RACES; round += 1) await race(`racer-${round}`);
  });

  it(`give a new user one home in each of ${SLOW_RACES} races when one has a slow way to PostgreSQL`, async () => {
    first.way.postgres.delayMs = 50;
    try {
      for (let round = 0; round < SLOW_RACES; round += 1) await race(`slow-racer-${round}`);
    } finally {
      first.way.postgres.delayMs = 0;
    }
  });

  it('lead a user who was moved to the new node after the ttl, though one of them could not hear of it', async () => {
    const token = tokenIn(await first.login('mover'));
    const old = outcome(await first.get(PATH, token));
    assert.equal(outcome(await second.get(PATH, token)), old);
    const home = nodes.find(({ id }) => id !== old)!.id;
    // The connections on which news come fall silent without a word; new ones work.
    await pair.stores.endSessionsExceptListeners();
    await waitUntil('the pool to be empty', () => second.way.postgres.open === 1);
    await second.way.postgres.set('half-open');
    await second.way.redis.set('half-open');
    await pair.stores.sql('UPDATE gateway_user_route SET node_id = $2 WHERE user_id = $1', [userIdOf('mover'), home]);
    const movedAtMs = performance.now();
    for (const node of nodes) node.journal.length = 0;
    const late: string[] = [];
    await waitUntil('the second to serve at the new node', async () => {
      const overdue = performance.now() - movedAtMs > TTL_MS;
      const got = outcome(await second.get(PATH, token));
      if (overdue && got === old) late.push(got);
      return got === home;
    });
    assert.deepEqual(late, [], 'not one request went to the old node after the ttl');
    // Whoever was sent to the old node was sent with the old epoch, and nobody goes back there.
    for (let turn = 0; turn < 20; turn += 1) {
      assert.equal(outcome(await random.pick(pair.members).get(PATH, token)), home);
    }
    for (const node of nodes) {
      for (const { headers } of node.withToken(token)) {
        assert.equal(`${node.id} ${headers['x-gateway-epoch']}`, node.id === home ? `${home} 2` : `${old} 1`);
      }
    }
    await second.way.postgres.set('pass');
    await second.way.redis.set('pass');
  });

  it('serve who is known while one of them has no PostgreSQL, place nobody for now, and find back by themselves', async () => {
    const alice = tokenIn(await first.login('alice'));
    const home = outcome(await first.get(PATH, alice));
    const bob = tokenIn(await second.login('bob'));
    const bobHome = outcome(await second.get(PATH, bob));
    await pair.stores.redis.command('FLUSHALL');
    for (const node of nodes) node.journal.length = 0;

    for (const fault of ['black-hole', 'reset'] as const) {
      await first.way.postgres.set(fault);
      const began = performance.now();
      const got = outcome(await first.get(PATH, alice));
      // Known of the last round only, if the round before has cost too much time.
      assert.ok(got === home || (fault === 'reset' && got.startsWith('503')), got);
      await waitUntil('her binding to be too old', async () => {
        const answer = outcome(await first.get(PATH, alice));
        assert.ok(answer === home || answer.startsWith('503'), answer);
        return answer.startsWith('503') && performance.now() - began > STALE_IF_ERROR_MS;
      });
      assert.match(outcome(await first.get(PATH, bob)), /^503 (identity|directory)_unavailable$/);
      const login = await first.login(`carol-${fault}`);
      assert.equal(login.status, 200, 'the answer of the node passes');
      assert.match(outcome(await first.get(PATH, tokenIn(login))), /^503 (identity|directory)_unavailable$/);
      assert.deepEqual(await pair.stores.rowsOf(userIdOf(`carol-${fault}`)), []);
      assert.equal(outcome(await second.get(PATH, bob)), bobHome, 'the other one is not concerned');
    }

    await first.way.postgres.set('pass');
    for (const [token, where] of [
      [alice, home],
      [bob, bobHome],
    ] as const) {
      await waitUntil('everybody to be served', async () => outcome(await first.get(PATH, token)) === where);
      assert.equal(outcome(await second.get(PATH, token)), where);
      assert.deepEqual(nodesThatSaw(token), [where]);
    }
    for (const name of ['alice', 'bob', 'carol-black-hole', 'carol-reset']) {
      const rows = await waitUntil('a row', async () => {
        const found = await pair.stores.rowsOf(userIdOf(name));
        return found.length > 0 && found;
      });
      assert.equal(rows.length, 1, name);
      assert.match(rows[0]!, / 1$/);
    }
  });

  it('serve from PostgreSQL what one of them cannot ask Redis for, and take nobody for nobody', async () => {
    const users: { token: string; home: string }[] = [];
    for (let index = 0; index < 20; index += 1) {
      const token = tokenIn(await second.login(`reader-${index}`));
      users.push({ token, home: outcome(await second.get(PATH, token)) });
    }
    await first.way.redis.set('black-hole');
    const asked = first.way.redis.received;
    for (const { token, home } of users) assert.equal(outcome(await first.get(PATH, token)), home);
    for (let turn = 0; turn < 5; turn += 1) {
      const stranger = newToken();
      assert.equal(outcome(await first.get(PATH, stranger)), '503 identity_unavailable');
      assert.deepEqual(nodesThatSaw(stranger), []);
    }
    const failures = first.way.redis.received - asked;
    assert.ok(failures >= 1 && failures <= 10, `${failures} of 25 requests asked it`);
    const stranger = newToken();
    assert.match(outcome(await second.get(PATH, stranger)), /^n[123]$/, 'where Redis answers, nobody is nobody');
    await first.way.redis.set('pass');
    await waitUntil('Redis to be asked again', async () => outcome(await first.get(PATH, stranger)).startsWith('n'));
  });

  it('lose no login that was answered when one of them is killed', async () => {
    const acknowledged: { token: string; home: string }[] = [];
    const lanes = Array.from({ length: 8 }, async (_, lane) => {
      for (let index = 0; ; index += 1) {
        const login = await first.login(`mourner-${lane}-${index}`).catch(() => undefined);
        if (!login) return;
        acknowledged.push({ token: tokenIn(login), home: String(login.headers['x-gateway-node']) });
      }
    });
    await waitUntil('some logins', () => acknowledged.length > 100);
    await first.kill();
    await Promise.all(lanes);
    for (const node of nodes) node.journal.length = 0;
    for (const { token, home } of acknowledged) {
      assert.equal(outcome(await second.get(PATH, token)), home);
      assert.equal(nodes.find(({ id }) => id === home)?.withToken(token)[0]?.headers['x-gateway-epoch'], '1');
    }
    await first.start();
  });

  it(`lead ${COLD_USERS} users home at once after both were killed and Redis was emptied`, {
    timeout: 60_000,
  }, async () => {
    const users = Array.from({ length: COLD_USERS }, (_, index) => ({
      userId: `cold-${index}`,
      token: `cold-token-${index}-${Math.random()}`,
      nodeId: random.pick(nodes).id,
    }));
    await pair.insertUsers(users);
    const allRows = () =>
      pair.stores.sql('SELECT id, user_id, node_id, epoch, update_time FROM gateway_user_route ORDER BY id');
    const before = await allRows();
    await Promise.all([first.kill(), second.kill()]);
    await pair.stores.redis.command('FLUSHALL');

    // As long as one has not loaded anything, it is not ready and sends nobody anywhere.
    await rm(first.way.setup.dataDir, { recursive: true, force: true });
    await first.way.postgres.set('refuse');
    await Promise.all([first.start(), second.start()]);
    assert.equal(await first.ready(), false);
    for (const token of [undefined, users[0]!.token]) {
      assert.equal(outcome(await first.get(PATH, token)), '503 directory_unavailable');
    }
    assert.equal((await first.login('early')).status, 503);
    assert.deepEqual(await pair.stores.rowsOf(userIdOf('early')), []);
    await first.way.postgres.set('pass');
    await waitUntil('both to be ready', async () => (await first.ready()) && (await second.ready()));

    for (const node of nodes) node.journal.length = 0;
    let most = 0;
    let over = false;
    const watch = (async () => {
      while (!over) {
        const [row] = await pair.stores.sql<{ count: number }>(
          `SELECT count(*)::int AS count FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'sticky-gateway'`,
        );
        most = Math.max(most, row?.count ?? 0);
      }
    })();
    const got = await Promise.all(
      users.map(async ({ token }) => {
        // A gateway that has just found its PostgreSQL may still leave it alone for a moment.
        for (;;) {
          const answer = outcome(await random.pick(pair.members).get(PATH, token));
          if (!answer.startsWith('503')) return answer;
          await new Promise((resolve) => setTimeout(resolve, 50));
        }
      }),
    );
    over = true;
    await watch;
    assert.deepEqual(
      got,
      users.map(({ nodeId }) => nodeId),
    );
    for (const { token, nodeId } of users) assert.deepEqual(nodesThatSaw(token), [nodeId]);
    assert.deepEqual(await allRows(), before, 'no row changed');
    // The pools, the listeners, and perhaps a session or two that PostgreSQL is just closing.
    assert.ok(most <= 2 * (POOL_SIZE + 1) + 2, `${most} connections`);
  });
});
