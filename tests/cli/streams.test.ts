/** Files through the commands, against an admin listener that is slow, breaks off, or answers early. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { access, lstat, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import * as http from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough, Readable } from 'node:stream';
import { after, afterEach, before, describe, it } from 'node:test';
import { runCli, spawnCli } from '../support/cli.ts';
import { waitUntil } from '../support/wait-until.ts';

const LINE = Buffer.from(`${'x'.repeat(1023)}\n`.repeat(64));
const CHUNKS = 1_600;
/** 100 MB: more than pipes and sockets hold by far. */
const BYTES = LINE.length * CHUNKS;
const MOST_IN_BETWEEN = 16_000_000;
const SERVICE = {
  id: 'demo',
  pathPrefix: '/',
  loginPath: null,
  defaultNodeId: null,
  enabled: true,
  affinity: 'user',
  nodes: [],
};

describe('files through the commands', () => {
  let server: http.Server;
  let handler: (request: http.IncomingMessage, response: http.ServerResponse) => void;
  let folder: string;

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'sticky-cli-'));
    server = http.createServer((request, response) => {
      if (request.url === '/api/services') response.end(JSON.stringify({ services: [SERVICE] }));
      else handler(request, response);
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
  });
  afterEach(() => server.closeAllConnections());
  after(async () => {
    server.close();
    await rm(folder, { recursive: true, force: true });
  });
  const env = () => ({ STICKY_GATEWAY_ADMIN: `http://127.0.0.1:${(server.address() as AddressInfo).port}` });

  /** Writes as fast as it is read; tells how much is gone, and whether it stands still. */
  function pour(target: NodeJS.WritableStream): { readonly sent: () => number; readonly stalled: () => boolean } {
    let sent = 0;
    let stalled = false;
    const go = () => {
      stalled = false;
      for (; sent < BYTES; ) {
        sent += LINE.length;
        if (!target.write(LINE)) {
          stalled = true;
          return;
        }
      }
      target.end();
    };
    target.on('drain', go);
    go();
    return { sent: () => sent, stalled: () => stalled };
  }

  /** Resolves with how much has gone when no more goes; at once wrong if all of it went. */
  async function standstill(flow: { sent: () => number; stalled: () => boolean }): Promise<number> {
    let last = -1;
    let same = 0;
    await waitUntil(
      'the flow to stand still',
      async () => {
        await new Promise((resolve) => setTimeout(resolve, 20));
        same = flow.stalled() && flow.sent() === last && last > 0 ? same + 1 : 0;
        last = flow.sent();
        return same >= 25 || last >= BYTES;
      },
      60_000,
    );
    return last;
  }

  it('export no faster than their output is read', async () => {
    let flow: ReturnType<typeof pour> | undefined;
    handler = (_request, response) => {
      flow = pour(response.writeHead(200, { 'Content-Type': 'text/csv' }));
    };
    const child = spawnCli(['bindings', 'export'], env());
    const closed = once(child, 'close');
    await waitUntil('the export', () => flow !== undefined, 20_000);
    const between = await standstill({ sent: () => flow?.sent() ?? 0, stalled: () => flow?.stalled() ?? false });
    assert.ok(between < MOST_IN_BETWEEN, `${between} bytes went while nobody read`);
    let read = 0;
    child.stdout.on('data', (chunk: Buffer) => {
      read += chunk.length;
    });
    assert.deepEqual(await closed, [0, null]);
    assert.equal(read, BYTES);
  });

  it('import no faster than the gateway takes it', async () => {
    let request: http.IncomingMessage | undefined;
    handler = (incoming, response) => {
      request = incoming;
      incoming.on('end', () => response.end('{"rows":1,"inserted":1,"unchanged":0}'));
    };
    const child = spawnCli(['bindings', 'import', '-'], env());
    const closed = once(child, 'close');
    const flow = pour(child.stdin);
    await waitUntil('the import', () => request !== undefined, 20_000);
    const between = await standstill(flow);
    assert.ok(between < MOST_IN_BETWEEN, `${between} bytes went while nobody read`);
    let read = 0;
    request?.on('data', (chunk: Buffer) => {
      read += chunk.length;
    });
    assert.deepEqual(await closed, [0, null]);
    assert.equal(read, BYTES);
  });

  it('fail loudly when an export breaks off, and leave no file', async () => {
    handler = (_request, response) => {
      response.writeHead(200, { 'Content-Type': 'text/csv' }).write('user_id,username,node_id\na,,n1\n');
      setImmediate(() => response.destroy());
    };
    const file = join(folder, 'broken.csv');
    for (const args of [
      ['bindings', 'export'],
      ['bindings', 'export', '--output', file],
    ]) {
      const end = await runCli(args, { env: env() });
      assert.equal(end.code, 1);
      assert.match(end.stderr, /broke the export off after \d lines?: it is not complete|broke the connection off/);
    }
    for (const name of [file, `${file}.partial`]) await assert.rejects(access(name), /ENOENT/);
  });

  it('write through links, devices and pipes, and replace none of them', async () => {
    handler = (_request, response) => {
      response.writeHead(200, { 'Content-Type': 'text/csv' }).end('user_id,username,node_id\na,,n1\n');
    };
    const real = join(folder, 'real.csv');
    await writeFile(real, 'old', { mode: 0o640 });
    const link = join(folder, 'link.csv');
    await symlink(real, link);
    const pipe = join(folder, 'pipe');
    execFileSync('mkfifo', [pipe]);
    const piped = readFile(pipe, 'utf8');
    for (const file of [link, pipe]) {
      const end = await runCli(['bindings', 'export', '--output', file], { env: env() });
      assert.equal(end.code, 0, end.stderr);
    }
    assert.equal(await piped, 'user_id,username,node_id\na,,n1\n');
    assert.ok((await lstat(pipe)).isFIFO());
    assert.ok((await lstat(link)).isSymbolicLink());
    assert.equal(await readFile(real, 'utf8'), 'user_id,username,node_id\na,,n1\n');
    assert.equal((await lstat(real)).mode & 0o777, 0o640);
    assert.equal((await runCli(['bindings', 'export', '--output', folder], { env: env() })).code, 1);
  });

  it('stop sending when the answer is there before the end of the file', async () => {
    handler = (_request, response) => {
      response.writeHead(403, { Connection: 'close' });
      response.end('{"code":403,"error":"forbidden","message":"not you"}');
    };
    const endless = Readable.from(
      (function* () {
        for (;;) yield LINE;
      })(),
    );
    const end = await runCli(['bindings', 'import', '-'], { env: env(), stdin: endless });
    assert.equal(end.code, 1);
    assert.match(end.stderr, /not you/);
  });

  it('read an early answer to its end, though it comes in pieces', async () => {
    const errors = Array.from({ length: 1_000 }, (_, index) => ({ line: index + 1, message: 'y'.repeat(200) }));
    const body = JSON.stringify({ code: 400, error: 'import_refused', message: 'no', errors, errorCount: 2_000 });
    handler = (_request, response) => {
      response.writeHead(400);
      response.write(body.slice(0, 1_000));
      setTimeout(() => response.end(body.slice(1_000)), 50);
    };
    const endless = Readable.from(
      (function* () {
        for (;;) yield LINE;
      })(),
    );
    const end = await runCli(['bindings', 'import', '-'], { env: env(), stdin: endless });
    assert.equal(end.code, 1);
    const lines = end.stderr.trimEnd().split('\n');
    assert.equal(lines.length, 1_002);
    assert.equal(lines[999], `stdin:1000: ${'y'.repeat(200)}`);
    assert.deepEqual(lines.slice(1_000), [
      '… and 1,000 more',
      'sticky-gateway: 2,000 faults in stdin, nothing was imported',
    ]);
  });

  it('never pass a part of a file for the whole', async () => {
    const seen: boolean[] = [];
    let arrived = false;
    handler = (incoming) => {
      incoming.on('error', () => undefined);
      incoming.on('close', () => seen.push(incoming.complete));
      incoming.on('data', () => {
        arrived = true;
      });
    };
    for (const early of [true, false]) {
      const broken = new PassThrough();
      broken.write('h1,,n1\n');
      if (early) broken.destroy(new Error('the disk broke'));
      const ended = runCli(['bindings', 'import', '-'], { env: env(), stdin: broken });
      if (!early) {
        await waitUntil('the first of it to arrive', () => arrived);
        broken.destroy(new Error('the disk broke'));
      }
      const end = await ended;
      assert.equal(end.code, 1);
      assert.match(end.stderr, /could not be read to its end, so nothing was taken over: the disk broke/);
    }
    await waitUntil('the request to be over', () => seen.length > 0);
    assert.ok(seen.every((complete) => !complete));
  });

  it('say that a gateway broke off in the middle of an import', async () => {
    handler = (incoming) => {
      incoming.once('data', () => incoming.socket.resetAndDestroy());
    };
    const file = join(folder, 'users.csv');
    await writeFile(file, 'a,,n1\n'.repeat(100_000));
    const end = await runCli(['bindings', 'import', file, '--json'], { env: env() });
    assert.equal(end.code, 1);
    assert.equal(end.error()['error'], 'broke_off');
  });
});
