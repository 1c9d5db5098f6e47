/** Routes with versions, through a real gateway: who gets which version, who keeps it, and when there is none. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import { WebSocket, WebSocketServer } from 'ws';
import { loadConfig } from '../../lib/config/load.ts';
import { BackendNode, loginSuccess, newToken, sendJson, userIdOf } from '../support/backend-node.ts';
import { counterOf } from '../support/counter-of.ts';
import {
  configText,
  type GatewayFixture,
  type GatewaySetup,
  openStores,
  STORE_KINDS,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';
import { type Answer, call, postJson } from '../support/http-client.ts';
import { createDatabase, type PostgresServer, runSql, startPostgres } from '../support/postgres-server.ts';
import { connectRaw, fieldOf } from '../support/raw-http.ts';
import { waitUntil } from '../support/wait-until.ts';

const RULES = [
  '{ type: header, name: X-Version, value: v2, version: v2 }',
  '{ type: cookie, name: version, value: beta, version: v2 }',
  '{ type: query, name: preview, value: "true", version: v2 }',
];

interface Shape {
  /** YAML lists of the route. */
  readonly versions?: string;
  readonly rules?: readonly string[];
  readonly route?: string;
  /** YAML of both services. */
  readonly service?: string;
  readonly v2Service?: string;
}

/** The services of two versions, with two nodes and one, behind one route. */
class Versions {
  readonly a = new BackendNode('v1-a');
  readonly b = new BackendNode('v1-b');
  readonly c = new BackendNode('v2-c');

  get nodes(): BackendNode[] {
    return [this.a, this.b, this.c];
  }

  async start(): Promise<void> {
    for (const node of this.nodes) await node.start();
  }

  async stop(): Promise<void> {
    for (const node of this.nodes) await node.stop();
  }

  setup(stores: StoreSetup, shape: Shape = {}, config = ''): GatewaySetup {
    const versions =
      shape.versions ?? '[{ version: v1, service: app-v1, weight: 50 }, { version: v2, service: app-v2, weight: 50 }]';
    const service = shape.service ?? 'loginPath: /auth/login, healthPath: /health';
    return {
      stores,
      nodes: [],
      config: `health: { interval: 1h, failures: 1, onDemand: 10ms }\n${config}`,
      services: [
        'services:',
        `  - { id: app-v1, ${service}, nodes: [{ id: v1-a, baseUrl: "${this.a.baseUrl}" }, { id: v1-b, baseUrl: "${this.b.baseUrl}" }] }`,
        `  - { id: app-v2, ${shape.v2Service ?? service}, nodes: [{ id: v2-c, baseUrl: "${this.c.baseUrl}" }] }`,
        'routes:',
        `  - { id: app, pathPrefix: /js/a, ${shape.route ?? ''} versions: ${versions}, rules: [${(shape.rules ?? RULES).join(', ')}] }`,
      ].join('\n'),
    };
  }
}

function weights(v1: number, v2: number): string {
  return `[{ version: v1, service: app-v1, weight: ${v1} }, { version: v2, service: app-v2, weight: ${v2} }]`;
}

function versionOf(answer: Answer): string {
  assert.equal(answer.status, 200, answer.text);
  const version = String(answer.headers['x-gateway-version']);
  assert.ok(String(answer.headers['x-gateway-node']).startsWith(version), 'the node is of the version');
  return version;
}

function assertRefused(answer: Answer, error: string): void {
  assert.equal(`${answer.status} ${answer.json()['error']}`, `503 ${error}`);
}

function tokenIn(answer: Answer): string {
  return String((answer.json()['data'] as { token: unknown }).token);
}

const V2 = { 'X-Version': 'v2' };

