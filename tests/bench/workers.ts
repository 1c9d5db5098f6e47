/**
 * Measures what a second worker brings: the throughput of two against that of one, in turn, repeated, medians. The load,
 * the node and PostgreSQL share the machine, so that with few cores there is little left to gain. Nothing is asserted.
 *
 *   npm run build && node dist/tests/bench/workers.js [--rounds 5] [--seconds 3] [--connections 64] [--workers 1,2]
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import * as os from 'node:os';
import * as path from 'node:path';
import { parseArgs } from 'node:util';
import { findPackageFile } from '../../lib/process/package-file.ts';
import { startPostgres } from '../support/postgres-server.ts';
import { waitUntil } from '../support/wait-until.ts';
import { freePorts, Processes } from './processes.ts';
import { Setups } from './setups.ts';

const COMMAND = path.join(path.dirname(findPackageFile('package.json')), 'dist', 'bin', 'gateway.js');
const TICKS_PER_SECOND = 100;

const { values: options } = parseArgs({
  options: {
    rounds: { type: 'string', default: '5' },
    seconds: { type: 'string', default: '3' },
    connections: { type: 'string', default: '64' },
    workers: { type: 'string', default: '1,2' },
  },
});

interface Subject {
  readonly workers: number;
  readonly port: number;
  readonly child: ChildProcess;
  readonly perSecond: number[];
  readonly cpuMicros: number[];
}

/** Behind the name in brackets, utime and stime are the 12th and 13th field (proc(5)). */
function cpuTicks(pid: number): number {
  const text = fs.readFileSync(`/proc/${pid}/stat`, 'utf8');
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  return Number(fields[11]) + Number(fields[12]);
}

/** The process and its workers. */
function processesOf(pid: number): number[] {
  const children = fs.readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim();
  return [pid, ...children.split(' ').filter(Boolean).map(Number)];
}

async function start(
  workers: number,
  { folder, postgresUrl, backendPort }: { folder: string; postgresUrl: string; backendPort: number },
): Promise<Subject> {
  const [port = 0] = await freePorts(1);
  const file = path.join(folder, `gateway-${workers}.yaml`);
  fs.writeFileSync(
    file,
    `listen: 127.0.0.1:${port}\nworkers: ${workers}\nadmin: { listen: "127.0.0.1:0" }\n` +
      `store: { dataDir: ${path.join(folder, 'data')}, postgres: { url: "${postgresUrl}" } }\nservices:\n` +
      `  - { id: bench, pathPrefix: /js/a, loginPath: /auth/login, healthPath: null, nodes: [{ id: n1, baseUrl: "http://127.0.0.1:${backendPort}" }] }\n`,
  );
  const log = fs.openSync(path.join(folder, `access-${workers}.log`), 'w');
  const child = spawn(process.execPath, [COMMAND, '--config', file], { stdio: ['ignore', log, 'inherit'] });
  await waitUntil('the gateway to let somebody log in', async () => {
    const login = { method: 'POST', body: '{"username":"bench"}' };
    return fetch(`http://127.0.0.1:${port}/js/a/auth/login`, login).then(
      (answer) => answer.ok,
      () => false,
    );
  });
  return { workers, port, child, perSecond: [], cpuMicros: [] };
}

function load({ port, child, perSecond, cpuMicros }: Subject, seconds: number, keep: boolean): void {
  const pids = processesOf(child.pid ?? 0);
  const ticks = () => pids.reduce((sum, pid) => sum + cpuTicks(pid), 0);
  const before = ticks();
  const target = `http://127.0.0.1:${port}/js/a/x`;
  const args = ['-t', '1', '-c', options.connections, '-d', `${seconds}s`, '-H', 'x-token: bench-token', target];
  const { stdout, stderr, status } = spawnSync('wrk', args, { encoding: 'utf8' });
  if (status !== 0) throw new Error(`wrk: ${stderr}`);
  const refused = /Non-2xx or 3xx responses: (\d+)/.exec(stdout)?.[1];
  if (refused !== undefined) throw new Error(`${refused} requests were refused`);
  const count = Number(/(\d+) requests in/.exec(stdout)?.[1] ?? 0);
  if (!keep) return;
  perSecond.push(count / seconds);
  cpuMicros.push(((ticks() - before) * 1e6) / TICKS_PER_SECOND / Math.max(1, count));
}

function median(values: readonly number[]): number {
  return [...values].sort((left, right) => left - right)[Math.floor(values.length / 2)] ?? Number.NaN;
}

async function main(): Promise<void> {
  if (spawnSync('wrk', ['--version']).error) throw new Error('wrk is missing: apt-get install wrk nginx');
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'sticky-bench-'));
  const processes = new Processes();
  const setups = new Setups({ processes, folder, nodeFlags: [] });
  const subjects: Subject[] = [];
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => process.exit(1));
  process.on('exit', () => {
    for (const { child } of subjects) child.kill('SIGTERM');
    fs.rmSync(folder, { recursive: true, force: true });
  });
  const postgres = await startPostgres();
  try {
    await setups.startBackends();
    const where = { folder, postgresUrl: postgres.url, backendPort: setups.backendPort };
    for (const workers of options.workers.split(',')) subjects.push(await start(Number(workers), where));
    for (const subject of subjects) load(subject, 1, false);
    for (let round = 0; round < Number(options.rounds); round += 1)
      for (const subject of subjects) load(subject, Number(options.seconds), true);
  } finally {
    await postgres.dispose();
    await processes.stop();
  }
  const [first] = subjects;
  console.log(`${os.availableParallelism()} cores, shared by the load, the node and the gateway`);
  console.table(
    subjects.map(({ workers, perSecond, cpuMicros }) => ({
      workers,
      'requests/s': Math.round(median(perSecond)),
      'min-max': `${Math.round(Math.min(...perSecond))}-${Math.round(Math.max(...perSecond))}`,
      'cpu µs': median(cpuMicros).toFixed(1),
      [`/ ${first?.workers} worker`]: (median(perSecond) / median(first?.perSecond ?? [])).toFixed(2),
    })),
  );
}

await main();
process.exit();
