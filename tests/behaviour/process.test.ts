/** The command as an operator meets it: exit codes, what it prints, and what each signal does. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import type * as http from 'node:http';
import * as net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, describe, it } from 'node:test';
import { BackendNode } from '../support/backend-node.ts';
import { GatewayProcess, runGateway } from '../support/gateway-process.ts';
import { type Answer, call } from '../support/http-client.ts';
import { waitUntil } from '../support/wait-until.ts';

const GRACE_MS = 1_000;

describe('the command', () => {
  const nodes = [new BackendNode('n1'), new BackendNode('n2')];
  /** Requests to /js/a/wait stay open on their node until they are let go. */
  const waiting: http.ServerResponse[] = [];
  const running: GatewayProcess[] = [];
  let folder: string;
  let written = 0;

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'sticky-gateway-'));
    for (const node of nodes) {
      node.handler = (request, response) => {
        if (request.url?.startsWith('/js/a/wait')) waiting.push(response);
        else response.end(node.id);
      };
      await node.start();
    }
  });
  afterEach(async () => {
    waiting.length = 0;
    for (const gateway of running.splice(0)) await gateway.kill();
  });
  after(async () => {
    for (const node of nodes) await node.stop();
    await rm(folder, { recursive: true, force: true });
  });

  interface ConfigText {
    readonly nodes?: readonly BackendNode[];
    readonly more?: string;
    readonly listen?: string;
    readonly dataDir?: string;
  }

  function configText(text: ConfigText): string {
    const list = (text.nodes ?? nodes).map((node) => `      - { id: ${node.id}, baseUrl: "${node.baseUrl}" }`);
    return [
      `listen: ${text.listen ?? '127.0.0.1:0'}`,
      'admin: { listen: "127.0.0.1:0" }',
      `store: { dataDir: ${JSON.stringify(text.dataDir ?? join(folder, `data-${written}`))} }`,
      `shutdown: { grace: ${GRACE_MS}ms }`,
      text.more ?? '',
      'services:',
      '  - id: demo',
      '    pathPrefix: /js/a',
      '    loginPath: /auth/login',
      '    nodes:',
      ...list,
      '',
    ].join('\n');
  }

  async function writeConfig(text: string): Promise<string> {
    written += 1;
    const file = join(folder, `gateway-${written}.yaml`);
    await writeFile(file, text);
    return file;
  }

  async function serve(text: ConfigText = {}): Promise<GatewayProcess> {
    const gateway = await GatewayProcess.serve(await writeConfig(configText(text)));
    running.push(gateway);
    return gateway;
  }

  /** A request that its node holds; resolves when it has arrived there. */
  async function openWaiting(gateway: GatewayProcess): Promise<{ answer: Promise<Answer>; finish: () => void }> {
    const before = waiting.length;
    const answer = call(gateway.port, '/js/a/wait');
    // Whoever waits for the answer sees the failure; until then it must not end the test.
    answer.catch(() => undefined);
    await waitUntil('the request at its node', () => waiting.length > before);
    const response = waiting[before]!;
    return { answer, finish: () => void response.end('done') };
  }

  const ready = async (gateway: GatewayProcess) => (await call(gateway.adminPort, '/readyz')).status;

  describe('without serving', () => {
    it('prints its help and its version', async () => {
      const [help, version] = await Promise.all([runGateway('--help'), runGateway('--version')]);
      assert.equal(help.code, 0);
      assert.match(help.stdout, /check --config/);
      assert.equal(version.code, 0);
      const { version: expected } = JSON.parse(await readFile(new URL(await packageUrl()), 'utf8')) as {
        version: string;
      };
      assert.equal(version.stdout, `${expected}\n`);
      assert.equal(help.stderr + version.stderr, '');
    });

    it('exits 2 for what it does not understand, and says so on stderr', async () => {
      const calls: [string[], RegExp][] = [
        [[], /--config/],
        [['serve'], /--config/],
        [['dance', '--config', 'x.yaml'], /no command 'dance'/],
        [['--colour', 'x'], /colour/],
        [['check', 'x.yaml', '--config', 'y.yaml'], /x\.yaml/],
        [['check', 'own.yaml'], /--config own\.yaml/],
      ];
      const ends = await Promise.all(calls.map(([args]) => runGateway(...args)));
      ends.forEach((end, index) => {
        assert.equal(end.code, 2, end.stderr);
        assert.match(end.stderr, calls[index]![1]);
        assert.equal(end.stdout, '');
      });
    });

    it('checks a good file: exit 0', async () => {
      const end = await runGateway('check', '--config', await writeConfig(configText({})));
      assert.deepEqual([end.code, end.stderr], [0, '']);
      assert.match(end.stdout, /no mistakes/);
    });

    it('checks a bad file: exit 1, and every mistake with its place on stderr', async () => {
      const file = await writeConfig(configText({ more: 'cashe: { ttl: 10s }\nlog: { level: loud }' }));
      const [checked, served] = await Promise.all([
        runGateway('check', '--config', file),
        runGateway('serve', '--config', file),
      ]);
      for (const end of [checked, served]) {
        assert.equal(end.code, 1);
        const problems = end.stderr.trimEnd().split('\n');
        assert.equal(problems.length, 2, end.stderr);
        assert.ok(problems[0]?.startsWith(`${file}:5:1: cashe: `), problems[0]);
        assert.match(problems[0] ?? '', /did you mean .*cache/);
        assert.ok(problems[1]?.startsWith(`${file}:6:`), problems[1]);
        assert.equal(end.stdout, '');
      }
    });

    it('checks the files that a file names: exit 1, and each one that cannot be used on stderr', async () => {
      const missing = join(folder, 'none.pem');
      const text = configText({
        listen: `{ host: 127.0.0.1, port: 0, tls: { cert: ${missing}, key: ${missing} } }`,
        more: `identity: { resolvers: [{ jwt: { jwksFile: ${join(folder, 'none.json')}, algorithms: [RS256] } }] }`,
      }).replace('    loginPath:', `    ca: ${join(folder, 'none.ca')}\n    loginPath:`);
      const end = await runGateway('check', '--config', await writeConfig(text));
      assert.equal(end.code, 1, end.stdout);
      for (const name of ['none.pem', 'none.json', 'none.ca']) assert.match(end.stderr, new RegExp(name));
      assert.doesNotMatch(end.stderr, /^\s+at /m);
    });

    it('exits 1 without a stack when the file is missing or the address is taken', async () => {
      const taken = net.createServer().listen(0, '127.0.0.1');
      await once(taken, 'listening');
      const { port } = taken.address() as net.AddressInfo;
      const busy = await writeConfig(configText({ listen: `127.0.0.1:${port}` }));
      const [missing, refused] = await Promise.all([
        runGateway('serve', '--config', join(folder, 'nowhere.yaml')),
        runGateway('serve', '--config', busy),
      ]);
      taken.close();
      assert.deepEqual([missing.code, refused.code], [1, 1]);
      assert.match(missing.stderr, /nowhere\.yaml/);
      assert.match(refused.stderr, new RegExp(`127\\.0\\.0\\.1:${port}.*another program`));
      for (const end of [missing, refused]) assert.doesNotMatch(end.stderr, /^\s+at /m);
    });
  });

  it('says in one line where it listens and on what stores, and is ready', async () => {
    const gateway = await serve();
    const [line, ...more] = gateway.events('listening');
    assert.equal(more.length, 0);
    assert.ok(line);
    assert.match(String(line['on']), /^http:\/\/127\.0\.0\.1:\d+$/);
    assert.match(String(line['stores']), /^embedded/);
    assert.equal(await ready(gateway), 200);
    assert.equal((await call(gateway.port, '/js/a/x')).status, 200);
  });

  it('refuses a data folder that another process uses', async () => {
    const dataDir = join(folder, 'shared-data');
    await serve({ dataDir });
    const second = await runGateway('serve', '--config', await writeConfig(configText({ dataDir })));
    assert.equal(second.code, 1);
    assert.match(second.stderr, /shared-data/);
    assert.doesNotMatch(second.stderr, /^\s+at /m);
  });

  describe('at SIGTERM', () => {
    it('finishes what runs, is not ready at once, takes nothing new, and exits 0', async () => {
      const gateway = await serve();
      const idle = net.connect(gateway.port, '127.0.0.1');
      const idleClosed = once(idle, 'close');
      idle.write('GET /js/a/x HTTP/1.1\r\nHost: x\r\n\r\n');
      await once(idle, 'data');
      const requests = [];
      for (let index = 0; index < 5; index += 1) requests.push(await openWaiting(gateway));
      const startedMs = performance.now();
      gateway.signal('SIGTERM');
      await waitUntil('stopping', () => gateway.events('stopping').length > 0);
      assert.equal(await ready(gateway), 503);
      await idleClosed;
      await assert.rejects(call(gateway.port, '/js/a/x'), /ECONNREFUSED|ECONNRESET|hang up/);
      for (const { finish } of requests) finish();
      for (const { answer } of requests) {
        const { status, text, headers } = await answer;
        assert.deepEqual([status, text], [200, 'done']);
        assert.equal(headers.connection, 'close');
      }
      const end = await gateway.ended;
      assert.deepEqual([end.code, end.signal], [0, null], end.stderr);
      assert.ok(performance.now() - startedMs < GRACE_MS, 'it did not wait for the grace to be over');
      assert.equal(gateway.events('request').filter((line) => line['path'] === '/js/a/wait').length, 5);
      assert.equal(gateway.events('stopped')[0]?.['cut'], 0);
    });

    it('cuts what outlives the grace, logs it, and exits 1', async () => {
      const gateway = await serve();
      const short = await openWaiting(gateway);
      const long = await openWaiting(gateway);
      const startedMs = performance.now();
      gateway.signal('SIGTERM');
      await waitUntil('stopping', () => gateway.events('stopping').length > 0);
      short.finish();
      assert.equal((await short.answer).status, 200);
      await assert.rejects(long.answer, /ECONNRESET|hang up|aborted/);
      const tookMs = performance.now() - startedMs;
      const end = await gateway.ended;
      assert.equal(end.code, 1, end.stderr);
      assert.ok(tookMs > GRACE_MS - 100 && tookMs < GRACE_MS + 1_000, `${Math.round(tookMs)} ms`);
      assert.equal(gateway.events('cut')[0]?.['requests'], 1);
      assert.equal(gateway.events('stopped')[0]?.['cut'], 1);
      const cutLine = gateway.events('request').filter((line) => line['path'] === '/js/a/wait');
      assert.equal(cutLine.length, 2, 'the cut request has its access line too');
      for (const line of cutLine) assert.equal(line['error'], undefined, 'it is no fault of the node');
    });

    it('waits for the delay first, not ready but serving', async () => {
      const delayed = await GatewayProcess.serve(
        await writeConfig(configText({}).replace(`grace: ${GRACE_MS}ms`, `grace: ${GRACE_MS}ms, delay: 600ms`)),
      );
      running.push(delayed);
      delayed.signal('SIGTERM');
      await waitUntil('stopping', () => delayed.events('stopping').length > 0);
      assert.equal(await ready(delayed), 503);
      assert.equal((await call(delayed.port, '/js/a/x')).status, 200);
      assert.equal((await delayed.ended).code, 0);
    });

    it('ends at once at the second one, with exit 1', async () => {
      const gateway = await serve();
      const { answer } = await openWaiting(gateway);
      const startedMs = performance.now();
      gateway.signal('SIGTERM');
      await waitUntil('stopping', () => gateway.events('stopping').length > 0);
      gateway.signal('SIGTERM');
      await assert.rejects(answer);
      const end = await gateway.ended;
      assert.deepEqual([end.code, end.signal], [1, null]);
      assert.ok(performance.now() - startedMs < GRACE_MS / 2, 'it did not wait');
      assert.equal(gateway.events('stopped_at_once').length, 1);
    });
  });

  describe('at SIGHUP', () => {
    it('keeps running on what it has when the file is bad, and takes over a good one', async () => {
      const dataDir = join(folder, 'reloaded');
      const file = await writeConfig(configText({ dataDir, nodes: nodes.slice(0, 1) }));
      const gateway = await GatewayProcess.serve(file);
      running.push(gateway);
      const open = await openWaiting(gateway);
      const servedBy = async () => (await call(gateway.port, '/js/a/x')).headers['x-gateway-node'];

      const good = configText({ dataDir });
      await writeFile(file, good.replace('loginPath', 'logginPath').replace('id: n2', 'id: n1'));
      gateway.signal('SIGHUP');
      const refused = await waitUntil('the refusal', () => gateway.events('reload_refused')[0]);
      assert.match(String(refused['error']), /logginPath/);
      for (let index = 0; index < 4; index += 1) assert.equal(await servedBy(), 'n1');

      await writeFile(file, good);
      gateway.signal('SIGHUP');
      await waitUntil('the reload', () => gateway.events('reloaded').length > 0);
      const served = [await servedBy(), await servedBy(), await servedBy(), await servedBy()];
      assert.deepEqual([...new Set(served)].sort(), ['n1', 'n2']);
      open.finish();
      assert.equal((await open.answer).text, 'done', 'a request under way is untouched');
    });

    it('takes over the level of the log', async () => {
      const dataDir = join(folder, 'levels');
      const file = await writeConfig(configText({ dataDir }));
      const gateway = await GatewayProcess.serve(file);
      running.push(gateway);
      for (const level of ['info', 'error', 'info']) {
        await writeFile(file, configText({ dataDir, more: `log: { level: ${level} }` }));
        const before = gateway.events('request').length;
        gateway.signal('SIGHUP');
        // Of a reload to the level of errors nothing is written, so what it changes is waited for.
        await waitUntil(`the level to be ${level}`, async () => {
          const seen = gateway.events('request').length;
          await call(gateway.port, '/js/a/x');
          await new Promise((resolve) => setTimeout(resolve, 60));
          return gateway.events('request').length > seen === (level === 'info');
        });
        assert.ok(gateway.events('request').length >= before);
      }
      assert.equal(gateway.events('needs_a_restart').length, 0);
    });

    it('refuses whole a file that removes a node with users', async () => {
      const dataDir = join(folder, 'owned');
      const file = await writeConfig(configText({ dataDir, nodes: nodes.slice(0, 1) }));
      const gateway = await GatewayProcess.serve(file);
      running.push(gateway);
      const body = JSON.stringify({ username: 'alice' });
      const login = await call(gateway.port, '/js/a/auth/login', { method: 'POST', body });
      const { token } = login.json()['data'] as { token: string };
      await writeFile(file, configText({ dataDir, nodes: nodes.slice(1) }));
      gateway.signal('SIGHUP');
      const refused = await waitUntil('the refusal', () => gateway.events('reload_refused')[0]);
      assert.match(String(refused['error']), /n1/);
      const answer = await call(gateway.port, '/js/a/x', { headers: { 'x-token': token } });
      assert.equal(answer.headers['x-gateway-node'], 'n1');
    });
  });

  describe('at an error that nobody caught', () => {
    async function serveWithFaults(): Promise<GatewayProcess> {
      const faults = join(folder, 'faults.mjs');
      await writeFile(faults, FAULTS);
      const gateway = await GatewayProcess.serve(await writeConfig(configText({})), { imports: [faults] });
      running.push(gateway);
      return gateway;
    }

    it('goes on serving when it is of a promise or a connection, and logs it', async () => {
      const gateway = await serveWithFaults();
      gateway.signal('SIGUSR2');
      const rejection = await waitUntil('the first', () => gateway.events('unhandled_rejection')[0]);
      assert.match(String(rejection['stack']), /nobody waited for this/);
      await waitUntil('the second', () => gateway.events('unhandled_connection_error').length > 0);
      assert.equal((await call(gateway.port, '/js/a/x')).status, 200);
      gateway.signal('SIGTERM');
      assert.equal((await gateway.ended).code, 0);
    });

    it('ends with exit 1 when it may have left something half done, its log written', async () => {
      const gateway = await serveWithFaults();
      gateway.signal('SIGWINCH');
      const end = await gateway.ended;
      assert.deepEqual([end.code, end.signal], [1, null]);
      assert.match(String(gateway.events('uncaught_exception')[0]?.['stack']), /something is half done/);
    });
  });

  it('survives clients and nodes that break every rule', async (t) => {
    const gateway = await serve();
    const node = nodes[0]!;
    const raw = (text: string | Buffer, then: 'reset' | 'end' | 'wait') =>
      new Promise<void>((resolve) => {
        const socket = net.connect(gateway.port, '127.0.0.1');
        // Both ends of such a conversation may be cut.
        socket.on('error', () => undefined);
        socket.on('close', () => resolve());
        socket.on('data', () => undefined);
        socket.write(text, () => {
          if (then === 'reset') socket.resetAndDestroy();
          else if (then === 'end') socket.end();
          else setTimeout(() => socket.destroy(), 100);
        });
      });
    const upgrade = 'Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n';
    const pieces: (string | Buffer)[] = [
      'GET / HTTP/9.9\r\n\r\n',
      Buffer.from([0x16, 0x03, 0x01, 0x02, 0x00, 0xff, 0x00]),
      'GET /js/a/x HTTP/1.1\r\nHost: x\r\n',
      'POST /js/a/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nshort',
      'POST /js/a/auth/login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"username"',
      'POST /js/a/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n',
      'POST /js/a/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n',
      'POST /js/a/x HTTP/1.1\r\nHost: x\r\nExpect: 200-maybe\r\nContent-Length: 5\r\n\r\n12345',
      'CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n',
      'GET /js/a/%00 HTTP/1.1\r\nHost: x\r\n\r\n',
      `GET /js/a/x HTTP/1.1\r\n${upgrade}\r\nbytes`,
      `GET /nowhere HTTP/1.1\r\n${upgrade}\r\n`,
      `GET /js/a/x HTTP/1.1\r\nHost: x\r\nX-Big: ${'x'.repeat(100_000)}\r\n\r\n`,
      'GET /js/a/x HTTP/1.1\r\nHost: x\r\n\r\nGET /js/a/x HTTP/1.1\r\nHost: x\r\n\r\n\x00\x01',
    ];
    for (const mode of ['up', 'reset-after-body', 'slow'] as const) {
      for (const each of nodes) each.mode = mode;
      for (const then of ['reset', 'end', 'wait'] as const) await Promise.all(pieces.map((piece) => raw(piece, then)));
    }
    for (const each of nodes) each.mode = 'up';
    const garbage = net.createServer((socket) => {
      socket.on('error', () => undefined);
      socket.once('data', () => socket.end('SSH-2.0-nonsense\r\n'));
    });
    await node.stop();
    garbage.listen(node.port, '127.0.0.1');
    await once(garbage, 'listening');
    t.after(() => garbage.close());
    for (let index = 0; index < 4; index += 1) await call(gateway.port, '/js/a/x');
    garbage.close();
    await once(garbage, 'close');
    await node.start();
    assert.equal((await call(gateway.adminPort, '/healthz')).status, 200);
    await waitUntil('a node that serves', async () => (await call(gateway.port, '/js/a/x')).status === 200);
    assert.deepEqual(gateway.events('uncaught_exception'), []);
    assert.deepEqual(gateway.events('internal_error'), []);
    gateway.signal('SIGTERM');
    const end = await gateway.ended;
    assert.deepEqual([end.code, end.stderr], [0, '']);
  });
});

/** Makes the process raise one error each at the signals that this file does not test otherwise. */
const FAULTS = `
import { Socket } from 'node:net';
process.on('SIGUSR2', () => {
  Promise.reject(new Error('nobody waited for this'));
  new Socket().destroy(Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET', syscall: 'read' }));
});
process.on('SIGWINCH', () => {
  throw new Error('something is half done');
});
`;

/** The nearest package.json above this file, from the sources as well as from the compiled tree. */
async function packageUrl(): Promise<string> {
  for (const up of ['../../package.json', '../../../package.json']) {
    const url = new URL(up, import.meta.url);
    const found = await readFile(url, 'utf8').then(
      () => true,
      () => false,
    );
    if (found) return url.href;
  }
  throw new Error('no package.json');
}
