/**
 * Every test vector of Sa-Token's layout in Redis, through a real gateway: which user a token makes of a request, or
 * none. The values are written as the Java plugins write them, byte for byte.
 */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { BackendNode } from '../support/backend-node.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import { runSql } from '../support/postgres-server.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';

const HOUR = ['EX', '3600'] as const;
const VALUES: readonly (readonly [key: string, value: Buffer | string, ...expiry: string[]])[] = [
  ['gateway:token:demo:T-own', '555'],
  ['satoken:login:token:T-own', '10001'],
  ['satoken:login:token:T1', '10001', ...HOUR],
  ['satoken:login:token:T2', 'u-abc', ...HOUR],
  ['satoken:login:token:T3', '9007199254740993', ...HOUR],
  ['satoken:login:token:T4', '-4', ...HOUR],
  ['satoken:login:token:T5', '-5', ...HOUR],
  ['satoken:login:token:T6', '-6', ...HOUR],
  ['satoken:login:token:T7', '-1', ...HOUR],
  ['satoken:login:token:T8', '-8', ...HOUR],
  ['satoken:login:token:T9', '0', ...HOUR],
  ['satoken:login:token:T10', '', ...HOUR],
  ['satoken:login:token:T12', '"10001"', ...HOUR],
  ['satoken:login:token:T13', Buffer.from('0331303030b1', 'hex'), ...HOUR],
  ['satoken:login:token:T14', Buffer.from('038231', 'hex'), ...HOUR],
  ['satoken:login:token:T15', Buffer.concat([Buffer.from('aced0005740005', 'hex'), Buffer.from('10001')]), ...HOUR],
  ['satoken:login:token:T16', '"-5"', ...HOUR],
  ['satoken:login:token:T17', Buffer.from('032db5', 'hex'), ...HOUR],
  ['satoken:login:token:T18', Buffer.from('fffe01', 'hex'), ...HOUR],
  ['satoken:login:token-session:T19', '{}', ...HOUR],
  ['satoken:admin:token:T20', '7', ...HOUR],
  ['my-app:satoken:login:token:T21', '10001', ...HOUR],
  ['Authorization:login:token:T22', '"sys_user:1"', ...HOUR],
  ['satoken:login:token:T23', '10006', ...HOUR],
  ['satoken:login:disable:login:10006', '1', ...HOUR],
];

const JWT_HEAD = 'eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9';
const JWT_NONE = Buffer.from('{"typ":"JWT","alg":"none"}').toString('base64url');
const JWT_10001 =
  'eyJsb2dpblR5cGUiOiJsb2dpbiIsImxvZ2luSWQiOiIxMDAwMSIsImRldmljZVR5cGUiOiJERUYiLCJlZmYiOi0xLCJyblN0ciI6ImFiYyJ9';
const JWT_10001_SIGNED = '5y79gziHA3zDESoN6ij4dnikgQhHnktGHWkqUrCS_xw';
const JWT_BIG =
  'eyJsb2dpblR5cGUiOiJsb2dpbiIsImxvZ2luSWQiOjkwMDcxOTkyNTQ3NDA5OTMsImRldmljZVR5cGUiOiJERUYiLCJlZmYiOi0xLCJyblN0ciI6ImFiYyJ9.lQXEfU9BypX18oeXPsXwaUVDJl65NrIzDOReGZlK8WY';
const JWT_OLD =
  'eyJsb2dpblR5cGUiOiJsb2dpbiIsImxvZ2luSWQiOjEwMDAxLCJkZXZpY2VUeXBlIjoiREVGIiwiZWZmIjoxNjAwMDAwMDAwMDAwLCJyblN0ciI6ImFiYyJ9.JklOgIZZxNBDFIKXGGU_DY15VJXq4V70ipZjPDVnfFA';
const JWT_SIMPLE =
  'eyJsb2dpblR5cGUiOiJsb2dpbiIsImxvZ2luSWQiOjEwMDAxLCJyblN0ciI6ImFiYyJ9.Fj7dd_qAlBeNvVprHqu1tWQsAE7uEknr4F8dfZmo_2Y';
const JWT_ADMIN =
  'eyJsb2dpblR5cGUiOiJhZG1pbiIsImxvZ2luSWQiOjcsImRldmljZVR5cGUiOiJERUYiLCJlZmYiOi0xLCJyblN0ciI6ImFiYyJ9.5lefsG2ZPMmGv5w3uPSNqPkFJWo95D-AsB2mIOjvpy8';

interface Vector {
  readonly token: string;
  /** Null = anonymous. */
  readonly user: string | null;
  readonly note?: string;
}

