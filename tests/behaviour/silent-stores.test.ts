/**
 * A store that swallows everything costs one time-out and is then left alone, until one request at a time tries it
 * again: shown by what reaches it, not by the clock.
 */
import assert from 'node:assert/strict';
import { after, afterEach, before, describe, it } from 'node:test';
import { BackendNode } from '../support/backend-node.ts';
import { counterOf } from '../support/counter-of.ts';
import { FailingStores, type ProxiedStores, StandingClock } from '../support/failing-stores.ts';
import type { FaultProxy } from '../support/fault-proxy.ts';
import { type GatewayFixture, startGateway } from '../support/gateway-fixture.ts';
import { waitUntil } from '../support/wait-until.ts';

const PATH = '/js/a/notes';
/** Quiet by itself: what reaches the stores is what requests make the gateway ask. */
const CONFIG = 'registry: { pollInterval: 1h }\ncache: { ttl: 60s, staleIfError: 10m }\ntimeouts: { response: 1h }';
const BREAK_MS = 1_000;
const USERS = 60;

interface User {
  readonly token: string;
  readonly home: string;
}

describe('a store that swallows everything', () => {
  const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
  const users: User[] = [];
  let stores: FailingStores;
  let elsewhere: GatewayFixture;
  let way: ProxiedStores;
  let gateway: GatewayFixture;
  let clock: StandingClock;

  before(async () => {
    for (const node of nodes) await node.start();
    stores = await FailingStores.open();
    elsewhere = await startGateway({ stores: (await stores.way()).setup, nodes });
    for (let index = 0; index < USERS; index += 1) {
      const token = await elsewhere.tokenOf(`user-${index}`);
      const home = String((await elsewhere.get(PATH, token)).headers['x-gateway-node']);
      users.push({ token, home });
    }
  });
  afterEach(async () => {
    await gateway.stop();
  });
  after(async () => {
    await elsewhere?.stop();
    await stores?.close();
    for (const node of nodes) await node.stop();
  });

  async function start(withRedis: boolean): Promise<void> {
    way = await stores.way();
    clock = new StandingClock();
    const setup = withRedis ? way.setup : { ...way.setup, kind: 'postgres' as const, redisUrl: null };
    gateway = await startGateway({ stores: setup, nodes, clock, config: CONFIG });
    await waitUntil('the listener', () => gateway.events('postgres_listening').length > 0);
  }

  const outcome = async ({ token }: User) => {
    const answer = await gateway.get(PATH, token);
    return answer.status === 200 ? String(answer.headers['x-gateway-node']) : String(answer.json()['error']);
  };
  const asked = (proxy: FaultProxy) => proxy.accepted + proxy.received;

  async function assertAllAtHome(some: readonly User[]): Promise<void> {
    assert.deepEqual(
      await Promise.all(some.map(outcome)),
      some.map(({ home }) => home),
    );
  }

  it('is asked once, and not again before its time, when it is Redis; PostgreSQL serves everybody meanwhile', async () => {
    await start(true);
    const [first, second, ...others] = users as [User, User, ...User[]];
    await assertAllAtHome([first]);
    await way.redis.set('black-hole');
    const before = asked(way.redis);
    await assertAllAtHome([second]);
    assert.equal(asked(way.redis) - before, 1, 'one command found out');
    await assertAllAtHome(others.slice(0, 20));
    for (const user of others.slice(20, 30)) await assertAllAtHome([user]);
    clock.turn(BREAK_MS - 1);
    await assertAllAtHome([...users.slice(0, 2), ...others.slice(30, 40)]);
    assert.equal(asked(way.redis) - before, 1, 'nobody else waited for it');
    clock.turn(1);
    await assertAllAtHome(others.slice(40));
    assert.equal(asked(way.redis) - before, 2, 'of many at once, one tried it again');
    const fromRedis = counterOf(gateway, 'gateway_token_lookups_total{by="redis"}');
    await way.redis.set('pass');
    await waitUntil('Redis to answer again', async () => {
      // More time than a broken-off connection takes to be closed passes between two attempts.
      await new Promise((resolve) => setTimeout(resolve, 200));
      clock.turn(BREAK_MS);
      await assertAllAtHome([first]);
      return counterOf(gateway, 'gateway_token_lookups_total{by="redis"}') > fromRedis;
    });
  });

  it('is asked once, and not again before its time, when it is PostgreSQL; who is cached is served meanwhile', async () => {
    await start(false);
    const [cached, second, ...others] = users as [User, User, ...User[]];
    await assertAllAtHome([cached]);
    clock.turn(1);
    await way.postgres.set('black-hole');
    const before = asked(way.postgres);
    const acceptedBefore = way.postgres.accepted;
    assert.equal(await outcome(second), 'identity_unavailable');
    assert.equal(asked(way.postgres) - before, 1, 'one query found out');
    await assertAllAtHome([cached]);
    const refused = new Set(await Promise.all(others.map(outcome)));
    for (const user of others.slice(0, 10)) refused.add(await outcome(user));
    assert.deepEqual([...refused], ['identity_unavailable']);
    clock.turn(BREAK_MS - 1);
    await assertAllAtHome([cached]);
    refused.add(await outcome(second));
    assert.equal(asked(way.postgres) - before, 1, 'nobody else waited for it');
    clock.turn(1);
    for (const answer of await Promise.all(others.map(outcome))) refused.add(answer);
    assert.equal(
      way.postgres.accepted - acceptedBefore,
      1,
      'of many at once, one tried it again, with a new connection',
    );
    assert.deepEqual([...refused], ['identity_unavailable']);
  });

  it('that was PostgreSQL is found back by the first who asks, however many idle connections died unnoticed', async () => {
    await start(false);
    const [last, ...others] = users as [User, ...User[]];
    await assertAllAtHome(others);
    const { open } = way.postgres;
    assert.ok(open > 5, `the pool has only ${open} connections`);
    clock.turn(1);
    await way.postgres.set('black-hole');
    assert.equal(await outcome(last), 'identity_unavailable');
    await way.postgres.set('pass');
    clock.turn(BREAK_MS);
    await assertAllAtHome([last]);
    clock.turn(60_000);
    await assertAllAtHome(users);
  });
});
