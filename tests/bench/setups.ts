/** What is measured: the gateway and its peers, each as a process of its own in front of the same backends. */
import type { ChildProcess } from 'node:child_process';
import * as fs from 'node:fs';
import * as path from 'node:path';
import { findPackageFile } from '../../lib/process/package-file.ts';
import type { Ports } from './configurations.ts';
import * as configurations from './configurations.ts';
import { PATHS } from './loads.ts';
import { childrenOf } from './process-usage.ts';
import { findProgram, freePorts, type Processes, waitForPort } from './processes.ts';

export interface Endpoint {
  readonly port: number;
  /** The processes whose CPU and memory count. */
  readonly pids: readonly number[];
}

export interface Subject {
  readonly name: string;
  readonly web: Endpoint;
  /** In front of the backend that sends events; null where there is nothing in front of anything. */
  readonly events: Endpoint | null;
}

export interface SetupsOptions {
  readonly processes: Processes;
  /** Temporary; the caller removes it. */
  readonly folder: string;
  /** For the gateway's node, for example to profile it. */
  readonly nodeFlags: readonly string[];
}

/** Names, and the npm package of those that have one. */
const PEERS: ReadonlyMap<string, string | null> = new Map([
  ['gateway', null],
  ['nginx', null],
  ['haproxy', null],
  ['http-proxy', 'http-proxy'],
  ['http-proxy-3', 'http-proxy-3'],
  ['httpxy', 'httpxy'],
  ['fastify', '@fastify/http-proxy'],
  ['hello', null],
]);
export const SUBJECT_NAMES: readonly string[] = [...PEERS.keys()];

const DOWNLOAD_BYTES = 1_048_576;
/** Of the package. */
export const ROOT = path.dirname(findPackageFile('package.json'));
export const BENCH_FOLDER = path.join(ROOT, 'tests', 'bench');
const PEER_SCRIPT = path.join(BENCH_FOLDER, 'peer.mjs');
const COMMAND = path.join(ROOT, 'dist', 'bin', 'gateway.js');

export class Setups {
  readonly #processes: Processes;
  readonly #folder: string;
  readonly #nodeFlags: readonly string[];
  #backends: Ports = { web: 0, events: 0 };

  constructor({ processes, folder, nodeFlags }: SetupsOptions) {
    this.#processes = processes;
    this.#folder = folder;
    this.#nodeFlags = nodeFlags;
  }

  /** Of the backend for everything but events; 0 before it has started. */
  get backendPort(): number {
    return this.#backends.web;
  }

  /** Must be done before `start`. Without nginx a Node server stands in, which takes more of the machine. */
  async startBackends(): Promise<void> {
    this.#backends = await choosePorts();
    const { web, events } = this.#backends;
    fs.mkdirSync(path.join(this.#folder, 'js', 'a'), { recursive: true });
    fs.writeFileSync(path.join(this.#folder, PATHS.download), Buffer.alloc(DOWNLOAD_BYTES, 'x'));
    fs.writeFileSync(path.join(this.#folder, PATHS.post), '');
    // nginx runs its workers as another user when it is root.
    fs.chmodSync(this.#folder, 0o755);
    const program = findProgram('nginx');
    const backend = program
      ? this.#nginx(program, 'backend', configurations.nginxBackend(this.#folder, web))
      : this.#node('backend', web);
    await waitForPort(backend, web);
    await waitForPort(this.#node('events', events), events);
  }

  /** Undefined = its program or package is not there. */
  async start(name: string): Promise<Subject | undefined> {
    const at = await choosePorts();
    switch (name) {
      case 'gateway':
        return this.#gateway(at);
      case 'nginx':
        return this.#nginxProxy(at);
      case 'haproxy':
        return this.#haproxy(at);
      default:
        return this.#peer(name, at);
    }
  }

  async #gateway(at: Ports): Promise<Subject> {
    const config = this.#write('gateway.yaml', configurations.gateway(this.#folder, at, this.#backends));
    // The access log goes to a file, as it does behind systemd or a container's log driver.
    const log = fs.openSync(path.join(this.#folder, 'access.log'), 'w');
    const args = [...this.#nodeFlags, COMMAND, '--config', config];
    const child = this.#processes.start(process.execPath, args, ['ignore', log, 'inherit']);
    fs.closeSync(log);
    await waitForPort(child, at.events);
    for (const prefix of ['/js/a', '/js/e']) await logIn(`http://127.0.0.1:${at.web}${prefix}/auth/login`);
    return subject('gateway', at, pidsOf(child));
  }

  async #nginxProxy(at: Ports): Promise<Subject | undefined> {
    const program = findProgram('nginx');
    if (!program) return undefined;
    const master = this.#nginx(program, 'proxy', configurations.nginxProxy(this.#folder, at, this.#backends));
    await waitForPort(master, at.events);
    return subject('nginx', at, await childrenOf(pidsOf(master)[0] ?? 0));
  }

  async #haproxy(at: Ports): Promise<Subject | undefined> {
    const program = findProgram('haproxy');
    if (!program) return undefined;
    const config = this.#write('haproxy.cfg', configurations.haproxy(at, this.#backends));
    // -db: no master; the process that is started is the one that works.
    const child = this.#processes.start(program, ['-db', '-q', '-f', config]);
    await waitForPort(child, at.events);
    return subject('haproxy', at, pidsOf(child));
  }

  /** These know one target each, so there are two processes: the second one for events, idle otherwise. */
  async #peer(name: string, at: Ports): Promise<Subject | undefined> {
    const packageName = PEERS.get(name);
    if (packageName && !fs.existsSync(path.join(BENCH_FOLDER, 'node_modules', packageName))) return undefined;
    const web = this.#node(name, at.web, this.#backends.web);
    await waitForPort(web, at.web);
    const one = { name, web: { port: at.web, pids: pidsOf(web) } };
    if (name === 'hello') return { ...one, events: null };
    const events = this.#node(name, at.events, this.#backends.events);
    await waitForPort(events, at.events);
    return { ...one, events: { port: at.events, pids: pidsOf(events) } };
  }

  #node(role: string, port: number, target?: number): ChildProcess {
    const to = target === undefined ? [] : [`http://127.0.0.1:${target}`];
    return this.#processes.start(process.execPath, ['--no-deprecation', PEER_SCRIPT, role, String(port), ...to]);
  }

  #nginx(program: string, name: string, text: string): ChildProcess {
    return this.#processes.start(program, ['-c', this.#write(`${name}.conf`, text)]);
  }

  #write(name: string, text: string): string {
    const file = path.join(this.#folder, name);
    fs.writeFileSync(file, text);
    return file;
  }
}

/** After this the backend's token leads to a user, and the user to the backend. */
async function logIn(url: string): Promise<void> {
  const answer = await fetch(url, { method: 'POST', body: '{"username":"bench"}' });
  await answer.text();
  if (!answer.ok) throw new Error(`the login through the gateway failed: ${answer.status}`);
}

async function choosePorts(): Promise<Ports> {
  const [web = 0, events = 0] = await freePorts(2);
  return { web, events };
}

function subject(name: string, at: Ports, pids: readonly number[]): Subject {
  return { name, web: { port: at.web, pids }, events: { port: at.events, pids } };
}

function pidsOf({ pid }: ChildProcess): number[] {
  return pid === undefined ? [] : [pid];
}
