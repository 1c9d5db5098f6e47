/** Several worker processes as an operator meets them: one gateway, whatever happens to one of them. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import * as fs from 'node:fs/promises';
import * as http from 'node:http';
import * as net from 'node:net';
import * as os from 'node:os';
import * as path from 'node:path';
import { after, afterEach, before, describe, it } from 'node:test';
import * as tls from 'node:tls';
import { ADMIN_TOKENS, AdminClient } from '../support/admin-client.ts';
import { BackendNode } from '../support/backend-node.ts';
import { FIRST, SECOND } from '../support/certificates.ts';
import { childrenOf, type Ended, GatewayProcess, runGateway } from '../support/gateway-process.ts';
import { type Answer, call, postJson } from '../support/http-client.ts';
import { createDatabase, type TestDatabase } from '../support/postgres-server.ts';
import { waitUntil } from '../support/wait-until.ts';

interface ConfigText {
  readonly workers?: number | 'auto';
  readonly listen?: string;
  readonly more?: string;
  readonly admin?: string;
  readonly nodes?: readonly BackendNode[];
}

describe('several workers', () => {
  let folder: string;
  let database: TestDatabase;
  const running: GatewayProcess[] = [];
  const nodes: BackendNode[] = [];
  let files = 0;

  before(async () => {
    folder = await fs.mkdtemp(path.join(os.tmpdir(), 'sticky-workers-'));
    database = await createDatabase();
  });
  afterEach(async () => {
    for (const gateway of running.splice(0)) await gateway.kill();
    for (const node of nodes.splice(0)) await node.stop();
    await database.drop();
    database = await createDatabase();
  });
  after(async () => {
    await database?.drop();
    await fs.rm(folder, { recursive: true, force: true });
  });

  async function startNodes(...ids: string[]): Promise<BackendNode[]> {
    const started = await Promise.all(ids.map((id) => new BackendNode(id).start()));
    nodes.push(...started);
    return started;
  }

  function configText(text: ConfigText): string {
    return [
      `listen: ${text.listen ?? '127.0.0.1:0'}`,
      `workers: ${text.workers ?? 2}`,
      `admin: { listen: "127.0.0.1:0"${text.admin === undefined ? '' : `, ${text.admin}`} }`,
      `store: { dataDir: ${JSON.stringify(path.join(folder, 'data'))}, postgres: { url: "${database.url}", poolSize: 2 } }`,
      text.more ?? '',
      'services:',
      '  - id: demo',
      '    pathPrefix: /js/a',
      '    loginPath: /auth/login',
      '    nodes:',
      ...(text.nodes ?? nodes).map((node) => `      - { id: ${node.id}, baseUrl: "${node.baseUrl}" }`),
      '',
    ].join('\n');
  }

  async function writeConfig(text: string): Promise<string> {
    files += 1;
    const file = path.join(folder, `gateway-${files}.yaml`);
    await fs.writeFile(file, text);
    return file;
  }

  async function serve(text: ConfigText = {}): Promise<GatewayProcess> {
    const gateway = await GatewayProcess.serve(await writeConfig(configText(text)));
    running.push(gateway);
    return gateway;
  }

  /** Which worker answered each request so far. */
  const workersThatAnswered = (gateway: GatewayProcess) =>
    new Set(gateway.events('request').map((line) => line['worker']));

  const sumOf = async (gateway: GatewayProcess, name: string): Promise<number> => {
    const { text } = await call(gateway.adminPort, '/metrics');
    let sum = 0;
    for (const [, value] of text.matchAll(new RegExp(`^${name}(?:\\{.*\\})? (\\S+)$`, 'gm'))) sum += Number(value);
    return sum;
  };

  it('share the port, speak with one voice, and serve one user on one node', async () => {
    await startNodes('n1', 'n2');
    const gateway = await serve();
    const [line, ...more] = gateway.events('listening');
    assert.equal(more.length, 0);
    assert.deepEqual([line?.['workers'], line?.['stores'], line?.['services']], [2, 'PostgreSQL', 1]);
    assert.equal(gateway.workers.length, 2);
    assert.equal(gateway.events('registry_seeded').length, 1, 'seeded once');

    const users = ['ann', 'bob', 'cid', 'dan', 'eve', 'fay'];
    // Each logs in twice at once, so that two workers see a new user at the same time.
    const logins = await Promise.all(
      users.flatMap((username) =>
        [1, 2].map(async () => ({
          username,
          answer: await postJson(gateway.port, '/js/a/auth/login', { username }),
        })),
      ),
    );
    const homes = new Map<string, Set<unknown>>(users.map((username) => [username, new Set()]));
    for (const { username, answer } of logins) {
      assert.equal(answer.status, 200);
      const { token } = answer.json()['data'] as { token: string };
      for (let count = 0; count < 4; count += 1) {
        const { status, headers } = await call(gateway.port, '/js/a/x', { headers: { 'x-token': token } });
        assert.equal(status, 200);
        homes.get(username)?.add(headers['x-gateway-node']);
      }
    }
    for (const [username, seen] of homes) assert.equal(seen.size, 1, `${username} on ${[...seen]}`);
    await waitUntil('all access lines', () => gateway.events('request').length === 12 + 48);
    assert.deepEqual([...workersThatAnswered(gateway)].sort(), [1, 2]);
    assert.equal(await sumOf(gateway, 'gateway_requests_total'), 60);
    assert.equal(await sumOf(gateway, 'gateway_request_seconds_count'), 60);
    assert.equal(await sumOf(gateway, 'gateway_requests_in_flight'), 0);
    assert.equal(await sumOf(gateway, 'gateway_workers'), 2);
    const { text } = await call(gateway.adminPort, '/metrics');
    assert.match(text, /^gateway_snapshot_age_seconds \d/m);
    assert.equal(text.match(/^# TYPE gateway_requests_total /gm)?.length, 1);
    assert.doesNotMatch(text, /worker="/);
  });

  it('go on when one is killed under load: it is replaced and counted, and no total goes back', async () => {
    await startNodes('n1');
    const gateway = await serve();
    const before = gateway.workers;
    let stop = false;
    const outcomes = { ok: 0, broken: 0 };
    const load = Array.from({ length: 8 }, async () => {
      const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
      for (let count = 0; !stop; count += 1) {
        // Some on a connection that stays, some on new ones.
        const options = count % 3 === 0 ? {} : { agent };
        await call(gateway.port, '/js/a/x', { ...options, signal: AbortSignal.timeout(15_000) }).then(
          (answer) => {
            assert.equal(answer.status, 200);
            outcomes.ok += 1;
          },
          (error: NodeJS.ErrnoException) => {
            assert.match(`${error.code} ${error.message}`, /ECONNRESET|EPIPE|hang up/);
            outcomes.broken += 1;
          },
        );
      }
      agent.destroy();
    });
    const totals: number[] = [];
    const look = async () => {
      totals.push(await sumOf(gateway, 'gateway_requests_total'));
    };
    await waitUntil('some traffic', () => outcomes.ok > 100);
    await look();
    process.kill(before[0] ?? 0, 'SIGKILL');
    const okAtKill = outcomes.ok;
    await waitUntil('the end to be noticed', async () => {
      await look();
      return gateway.events('worker_ended').length > 0;
    });
    await waitUntil('the replacement', async () => {
      await look();
      return gateway.events('worker_restarted').length > 0;
    });
    await waitUntil('more traffic', () => outcomes.ok > okAtKill + 200);
    await look();
    stop = true;
    await Promise.all(load);
    // One each under way, and one each on a connection that it had kept.
    assert.ok(outcomes.broken <= 16, `only what it had broke: ${outcomes.broken}`);
    totals.reduce((previous, total) => {
      assert.ok(total >= previous, `${totals}`);
      return total;
    });
    const after = gateway.workers;
    assert.equal(after.length, 2);
    assert.ok(after.includes(before[1] ?? 0) && !after.includes(before[0] ?? 0));
    assert.equal(await sumOf(gateway, 'gateway_worker_restarts_total'), 1);
    assert.match(String(gateway.events('worker_ended')[0]?.['how']), /SIGKILL/);
    // What it had counted since it last told is all that can be missing.
    assert.ok((await sumOf(gateway, 'gateway_requests_total')) <= outcomes.ok + outcomes.broken);
    assert.equal((await call(gateway.adminPort, '/readyz')).status, 200);
  });

  it('leave no client waiting that a worker had been given but not taken', async (t) => {
    await startNodes('n1');
    const gateway = await serve();
    const [first = 0, second = 0] = gateway.workers;
    // One that stands still does not end by itself when its primary is gone.
    t.after(() => isAlive(second) && process.kill(second, 'SIGKILL'));
    for (const pid of [first, second]) process.kill(pid, 'SIGSTOP');
    const clients = Array.from({ length: 6 }, () => net.connect(gateway.port, '127.0.0.1'));
    await Promise.all(clients.map((client) => once(client, 'connect')));
    const ends = clients.map((client) => {
      client.write('GET /js/a/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n');
      client.on('error', () => undefined);
      client.resume();
      // Whether in order or by a reset: it ends.
      return new Promise<void>((resolve) => client.once('close', () => resolve()));
    });
    process.kill(first, 'SIGKILL');
    await waitUntil('the end to be noticed', () => gateway.events('worker_ended').length > 0);
    process.kill(second, 'SIGCONT');
    await Promise.all(ends);
    assert.equal((await call(gateway.port, '/js/a/x')).status, 200);
  });

  it('probe each node once, not once each, and another one goes on when the one that probes dies', async () => {
    const [node] = await startNodes('n1');
    assert.ok(node);
    const intervalMs = 100;
    const gateway = await serve({ workers: 3, more: `health: { interval: ${intervalMs}ms, jitter: 0 }` });
    async function assertOneProbes(): Promise<void> {
      const startedMs = performance.now();
      const already = node!.probes;
      await waitUntil('20 more probes', () => node!.probes >= already + 20, 30_000);
      const rounds = (performance.now() - startedMs) / intervalMs;
      assert.ok(node!.probes - already <= rounds + 2, `${node!.probes - already} probes in ${rounds} rounds`);
    }
    await assertOneProbes();
    // Whichever of them probes: in turn, all of them go.
    for (const [index, pid] of gateway.workers.entries()) {
      process.kill(pid, 'SIGKILL');
      await waitUntil('the replacement', () => gateway.events('worker_restarted').length > index, 30_000);
    }
    await assertOneProbes();
  });

  it('believe the same of a node, whoever saw it fail and whoever asks for it', async () => {
    const [node] = await startNodes('n1');
    assert.ok(node);
    const gateway = await serve({ workers: 3, more: 'health: { interval: 1h, failures: 3, onDemand: 50ms }' });
    const { token } = (await postJson(gateway.port, '/js/a/auth/login', { username: 'ann' })).json()['data'] as {
      token: string;
    };
    const ask = () => call(gateway.port, '/js/a/x', { headers: { 'x-token': token } });
    assert.equal((await ask()).status, 200);
    await node.stop();
    let unreachable = 0;
    const errors = new Set<unknown>();
    await waitUntil('DOWN everywhere', async () => {
      const answers = await Promise.all(Array.from({ length: 6 }, ask));
      for (const answer of answers) {
        assert.notEqual(answer.status, 200);
        errors.add(answer.json()['error']);
        if (answer.status === 502) unreachable += 1;
      }
      return answers.every((answer) => answer.status === 503);
    });
    assert.deepEqual([...errors].sort(), ['node_down', 'node_unreachable']);
    assert.ok(unreachable < 3 * 3 * 2, `three failures in all make DOWN, not three each: ${unreachable}`);
    assert.equal(await sumOf(gateway, 'gateway_health_flips_total'), 2, 'UP once and DOWN once, counted once');
    // One that starts now is told.
    const [some = 0] = gateway.workers;
    process.kill(some, 'SIGKILL');
    await waitUntil('the replacement', () => gateway.events('worker_restarted').length > 0, 30_000);
    let untold = 0;
    for (let told = 0; told < 6; ) {
      if ((await ask()).status === 503) told += 1;
      else untold += 1;
    }
    assert.ok(untold < 3, `it did not have to find out by itself: ${untold}`);

    await node.start();
    await waitUntil('UP for all', async () => {
      const answers = await Promise.all(Array.from({ length: 6 }, ask));
      return answers.every((answer) => answer.status === 200);
    });
    assert.equal(workersThatAnswered(gateway).size, 3);
  });

  it('take over a good file at SIGHUP all together, and none of them a bad one', async () => {
    await startNodes('n1');
    const cert = path.join(folder, 'cert.pem');
    const key = path.join(folder, 'key.pem');
    const shown = async (port: number) => {
      const socket = tls.connect({ host: '127.0.0.1', port, rejectUnauthorized: false });
      await once(socket, 'secureConnect');
      const { CN } = socket.getPeerCertificate().subject;
      socket.destroy();
      return CN;
    };
    const namesAt = async (port: number) => {
      const names = new Set<unknown>();
      for (let count = 0; count < 8; count += 1) names.add(await shown(port));
      return [...names];
    };
    await fs.writeFile(cert, FIRST.cert);
    await fs.writeFile(key, FIRST.key);
    const listen = `[127.0.0.1:0, { host: 127.0.0.1, port: 0, tls: { cert: ${cert}, key: ${key} } }]`;
    const text = configText({ listen });
    const file = await writeConfig(text);
    const gateway = await GatewayProcess.serve(file);
    running.push(gateway);
    const [plain = '', secure = ''] = (gateway.events('listening')[0]?.['on'] ?? []) as string[];
    assert.match(plain, /^http:/);
    assert.match(secure, /^https:/);
    const port = Number(new URL(secure).port);
    assert.deepEqual(await namesAt(port), ['first']);

    const refusals = () => gateway.events('reload_refused');
    await fs.writeFile(file, text.replace('pathPrefix', 'pathPrefx'));
    gateway.signal('SIGHUP');
    await waitUntil('the first refusal', () => refusals().length === 1);
    assert.match(String(refusals()[0]?.['error']), /pathPrefx/);
    await fs.writeFile(file, text);
    await fs.writeFile(cert, SECOND.cert);
    gateway.signal('SIGHUP');
    await waitUntil('the second refusal', () => refusals().length === 2);
    assert.match(String(refusals()[1]?.['error']), /cert\.pem/);
    assert.deepEqual(await namesAt(port), ['first']);

    await fs.writeFile(key, SECOND.key);
    await fs.writeFile(file, text.replace('workers: 2', 'workers: 2\ncache: { ttl: 1s }'));
    gateway.signal('SIGHUP');
    await waitUntil('the reload', () => gateway.events('reloaded').length === 1);
    assert.deepEqual(await namesAt(port), ['second']);
    assert.equal((await call(gateway.port, '/js/a/x')).status, 200);
    assert.deepEqual(
      gateway.events('needs_a_restart').map((line) => line['settings']),
      [['cache']],
    );
    assert.equal(gateway.events('services_come_from_the_database').length, 1);
  });

  it('answer the admin API through the primary: what one does, all do, and a reload is one of all', async () => {
    await startNodes('n1', 'n2');
    const file = await writeConfig(configText({ admin: ADMIN_TOKENS, more: 'cache: { ttl: 60s }' }));
    const gateway = await GatewayProcess.serve(file);
    running.push(gateway);
    const admin = new AdminClient(gateway.adminPort);
    const login = await postJson(gateway.port, '/js/a/auth/login', { username: 'alice' });
    const { token } = login.json()['data'] as { token: string };
    const home = String(login.headers['x-gateway-node']);
    const other = home === 'n1' ? 'n2' : 'n1';
    const served = () => call(gateway.port, '/js/a/x', { headers: { 'x-token': token }, agent: new http.Agent() });
    const askedAll = async () => {
      const seen = workersThatAnswered(gateway);
      for (let turn = 0; turn < 200 && seen.size < 2; turn += 1) {
        await served();
        for (const worker of workersThatAnswered(gateway)) seen.add(worker);
      }
      assert.equal(seen.size, 2, 'both have it cached');
    };
    await askedAll();
    const bindings = '/api/services/demo/bindings/u-alice';
    const forged = { 'x-sticky-gateway-peer': '192.0.2.1' };
    const moved = await admin.put(bindings, { nodeId: other, reason: 'test' }, forged);
    assert.equal(moved.status, 200, moved.text);
    await waitUntil('both workers to know', async () => {
      const nodesSeen = new Set<unknown>();
      for (let turn = 0; turn < 20; turn += 1) nodesSeen.add((await served()).headers['x-gateway-node']);
      return nodesSeen.size === 1 && nodesSeen.has(other);
    });
    const { entries } = (await admin.read('/api/audit')) as { entries: Record<string, unknown>[] };
    // Once the answer is there, no worker does otherwise any more.
    for (let turn = 0; turn < 60; turn += 1) {
      const to = turn % 2 === 0 ? home : other;
      assert.equal((await admin.put(bindings, { nodeId: to })).status, 200);
      const answers = await Promise.all(Array.from({ length: 6 }, served));
      assert.deepEqual([...new Set(answers.map((answer) => answer.headers['x-gateway-node']))], [to], `move ${turn}`);
    }
    for (const frozen of [true, false, true, false]) {
      assert.equal((await admin.patch(bindings, { frozen })).status, 200);
      const answers = await Promise.all(Array.from({ length: 6 }, served));
      assert.deepEqual([...new Set(answers.map(({ status }) => status))], [frozen ? 503 : 200]);
    }
    assert.equal((await admin.put(bindings, { nodeId: other })).status, 200);
    assert.match(JSON.stringify(entries[0]), /127\.0\.0\.1/, 'the peer of the primary, not what a client says');
    assert.equal((await new AdminClient(gateway.adminPort, null).post('/api/reload', {})).status, 401);

    assert.equal((await admin.post('/api/reload', {})).status, 200);
    await fs.writeFile(file, 'nonsense: 1');
    for (const path of ['/api/reload', '/api/reload?dryRun=1']) {
      const refused = await admin.post(path, {});
      assert.equal(refused.status, 409, refused.text);
      assert.match(refused.text, /nonsense/);
    }
    // The one that answers is gone: another one does, or says that it cannot at the moment.
    const pid = Math.min(...gateway.workers);
    process.kill(pid, 'SIGKILL');
    await waitUntil('another one to answer', async () => (await admin.get('/api/services')).status === 200);
    await waitUntil('it to be replaced', () => gateway.events('worker_restarted').length === 1);
    await waitUntil('its socket to be there again', async () => (await admin.get('/api/services')).status === 200);
  });

  describe('at SIGTERM', () => {
    const waiting: http.ServerResponse[] = [];

    async function serveWaiting(more = ''): Promise<{ gateway: GatewayProcess; answers: Promise<Answer>[] }> {
      waiting.length = 0;
      const [node] = await startNodes('n1');
      node!.handler = (_request, response) => void waiting.push(response);
      const gateway = await serve({ more: `shutdown: { grace: 3s }\n${more}` });
      const answers: Promise<Answer>[] = [];
      for (let count = 1; count <= 4; count += 1) {
        const answer = call(gateway.port, '/js/a/wait');
        answer.catch(() => undefined);
        answers.push(answer);
        await waitUntil('the request at its node', () => waiting.length === count);
      }
      return { gateway, answers };
    }

    /** The exit code is of the primary; its workers go with it. */
    async function assertGone(gateway: GatewayProcess, workers: readonly number[]): Promise<Ended> {
      const end = await gateway.ended;
      await waitUntil('the workers to end', () => workers.every((pid) => !isAlive(pid)));
      return end;
    }

    it('finish what runs in all of them, take nothing new, and exit 0', async () => {
      const { gateway, answers } = await serveWaiting();
      const { workers } = gateway;
      gateway.signal('SIGTERM');
      // A supervisor may signal all of a service's processes: it means the whole all the same.
      for (const pid of workers) process.kill(pid, 'SIGTERM');
      await waitUntil('stopping', () => gateway.events('stopping').length > 0);
      assert.equal((await call(gateway.adminPort, '/readyz')).status, 503);
      await waitUntil('the port to be closed', () =>
        call(gateway.port, '/js/a/x').then(
          () => false,
          (error: NodeJS.ErrnoException) => error.code === 'ECONNREFUSED',
        ),
      );
      for (const response of waiting) response.end('done');
      for (const answer of answers) assert.deepEqual([(await answer).status, (await answer).text], [200, 'done']);
      const end = await assertGone(gateway, workers);
      assert.deepEqual([end.code, end.signal, end.stderr], [0, null, '']);
      assert.deepEqual(
        gateway.events('stopped').map((line) => [line['cut'], line['worker']]),
        [[0, undefined]],
      );
      const lines = gateway.events('request').filter((line) => line['path'] === '/js/a/wait');
      assert.deepEqual([lines.length, new Set(lines.map((line) => line['worker'])).size], [4, 2]);
    });

    it('cut what outlives the grace, in whichever of them, and exit 1', async () => {
      const { gateway, answers } = await serveWaiting();
      const { workers } = gateway;
      gateway.signal('SIGTERM');
      waiting[0]?.end('done');
      assert.equal((await answers[0])?.status, 200);
      for (const answer of answers.slice(1)) await assert.rejects(answer);
      const end = await assertGone(gateway, workers);
      assert.equal(end.code, 1);
      assert.equal(gateway.events('stopped')[0]?.['cut'], 3);
    });

    it('end at once at the second one, with exit 1', async () => {
      const { gateway, answers } = await serveWaiting();
      const { workers } = gateway;
      gateway.signal('SIGTERM');
      await waitUntil('stopping', () => gateway.events('stopping').length > 0);
      gateway.signal('SIGTERM');
      for (const answer of answers) await assert.rejects(answer);
      const end = await assertGone(gateway, workers);
      assert.equal(end.code, 1);
      assert.equal(gateway.events('stopped_at_once').length, 1);
    });

    it('end with the primary when it is killed', async () => {
      const { gateway } = await serveWaiting();
      const { workers } = gateway;
      await gateway.kill();
      await waitUntil('the workers to end', () => workers.every((pid) => !isAlive(pid)));
    });
  });

  it('end as a whole when one cannot start at all, with the reason and exit 1', async () => {
    await startNodes('n1');
    const taken = net.createServer().listen(0, '127.0.0.1');
    await once(taken, 'listening');
    const { port } = taken.address() as net.AddressInfo;
    const end = await runGateway('--config', await writeConfig(configText({ listen: `127.0.0.1:${port}` })));
    taken.close();
    assert.equal(end.code, 1);
    assert.equal(
      end.stderr,
      `sticky-gateway: cannot listen on 127.0.0.1:${port}: another program listens there already\n`,
    );
    assert.doesNotMatch(end.stdout, /worker_restarted|worker_ended/);
  });

  it('are a mistake in the file without PostgreSQL, with its place', async () => {
    await startNodes('n1');
    const file = await writeConfig(configText({}).replace(/postgres: \{.*?\} \}/, '}'));
    const end = await runGateway('check', '--config', file);
    assert.deepEqual([end.code, end.stdout], [1, '']);
    assert.equal(
      end.stderr,
      `${file}:2:10: workers: more than one worker needs store.postgres: the embedded store belongs to one process\n`,
    );
  });

  it('are as many as there are cores with auto', async () => {
    await startNodes('n1');
    const gateway = await serve({ workers: 'auto' });
    const cores = os.availableParallelism();
    assert.equal(childrenOf(gateway.pid).length, cores === 1 ? 0 : cores);
    assert.equal((await call(gateway.port, '/js/a/x')).status, 200);
  });
});

/** Not a zombie either: its parent may be gone, and nobody has asked for its exit code yet. */
function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
