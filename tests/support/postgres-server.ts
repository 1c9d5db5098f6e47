/**
 * Private PostgreSQL servers for tests, and databases in the one that the test runner started. A test file that runs
 * alone gets a server of its own, which ends with the process.
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { chownSync, mkdtempSync, rmSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Client } from 'pg';
import { requireProgram, unprivilegedUser } from './programs.ts';

/** Names the server of the runner: a URL of its maintenance database. */
export const POSTGRES_URL_VARIABLE = 'STICKY_TEST_POSTGRES_URL';

const START_TIMEOUT_MS = 30_000;
const ATTEMPTS = 4;

export interface PostgresServer {
  readonly port: number;
  /** URL of the maintenance database; another one is made with createDatabase(server.url). */
  readonly url: string;
  /** Starts it again on the same port after stop or kill. */
  start(): Promise<void>;
  /** Ends sessions and server; the data stay. */
  stop(): Promise<void>;
  /** Like a power failure: SIGQUIT to the server, no word to its clients. */
  kill(): Promise<void>;
  /** Stops it and removes its data. */
  dispose(): Promise<void>;
}

export interface TestDatabase {
  readonly url: string;
  readonly name: string;
  drop(): Promise<void>;
}

/** Makes and starts a server on a free port of 127.0.0.1, without fsync, with trust authentication. */
export async function startPostgres(): Promise<PostgresServer> {
  const folder = mkdtempSync(join(tmpdir(), 'sticky-pg-'));
  const user = unprivilegedUser();
  try {
    if (user) chownSync(folder, user.uid, user.gid);
    const server = new PrivateServer(folder, user);
    initialize(folder, user);
    await server.start();
    return server;
  } catch (error) {
    rmSync(folder, { recursive: true, force: true });
    throw error;
  }
}

type User = ReturnType<typeof unprivilegedUser>;

function initialize(folder: string, user: User): void {
  const result = spawnSync(
    requireProgram('initdb'),
    [
      ...['-D', join(folder, 'data'), '--username', 'postgres', '--auth', 'trust', '--no-sync', '--no-instructions'],
      ...['--locale', 'C.UTF-8', '--encoding', 'UTF8'],
    ],
    { cwd: folder, encoding: 'utf8', ...user },
  );
  if (result.status !== 0) throw new Error(`initdb failed: ${result.stderr}${result.error ?? ''}`);
}

class PrivateServer implements PostgresServer {
  readonly #folder: string;
  readonly #user: User;
  readonly #watchdog: ChildProcess;
  #child: ChildProcess | undefined;
  port = 0;

  constructor(folder: string, user: User) {
    this.#folder = folder;
    this.#user = user;
    this.#watchdog = startWatchdog(folder);
  }

  get url(): string {
    return `postgres://postgres@127.0.0.1:${this.port}/postgres`;
  }

  async start(): Promise<void> {
    if (this.#child) return;
    const again = this.port !== 0;
    for (let attempt = 1; ; attempt += 1) {
      // Between finding a free port and using it somebody else can take it; after a kill the old children linger.
      if (!again) this.port = await freePort();
      const complaint = await this.#launch();
      if (complaint === undefined) return;
      if (attempt === ATTEMPTS) throw new Error(`PostgreSQL did not start: ${complaint}`);
      await new Promise((resolve) => setTimeout(resolve, 200 * attempt));
    }
  }

  stop(): Promise<void> {
    return this.#end('SIGINT');
  }

  kill(): Promise<void> {
    return this.#end('SIGQUIT');
  }

  async dispose(): Promise<void> {
    await this.#end('SIGQUIT');
    rmSync(this.#folder, { recursive: true, force: true, maxRetries: 5 });
    this.#watchdog.kill('SIGKILL');
  }

  /** Resolves with undefined when it accepts connections, else with what it wrote before it ended. */
  async #launch(): Promise<string | undefined> {
    const settings = {
      listen_addresses: '127.0.0.1',
      port: String(this.port),
      unix_socket_directories: this.#folder,
      max_connections: '200',
      fsync: 'off',
      synchronous_commit: 'off',
      full_page_writes: 'off',
      logging_collector: 'off',
      log_destination: 'stderr',
    };
    const child = spawn(
      requireProgram('postgres'),
      [
        '-D',
        join(this.#folder, 'data'),
        ...Object.entries(settings).flatMap(([key, value]) => ['-c', `${key}=${value}`]),
      ],
      {
        cwd: this.#folder,
        stdio: ['ignore', 'ignore', 'pipe'],
        env: { ...process.env, LC_ALL: 'C.UTF-8' },
        ...this.#user,
      },
    );
    let output = '';
    const ready = await new Promise<boolean>((resolve, reject) => {
      const timer = setTimeout(() => {
        child.kill('SIGQUIT');
        resolve(false);
      }, START_TIMEOUT_MS);
      child.once('error', reject);
      child.once('exit', () => {
        clearTimeout(timer);
        resolve(false);
      });
      child.stderr.setEncoding('utf8').on('data', (chunk: string) => {
        output = (output + chunk).slice(-4_000);
        if (!output.includes('is ready to accept connections')) return;
        clearTimeout(timer);
        resolve(true);
      });
    });
    if (!ready) return output || 'it said nothing';
    // The server must not keep a test process alive.
    child.unref();
    (child.stderr as unknown as { unref(): void }).unref();
    this.#child = child;
    return undefined;
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const child = this.#child;
    if (!child) return;
    this.#child = undefined;
    child.ref();
    const ended = once(child, 'exit');
    if (child.exitCode === null && child.signalCode === null && child.kill(signal)) await ended;
  }
}

/**
 * Ends the server and removes its folder when this process is gone, however it ended: then the pipe closes. It has a
 * process group of its own, so that a Ctrl-C leaves it alone.
 */
function startWatchdog(folder: string): ChildProcess {
  const script = `cat > /dev/null
    pid=$(head -n 1 "$1/data/postmaster.pid" 2> /dev/null) && kill -QUIT "$pid" && while kill -0 "$pid"; do sleep 0.1; done
    rm -rf -- "$1"`;
  const watchdog = spawn('sh', ['-c', script, 'sh', folder], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  });
  watchdog.unref();
  (watchdog.stdin as unknown as { unref(): void }).unref();
  return watchdog;
}

/** Makes an empty database in the server of the runner, or in one that this process starts and ends. */
export async function createDatabase(serverUrl?: string): Promise<TestDatabase> {
  const base = serverUrl ?? process.env[POSTGRES_URL_VARIABLE] ?? (await ownServer()).url;
  const name = `t_${randomUUID().replaceAll('-', '')}`;
  await runSql(base, `CREATE DATABASE ${name}`);
  const url = new URL(base);
  url.pathname = `/${name}`;
  return { url: url.href, name, drop: () => runSql(base, `DROP DATABASE IF EXISTS ${name} WITH (FORCE)`) };
}

/** Runs SQL on a connection of its own. */
export async function runSql(url: string, text: string): Promise<void> {
  const client = new Client({ connectionString: url });
  await client.connect();
  try {
    await client.query(text);
  } finally {
    await client.end();
  }
}

let server: Promise<PostgresServer> | undefined;

function ownServer(): Promise<PostgresServer> {
  // Its watchdog ends it with this process.
  server ??= startPostgres();
  return server;
}

async function freePort(): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address() as AddressInfo;
  probe.close();
  await once(probe, 'close');
  return port;
}
