/**
 * What is served while parts fail, cell by cell of the contract's table: who is cached, who is not, who logs in, and
 * who is nobody, with a store that refuses and with one that swallows everything.
 */
import assert from 'node:assert/strict';
import { after, afterEach, before, describe, it } from 'node:test';
import { nameRouteKey, userRouteKey } from '../../lib/stores/redis-keys.ts';
import { BackendNode, newToken, userIdOf } from '../support/backend-node.ts';
import { FailingStores, type ProxiedStores, StandingClock } from '../support/failing-stores.ts';
import type { Fault } from '../support/fault-proxy.ts';
import { type GatewayFixture, startGateway } from '../support/gateway-fixture.ts';
import type { Answer } from '../support/http-client.ts';
import { waitUntil } from '../support/wait-until.ts';

const PATH = '/js/a/notes';
const TTL_MS = 10_000;
const STALE_IF_ERROR_MS = 60_000;
const CONFIG = `cache: { ttl: ${TTL_MS}ms, staleIfError: ${STALE_IF_ERROR_MS}ms }\nregistry: { pollInterval: 1h }\ntimeouts: { response: 1h }`;
const HEALED_MS = 15_000;

/** The node that served, or the status and error. */
function outcome(answer: Answer): string {
  return answer.status === 200
    ? String(answer.headers['x-gateway-node'])
    : `${answer.status} ${answer.json()['error']}`;
}

function tokenIn(answer: Answer): string {
  return (answer.json()['data'] as { token: string }).token;
}

interface User {
  readonly name: string;
  readonly token: string;
  readonly home: string;
}

