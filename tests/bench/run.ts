/**
 * Measures the gateway beside its peers in one run: in turn, repeated, medians and ratios. Nothing is asserted.
 *
 *   npm run bench -- [--rounds 5] [--seconds 3] [--connections 64] [--load get,post,download,sse,select]
 *                    [--only gateway,nginx,...] [--profile] [--install]
 *
 * --profile: the gateway alone under --cpu-prof, small GETs unless --load says otherwise.
 * --install: fetches nginx, HAProxy and wrk with apt-get where they are missing.
 */
import * as fs from 'node:fs';
import * as os from 'node:os';
import * as path from 'node:path';
import { parseArgs } from 'node:util';
import { installPeers, installPrograms, sayMissingPrograms } from './install.ts';
import { type LoadResult, type Meter, REQUEST_LOADS, runSse, runWrk } from './loads.ts';
import { cpuMicros, peakMiB } from './process-usage.ts';
import { findProgram, Processes } from './processes.ts';
import { printProfile } from './profile.ts';
import { printLoad, type Sample } from './report.ts';
import { measureSelection, printSelection } from './selection.ts';
import { BENCH_FOLDER, type Endpoint, ROOT, Setups, SUBJECT_NAMES, type Subject } from './setups.ts';

const RESULTS = path.join(BENCH_FOLDER, 'results');
const LOADS: readonly Sample['load'][] = [...REQUEST_LOADS, 'sse'];
const WARM_UP_SECONDS = 1;
const EXIT_INTERRUPTED = 130;

const { values } = parseArgs({
  options: {
    rounds: { type: 'string', default: '5' },
    seconds: { type: 'string', default: '3' },
    connections: { type: 'string', default: '64' },
    load: { type: 'string' },
    only: { type: 'string' },
    profile: { type: 'boolean', default: false },
    install: { type: 'boolean', default: false },
  },
});
const options = {
  rounds: positive('rounds', values.rounds),
  // wrk takes whole seconds.
  seconds: positive('seconds', values.seconds),
  connections: positive('connections', values.connections),
  loads: listed('load', values.load ?? (values.profile ? 'get' : ''), [...LOADS, 'select']),
  subjects: listed('only', values.only ?? (values.profile ? 'gateway' : ''), SUBJECT_NAMES),
};

function positive(name: string, value: string): number {
  const number = Number(value);
  if (!Number.isInteger(number) || number < 1) throw new Error(`--${name}: a whole number from 1 on, not '${value}'`);
  return number;
}

/** Nothing listed = everything. */
function listed<T extends string>(name: string, value: string, known: readonly T[]): T[] {
  const wanted = value.split(',').filter((one) => one !== '');
  const unknown = wanted.find((one) => !known.some((other) => other === one));
  if (unknown !== undefined) throw new Error(`--${name}: no '${unknown}'; there are ${known.join(', ')}`);
  return wanted.length === 0 ? [...known] : known.filter((one) => wanted.includes(one));
}

class Run {
  readonly samples: Sample[] = [];
  readonly #processes: Processes;
  readonly #folder: string;
  readonly #wrk = findProgram('wrk');

  constructor(processes: Processes, folder: string) {
    this.#processes = processes;
    this.#folder = folder;
  }

