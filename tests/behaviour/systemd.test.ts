/** The gateway as a systemd service: sockets that are handed to it, and what it tells about itself. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import * as fs from 'node:fs';
import * as net from 'node:net';
import * as path from 'node:path';
import { after, afterEach, before, describe, it, type TestContext } from 'node:test';
import * as tls from 'node:tls';
import { BackendNode } from '../support/backend-node.ts';
import { FIRST } from '../support/certificates.ts';
import { GatewayProcess, type ProcessOptions } from '../support/gateway-process.ts';
import { call } from '../support/http-client.ts';
import { createDatabase } from '../support/postgres-server.ts';
import { temporaryFolder } from '../support/temporary-folder.ts';
import { waitUntil } from '../support/wait-until.ts';

/** As systemd does, between the fork and the program: only there its process id is known. */
const AS_LISTENER = ['sh', '-c', 'LISTEN_PID=$$ exec "$@"', 'sh'];

describe('as a systemd service', () => {
  const node = new BackendNode('n1');
  const running: GatewayProcess[] = [];
  before(() => node.start());
  after(() => node.stop());
  afterEach(async () => {
    for (const gateway of running.splice(0)) await gateway.kill();
  });

  async function writeConfig(folder: string, text: { listen: string; more?: string; store?: string; admin?: string }) {
    const file = path.join(folder, 'gateway.yaml');
    const store = text.store ?? `{ dataDir: ${path.join(folder, 'data')} }`;
    fs.writeFileSync(
      file,
      `listen: ${text.listen}\nadmin: { listen: "${text.admin ?? '127.0.0.1:0'}" }\nstore: ${store}\n${text.more ?? ''}\n` +
        `services:\n  - { id: demo, pathPrefix: /js/a, nodes: [{ id: n1, baseUrl: "${node.baseUrl}" }] }\n`,
    );
    return file;
  }

  /** Sockets that listen, and are only the gateway's once it has them. */
  async function openSockets(count: number): Promise<{ servers: net.Server[]; ports: number[]; close: () => void }> {
    const servers = Array.from({ length: count }, () => net.createServer().listen(0, '127.0.0.1'));
    await Promise.all(servers.map((server) => once(server, 'listening')));
    const ports = servers.map((server) => (server.address() as net.AddressInfo).port);
    return { servers, ports, close: () => servers.forEach((server) => void server.close()) };
  }

  function activated(servers: readonly net.Server[], env: Record<string, string> = {}): ProcessOptions {
    return {
      launcher: AS_LISTENER,
      // Node tells the descriptor of a server nowhere else.
      descriptors: servers.map((server) => (server as unknown as { _handle: { fd: number } })._handle.fd),
      env: { LISTEN_FDS: String(servers.length), ...env },
    };
  }

  async function serve(config: string, options: ProcessOptions): Promise<GatewayProcess> {
    const gateway = await GatewayProcess.serve(config, options);
    running.push(gateway);
    return gateway;
  }

  function speakTls(port: number): Promise<string> {
    return new Promise((resolve, reject) => {
      const socket = tls.connect({ host: '127.0.0.1', port, rejectUnauthorized: false }, () =>
        socket.write('GET /js/a/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'),
      );
      let text = '';
      socket.setEncoding('utf8').on('data', (chunk: string) => {
        text += chunk;
      });
      socket.on('end', () => resolve(text));
      socket.on('error', reject);
    });
  }

  /** Addresses that nobody could bind here, so that only what was handed over can be listened on. */
  async function listenWithTls(folder: string): Promise<string> {
    const files = { cert: path.join(folder, 'cert.pem'), key: path.join(folder, 'key.pem') };
    fs.writeFileSync(files.cert, FIRST.cert);
    fs.writeFileSync(files.key, FIRST.key);
    return `["192.0.2.1:80", { host: 192.0.2.1, port: 443, tls: { cert: ${files.cert}, key: ${files.key} } }]`;
  }

  it('listens on the sockets it is handed, in the order of listen, and on the admin one by name', async (t) => {
    const folder = await temporaryFolder(t);
    const config = await writeConfig(folder, { listen: await listenWithTls(folder), admin: '192.0.2.1:9090' });
    const { servers, ports, close } = await openSockets(3);
    const [plain = 0, admin = 0, secure = 0] = ports;
    const gateway = await serve(config, activated(servers, { LISTEN_FDNAMES: 'web:admin:web' }));
    close();
    const [line] = gateway.events('listening');
    assert.deepEqual(line?.['on'], [`http://127.0.0.1:${plain}`, `https://127.0.0.1:${secure}`]);
    assert.equal(line?.['admin'], `http://127.0.0.1:${admin}`);
    assert.equal((await call(plain, '/js/a/x')).status, 200);
    assert.match(await speakTls(secure), /^HTTP\/1\.1 200 /);
    assert.equal((await call(admin, '/readyz')).status, 200);
    gateway.signal('SIGTERM');
    assert.equal((await gateway.ended).code, 0);
  });

  it('hands them on to its workers, and the variables to nobody', async (t) => {
    const folder = await temporaryFolder(t);
    const config = await writeConfig(folder, {
      listen: await listenWithTls(folder),
      store: await postgresStore(t, folder),
      more: 'workers: 2',
    });
    const { servers, ports, close } = await openSockets(2);
    const gateway = await serve(config, activated(servers, { NOTIFY_SOCKET: path.join(folder, 'nobody') }));
    close();
    const [plain = 0, secure = 0] = ports;
    for (let count = 0; count < 4; count += 1) {
      assert.equal((await call(plain, '/js/a/x')).status, 200);
      assert.match(await speakTls(secure), /^HTTP\/1\.1 200 /);
    }
    await waitUntil('all access lines', () => gateway.events('request').length === 8);
    assert.deepEqual(new Set(gateway.events('request').map((line) => line['worker'])), new Set([1, 2]));
    const [first = 0] = gateway.workers;
    for (const pid of gateway.workers)
      assert.doesNotMatch(fs.readFileSync(`/proc/${pid}/environ`, 'latin1'), /\0(?:LISTEN_|NOTIFY_SOCKET)/);
    process.kill(first, 'SIGKILL');
    await waitUntil('the replacement', () => gateway.events('worker_restarted').length > 0);
    for (let count = 0; count < 4; count += 1) assert.equal((await call(plain, '/js/a/x')).status, 200);
  });

  it('ends with exit 1 when all workers die at once: only systemd can hand the sockets out again', async (t) => {
    const folder = await temporaryFolder(t);
    const store = await postgresStore(t, folder);
    const config = await writeConfig(folder, { listen: '192.0.2.1:80', store, more: 'workers: 2' });
    const { servers, close } = await openSockets(1);
    const gateway = await serve(config, activated(servers));
    close();
    for (const pid of gateway.workers) process.kill(pid, 'SIGKILL');
    const end = await gateway.ended;
    assert.equal(end.code, 1);
    assert.match(String(gateway.events('failed')[0]?.['error']), /sockets that systemd had passed/);
  });

  it('binds its own address when the sockets are for another process', async (t) => {
    const folder = await temporaryFolder(t);
    const config = await writeConfig(folder, { listen: '127.0.0.1:0' });
    const { servers, ports, close } = await openSockets(1);
    const { launcher, ...rest } = activated(servers, { LISTEN_PID: '1' });
    assert.ok(launcher);
    const gateway = await serve(config, rest);
    close();
    assert.notEqual(gateway.port, ports[0]);
    assert.equal((await call(gateway.port, '/js/a/x')).status, 200);
  });

  it('refuses more sockets than it has addresses, and one that is not of TCP', async (t) => {
    const folder = await temporaryFolder(t);
    const config = await writeConfig(folder, { listen: '127.0.0.1:0' });
    const { servers, close } = await openSockets(2);
    const many = new GatewayProcess(['--config', config], activated(servers));
    const unix = net.createServer().listen(path.join(folder, 'socket'));
    await once(unix, 'listening');
    const other = await many.ended.then(() => new GatewayProcess(['--config', config], activated([unix])).ended);
    const { code, stderr } = await many.ended;
    close();
    unix.close();
    assert.deepEqual([code, other.code], [1, 1]);
    assert.match(stderr, /^sticky-gateway: systemd passed 2 sockets, but listen names 1\b.*\n$/);
    assert.match(other.stderr, /^sticky-gateway: descriptor 3, which systemd passed, is no TCP socket.*\n$/);
  });

  it('tells when it is ready, reloads, and stops, one after another', async (t) => {
    const folder = await temporaryFolder(t);
    const config = await writeConfig(folder, { listen: '127.0.0.1:0' });
    const told = path.join(folder, 'told');
    const program = path.join(folder, 'systemd-notify');
    // The first word of each message comes late if nobody waits for it.
    fs.writeFileSync(program, `#!/bin/sh\nsleep 0.05\necho "$NOTIFY_SOCKET $*" >> ${told}\n`, { mode: 0o755 });
    const env = { NOTIFY_SOCKET: '/run/socket', PATH: `${folder}:${process.env['PATH']}` };
    const gateway = await serve(config, { env });
    const lines = () => (fs.existsSync(told) ? fs.readFileSync(told, 'utf8').trimEnd().split('\n') : []);
    await waitUntil('the first word', () => lines().length === 1);
    gateway.signal('SIGHUP');
    await waitUntil('the reload to be told', () => lines().length === 3);
    fs.appendFileSync(config, 'nonsense: 1\n');
    gateway.signal('SIGHUP');
    await waitUntil('the refused reload to be told', () => lines().length === 5);
    gateway.signal('SIGTERM');
    assert.equal((await gateway.ended).code, 0);
    const ready = `/run/socket READY=1 STATUS=listening on http://127.0.0.1:${gateway.port}`;
    await waitUntil('the last word', () => lines().length === 6);
    const [first, reloading = '', again, , third, stopping = ''] = lines();
    assert.deepEqual([first, again, third], [ready, ready, ready]);
    assert.match(reloading, /^\/run\/socket RELOADING=1 MONOTONIC_USEC=\d+ STATUS=reloading$/);
    assert.match(stopping, /^\/run\/socket STOPPING=1 STATUS=stopping/);
  });

  it('serves on when there is nobody to tell', async (t) => {
    const folder = await temporaryFolder(t);
    const config = await writeConfig(folder, { listen: '127.0.0.1:0' });
    const program = path.join(folder, 'systemd-notify');
    fs.writeFileSync(program, '#!/bin/sh\nexit 1\n', { mode: 0o755 });
    const env = { NOTIFY_SOCKET: '/run/socket', PATH: `${folder}:${process.env['PATH']}` };
    const gateway = await serve(config, { env });
    const warning = await waitUntil('the warning', () => gateway.events('systemd_not_told')[0]);
    assert.deepEqual([warning['message'], warning['error']], ['READY=1', 'it ended with 1']);
    assert.equal((await call(gateway.port, '/js/a/x')).status, 200);
  });
});

async function postgresStore(t: TestContext, folder: string): Promise<string> {
  const database = await createDatabase();
  t.after(() => database.drop());
  return `{ dataDir: ${path.join(folder, 'data')}, postgres: { url: "${database.url}", poolSize: 2 } }`;
}
