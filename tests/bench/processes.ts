/** Starts the programs of a benchmark and ends every one of them, by pid. Knows nothing of what they are. */
import { type ChildProcess, type StdioOptions, spawn } from 'node:child_process';
import { once } from 'node:events';
import * as fs from 'node:fs';
import * as net from 'node:net';
import * as path from 'node:path';

/** A profile of several minutes takes seconds to write; whoever needs longer than this hangs. */
const STOP_MS = 15_000;
const PORT_TRIES = 250;
const TRY_EVERY_MS = 40;

export class Processes {
  readonly #children = new Set<ChildProcess>();
  #stopped = false;

  /** `stdio`: where the program's output goes; mistakes reach the terminal by default. Throws after `stop`. */
  start(program: string, args: readonly string[], stdio: StdioOptions = ['ignore', 'ignore', 'inherit']): ChildProcess {
    // Who was waiting for a process that `stop` ended may go on to the next one.
    if (this.#stopped) throw new Error('the run is over');
    const child = spawn(program, args, { stdio });
    this.#children.add(child);
    child.once('exit', () => this.#children.delete(child));
    child.once('error', () => this.#children.delete(child));
    return child;
  }

  /** Runs a program to its end. Rejects with what it said if it cannot start or says it failed. */
  async run(program: string, args: readonly string[]): Promise<string> {
    const child = this.start(program, args, ['ignore', 'pipe', 'pipe']);
    let output = '';
    let complaint = '';
    child.stdout?.on('data', (chunk: Buffer) => {
      output += chunk.toString();
    });
    child.stderr?.on('data', (chunk: Buffer) => {
      complaint += chunk.toString();
    });
    const [code] = (await once(child, 'close')) as [number | null];
    if (code !== 0) throw new Error(`${path.basename(program)} failed (${code}): ${complaint || output}`);
    return output;
  }

  /** Resolves when all are gone; the last started goes first, since it stands in front of the others. */
  async stop(): Promise<void> {
    this.#stopped = true;
    for (const child of [...this.#children].reverse()) {
      // A signal to the whole group, as from Ctrl-C, may have ended it meanwhile.
      if (isGone(child)) continue;
      const gone = once(child, 'exit');
      const insist = setTimeout(() => child.kill('SIGKILL'), STOP_MS);
      child.kill('SIGTERM');
      await gone;
      clearTimeout(insist);
    }
  }
}

/** Full path of a program in PATH, or undefined. Debian keeps daemons in /usr/sbin, which not every PATH has. */
export function findProgram(name: string): string | undefined {
  return [...(process.env['PATH'] ?? '').split(':'), '/usr/sbin', '/usr/local/sbin']
    .map((folder) => path.join(folder, name))
    .find((file) => fs.existsSync(file));
}

/** Ports that were free a moment ago, all different. */
export async function freePorts(count: number): Promise<number[]> {
  const servers = Array.from({ length: count }, () => net.createServer().listen(0, '127.0.0.1'));
  await Promise.all(servers.map((server) => once(server, 'listening')));
  const ports = servers.map((server) => (server.address() as net.AddressInfo).port);
  await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
  return ports;
}

/** Resolves when `child` lets itself be connected to; rejects when it is gone or takes too long. */
export async function waitForPort(child: ChildProcess, port: number): Promise<void> {
  for (let attempt = 0; attempt < PORT_TRIES; attempt += 1) {
    if (isGone(child)) break;
    if (await connects(port)) return;
    await pause(TRY_EVERY_MS);
  }
  throw new Error(`${child.spawnfile} does not listen on port ${port}`);
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

function isGone({ pid, exitCode, signalCode }: ChildProcess): boolean {
  return pid === undefined || exitCode !== null || signalCode !== null;
}

function connects(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = net.connect({ host: '127.0.0.1', port });
    socket.once('error', () => resolve(false));
    socket.once('connect', () => {
      socket.destroy();
      resolve(true);
    });
  });
}
