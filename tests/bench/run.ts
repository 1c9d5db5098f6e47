/**
 * Measures the gateway beside its peers in one run: in turn, repeated, medians and ratios. Nothing is asserted.
 *
 *   npm run bench -- [--rounds 5] [--seconds 3] [--connections 64] [--loads get,post,download,events] [--only a,b] [--profile]
 */
import { execFileSync, spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import * as http from 'node:http';
import * as os from 'node:os';
import * as path from 'node:path';
import { parseArgs } from 'node:util';
import { findPackageFile } from '../../lib/process/package-file.ts';
import { type Running, Setups } from './setups.ts';

const ROOT = path.dirname(findPackageFile('package.json'));
const RESULTS = path.join(ROOT, 'tests', 'bench', 'results');
const TICKS_PER_SECOND = 100;
const LOADS = ['get', 'post', 'download', 'events'] as const;
type Load = (typeof LOADS)[number];

interface Sample {
  readonly subject: string;
  readonly load: Load;
  /** Requests, or events received. */
  readonly count: number;
  readonly seconds: number;
  readonly userMicros: number;
  readonly systemMicros: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly peakMiB: number;
}

const { values: options } = parseArgs({
  options: {
    rounds: { type: 'string', default: '5' },
    seconds: { type: 'string', default: '3' },
    connections: { type: 'string', default: '64' },
    loads: { type: 'string', default: 'get,post,download,events' },
    only: { type: 'string', default: Setups.names.join(',') },
    profile: { type: 'boolean', default: false },
  },
});

function cpuTicks(pids: readonly number[]): { user: number; system: number } {
  let user = 0;
  let system = 0;
  for (const pid of pids) {
    // Behind the name in brackets, utime and stime are the 12th and 13th field (proc(5)).
    const fields = fs
      .readFileSync(`/proc/${pid}/stat`, 'utf8')
      .replace(/^.*\) /, '')
      .split(' ');
    user += Number(fields[11]);
    system += Number(fields[12]);
  }
  return { user, system };
}