for (const kind of STORE_KINDS) {
  describe(`a route with two versions that bind users, on the ${kind} store`, () => {
    const versions = new Versions();
    let stores: StoreSetup;
    let gateway: GatewayFixture;

    before(() => versions.start());
    after(() => versions.stop());
    beforeEach(async () => {
      for (const node of versions.nodes) {
        node.journal.length = 0;
        node.loginAnswer = undefined;
      }
      stores = await openStores(kind);
      gateway = await startGateway(versions.setup(stores));
    });
    afterEach(async () => {
      await gateway.stop();
      await stores.close();
    });

    /** As an operator would: the file and SIGHUP, or the row of the database. */
    async function change(shape: Shape): Promise<void> {
      const loaded = loadConfig(configText(versions.setup(stores, shape)), 'test.yaml', {});
      assert.ok('options' in loaded, JSON.stringify(loaded));
      const before = gateway.gateway.registry.snapshot?.version;
      if (stores.postgresUrl === null) await gateway.gateway.reload(loaded.options);
      else {
        const [route] = loaded.options.registryDefinition.routes;
        const { versions: list, rules, fallback, enabled } = route!;
        await runSql(
          stores.postgresUrl,
          `UPDATE gateway_route SET enabled = ${enabled ? 1 : 0}, config = '${JSON.stringify({ versions: list, rules, fallback })}'`,
        );
      }
      await waitUntil('the change to be in force', () => gateway.gateway.registry.snapshot?.version !== before);
    }

    async function newUser(name: string, headers = {}): Promise<{ token: string; version: string; node: string }> {
      const answer = await gateway.login(name, {}, headers);
      const version = versionOf(answer);
      return { token: tokenIn(answer), version, node: String(answer.headers['x-gateway-node']) };
    }

    it('divides new users up at their login, and they keep version and node', async () => {
      const users = [];
      for (let index = 0; index < 24; index += 1) users.push(await newUser(`user-${index}`));
      assert.equal(new Set(users.map(({ version }) => version)).size, 2);
      for (const { token, version, node } of users) {
        const answer = await gateway.get('/js/a/notes', token);
        assert.equal(versionOf(answer), version);
        assert.equal(answer.headers['x-gateway-node'], node);
      }
      const again = await gateway.login('USER-3');
      assert.equal(again.headers['x-gateway-node'], users[3]?.node, 'a name is one name in any case');
    });

    it('gives a new user the same version on another gateway that shares nothing with this one', async () => {
      const otherStores = await openStores('embedded');
      const other = await startGateway(versions.setup(otherStores));
      try {
        for (let index = 0; index < 16; index += 1) {
          const here = versionOf(await gateway.login(`agreed-${index}`));
          assert.equal(versionOf(await other.login(`Agreed-${index}`)), here);
        }
      } finally {
        await other.stop();
        await otherStores.close();
      }
    });

    it('never moves bound users when weights change, be it to 100 or to 0', async () => {
      const users = [];
      for (let index = 0; index < 8; index += 1) users.push(await newUser(`keeper-${index}`));
      for (const versionsNow of [weights(0, 100), weights(100, 0), weights(1, 99)]) {
        await change({ versions: versionsNow, rules: ['{ type: weight, value: 100, version: v2 }'] });
        for (const [index, { token, node }] of users.entries()) {
          assert.equal((await gateway.get('/js/a/notes', token)).headers['x-gateway-node'], node);
          const login = await gateway.login(`keeper-${index}`);
          assert.equal(login.headers['x-gateway-node'], node);
        }
        assert.equal(versionOf(await gateway.login(`late-${versionsNow}`)), 'v2');
      }
    });

    it('asks rules of every kind first, in their order, and then where the user is bound', async () => {
      await change({
        versions: weights(100, 0),
        rules: ['{ type: header, name: X-Version, value: v1, version: v1 }', ...RULES],
      });
      const { token, node } = await newUser('alice');
      assert.ok(node.startsWith('v1'));
      for (const headers of [V2, { Cookie: 'a=b; version=beta' }] as Record<string, string>[]) {
        const refused = await gateway.get('/js/a/notes', token, headers);
        assertRefused(refused, 'user_not_bound');
        assert.equal(refused.headers['x-gateway-version'], 'v2');
      }
      assertRefused(await gateway.get('/js/a/notes?a=1&pre%76iew=tr%75e', token), 'user_not_bound');
      assert.equal(versionOf(await gateway.get('/js/a/notes?preview=true', token, { 'X-Version': 'v1' })), 'v1');
      assert.equal(versionOf(await gateway.get('/js/a/notes?preview=maybe', token, { 'X-Version': 'v3' })), 'v1');
      assert.equal(versions.c.journal.length, 0, 'the other version saw nothing of it');
    });

    it('gives whoever a rule sent to another version a home there, and the old one stays theirs', async () => {
      await change({ versions: weights(100, 0) });
      const first = await newUser('tester');
      const second = await newUser('tester', V2);
      assert.equal(second.node, 'v2-c');
      for (let turn = 0; turn < 3; turn += 1) {
        assert.equal((await gateway.get('/js/a/x', first.token)).headers['x-gateway-node'], first.node);
        assert.equal((await gateway.get('/js/a/x', second.token, V2)).headers['x-gateway-node'], 'v2-c');
        assert.equal((await gateway.get('/js/a/x', second.token)).headers['x-gateway-node'], first.node);
      }
      assert.equal((await gateway.login('tester')).headers['x-gateway-node'], first.node);
    });

    it('starts no second home for a user who logs in by another name', async () => {
      await change({ versions: weights(0, 100) });
      const { token } = await newUser('alice');
      await change({ versions: weights(100, 0) });
      for (const node of versions.nodes)
        node.loginAnswer = (_name, response) => sendJson(response, loginSuccess('alice', userIdOf('alice')));
      const answer = await gateway.login('alice@example.org');
      assert.equal(versionOf(answer), 'v1', 'nobody knows that name');
      for (const one of [token, tokenIn(answer)]) {
        assert.equal((await gateway.get('/js/a/notes', one)).headers['x-gateway-node'], 'v2-c');
      }
      assert.equal((await gateway.gateway.parts.bindings.findByUserId('app-v1', 'u-alice')).binding, undefined);
      assert.equal(gateway.events('login_bound_in_other_version').length, 1);
      assert.equal(counterOf(gateway, 'gateway_logins_total{result="bound_in_other_version"}'), 1);
    });

    it('follows the token of a login that names nobody, as a refresh does', async () => {
      const { token, version } = await newUser('alice');
      for (let turn = 0; turn < 4; turn += 1) {
        const answer = await postJson(gateway.port, '/js/a/auth/login', {}, { 'x-token': token });
        assert.equal(versionOf(answer), version);
      }
    });

    it('binds a login whose body is too large to be read for a name, but never a second time elsewhere', async () => {
      const { node } = await newUser('alice');
      for (const one of versions.nodes)
        one.loginAnswer = (_name, response) => sendJson(response, loginSuccess('alice', userIdOf('alice')));
      const nodes = new Set<string>();
      for (let turn = 0; turn < 4; turn += 1) {
        const answer = await gateway.login('alice', { padding: 'x'.repeat(70_000) });
        versionOf(answer);
        nodes.add(String((await gateway.get('/js/a/notes', tokenIn(answer))).headers['x-gateway-node']));
      }
      assert.deepEqual([...nodes], [node]);
    });

    it('leaves a version that is switched off to nobody: not to rules, and not to its users', async () => {
      const { token } = await newUser('tester', V2);
      await change({
        versions:
          '[{ version: v1, service: app-v1, weight: 1 }, { version: v2, service: app-v2, weight: 9, enabled: false }]',
      });
      assertRefused(await gateway.get('/js/a/notes', token), 'user_not_bound');
      assert.equal(versionOf(await gateway.get('/js/a/open', undefined, V2)), 'v1');
      await change({});
      assert.equal(versionOf(await gateway.get('/js/a/notes', token)), 'v2', 'and they have it again');
    });

    it('answers 503 when the route or all its versions are switched off', async () => {
      await change({ route: 'enabled: false,' });
      assertRefused(await gateway.get('/js/a/open'), 'service_disabled');
      const off = (version: string) => `{ version: ${version}, service: app-${version}, weight: 1, enabled: false }`;
      await change({ versions: `[${off('v1')}, ${off('v2')}]` });
      assertRefused(await gateway.get('/js/a/open'), 'service_disabled');
    });

    it('lets requests of nobody take turns by weight', async () => {
      await change({ versions: weights(3, 1) });
      const seen = [];
      for (let turn = 0; turn < 8; turn += 1) seen.push(versionOf(await gateway.get('/js/a/open')));
      assert.deepEqual(seen, ['v1', 'v1', 'v2', 'v1', 'v1', 'v1', 'v2', 'v1']);
      assert.equal((await gateway.get('/js/a/open', 'a-token-of-nobody')).status, 200);
    });

    it('says in the access line and in the metrics which version was chosen, and why', async () => {
      const { token } = await newUser('alice', V2);
      await gateway.get('/js/a/notes', token);
      await gateway.get('/js/a/open', undefined, { 'X-Gateway-Version': 'v9' });
      await waitUntil('three lines', () => gateway.events('request').length === 3);
      const lines = gateway.events('request').map((line) => [line['version'], line['versionReason'], line['user']]);
      assert.deepEqual(lines[0], ['v2', 'rule', 'u-alice']);
      assert.deepEqual(lines[1], ['v2', 'bound', 'u-alice']);
      assert.deepEqual(lines[2]?.slice(1), ['weight', undefined]);
      const bound = 'gateway_version_decisions_total{route="app",version="v2",reason="bound"}';
      assert.equal(counterOf(gateway, bound), 1);
      assert.ok(versions.nodes.every(({ journal }) => journal.every(({ headers }) => !headers['x-gateway-version'])));
    });

    it('carries tunnels to the version of their user, and closes them when the user moves', async () => {
      await change({ versions: weights(100, 0) });
      const { token, node } = await newUser('alice');
      const servers = versions.nodes.map((one) => {
        const server = new WebSocketServer({ server: one.server, path: '/js/a/socket' });
        server.on('connection', (socket) => socket.send(one.id));
        return server;
      });
      try {
        await change({ versions: weights(0, 100) });
        const socket = new WebSocket(`ws://127.0.0.1:${gateway.port}/js/a/socket`, { headers: { 'x-token': token } });
        const greeting = await new Promise((resolve, reject) => {
          socket.on('message', (data) => resolve(String(data)));
          socket.on('error', reject);
        });
        assert.equal(greeting, node);
        const closed = new Promise((resolve) => socket.on('close', resolve));
        await gateway.gateway.parts.bindings.move('app-v1', 'u-alice', node === 'v1-a' ? 'v1-b' : 'v1-a');
        assert.equal(await closed, 1012);
      } finally {
        for (const server of servers) server.close();
      }
    });

    it('reads repeated header lines, cookie lines and parameters as documented, from raw bytes', async () => {
      await change({ versions: weights(1, 0) });
      const ask = async (target: string, fields: string): Promise<string> => {
        const client = await connectRaw(gateway.port);
        client.write(`GET ${target} HTTP/1.1\r\nHost: h\r\n${fields}\r\n`);
        const answer = await client.readAnswer();
        client.socket.destroy();
        return `${answer.status} ${fieldOf(answer.fields, 'x-gateway-version')}`;
      };
      for (const [target, fields, expected] of [
        ['/js/a/x', 'X-Version: v2\r\nx-version: v1\r\n', '200 v2'],
        ['/js/a/x', 'X-Version: v1\r\nX-Version: v2\r\n', '200 v1'],
        ['/js/a/x', 'X-Version:   v2  \r\n', '200 v2'],
        ['/js/a/x', 'Cookie: a=b\r\nCookie: version=beta\r\n', '200 v2'],
        ['/js/a/x', 'Cookie: version=stable; version=beta\r\n', '200 v1'],
        ['/js/a/x?preview=true', '', '200 v2'],
        ['/js/a/x?preview=false&preview=true', '', '200 v1'],
        ['http://other/js/a/x?preview=true', '', '200 v2'],
        ['/js/a/x%3Fpreview=true', '', '200 v1'],
        ['/js/ab?preview=true', '', '404 undefined'],
        ['/js/a/../a/x?preview=true', '', '400 undefined'],
      ] as const)
        assert.equal(await ask(target, fields), expected, `${target} ${fields}`);
    });
  });
}

