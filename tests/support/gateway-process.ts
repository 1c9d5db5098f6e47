/** The real command in a process of its own: started, signalled, and its exit code and output kept. */
import { type ChildProcess, type ChildProcessByStdio, spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import type { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { waitUntil } from './wait-until.ts';

const compiled = import.meta.url.endsWith('.js');
const COMMAND = fileURLToPath(new URL(`../../bin/gateway.${compiled ? 'js' : 'ts'}`, import.meta.url));
const LOADER = compiled ? [] : ['--import', 'tsx'];
/** With the loader of the sources, on a busy machine. */
const START_TIMEOUT_MS = 20_000;

export interface Ended {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface ProcessOptions {
  /** Modules that run before the command. */
  readonly imports?: readonly string[];
  /** A program that starts the command it is given. */
  readonly launcher?: readonly string[];
  /** What the descriptors from 3 on are. */
  readonly descriptors?: readonly number[];
  readonly env?: Readonly<Record<string, string>>;
}

/** Ends with this process at the latest. */
export class GatewayProcess {
  stdout = '';
  stderr = '';
  /** Resolves when the process has ended and all its output is read. */
  readonly ended: Promise<Ended>;
  readonly #child: ChildProcess;
  #port = 0;
  #adminPort = 0;

  constructor(args: readonly string[], options: ProcessOptions = {}) {
    const imports = (options.imports ?? []).flatMap((file) => ['--import', file]);
    const command = [process.execPath, ...LOADER, ...imports, COMMAND, ...args];
    const [program = '', ...rest] = [...(options.launcher ?? []), ...command];
    const child = spawn(program, rest, {
      stdio: ['ignore', 'pipe', 'pipe', ...(options.descriptors ?? [])],
      env: { ...process.env, ...options.env },
    }) as ChildProcessByStdio<null, Readable, Readable>;
    this.#child = child;
    const endWithProcess = () => child.kill('SIGKILL');
    process.on('exit', endWithProcess);
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      this.stdout += text;
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      this.stderr += text;
    });
    this.ended = new Promise((resolve, reject) => {
      child.once('error', reject);
      child.once('close', (code, signal) => {
        process.off('exit', endWithProcess);
        resolve({ code, signal, stdout: this.stdout, stderr: this.stderr });
      });
    });
  }

  /** Serves `config` and resolves when it listens; rejects with what it wrote when it ends before. */
  static async serve(config: string, options: ProcessOptions = {}): Promise<GatewayProcess> {
    const gateway = new GatewayProcess(['serve', '--config', config], options);
    let over = false;
    void gateway.ended.then(() => {
      over = true;
    });
    const line = await waitUntil(
      'the gateway to listen',
      () => {
        if (over) throw new Error(`the gateway ended: ${gateway.stderr}${gateway.stdout}`);
        return gateway.events('listening')[0];
      },
      START_TIMEOUT_MS,
    );
    gateway.#port = portOf((line['on'] as string[])[0]);
    gateway.#adminPort = portOf(line['admin'] as string | undefined);
    return gateway;
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  /** Process ids of its workers. */
  get workers(): number[] {
    return childrenOf(this.pid);
  }

  get port(): number {
    return this.#port;
  }

  get adminPort(): number {
    return this.#adminPort;
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }

  /** SIGKILL, and waits for the end. */
  async kill(): Promise<void> {
    this.#child.kill('SIGKILL');
    await this.ended;
  }

  /** Log lines of one event, parsed; a line under way is left for later. */
  events(event: string): Record<string, unknown>[] {
    return this.stdout
      .split('\n')
      .slice(0, -1)
      .map((line) => JSON.parse(line) as Record<string, unknown>)
      .filter((line) => line['event'] === event);
  }
}

/** Runs a command that is to end by itself. */
export function runGateway(...args: readonly string[]): Promise<Ended> {
  return new GatewayProcess(args).ended;
}

/** From /proc; empty for a process that is gone. */
export function childrenOf(pid: number): number[] {
  const path = `/proc/${pid}/task/${pid}/children`;
  if (!existsSync(path)) return [];
  return readFileSync(path, 'utf8').trim().split(' ').filter(Boolean).map(Number);
}

function portOf(url: string | undefined): number {
  return url === undefined ? 0 : Number(new URL(url).port);
}