function peakMiB(pids: readonly number[]): number {
  return pids.reduce(
    (sum, pid) => sum + Number(/VmHWM:\s+(\d+)/.exec(fs.readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0) / 1024,
    0,
  );
}

/** `12.3us`, `1.2ms`, `1.5s` -> milliseconds. */
function milliseconds(text: string | undefined): number {
  const found = /^([\d.]+)(us|ms|s|m)$/.exec(text ?? '');
  return Number(found?.[1] ?? Number.NaN) * ({ us: 0.001, ms: 1, s: 1_000, m: 60_000 }[found?.[2] ?? ''] ?? Number.NaN);
}

function runWrk(
  port: number,
  load: Load,
  seconds: number,
  folder: string,
): { count: number; p50Ms: number; p99Ms: number } {
  const args = ['-t', '1', '-c', options.connections, '-d', `${seconds}s`, '--latency', '-H', 'x-token: bench-token'];
  if (load === 'post') {
    const script = path.join(folder, 'post.lua');
    fs.writeFileSync(script, 'wrk.method = "POST"\nwrk.body = string.rep("x", 16384)\n');
    args.push('-s', script);
  }
  const target = load === 'download' ? 'file' : 'x';
  const { stdout, stderr, status } = spawnSync('wrk', [...args, `http://127.0.0.1:${port}/js/a/${target}`], {
    encoding: 'utf8',
  });
  if (status !== 0) throw new Error(`wrk: ${stderr}`);
  const failed = /Non-2xx or 3xx responses: (\d+)/.exec(stdout)?.[1];
  if (failed !== undefined) throw new Error(`${failed} requests were refused`);
  return {
    count: Number(/(\d+) requests in/.exec(stdout)?.[1] ?? 0),
    p50Ms: milliseconds(/^\s*50%\s+(\S+)/m.exec(stdout)?.[1]),
    p99Ms: milliseconds(/^\s*99%\s+(\S+)/m.exec(stdout)?.[1]),
  };
}

/** 200 streams at once; counts events, and how late each is. */
async function runEvents(port: number, seconds: number): Promise<{ count: number; p50Ms: number; p99Ms: number }> {
  const lateness: number[] = [];
  const requests: http.ClientRequest[] = [];
  for (let stream = 0; stream < 200; stream += 1) {
    const request = http.get(
      { host: '127.0.0.1', port, path: '/js/e/events', headers: { 'x-token': 'bench-events-token' }, agent: false },
      (response) => {
        response.on('data', (chunk: Buffer) => {
          const sent = Number(/data: (\d+)/.exec(chunk.toString())?.[1]);
          lateness.push(Date.now() - sent);
        });
        response.on('error', () => undefined);
      },
    );
    request.on('error', () => undefined);
    requests.push(request);
  }
  await new Promise((resolve) => setTimeout(resolve, seconds * 1_000));
  for (const request of requests) request.destroy();
  lateness.sort((left, right) => left - right);
  const at = (share: number) => lateness[Math.floor(lateness.length * share)] ?? Number.NaN;
  return { count: lateness.length, p50Ms: at(0.5), p99Ms: at(0.99) };
}

async function measure({ subject, pids }: Running, load: Load, seconds: number, folder: string): Promise<Sample> {
  const before = cpuTicks(pids);
  const result =
    load === 'events' ? await runEvents(subject.eventsPort, seconds) : runWrk(subject.port, load, seconds, folder);
  const after = cpuTicks(pids);
  const micros = (ticks: number) => (ticks * 1e6) / TICKS_PER_SECOND / Math.max(1, result.count);
  return {
    subject: subject.name,
    load,
    seconds,
    ...result,
    userMicros: micros(after.user - before.user),
    systemMicros: micros(after.system - before.system),
    peakMiB: peakMiB(pids),
  };
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((left, right) => left - right);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 === 1
    ? (sorted[middle] ?? Number.NaN)
    : ((sorted[middle - 1] ?? 0) + (sorted[middle] ?? 0)) / 2;
}

function report(samples: readonly Sample[], load: Load): void {
  const names = [...new Set(samples.map((sample) => sample.subject))];
  const of = (name: string) => samples.filter((sample) => sample.subject === name && sample.load === load);
  const cpu = (name: string) => median(of(name).map((sample) => sample.userMicros + sample.systemMicros));
  const round = (value: number, digits = 1) => (Number.isFinite(value) ? value.toFixed(digits) : '-');
  const rows = names
    .filter((name) => of(name).length > 0)
    .map((name) => {
      const own = of(name);
      const all = own.map((sample) => sample.userMicros + sample.systemMicros);
      return {
        '': name,
        'a second': Math.round(median(own.map((sample) => sample.count / sample.seconds))),
        'cpu µs': round(cpu(name)),
        'min-max': `${round(Math.min(...all))}-${round(Math.max(...all))}`,
        user: round(median(own.map((sample) => sample.userMicros))),
        system: round(median(own.map((sample) => sample.systemMicros))),
        'p50 ms': round(median(own.map((sample) => sample.p50Ms)), 2),
        'p99 ms': round(median(own.map((sample) => sample.p99Ms)), 2),
        'peak MiB': round(Math.max(...own.map((sample) => sample.peakMiB)), 0),
        '/ http-proxy': round(cpu(name) / cpu('http-proxy'), 2),
        '/ nginx': round(cpu(name) / cpu('nginx'), 2),
      };
    });
  console.log(`\n${load}: medians of ${options.rounds} rounds of ${options.seconds} s`);
  console.table(Object.fromEntries(rows.map(({ '': name, ...row }) => [name, row])));
}

function installPeers(): void {
  const folder = path.join(ROOT, 'tests', 'bench');
  if (!fs.existsSync(path.join(folder, 'node_modules'))) execFileSync('npm', ['ci'], { cwd: folder, stdio: 'inherit' });
}

async function main(): Promise<void> {
  if (spawnSync('wrk', ['--version']).error) throw new Error('wrk is missing: apt-get install wrk nginx haproxy');
  installPeers();
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'sticky-bench-'));
  fs.mkdirSync(RESULTS, { recursive: true });
  const flags = options.profile ? ['--cpu-prof', `--cpu-prof-dir=${RESULTS}`] : [];
  const setups = new Setups(folder, { backend: 9700, events: 9701, first: 9710 }, flags);
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => process.exit(1));
  process.on('exit', () => {
    setups.stop();
    fs.rmSync(folder, { recursive: true, force: true });
  });
  await setups.startBackends();
  const running: Running[] = [];
  for (const name of options.only.split(',')) {
    const one = await setups.start(name);
    if (one) running.push(one);
    else console.log(`${name} is not installed: left out`);
  }
  const samples: Sample[] = [];
  const seconds = Number(options.seconds);
  for (const load of LOADS.filter((one) => options.loads.split(',').includes(one))) {
    const fit = running.filter(({ subject }) => subject.name !== 'hello' || load === 'get');
    for (const one of fit) await measure(one, load, 1, folder);
    for (let round = 0; round < Number(options.rounds); round += 1) {
      // Another one begins each time, so that none always follows the same.
      const turn = [...fit.slice(round % fit.length), ...fit.slice(0, round % fit.length)];
      for (const one of turn) samples.push(await measure(one, load, seconds, folder));
    }
    report(samples, load);
  }
  const file = path.join(RESULTS, `${new Date().toISOString().replaceAll(':', '-')}.json`);
  fs.writeFileSync(
    file,
    JSON.stringify({ node: process.version, cpus: os.cpus().map((cpu) => cpu.model), options, samples }, null, 1),
  );
  console.log(`raw figures: ${path.relative(process.cwd(), file)}`);
  process.exit(0);
}

await main();