describe('a version without a usable node', () => {
  const versions = new Versions();
  let stores: StoreSetup;
  let gateway: GatewayFixture;

  before(() => versions.start());
  after(() => versions.stop());
  afterEach(async () => {
    await gateway.stop();
    await stores.close();
    await versions.c.start();
  });

  /** With v2's only node down, and a user who was bound to it before. */
  async function start(shape: Shape): Promise<string> {
    stores = await openStores('embedded');
    gateway = await startGateway(versions.setup(stores, shape));
    const token = tokenIn(await gateway.login('early', {}, V2));
    await versions.c.stop();
    await waitUntil('the node to count as down', async () => {
      const answer = await gateway.get('/js/a/open', undefined, V2);
      return answer.status === 503;
    });
    return token;
  }

  it('is not silently replaced by the other one', async () => {
    const token = await start({ versions: weights(0, 1) });
    assertRefused(await gateway.login('newcomer'), 'no_node_available');
    assertRefused(await gateway.get('/js/a/open'), 'no_node_available');
    assertRefused(await gateway.get('/js/a/notes', token), 'node_down');
  });

  it('is stood in for with fallback, but neither for its users nor for those whom a rule sends to it', async () => {
    const token = await start({ versions: weights(1, 1000), route: 'fallback: true,' });
    for (const name of ['one', 'two', 'three']) assert.equal(versionOf(await gateway.login(name)), 'v1');
    assert.equal(versionOf(await gateway.get('/js/a/open')), 'v1');
    const refused = await gateway.get('/js/a/notes', token);
    assertRefused(refused, 'node_down');
    assert.equal(refused.headers['x-gateway-version'], 'v2');
    assertRefused(await gateway.login('early'), 'node_down');
    assertRefused(await gateway.get('/js/a/open', undefined, V2), 'no_node_available');
    assertRefused(await gateway.login('late', {}, V2), 'no_node_available');
  });
});