describe('Sa-Token', () => {
  const node = new BackendNode('n1');
  let redis: RedisServer;
  let postgres: StoreSetup;

  before(async () => {
    await node.start();
    redis = await startRedis();
    postgres = await openStores('postgres');
    for (const words of VALUES) await redis.command('SET', ...words);
    await redis.command('HSET', 'satoken:login:token:T11', 'a', 'b');
  });
  after(async () => {
    await redis?.stop();
    await postgres?.close();
    await node.stop();
  });

  /** A gateway whose users without a binding go to n1, so that every known user gets through. */
  async function withGateway(resolvers: string, token: string, test: (gateway: GatewayFixture) => Promise<void>) {
    const stores = { ...postgres, redisUrl: redis.url };
    const gateway = await startGateway({
      stores,
      nodes: [node],
      service: '    defaultNodeId: n1',
      config: `identity:\n  token: ${token}\n  resolvers:\n    - ${resolvers}`,
    });
    try {
      await test(gateway);
    } finally {
      await gateway.stop();
    }
  }

  async function userOf(gateway: GatewayFixture, header: string, value: string): Promise<string | null> {
    const answer = await gateway.get('/js/a/whoami', undefined, {
      [header]: value,
      'x-request-id': `r-${Math.random()}`,
    });
    assert.equal(answer.status, 200, answer.text);
    const line = gateway.events('request').find((event) => event['requestId'] === answer.headers['x-request-id']);
    assert.ok(line, 'the request is in the access log');
    assert.equal(line['decision'] === 'anonymous', line['user'] === undefined, 'no user means anonymous');
    return (line['user'] as string | undefined) ?? null;
  }

  function check(title: string, resolvers: string, token: string, header: string, vectors: readonly Vector[]): void {
    it(title, async () => {
      // What an earlier set-up found is in the gateway's own store and would answer first.
      await clearOwnTokens(postgres);
      for (const vector of vectors) {
        if (vector.token !== 'T-own') await redis.command('DEL', `gateway:token:demo:${vector.token}`);
      }
      await withGateway(resolvers, token, async (gateway) => {
        for (const vector of vectors) {
          assert.equal(
            await userOf(gateway, header, vector.token),
            vector.user,
            `${vector.token} ${vector.note ?? ''}`,
          );
        }
      });
    });
  }

  check(
    'reads every form of a login id, and takes no sentinel for a user',
    'saToken: { tokenName: satoken }',
    '{ header: satoken }',
    'satoken',
    [
      { token: 'T-own', user: '555', note: 'the own key wins' },
      { token: 'T1', user: '10001' },
      { token: 'T2', user: 'u-abc' },
      { token: 'T3', user: '9007199254740993' },
      { token: 'T4', user: null, note: 'replaced' },
      { token: 'T5', user: null, note: 'kicked out' },
      { token: 'T6', user: null },
      { token: 'T7', user: null },
      { token: 'T8', user: '-8' },
      { token: 'T9', user: '0' },
      { token: 'T10', user: null, note: 'empty' },
      { token: 'absent', user: null },
      { token: 'T11', user: null, note: 'a hash' },
      { token: 'T18', user: null, note: 'bad bytes' },
      { token: 'T12', user: '10001', note: 'JSON' },
      { token: 'T13', user: '10001', note: 'Kryo' },
      { token: 'T15', user: '10001', note: 'JDK' },
      { token: 'T14', user: '1', note: 'Kryo, one character' },
      { token: 'T16', user: null, note: 'a sentinel in JSON' },
      { token: 'T17', user: null, note: 'a sentinel in Kryo' },
      { token: 'T19', user: null, note: 'a token session is no login' },
      { token: 'T20', user: null, note: 'another login type' },
      { token: 'T21', user: null, note: 'another prefix' },
      { token: 'Bearer T1', user: null, note: 'the raw value is looked up' },
      { token: 't1', user: null, note: 'case matters' },
      { token: 'T23', user: '10006', note: 'banned, but logged in' },
    ],
  );
  check(
    'leaves the text alone with the codec plain',
    'saToken: { tokenName: satoken, codec: plain }',
    '{ header: satoken }',
    'satoken',
    [{ token: 'T12', user: '"10001"' }],
  );
  check(
    'tells the users of several login types apart',
    'saToken: { tokenName: satoken, loginTypes: [login, admin] }',
    '{ header: satoken }',
    'satoken',
    [{ token: 'T20', user: 'admin:7' }],
  );
  check(
    'puts a prefix before the keys',
    'saToken: { tokenName: satoken, keyPrefix: "my-app:" }',
    '{ header: satoken }',
    'satoken',
    [{ token: 'T21', user: '10001' }],
  );
  check(
    'strips Bearer for the look-up, and wants it there',
    'saToken: {}',
    '{ header: Authorization, prefix: Bearer }',
    'Authorization',
    [
      { token: 'Bearer T22', user: 'sys_user:1' },
      { token: 'T22', user: null },
    ],
  );

  it('warns of values that it cannot read, once, and names the codec', async () => {
    await withGateway('saToken: { tokenName: satoken }', '{ header: satoken }', async (gateway) => {
      await userOf(gateway, 'satoken', 'T11');
      await userOf(gateway, 'satoken', 'T18');
      const warnings = gateway.events('sa_token_unreadable');
      assert.equal(warnings.length, 1, 'one warning');
      assert.equal(warnings[0]?.['codec'], 'auto');
    });
  });

  it('freezes idle logins by the rule of the Java library, when that is switched on', async () => {
    await redis.command('SET', 'x-token:act:token:A', '1', ...HOUR);
    const resolvers =
      'saToken: { tokenName: x-token, loginTypes: [act], activeTimeout: 60s, dynamicActiveTimeout: true }';
    const cases: readonly (readonly [value: (now: number) => string | null, user: string | null])[] = [
      [() => null, null],
      [(now) => `${now}`, '1'],
      [(now) => `${now - 60_500}`, '1'],
      [(now) => `${now - 62_500}`, null],
      [(now) => `${now},5`, '1'],
      [(now) => `${now - 7_000},5`, null],
      [(now) => `${now},-1`, '1'],
      [(now) => `${now + 600_000}`, '1'],
      [() => 'abc', '1'],
    ];
    for (const [value, user] of cases) {
      const text = value(Date.now());
      await redis.command('DEL', 'x-token:act:last-active:A', 'gateway:token:demo:A');
      if (text !== null) await redis.command('SET', 'x-token:act:last-active:A', text, ...HOUR);
      // What an earlier case left in the gateway's own store would answer first.
      await clearOwnTokens(postgres);
      await withGateway(resolvers, '{ header: x-token }', async (gateway) => {
        assert.equal(await userOf(gateway, 'x-token', 'A'), user, `last active ${text}`);
      });
    }
    await redis.command('DEL', 'x-token:act:last-active:A', 'gateway:token:demo:A');
    await clearOwnTokens(postgres);
    await withGateway('saToken: { tokenName: x-token, loginTypes: [act] }', '{ header: x-token }', async (gateway) => {
      assert.equal(await userOf(gateway, 'x-token', 'A'), '1', 'off: never looked at');
    });
  });

  const jwt = (secret: string) => `jwt: { secret: "${secret}", saToken: { loginType: login } }`;
  check(
    'checks the signed tokens of the mixin and stateless modes',
    jwt('asdasdasifhueuiwyurfewbfjsdafjk'),
    '{ header: satoken }',
    'satoken',
    [
      { token: `${JWT_HEAD}.${JWT_10001}.${JWT_10001_SIGNED}`, user: '10001' },
      {
        token: `${JWT_HEAD}.${JWT_10001}.${JWT_10001_SIGNED.replace('5y79', '5y78')}`,
        user: null,
        note: 'a changed byte',
      },
      { token: `${JWT_HEAD}.${JWT_BIG}`, user: '9007199254740993' },
      { token: `${JWT_HEAD}.${JWT_OLD}`, user: null, note: 'ended in 2020' },
      { token: `${JWT_HEAD}.${JWT_SIMPLE}`, user: null, note: 'simple mode, without its key' },
      { token: `${JWT_HEAD}.${JWT_ADMIN}`, user: null, note: 'another login type' },
      { token: `${JWT_NONE}.${JWT_10001}.`, user: null, note: 'alg none' },
      { token: `${JWT_NONE}.${JWT_10001}.${JWT_10001_SIGNED}`, user: null, note: 'alg none with a signature' },
    ],
  );
  it('takes no token signed with another secret', async () => {
    await clearOwnTokens(postgres);
    await redis.command('FLUSHALL');
    await withGateway(jwt('another secret'), '{ header: satoken }', async (gateway) => {
      assert.equal(await userOf(gateway, 'satoken', `${JWT_HEAD}.${JWT_10001}.${JWT_10001_SIGNED}`), null);
    });
  });
});

async function clearOwnTokens(stores: StoreSetup): Promise<void> {
  assert.ok(stores.postgresUrl, 'there is a database');
  // The first gateway makes the table.
  const ifThere = "IF to_regclass('gateway_token') IS NOT NULL THEN DELETE FROM gateway_token; END IF";
  await runSql(stores.postgresUrl, `DO $$ BEGIN ${ifThere}; END $$`);
}
