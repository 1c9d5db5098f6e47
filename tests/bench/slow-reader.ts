/**
 * Sends a large body through a gateway process, first to a slow client, then to a slow node, and prints how much the
 * process's resident memory grew. Not a test: it takes minutes.
 *
 *   node --import tsx tests/bench/slow-reader.ts [--bytes 1000000000] [--rate 5000000]
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import * as net from 'node:net';
import * as os from 'node:os';
import * as path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { connectRaw, ok, type RawConnection, RawNode } from '../support/raw-http.ts';

const GROWTH_ALLOWED_BYTES = 64 * 1_048_576;
/** How often a slow reader takes its share, and the memory is looked at. */
const STEP_MS = 100;

const { values } = parseArgs({
  options: { bytes: { type: 'string', default: '1000000000' }, rate: { type: 'string', default: '5000000' } },
});
const total = Number(values.bytes);
const ratePerSecond = Number(values.rate);

/** Takes bytes off the connection at the rate, by pausing its socket whenever it is ahead. */
async function readSlowly(connection: RawConnection, bytes: number): Promise<void> {
  connection.discards = true;
  const startedMs = performance.now();
  const target = connection.receivedBytes + bytes;
  const already = connection.receivedBytes;
  while (connection.receivedBytes < target) {
    const due = ((performance.now() - startedMs) / 1_000) * ratePerSecond;
    if (connection.receivedBytes - already < due) connection.socket.resume();
    else connection.socket.pause();
    if (connection.over !== null && connection.socket.readableLength === 0) break;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

function residentBytes(child: ChildProcess): number {
  const status = readFileSync(`/proc/${child.pid}/status`, 'utf8');
  return Number(/VmRSS:\s+(\d+) kB/.exec(status)?.[1]) * 1_024;
}

async function startGateway(node: RawNode): Promise<{ child: ChildProcess; port: number; folder: string }> {
  const folder = await fs.mkdtemp(path.join(os.tmpdir(), 'sticky-gateway-slow-'));
  const config = path.join(folder, 'gateway.yaml');
  const port = await freePort();
  await fs.writeFile(
    config,
    `listen: 127.0.0.1:${port}\nadmin: { listen: "127.0.0.1:0" }\nstore: { dataDir: ${JSON.stringify(path.join(folder, 'data'))} }\n` +
      'services:\n  - id: app\n    pathPrefix: /app\n    healthPath: null\n' +
      `    nodes: [{ id: n1, baseUrl: "${node.baseUrl}" }]\n`,
  );
  const compiled = import.meta.url.endsWith('.js');
  const entry = fileURLToPath(new URL(`../../bin/gateway.${compiled ? 'js' : 'ts'}`, import.meta.url));
  const child = spawn(process.execPath, [...(compiled ? [] : ['--import', 'tsx']), entry, '--config', config], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await new Promise<void>((resolve, reject) => {
    child.once('exit', () => reject(new Error('the gateway did not start')));
    child.stdout?.on('data', (text: Buffer) => {
      if (text.includes('"listening"')) resolve();
    });
  });
  return { child, port, folder };
}

async function freePort(): Promise<number> {
  const server = net.createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as net.AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Runs one transfer and prints how far the memory rose above where it was. */
async function measure(title: string, child: ChildProcess, transfer: () => Promise<void>): Promise<boolean> {
  const before = residentBytes(child);
  let highest = before;
  const watch = setInterval(() => {
    highest = Math.max(highest, residentBytes(child));
  }, STEP_MS);
  const startedMs = performance.now();
  await transfer();
  clearInterval(watch);
  const seconds = (performance.now() - startedMs) / 1_000;
  const grown = highest - before;
  process.stdout.write(
    `${title}: ${(total / 1e6).toFixed(0)} MB in ${seconds.toFixed(1)} s (${(total / 1e6 / seconds).toFixed(1)} MB/s), ` +
      `resident ${(before / 1_048_576).toFixed(0)} MiB, highest ${(highest / 1_048_576).toFixed(0)} MiB, ` +
      `grown ${(grown / 1_048_576).toFixed(1)} MiB\n`,
  );
  return grown < GROWTH_ALLOWED_BYTES;
}

const node = await new RawNode().start();
const { child, port, folder } = await startGateway(node);
let sound = true;
try {
  // What a first request makes the process load is not growth.
  node.restart(async (connection) => {
    await connection.readRequest();
    connection.write(ok());
  });
  const warm = await connectRaw(port);
  warm.write('GET /app/warm HTTP/1.1\r\nHost: h\r\n\r\n');
  await warm.readAnswer();
  warm.socket.destroy();

  sound = await measure('to a slow client', child, async () => {
    node.restart(async (connection) => {
      await connection.readRequest();
      connection.write(`HTTP/1.1 200 OK\r\nContent-Length: ${total}\r\n\r\n`);
      await connection.pour(total);
    });
    const client = await connectRaw(port);
    client.write('GET /app/x HTTP/1.1\r\nHost: h\r\n\r\n');
    await readSlowly(client, total);
    client.socket.destroy();
  });
  sound =
    (await measure('to a slow node', child, async () => {
      node.restart(async (connection) => {
        await readSlowly(connection, total);
        connection.write(ok());
      });
      const client = await connectRaw(port);
      client.write(`POST /app/x HTTP/1.1\r\nHost: h\r\nContent-Length: ${total}\r\n\r\n`);
      await client.pour(total);
      await client.until('the answer', () => client.receivedBytes > 0, 600_000);
      client.socket.destroy();
    })) && sound;
} finally {
  const gone = new Promise((resolve) => child.once('exit', resolve));
  child.kill('SIGKILL');
  await gone;
  await node.stop();
  await fs.rm(folder, { recursive: true, force: true });
}
process.stdout.write(`${sound ? 'within' : 'MORE THAN'} ${GROWTH_ALLOWED_BYTES / 1_048_576} MiB\n`);
process.exitCode = sound ? 0 : 1;