describe('versions whose services differ', () => {
  const versions = new Versions();
  let stores: StoreSetup;
  let gateway: GatewayFixture;

  before(() => versions.start());
  after(() => versions.stop());
  beforeEach(() => {
    for (const node of versions.nodes) node.journal.length = 0;
  });
  afterEach(async () => {
    await gateway.stop();
    await stores.close();
  });
  async function start(shape: Shape, config = ''): Promise<void> {
    stores = await openStores('embedded');
    gateway = await startGateway(versions.setup(stores, shape, config));
  }

  it('have the login that is theirs, and pass on the bytes of one that is not', async () => {
    await start({ versions: weights(0, 1), v2Service: 'loginPath: /sign-in, healthPath: /health' });
    const body = '{"username":"alice","more":"bytes"}';
    const answer = await call(gateway.port, '/js/a/auth/login', { method: 'POST', body });
    assert.equal(versionOf(answer), 'v2');
    assert.equal(versions.c.journal[0]?.body, body);
    assert.equal((await gateway.gateway.parts.bindings.findByUserId('app-v2', 'u-alice')).binding, undefined);
    const token = tokenIn(await gateway.login('bob', {}, { Cookie: 'x=1' }));
    // Nobody knows this token: the login was none, so it was not kept.
    assert.equal((await gateway.get('/js/a/notes', token)).status, 200);
    assert.equal(gateway.events('login_bound').length, 0);
  });

  it('treat what is a login elsewhere as a request of its user', async () => {
    await start({ versions: weights(0, 1), v2Service: 'loginPath: /sign-in, healthPath: /health' });
    const token = newToken();
    await gateway.gateway.parts.tokens.remember('app', token, 'u-alice');
    const post = () => gateway.login('somebody', {}, { 'x-token': token });
    assertRefused(await post(), 'user_not_bound');
    await gateway.gateway.parts.bindings.bind('app-v2', 'u-alice', null, 'v2-c');
    assert.equal(versionOf(await post()), 'v2');
    assert.equal(versions.c.journal.at(-1)?.headers['x-gateway-epoch'], '1');
  });

  it('read the name each by its own mapping', async () => {
    const mapped = 'loginPath: /auth/login, healthPath: /health, login: { request: { username: user.mail } }';
    await start({ versions: weights(1, 0), v2Service: mapped });
    await gateway.gateway.parts.bindings.bind('app-v2', 'u-alice', 'alice@b.c', 'v2-c');
    const both = { username: 'alice', user: { mail: 'alice@b.c' } };
    assert.equal(versionOf(await postJson(gateway.port, '/js/a/auth/login', both)), 'v2');
    assert.equal(versionOf(await gateway.login('carol')), 'v1');
  });

  it('may have prefixes of their own as well, with tokens of their own', async () => {
    await start({ versions: weights(1, 0), service: 'loginPath: /auth/login, healthPath: /health' });
    await gateway.stop();
    const setup = versions.setup(stores, { versions: weights(1, 0) });
    const services = setup.services?.replace('{ id: app-v1,', '{ id: app-v1, pathPrefix: /own,') ?? '';
    gateway = await startGateway({ ...setup, services });
    const token = tokenIn(await gateway.login('alice'));
    assert.equal(versionOf(await gateway.get('/js/a/notes', token)), 'v1');
    const own = await gateway.get('/own/notes', token);
    assert.equal(own.headers['x-gateway-version'], undefined);
    assert.equal(gateway.events('request').at(-1)?.['user'], undefined, 'the token is of the route');
  });

  it('are refused with a switched-off service, by rule and by weight', async () => {
    const off = 'enabled: false, loginPath: /auth/login, healthPath: /health';
    await start({ versions: weights(0, 1), v2Service: off });
    assertRefused(await gateway.get('/js/a/open'), 'service_disabled');
    assertRefused(await gateway.get('/js/a/open', undefined, V2), 'service_disabled');
    assertRefused(await gateway.login('alice'), 'service_disabled');
  });

  it('refuse a token of nobody where that is configured', async () => {
    await start({}, 'identity: { unknownToken: reject }');
    assert.equal((await gateway.get('/js/a/open', 'nobodys')).status, 401);
    assert.equal((await gateway.get('/js/a/open')).status, 200);
  });
});