describe('while parts fail', () => {
  const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
  const running: GatewayFixture[] = [];
  let stores: FailingStores;
  let elsewhere: GatewayFixture;
  let users = 0;

  before(async () => {
    for (const node of nodes) await node.start();
    stores = await FailingStores.open();
    elsewhere = await startGateway({ stores: (await stores.way()).setup, nodes });
  });
  afterEach(async () => {
    for (const gateway of running.splice(0)) await gateway.stop();
    for (const node of nodes) node.journal.length = 0;
  });
  after(async () => {
    await elsewhere?.stop();
    await stores?.close();
    for (const node of nodes) await node.stop();
  });

  async function bindAt(gateway: GatewayFixture, what: string): Promise<User> {
    users += 1;
    const name = `${what}-${users}`;
    const token = await gateway.tokenOf(name);
    return { name, token, home: outcome(await gateway.get(PATH, token)) };
  }

  async function start(clock = new StandingClock(), config = CONFIG) {
    const way = await stores.way();
    const gateway = await startGateway({ stores: way.setup, nodes, clock, config });
    running.push(gateway);
    return { way, gateway, clock };
  }

  async function forgetInRedis({ name }: User): Promise<void> {
    await stores.redis.command('DEL', userRouteKey('demo', userIdOf(name)), nameRouteKey('demo', name));
  }

  const serves = async (gateway: GatewayFixture, user: User) => outcome(await gateway.get(PATH, user.token));

  /** Every request with a token that any node saw was of a user at home. */
  function assertOnlyAtHome(known: readonly User[]): void {
    for (const node of nodes) {
      for (const { token } of node.journal) {
        if (token === undefined) continue;
        const user = known.find((each) => each.token === token);
        assert.ok(user, `somebody unknown was served by ${node.id}`);
        assert.equal(user.home, node.id, user.name);
      }
    }
  }

  async function assertAnonymousServed(gateway: GatewayFixture): Promise<void> {
    const served = new Set<string>();
    for (let turn = 0; turn < 3; turn += 1) served.add(outcome(await gateway.get(PATH)));
    assert.deepEqual([...served].sort(), ['n1', 'n2', 'n3']);
  }

  /** Heals, and turns the clock on until the stores are asked again. */
  async function heal(way: ProxiedStores, clock: StandingClock): Promise<void> {
    await way.postgres.set('pass');
    await way.redis.set('pass');
    clock.turn(1_000);
  }

  for (const fault of ['refuse', 'black-hole'] satisfies Fault[]) {
    describe(`a Redis that is gone (${fault})`, () => {
      it('leaves everybody served from PostgreSQL, and new users bound', async () => {
        const { way, gateway, clock } = await start();
        const alice = await bindAt(gateway, 'alice');
        const bob = await bindAt(elsewhere, 'bob');
        for (const node of nodes) node.journal.length = 0;
        await way.redis.set(fault);

        assert.equal(await serves(gateway, alice), alice.home, 'cached');
        clock.turn(TTL_MS);
        assert.equal(await serves(gateway, alice), alice.home, 'no longer cached');
        assert.equal(await serves(gateway, bob), bob.home, 'never cached');
        const carol = await bindAt(gateway, 'carol');
        assert.deepEqual(await stores.rowsOf(userIdOf(carol.name)), [`${carol.home} 1`]);
        assert.equal(await serves(elsewhere, carol), carol.home, 'the other gateway knows her');
        await assertAnonymousServed(gateway);
        assertOnlyAtHome([alice, bob, carol]);
        assert.equal(outcome(await gateway.get(PATH, newToken())), '503 identity_unavailable');

        await heal(way, clock);
        await waitUntil(
          'an unknown token to be nobody again',
          async () => {
            clock.turn(1_000);
            return (await gateway.get(PATH, newToken())).status === 200;
          },
          HEALED_MS,
        );
        for (const user of [alice, bob, carol]) assert.equal(await serves(gateway, user), user.home);
      });
    });

    describe(`a PostgreSQL that is gone (${fault})`, () => {
      it('leaves a cached user served up to staleIfError, and then nobody that Redis does not know', async () => {
        const { way, gateway, clock } = await start();
        const alice = await bindAt(gateway, 'alice');
        const bob = await bindAt(elsewhere, 'bob');
        const dora = await bindAt(elsewhere, 'dora');
        await forgetInRedis(dora);
        await forgetInRedis(alice);
        for (const node of nodes) node.journal.length = 0;
        await way.postgres.set(fault);

        assert.equal(await serves(gateway, alice), alice.home, 'cached');
        assert.equal(await serves(gateway, bob), bob.home, 'Redis knows him');
        assert.equal(await serves(gateway, dora), '503 directory_unavailable', 'nobody knows where she belongs');
        clock.turn(STALE_IF_ERROR_MS - 1);
        assert.equal(await serves(gateway, alice), alice.home, 'stale');
        clock.turn(1);
        assert.equal(await serves(gateway, alice), '503 directory_unavailable', 'too old');
        await assertAnonymousServed(gateway);
        assertOnlyAtHome([alice, bob]);

        await heal(way, clock);
        for (const user of [alice, bob, dora]) {
          await waitUntil(
            `${user.name} to be served`,
            async () => {
              clock.turn(1_000);
              const got = await serves(gateway, user);
              assert.ok(got === user.home || got.startsWith('503'), got);
              return got === user.home;
            },
            HEALED_MS,
          );
          assert.deepEqual(await stores.rowsOf(userIdOf(user.name)), [`${user.home} 1`]);
        }
      });

      it('lets the answer to a login pass, and binds its user when it is back', async () => {
        const { way, gateway, clock } = await start();
        await way.postgres.set(fault);
        const name = `carol-${fault}`;
        const login = await gateway.login(name);
        assert.equal(login.status, 200);
        const carol = { name, token: tokenIn(login), home: String(login.headers['x-gateway-node']) };
        assert.equal(await serves(gateway, carol), '503 directory_unavailable');
        assert.equal(await serves(elsewhere, carol), '503 user_not_bound', 'where PostgreSQL is asked');
        assert.deepEqual(await stores.rowsOf(userIdOf(name)), []);
        for (const node of nodes) node.journal.length = 0;

        await heal(way, clock);
        const got = await waitUntil(
          'her to be bound',
          async () => {
            clock.turn(1_000);
            return (await stores.rowsOf(userIdOf(name)))[0];
          },
          HEALED_MS,
        );
        assert.equal(got, `${carol.home} 1`);
        await waitUntil('her to be served', async () => (await serves(gateway, carol)) === carol.home, HEALED_MS);
        assertOnlyAtHome([carol]);
      });
    });

    describe(`PostgreSQL and Redis both gone (${fault})`, () => {
      it('leave a cached user served up to staleIfError, and nobody else who is somebody', async () => {
        const { way, gateway, clock } = await start();
        const alice = await bindAt(gateway, 'alice');
        const bob = await bindAt(elsewhere, 'bob');
        for (const node of nodes) node.journal.length = 0;
        await way.postgres.set(fault);
        await way.redis.set(fault);

        assert.equal(await serves(gateway, alice), alice.home, 'cached');
        assert.equal(await serves(gateway, bob), '503 identity_unavailable', 'not cached');
        assert.equal(outcome(await gateway.get(PATH, newToken())), '503 identity_unavailable', 'perhaps nobody');
        clock.turn(STALE_IF_ERROR_MS - 1);
        assert.equal(await serves(gateway, alice), alice.home, 'stale');
        clock.turn(1);
        assert.match(await serves(gateway, alice), /^503 (identity|directory)_unavailable$/, 'too old');
        await assertAnonymousServed(gateway);
        assertOnlyAtHome([alice]);
        const login = await gateway.login(`carol-both-${fault}`);
        assert.equal(login.status, 200);
        const carol = {
          name: `carol-both-${fault}`,
          token: tokenIn(login),
          home: String(login.headers['x-gateway-node']),
        };
        assert.match(await serves(gateway, carol), /^503 (identity|directory)_unavailable$/);
        assert.deepEqual(await stores.rowsOf(userIdOf(carol.name)), []);

        await heal(way, clock);
        for (const user of [alice, bob, carol]) {
          await waitUntil(
            `${user.name} to be served`,
            async () => {
              clock.turn(1_000);
              const got = await serves(gateway, user);
              assert.ok(got === user.home || got.startsWith('503'), `${user.name}: ${got}`);
              return got === user.home;
            },
            HEALED_MS,
          );
          assert.deepEqual(await stores.rowsOf(userIdOf(user.name)), [`${user.home} 1`]);
        }
        assertOnlyAtHome([alice, bob, carol]);
      });
    });
  }

  describe('a node that is gone', () => {
    const HEALTH = 'health: { interval: 50ms, timeout: 200ms, failures: 1 }\ntimeouts: { response: 500ms }';
    const failures: [string, (node: BackendNode) => Promise<void> | void, (node: BackendNode) => unknown][] = [
      ['refuses', (node) => node.stop(), (node) => node.start()],
      [
        'swallows everything',
        (node) => {
          node.mode = 'black-hole';
        },
        (node) => {
          node.mode = 'up';
        },
      ],
    ];
    for (const [how, fail, recover] of failures) {
      it(`leaves its users with 503, others alone, and new ones elsewhere, when it ${how}`, async () => {
        const way = await stores.way();
        const gateway = await startGateway({ stores: way.setup, nodes, config: HEALTH });
        running.push(gateway);
        const bound: User[] = [];
        while (new Set(bound.map(({ home }) => home)).size < nodes.length) bound.push(await bindAt(gateway, 'user'));
        const [gone] = nodes as [BackendNode];
        const cut = bound.filter(({ home }) => home === gone.id);
        for (const node of nodes) node.journal.length = 0;
        await fail(gone);
        await waitUntil('it to be found out', async () => (await serves(gateway, cut[0] as User)) === '503 node_down');
        // An upstream that swallows saw the requests of before; nobody else did.
        for (const user of bound) {
          assert.equal(await serves(gateway, user), user.home === gone.id ? '503 node_down' : user.home, user.name);
        }
        const newcomers: User[] = [];
        for (let turn = 0; turn < 6; turn += 1) newcomers.push(await bindAt(gateway, 'newcomer'));
        assert.deepEqual([...new Set(newcomers.map(({ home }) => home))].sort(), ['n2', 'n3']);
        const anonymous = new Set<string>();
        for (let turn = 0; turn < 6; turn += 1) anonymous.add(outcome(await gateway.get(PATH)));
        assert.deepEqual([...anonymous].sort(), ['n2', 'n3']);
        await recover(gone);
        for (const user of cut) {
          await waitUntil(`${user.name} to be served`, async () => (await serves(gateway, user)) === user.home);
        }
        assertOnlyAtHome([...bound, ...newcomers]);
        for (const user of [...bound, ...newcomers]) {
          assert.deepEqual(await stores.rowsOf(userIdOf(user.name)), [`${user.home} 1`]);
        }
      });
    }
  });
});
