/** A private redis-server on a free port, which a test may pause, kill and start again. */
import { type ChildProcess, spawn } from 'node:child_process';
import * as fs from 'node:fs/promises';
import * as net from 'node:net';
import * as os from 'node:os';
import * as path from 'node:path';
import { requireProgram } from './programs.ts';

export interface RedisServer {
  readonly url: string;
  readonly port: number;
  /** Starts it again, on the same port, empty. */
  start(): Promise<void>;
  /** Ends the server and removes its folder. */
  stop(): Promise<void>;
  /** SIGKILL; `start` brings it back. */
  kill(): Promise<void>;
  /** Accepts connections and answers nothing, until `resume`. */
  pause(): void;
  resume(): void;
  /** Sends a command as redis-cli would, and resolves with the raw reply. */
  command(...words: readonly (string | Buffer)[]): Promise<string>;
}

export interface RedisServerOptions {
  readonly port?: number;
  readonly args?: readonly string[];
  /** Path of a configuration file, for what cannot be said in arguments. */
  readonly config?: string;
}

export async function startRedis(options: RedisServerOptions = {}): Promise<RedisServer> {
  const program = await requireProgram('redis-server');
  const folder = await fs.mkdtemp(path.join(os.tmpdir(), 'sticky-redis-'));
  const port = options.port ?? (await freePort());
  let server: ChildProcess | undefined;
  const endWithProcess = () => server?.kill('SIGKILL');
  process.on('exit', endWithProcess);

  async function start(): Promise<void> {
    const args = ['--port', String(port), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', '--dir', folder];
    const config = options.config === undefined ? [] : [options.config];
    server = spawn(program, [...config, ...args, ...(options.args ?? [])], { stdio: 'ignore' });
    await waitForPort(port);
  }
  async function end(signal: NodeJS.Signals): Promise<void> {
    const ending = server;
    server = undefined;
    if (!ending || ending.exitCode !== null) return;
    const gone = new Promise((resolve) => ending.once('exit', resolve));
    ending.kill('SIGCONT');
    ending.kill(signal);
    await gone;
  }

  await start();
  return {
    url: `redis://127.0.0.1:${port}`,
    port,
    start,
    async stop() {
      await end('SIGKILL');
      process.off('exit', endWithProcess);
      await fs.rm(folder, { recursive: true, force: true });
    },
    kill: () => end('SIGKILL'),
    pause: () => void server?.kill('SIGSTOP'),
    resume: () => void server?.kill('SIGCONT'),
    command: (...words) => sendCommand(port, words),
  };
}

/** A port that nobody listens on at the moment. */
export async function freePort(): Promise<number> {
  const server = net.createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as net.AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

async function waitForPort(port: number): Promise<void> {
  for (let attempt = 0; attempt < 200; attempt += 1) {
    try {
      // One that wants a password is up too.
      if (/^\+PONG|^-NOAUTH/.test(await sendCommand(port, ['PING']))) return;
    } catch {
      // Not up yet.
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`redis-server did not come up on port ${port}`);
}

function sendCommand(port: number, words: readonly (string | Buffer)[]): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = net.connect({ host: '127.0.0.1', port });
    const parts: Buffer[] = [Buffer.from(`*${words.length}\r\n`)];
    for (const word of words) {
      const bytes = Buffer.from(word);
      parts.push(Buffer.from(`$${bytes.length}\r\n`), bytes, Buffer.from('\r\n'));
    }
    socket.on('error', reject);
    socket.on('data', (chunk) => {
      socket.destroy();
      resolve(chunk.toString('latin1'));
    });
    socket.write(Buffer.concat(parts));
  });
}
