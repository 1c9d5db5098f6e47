/** What explain says is what a request then gets: hundreds of random configurations and requests, by a seed; and asking changes nothing. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { ADMIN_TOKENS, AdminClient } from '../support/admin-client.ts';
import { BackendNode, loginSuccess, sendJson, userIdOf } from '../support/backend-node.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import { type Answer, call } from '../support/http-client.ts';
import { Seeded } from '../support/seeded.ts';
import { waitUntil } from '../support/wait-until.ts';

type Json = Record<string, unknown>;

const CASES = 500;
const USERS = ['ann', 'bob', 'cid', 'dan', 'eve', 'fay', 'gus', 'hal'];

interface Case {
  readonly question: Json;
  readonly send: (requestId: string) => Promise<Answer>;
}

describe('explain', () => {
  let stores: StoreSetup;
  let fixture: GatewayFixture;
  let admin: AdminClient;
  const backends = ['b1', 'b2', 'b3', 'b4'].map((id) => new BackendNode(id));
  const nodesOf = (service: string, more: (index: number) => Json = () => ({})) =>
    backends.map((backend, index) => ({ id: `${service}${index + 1}`, baseUrl: backend.baseUrl, ...more(index) }));

  before(async () => {
    for (const backend of backends) {
      // Reached below a route, too.
      backend.handler = (request, response, body) => {
        const isLogin = request.method === 'POST' && request.url === '/r/auth/login';
        sendJson(response, isLogin ? loginSuccess((JSON.parse(body) as { username: string }).username) : {});
      };
      await backend.start();
    }
    stores = await openStores('embedded');
    const service = (id: string, prefix: string, more: string) =>
      `  - { id: ${id}, pathPrefix: ${prefix}, ${more}, nodes: ${JSON.stringify(nodesOf(id))} }`;
    fixture = await startGateway({
      stores,
      nodes: [],
      // What is always watched keeps its state, whatever the cases switch off.
      services: [
        'services:',
        service('u', '/js/a', 'loginPath: /auth/login'),
        service('w', 'null', 'loginPath: /auth/login'),
        service('s', '/s', 'affinity: none'),
        service('watch', '/watch', 'enabled: true'),
        'routes:',
        '  - id: r',
        '    pathPrefix: /r',
        '    versions: [{ version: v1, service: u, weight: 70 }, { version: v2, service: w, weight: 30 }]',
        '    rules: [{ type: header, name: X-Version, value: v2, version: v2 }]',
      ].join('\n'),
      config: 'health: { failures: 1, interval: 50ms, timeout: 1s, suspicion: { flips: 0 } }\nallow: ["127.0.0.1/32"]',
      admin: ADMIN_TOKENS,
    });
    admin = new AdminClient(fixture.adminPort);
  });
  after(async () => {
    await fixture?.stop();
    await stores?.close();
    for (const backend of backends) await backend.stop();
  });

  const explain = async (question: Json): Promise<Json> => {
    const answer = await admin.post('/api/explain', question);
    assert.equal(answer.status, 200, answer.text);
    return answer.json();
  };
  const settled = async (down: number | null) => {
    await waitUntil('health to settle', async () => {
      const { nodes } = (await admin.read('/api/health')) as { nodes: Json[] };
      const watched = nodes.filter((node) => node['serviceId'] === 'watch').map((node) => node['state']);
      return watched.every((state, index) => state === (index === down ? 'DOWN' : 'UP'));
    });
  };

  const isKnown = async (username: unknown) =>
    ((await admin.read(`/api/services/u/bindings?username=${username}`))['bindings'] as Json[]).length > 0;

  /** Turns something about services, nodes or bindings. */
  async function change(random: Seeded): Promise<void> {
    const node = (service: string) => `${service}${1 + random.below(4)}`;
    const user = userIdOf(random.pick(USERS));
    const accept = async (answer: Promise<Answer>, ...statuses: number[]) => {
      const { status, text } = await answer;
      assert.ok(statuses.includes(status), text);
    };
    switch (random.below(7)) {
      case 6:
        return accept(
          admin.put('/api/routes/r', {
            pathPrefix: '/r',
            fallback: random.oneIn(3),
            versions: [
              { version: 'v1', service: 'u', weight: random.below(3), enabled: !random.oneIn(8) },
              { version: 'v2', service: 'w', weight: 1 + random.below(3), enabled: !random.oneIn(8) },
            ],
            rules: [
              { type: 'header', name: 'X-Version', value: 'v2', version: 'v2' },
              ...(random.oneIn(3) ? [{ type: 'weight', value: '30', version: 'v2' }] : []),
            ],
          }),
          200,
        );
      case 0:
        return accept(
          admin.put('/api/services/u', {
            pathPrefix: '/js/a',
            loginPath: '/auth/login',
            enabled: !random.oneIn(12),
            placement: random.pick(['round-robin', 'least-users', 'weighted']),
            defaultNodeId: random.oneIn(2) ? null : node('u'),
          }),
          200,
        );
      case 1:
        return accept(
          admin.put('/api/services/s', {
            pathPrefix: '/s',
            affinity: 'none',
            balance: random.pick(['weighted', 'round-robin', 'random', 'consistent-hash']),
          }),
          200,
        );
      case 2: {
        const service = random.pick(['u', 's', 'w']);
        const switches = {
          enabled: !random.oneIn(4),
          draining: random.oneIn(4),
          weight: random.below(4),
          maxUsers: random.oneIn(3) ? 1 + random.below(4) : null,
        };
        return accept(admin.patch(`/api/services/${service}/nodes/${node(service)}`, switches), 200);
      }
      case 3:
        return accept(admin.put(`/api/services/u/bindings/${user}`, { nodeId: node('u') }), 200, 201);
      case 4:
        return accept(admin.patch(`/api/services/u/bindings/${user}`, { frozen: random.oneIn(2) }), 200, 404);
      default:
        return accept(admin.delete(`/api/services/u/bindings/${user}`), 200, 404);
    }
  }

  function caseOf(random: Seeded, tokens: ReadonlyMap<string, string>, below: ReadonlyMap<string, string>): Case {
    const name = random.pick(USERS);
    const token = tokens.get(name) ?? 'a-token-that-nobody-has';
    const send =
      (path: string, headers: Record<string, string> = {}, method = 'GET', body?: string) =>
      (requestId: string) =>
        call(fixture.port, path, {
          method,
          headers: { ...headers, 'X-Request-Id': requestId },
          ...(body === undefined ? {} : { body }),
        });
    const path = `/js/a/${random.below(9)}?q=1`;
    const version: Record<string, string> = random.oneIn(4) ? { 'X-Version': 'v2' } : {};
    switch (random.below(13)) {
      case 9:
        return { question: { path: '/r/x', headers: version }, send: send('/r/x', version) };
      case 10:
      case 11: {
        const headers = { ...version, 'X-Token': below.get(name) ?? 'a-token-that-nobody-has' };
        return { question: { path: '/r/x', headers }, send: send('/r/x', headers) };
      }
      case 12: {
        const login = '/r/auth/login';
        const headers = { 'Content-Type': 'application/json', ...version };
        const body = JSON.stringify({ username: name });
        return {
          question: { method: 'POST', path: login, username: name, headers: version },
          send: send(login, headers, 'POST', body),
        };
      }
      case 0:
        return { question: { path, userId: userIdOf(name) }, send: send(path, { 'x-token': tokens.get(name) ?? '' }) };
      case 1:
        return { question: { path, headers: { 'X-Token': token } }, send: send(path, { 'x-token': token }) };
      case 2:
        return { question: { path }, send: send(path) };
      case 3:
      case 4: {
        const login = '/js/a/auth/login';
        const headers = { 'Content-Type': 'application/json' };
        const body = JSON.stringify({ username: name });
        return { question: { method: 'POST', path: login, username: name }, send: send(login, headers, 'POST', body) };
      }
      case 5: {
        const headers: Record<string, string> = random.oneIn(2) ? { 'X-Hash-Key': `key-${random.below(20)}` } : {};
        return { question: { path: '/s/x', headers, clientAddress: '127.0.0.1' }, send: send('/s/x', headers) };
      }
      case 6: {
        const odd = random.pick(['/nowhere', '/js/ab', '/js/a/../b', '/js/a/%2e%2e/b', '/js/a/%zz', '/js/a%2fb']);
        return { question: { path: odd }, send: send(odd) };
      }
      case 7:
        return { question: { path, username: name }, send: send(path, { 'x-token': tokens.get(name) ?? '' }) };
      default:
        return {
          question: { method: 'DELETE', path: '/s/x', clientAddress: '127.0.0.1' },
          send: send('/s/x', {}, 'DELETE'),
        };
    }
  }

  it(`agrees with what happens, ${CASES} times`, async (t) => {
    const random = new Seeded(20_261);
    const tokens = new Map<string, string>();
    for (const name of USERS) tokens.set(name, await fixture.tokenOf(name));
    const below = new Map<string, string>();
    const outcomes = new Map<string, number>();
    let down: number | null = null;
    await settled(null);
    for (let index = 0; index < CASES; index += 1) {
      if (index % 50 === 49) {
        if (down !== null) await backends[down]?.start();
        down = random.oneIn(3) ? null : random.below(4);
        if (down !== null) await backends[down]?.stop();
        await settled(down);
      }
      for (let changes = random.below(3); changes > 0; changes -= 1) await change(random);
      const { question, send } = caseOf(random, tokens, below);
      if (
        question['username'] !== undefined &&
        question['method'] === undefined &&
        !(await isKnown(question['username']))
      ) {
        // By the name alone nobody can tell who has no name in the directory.
        question['userId'] = userIdOf(question['username'] as string);
        delete question['username'];
      }
      const said = await explain(question);
      assert.deepEqual(core(await explain(question)), core(said), 'asking twice says the same');
      const requestId = `case-${index}`;
      const answer = await send(requestId);
      const place = `case ${index}: ${JSON.stringify(question)}: ${JSON.stringify(said)}: ${answer.status} ${answer.text}`;
      // Each request draws its version anew, and what comes of it depends on the draw.
      if (said['drawnAtRandom'] === true && said['route'] !== null) continue;
      const error = said['error'] as Json | null;
      const node = said['node'] as Json | null;
      if (error) {
        assert.equal(answer.status, error['code'], place);
        assert.equal(answer.json()['error'], error['error'], place);
        assert.equal(answer.json()['nodeId'], error['nodeId'], place);
        assert.equal(answer.json()['message'], error['message'], place);
      } else if (said['decision'] === 'balanced' && (node?.['health'] as Json | undefined)?.['state'] === 'DOWN') {
        // No node is up, so one is tried all the same; what comes of it only a request can tell.
        assert.equal(answer.status, 503, place);
        assert.equal(answer.json()['error'], 'no_node_available', place);
      } else {
        assert.ok(answer.headers['x-gateway-node'], place);
        if (said['drawnAtRandom'] !== true) assert.equal(answer.headers['x-gateway-node'], node?.['id'], place);
        const line = await waitUntil('the access line', () =>
          fixture.lines.findLast((one) => one.includes(`"${requestId}"`) && one.includes('"event":"request"')),
        );
        const logged = JSON.parse(line) as Json;
        assert.equal(answer.headers['x-gateway-version'] ?? null, said['version'], place);
        assert.equal(logged['decision'], said['decision'], place);
        const binding = said['binding'] as Json | null;
        if (binding) assert.equal(logged['epoch'], binding['epoch'], place);
        const { token } =
          ((answer.status === 200 ? answer.json() : {})['data'] as { token?: string } | undefined) ?? {};
        const logins = String(question['path']).startsWith('/r/') ? below : tokens;
        if (token !== undefined) logins.set(question['username'] as string, token);
      }
      const outcome = error ? (error['error'] as string) : (said['decision'] as string);
      outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1);
    }
    const seen = [...outcomes].map(([name, count]) => `${name} ${count}`).join(', ');
    t.diagnostic(seen);
    for (const expected of [
      'bound',
      'candidate',
      'default',
      'anonymous',
      'balanced',
      'bad_request',
      'no_route',
      'service_disabled',
      'user_frozen',
      'user_not_bound',
      'node_disabled',
      'node_down',
      'no_node_available',
    ])
      assert.ok(outcomes.has(expected), `never seen: ${expected} (${seen})`);
  });

  it('names the stage, and says where an address may not come in', async () => {
    assert.equal((await explain({ path: '/js/a/x', clientAddress: '10.1.2.3' }))['stage'], 'ip-allow');
    assert.equal((await explain({ path: '/nowhere' }))['stage'], 'match');
    assert.equal((await explain({ path: '/js/a/x', userId: 'nobody-at-all' }))['stage'], 'sticky-route');
    const { error } = await explain({ path: '/js/a/x', clientAddress: '10.1.2.3' });
    assert.equal((error as Json)['error'], 'ip_not_allowed');
  });

  it('binds nobody, sends nothing and takes nobody’s turn', async () => {
    for (const backend of backends) await backend.stop().then(() => backend.start());
    await settled(null);
    await admin.put('/api/services/u', {
      pathPrefix: '/js/a',
      loginPath: '/auth/login',
      placement: 'round-robin',
      defaultNodeId: 'u1',
    });
    await admin.put('/api/services/s', { pathPrefix: '/s', affinity: 'none', balance: 'weighted' });
    for (const index of [1, 2, 3, 4]) {
      for (const service of ['u', 's'])
        await admin.patch(`/api/services/${service}/nodes/${service}${index}`, {
          enabled: true,
          draining: false,
          weight: index,
          maxUsers: null,
        });
    }
    const requests = () => backends.reduce((sum, backend) => sum + backend.journal.length, 0);
    const before = requests();
    const turns: unknown[] = [];
    for (let turn = 0; turn < 20; turn += 1) {
      for (let ask = 0; ask < 3; ask += 1) {
        await explain({ path: '/s/x' });
        await explain({ path: '/js/a/x' });
        await explain({ method: 'POST', path: '/js/a/auth/login', username: `never-${ask}` });
        const said = await explain({ path: '/js/a/x', userId: 'stranger' });
        assert.deepEqual([said['decision'], said['wouldBind']], ['default', true]);
      }
      assert.equal(requests() - before, turns.length);
      turns.push((await call(fixture.port, '/s/x')).headers['x-gateway-node']);
    }
    const shares = ['s1', 's2', 's3', 's4'].map((id) => turns.filter((node) => node === id).length);
    assert.deepEqual(shares, [2, 4, 6, 8]);
    assert.deepEqual((await admin.read('/api/services/u/bindings?userId=stranger'))['bindings'], []);
    assert.deepEqual((await admin.read('/api/services/u/bindings?username=never-0'))['bindings'], []);
  });

  it('refuses questions it does not understand, by field', async () => {
    for (const [question, field] of [
      [{}, 'path'],
      [{ path: '/x', userId: 'a', username: 'b' }, 'username'],
      [{ path: '/x', headers: { 'bad name': 'x' } }, 'headers.bad name'],
      [{ path: '/x', headers: { a: 'x\r\ny' } }, 'headers.a'],
      [{ path: '/x', method: 'get' }, 'method'],
      [{ path: '/x', clientAddress: '10.0.0.0/8' }, 'clientAddress'],
      [{ path: '/x', user: 'a' }, 'user'],
    ] as const) {
      const answer = await admin.post('/api/explain', question);
      assert.equal(answer.status, 400, answer.text);
      assert.equal((answer.json()['fields'] as { field: string }[])[0]?.field, field);
    }
  });
});

/** What two looks must agree in: not the draw, nor who answered, as the first look may have filled a cache. */
function core({
  outcome,
  stage,
  version,
  route,
  decision,
  binding,
  wouldBind,
  drawnAtRandom,
  node,
  error,
}: Json): Json {
  if (drawnAtRandom === true && route !== null) return { route };
  const { requestId: _requestId, ...failure } = (error ?? {}) as Json;
  return {
    outcome,
    stage,
    version,
    decision,
    binding,
    wouldBind,
    node: drawnAtRandom ? null : (node as Json | null)?.['id'],
    failure,
  };
}