describe('versions that bind nobody', () => {
  const versions = new Versions();
  const STATELESS: Shape = { service: 'affinity: none, healthPath: /health', versions: weights(50, 50) };
  let stores: StoreSetup;
  let gateway: GatewayFixture;

  before(async () => {
    await versions.start();
    stores = await openStores('embedded');
    gateway = await startGateway(versions.setup(stores, STATELESS));
  });
  after(async () => {
    await gateway.stop();
    await stores.close();
    await versions.stop();
  });

  it('keep each user with one version, whatever token and node', async () => {
    const seen = new Set<string>();
    for (let index = 0; index < 16; index += 1) {
      const userId = `user-${index}`;
      const answers = new Set<string>();
      for (let turn = 0; turn < 3; turn += 1) {
        const token = newToken();
        await gateway.gateway.parts.tokens.remember('app', token, userId);
        answers.add(versionOf(await gateway.get('/js/a/x', token)));
      }
      assert.equal(answers.size, 1, userId);
      for (const answer of answers) seen.add(answer);
    }
    assert.equal(seen.size, 2);
  });

  it('have no login, and pass one on', async () => {
    const answer = await gateway.login('alice', {}, V2);
    assert.equal(versionOf(answer), 'v2');
    assert.equal(gateway.events('login_bound').length, 0);
  });
});

