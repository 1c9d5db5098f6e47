import assert from 'node:assert/strict';
import { getEventListeners, once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import net, { type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { type ProbeTarget, probe } from '../../lib/health/probe.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { CERTIFICATE, CERTIFICATE_KEY } from './certificate.ts';

/** Far more than any of these takes; a probe that only the deadline ends fails its test by its answer. */
const PATIENT_MS = 20_000;

async function listen(t: TestContext, server: net.Server): Promise<number> {
  const sockets = new Set<net.Socket>();
  server.on('connection', (socket) => {
    sockets.add(socket);
    socket.on('error', () => socket.destroy());
    socket.on('close', () => sockets.delete(socket));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return (server.address() as AddressInfo).port;
}

function targetOf(port: number, extra: Partial<ProbeTarget> = {}): ProbeTarget {
  return {
    protocol: 'http:',
    hostname: '127.0.0.1',
    port,
    authority: `127.0.0.1:${port}`,
    path: '/health',
    ca: null,
    insecure: false,
    ...extra,
  };
}

/** A server that says `text` to whoever connects, and the moment its side of the connection has closed. */
function saying(text: string | null, then: (socket: net.Socket) => void = () => undefined) {
  let closed: () => void;
  const whenClosed = new Promise<void>((resolve) => {
    closed = resolve;
  });
  const server = net.createServer((socket) => {
    socket.resume();
    socket.on('close', () => closed());
    if (text !== null) socket.write(text);
    then(socket);
  });
  return { server, whenClosed };
}

test('a GET of the path that answers 2xx is a success; the connection is its own and closes', async (t) => {
  const seen: http.IncomingMessage[] = [];
  let open = 0;
  const server = http.createServer((request, response) => {
    seen.push(request);
    response.writeHead(204).end();
  });
  server.on('connection', () => {
    open += 1;
  });
  const port = await listen(t, server);
  assert.deepEqual(await probe(targetOf(port, { path: '/health?deep=1', authority: 'node.internal' }), PATIENT_MS), {
    ok: true,
    status: 204,
  });
  assert.deepEqual(await probe(targetOf(port), PATIENT_MS), { ok: true, status: 204 });
  const [request] = seen;
  assert.equal(request?.method, 'GET');
  assert.equal(request?.url, '/health?deep=1');
  assert.equal(request?.headers.host, 'node.internal');
  assert.equal(request?.headers['user-agent'], 'sticky-gateway-probe');
  assert.equal(request?.headers.connection, 'close');
  assert.equal(open, 2);
});

test('any other status is a failure, and a redirect is not followed', async (t) => {
  let status = 0;
  const paths: (string | undefined)[] = [];
  const server = http.createServer((request, response) => {
    paths.push(request.url);
    response.writeHead(status, { Location: '/elsewhere' }).end('text');
  });
  const port = await listen(t, server);
  for (status of [302, 404, 500, 503, 300]) {
    assert.deepEqual(await probe(targetOf(port), PATIENT_MS), { ok: false, error: `status ${status}` });
  }
  status = 299;
  assert.deepEqual(await probe(targetOf(port), PATIENT_MS), { ok: true, status: 299 });
  assert.equal(paths.includes('/elsewhere'), false);
});

test('interim answers are not the answer', async (t) => {
  const { server } = saying('HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n');
  assert.deepEqual(await probe(targetOf(await listen(t, server)), PATIENT_MS), { ok: true, status: 200 });
});

test('a switch of protocols is a failure and leaves no connection', async (t) => {
  const { server, whenClosed } = saying(
    'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n',
  );
  const result = await probe(targetOf(await listen(t, server)), PATIENT_MS);
  assert.equal(result.ok, false);
  await whenClosed;
});

test('a refused connection is a failure that says so', async (t) => {
  const server = net.createServer();
  const port = await listen(t, server);
  server.close();
  await once(server, 'close');
  for (const path of ['/health', null]) {
    const result = await probe(targetOf(port, { path }), PATIENT_MS);
    assert.match(result.ok ? '' : result.error, /ECONNREFUSED/);
  }
});

test('garbage, an early end and a reset are failures', async (t) => {
  const servers = [
    saying('SSH-2.0-OpenSSH_9.6\r\n'),
    saying(null, (socket) => socket.end()),
    saying(null, (socket) => socket.resetAndDestroy()),
    saying('HTTP/1.1 200 OK\r\nContent-', (socket) => socket.end()),
    saying(`HTTP/1.1 200 OK\r\nX: ${'x'.repeat(100_000)}`),
  ];
  for (const { server, whenClosed } of servers) {
    const result = await probe(targetOf(await listen(t, server)), PATIENT_MS);
    assert.equal(result.ok, false);
    assert.doesNotMatch(result.ok ? '' : result.error, /within/);
    await whenClosed;
  }
});

test('a server that accepts and stays silent fails at the deadline, and the connection closes', async (t) => {
  const clock = new FakeClock();
  const { server, whenClosed } = saying(null);
  const port = await listen(t, server);
  const connected = once(server, 'connection');
  const result = probe(targetOf(port), 2_000, { clock });
  await connected;
  clock.advance(1_999);
  assert.equal(clock.pending, 1);
  clock.advance(1);
  assert.deepEqual(await result, { ok: false, error: 'no answer within 2000 ms' });
  await whenClosed;
  assert.equal(clock.pending, 0);
});

test('a head that drips in does not put the deadline off', async (t) => {
  const clock = new FakeClock();
  let drip: () => void = () => undefined;
  const { server, whenClosed } = saying('HTTP/1.1 200 OK\r\n', (socket) => {
    drip = () => void socket.write('X: y\r\n');
  });
  const connected = once(server, 'connection');
  const result = probe(targetOf(await listen(t, server)), 2_000, { clock });
  await connected;
  for (let second = 0; second < 4; second += 1) {
    drip();
    await new Promise((resolve) => setImmediate(resolve));
    clock.advance(500);
  }
  assert.deepEqual(await result, { ok: false, error: 'no answer within 2000 ms' });
  await whenClosed;
});

test('the head decides; a body that never ends is dropped at the deadline', async (t) => {
  const clock = new FakeClock();
  const { server, whenClosed } = saying('HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc');
  const result = await probe(targetOf(await listen(t, server)), 2_000, { clock });
  assert.deepEqual(result, { ok: true, status: 200 });
  assert.equal(clock.pending, 1);
  clock.advance(2_000);
  await whenClosed;
});

test('a body without end is dropped after 64 KB, without waiting for the deadline', async (t) => {
  let written = 0;
  const { server, whenClosed } = saying('HTTP/1.1 200 OK\r\n\r\n', (socket) => {
    const pour = () => {
      while (!socket.destroyed && written < 100_000_000) {
        written += 16_384;
        if (!socket.write(Buffer.alloc(16_384, 'x'))) break;
      }
    };
    socket.on('drain', pour);
    pour();
  });
  const clock = new FakeClock();
  assert.deepEqual(await probe(targetOf(await listen(t, server)), 2_000, { clock }), {
    ok: true,
    status: 200,
  });
  await whenClosed;
  assert.ok(written < 100_000_000, `${written} bytes were taken`);
  assert.equal(clock.pending, 0);
});

test('a body that breaks off does no harm', async (t) => {
  const { server, whenClosed } = saying('HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc', (socket) =>
    setImmediate(() => socket.resetAndDestroy()),
  );
  const clock = new FakeClock();
  const result = await probe(targetOf(await listen(t, server)), 2_000, { clock });
  await whenClosed;
  // The reset may overtake the head; what counts is that the probe ended and nothing was thrown.
  assert.equal(typeof result.ok, 'boolean');
});

test('without a path a TCP connect is enough, and closes at once', async (t) => {
  const { server, whenClosed } = saying(null);
  const clock = new FakeClock();
  const { signal } = new AbortController();
  const target = targetOf(await listen(t, server), { path: null });
  assert.deepEqual(await probe(target, 2_000, { clock, signal }), { ok: true });
  await whenClosed;
  assert.equal(clock.pending, 0);
  assert.equal(getEventListeners(signal, 'abort').length, 0);
});

test('an abort ends it at once and closes the connection, also one that came before', async (t) => {
  const { server, whenClosed } = saying(null);
  const port = await listen(t, server);
  const connected = once(server, 'connection');
  const clock = new FakeClock();
  const controller = new AbortController();
  const result = probe(targetOf(port), 2_000, { clock, signal: controller.signal });
  await connected;
  controller.abort();
  assert.deepEqual(await result, { ok: false, error: 'aborted' });
  await whenClosed;
  assert.equal(clock.pending, 0);
  const late = await probe(targetOf(port), 2_000, { clock, signal: controller.signal });
  assert.deepEqual(late, { ok: false, error: 'aborted' });
  assert.equal(clock.pending, 0);
});

test('what Node refuses to send is a failure, not an exception', async () => {
  for (const extra of [{ path: '/bad path' }, { port: 70_000 }, { port: 70_000, path: null }]) {
    const result = await probe(targetOf(1, extra), PATIENT_MS);
    assert.equal(result.ok, false);
  }
});

test('https certificates are verified by the named authority, or not at all when the service says so', async (t) => {
  const server = https.createServer({ key: CERTIFICATE_KEY, cert: CERTIFICATE }, (_request, response) =>
    response.end(),
  );
  const port = await listen(t, server);
  const folder = mkdtempSync(join(tmpdir(), 'probe-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const ca = join(folder, 'ca.pem');
  writeFileSync(ca, CERTIFICATE);

  const strict = await probe(targetOf(port, { protocol: 'https:' }), PATIENT_MS);
  assert.match(strict.ok ? '' : strict.error, /self-signed|DEPTH_ZERO/);
  assert.deepEqual(await probe(targetOf(port, { protocol: 'https:', ca }), PATIENT_MS), {
    ok: true,
    status: 200,
  });
  assert.deepEqual(await probe(targetOf(port, { protocol: 'https:', insecure: true }), PATIENT_MS), {
    ok: true,
    status: 200,
  });
  const missing = await probe(targetOf(port, { protocol: 'https:', ca: join(folder, 'none.pem') }), PATIENT_MS);
  assert.match(missing.ok ? '' : missing.error, /ENOENT/);
  assert.deepEqual(await probe(targetOf(port, { protocol: 'https:', ca: 'unread', path: null }), PATIENT_MS), {
    ok: true,
  });
});

test('a TLS handshake that never comes fails at the deadline', async (t) => {
  const clock = new FakeClock();
  const { server, whenClosed } = saying(null);
  const connected = once(server, 'connection');
  const result = probe(targetOf(await listen(t, server), { protocol: 'https:' }), 2_000, { clock });
  await connected;
  clock.advance(2_000);
  assert.deepEqual(await result, { ok: false, error: 'no answer within 2000 ms' });
  await whenClosed;
});