  async measureAll(loads: readonly Sample['load'][]): Promise<void> {
    const setups = new Setups({
      processes: this.#processes,
      folder: this.#folder,
      nodeFlags: values.profile ? ['--cpu-prof', `--cpu-prof-dir=${RESULTS}`, `--cpu-prof-name=${PROFILE}`] : [],
    });
    await setups.startBackends();
    const subjects: Subject[] = [];
    for (const name of options.subjects) {
      const one = await setups.start(name);
      if (one) subjects.push(one);
      else console.log(`${name} is not installed: left out`);
    }
    for (const load of loads) {
      if (load !== 'sse' && !this.#wrk) continue;
      // A server that proxies nothing is a yardstick for small answers only.
      const fit = subjects.filter(({ name }) => name !== 'hello' || load === 'get');
      await this.#measureLoad(load, fit);
      if (interrupted) return;
      printLoad(this.samples, load, `${load}: medians of ${options.rounds} rounds of ${options.seconds} s`);
    }
  }

  async #measureLoad(load: Sample['load'], subjects: readonly Subject[]): Promise<void> {
    const fit: Subject[] = [];
    for (const subject of subjects) if (await this.#sample(subject, load, -1)) fit.push(subject);
    for (let round = 0; round < options.rounds; round += 1) {
      // Another one begins each time, so that none always follows the same.
      const first = round % Math.max(1, fit.length);
      for (const subject of [...fit.slice(first), ...fit.slice(0, first)]) {
        const sample = await this.#sample(subject, load, round);
        if (sample) this.samples.push(sample);
      }
    }
  }

  /** Round -1 = warm-up. Undefined = the load did not run as it should, which is said and not counted. */
  async #sample(subject: Subject, load: Sample['load'], round: number): Promise<Sample | undefined> {
    const endpoint = load === 'sse' ? subject.events : subject.web;
    if (!endpoint) return undefined;
    const meter = new CpuMeter(endpoint.pids);
    try {
      const seconds = round < 0 ? WARM_UP_SECONDS : options.seconds;
      const result = await this.#run(load, endpoint, seconds, meter);
      const each = Math.max(1, result.count);
      return {
        subject: subject.name,
        load,
        round,
        ...result,
        userMicros: meter.user / each,
        systemMicros: meter.system / each,
        peakMiB: peakMiB(endpoint.pids),
      };
    } catch (error) {
      if (!interrupted) console.log(`${subject.name}, ${load}: not counted: ${(error as Error).message}`);
      return undefined;
    }
  }

  #run(load: Sample['load'], { port }: Endpoint, seconds: number, meter: Meter): Promise<LoadResult> {
    if (load === 'sse') return runSse(port, seconds, meter);
    const { connections } = options;
    const wrk = { program: this.#wrk ?? '', processes: this.#processes, connections, folder: this.#folder };
    return runWrk(wrk, load, port, seconds, meter);
  }
}

class CpuMeter implements Meter {
  user = 0;
  system = 0;
  readonly #pids: readonly number[];

  constructor(pids: readonly number[]) {
    this.#pids = pids;
  }

  begin(): void {
    const { user, system } = cpuMicros(this.#pids);
    this.user -= user;
    this.system -= system;
  }

  end(): void {
    const { user, system } = cpuMicros(this.#pids);
    this.user += user;
    this.system += system;
  }
}

const stamp = new Date().toISOString().replaceAll(':', '-').replace(/\..*/, '');
const PROFILE = `${stamp}.cpuprofile`;
let interrupted = false;

async function main(): Promise<void> {
  const processes = new Processes();
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'sticky-bench-'));
  process.once('exit', () => fs.rmSync(folder, { recursive: true, force: true }));
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.once(signal, () => {
      interrupted = true;
      void processes.stop().finally(() => process.exit(EXIT_INTERRUPTED));
    });
  }
  fs.mkdirSync(RESULTS, { recursive: true });
  if (values.install) installPrograms();
  const loads = LOADS.filter((load) => options.loads.includes(load));
  const run = new Run(processes, folder);
  try {
    if (loads.length > 0) {
      sayMissingPrograms();
      installPeers();
      await run.measureAll(loads);
    }
  } finally {
    await processes.stop();
  }
  if (interrupted) return;
  const selection = options.loads.includes('select') ? measureSelection(options.rounds) : [];
  if (selection.length > 0) printSelection(selection);
  if (loads.length > 0 && values.profile) printProfile(path.join(RESULTS, PROFILE), path.join(ROOT, 'dist'));
  const machine = { node: process.version, kernel: os.release(), cpus: os.cpus().map((cpu) => cpu.model) };
  const file = path.join(RESULTS, `${stamp}.json`);
  fs.writeFileSync(file, JSON.stringify({ machine, options, samples: run.samples, selection }, null, 1));
  console.log(`\nraw figures: ${path.relative(process.cwd(), file)}`);
}

await main();