describe('while PostgreSQL is away', () => {
  const versions = new Versions();
  let postgres: PostgresServer;
  let dataDir: string;
  let stores: StoreSetup;
  const started: GatewayFixture[] = [];

  before(async () => {
    await versions.start();
    postgres = await startPostgres();
    dataDir = await mkdtemp(join(tmpdir(), 'sticky-gateway-'));
    const { url } = await createDatabase(postgres.url);
    stores = { kind: 'postgres', dataDir, postgresUrl: url, redisUrl: null, close: async () => undefined };
  });
  after(async () => {
    for (const gateway of started) await gateway.stop();
    await postgres.dispose();
    await rm(dataDir, { recursive: true, force: true });
    await versions.stop();
  });

  it('news of another version count at once, and so does a time without news', async () => {
    const { url } = await createDatabase(postgres.url);
    const own = { ...stores, postgresUrl: url };
    const gateway = await startGateway(versions.setup(own, { versions: weights(0, 1) }, 'cache: { ttl: 1h }'));
    started.push(gateway);
    const alice = tokenIn(await gateway.login('alice'));
    const bob = tokenIn(await gateway.login('bob'));
    for (const token of [alice, bob]) assert.equal(versionOf(await gateway.get('/js/a/notes', token)), 'v2');
    const insert = (column: string, value: string) =>
      `INSERT INTO gateway_user_route (service_id, ${column}, node_id) VALUES ('app-v1', '${value}', 'v1-a')`;
    await runSql(url, insert('username', 'imported'));
    await runSql(url, "UPDATE gateway_user_route SET user_id = 'u-alice' WHERE username = 'imported'");
    await waitUntil('the news of alice', async () => versionOf(await gateway.get('/js/a/notes', alice)) === 'v1');
    // Of a new row nobody hears.
    await runSql(url, insert('user_id', 'u-bob'));
    assert.equal(versionOf(await gateway.get('/js/a/notes', bob)), 'v2');
    const listening = () => gateway.events('postgres_listening').length;
    const before = listening();
    await runSql(
      url,
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ILIKE 'LISTEN%' AND datname = current_database()",
    );
    await waitUntil('the listener to be back', () => listening() > before);
    // A rule fills the cache of the later version again.
    assert.equal(versionOf(await gateway.get('/js/a/notes', bob, V2)), 'v2');
    assert.equal(versionOf(await gateway.get('/js/a/notes', bob)), 'v1');
  });

  it('no version is guessed for a user, but cached ones, rules and nobody are served', async () => {
    const gateway = await startGateway(versions.setup(stores, { versions: weights(0, 1) }));
    started.push(gateway);
    const alice = tokenIn(await gateway.login('alice'));
    const bob = tokenIn(await gateway.login('bob', {}, V2));
    assert.equal(versionOf(await gateway.get('/js/a/notes', alice)), 'v2');
    // Bob's token is known here, but in which version he is bound was never asked: a rule had sent him.
    await postgres.stop();
    const seen = () => versions.nodes.reduce((sum, { journal }) => sum + journal.length, 0);
    const before = seen();
    assertRefused(await gateway.get('/js/a/notes', bob), 'directory_unavailable');
    assertRefused(await gateway.login('carol'), 'directory_unavailable');
    assertRefused(await gateway.login('alice@example.org'), 'directory_unavailable');
    assertRefused(await gateway.get('/js/a/notes', 'some-other-token'), 'identity_unavailable');
    assert.equal(seen(), before, 'nothing of it reached a node');
    assert.equal(versionOf(await gateway.get('/js/a/notes', alice)), 'v2', 'known');
    assert.equal(versionOf(await gateway.get('/js/a/notes', bob, V2)), 'v2', 'a rule decides');
    assert.equal(versionOf(await gateway.get('/js/a/open')), 'v2', 'nobody has no data');
    await postgres.start();
    await waitUntil('the directory to be back', async () => (await gateway.get('/js/a/notes', bob)).status === 200);
  });

  it('users of versions that bind nobody are served: a token that cannot be looked up stays with one version', async () => {
    const { url } = await createDatabase(postgres.url);
    const own = { ...stores, postgresUrl: url };
    const shape = { service: 'affinity: none, healthPath: /health', versions: weights(50, 50) };
    const gateway = await startGateway(versions.setup(own, shape));
    started.push(gateway);
    await postgres.stop();
    const all = new Set<string>();
    for (let index = 0; index < 12; index += 1) {
      const token = createHash('md5').update(String(index)).digest('hex');
      const seen = new Set<string>();
      for (let turn = 0; turn < 3; turn += 1) seen.add(versionOf(await gateway.get('/js/a/x', token)));
      assert.equal(seen.size, 1);
      for (const version of seen) all.add(version);
    }
    assert.equal(all.size, 2);
    await postgres.start();
  });
});
