/**
 * Finds the programs the tests need (servers, and a browser for the console) and, as root on Debian or Ubuntu, installs those that are missing.
 * Starting them is done in postgres-server.ts, redis-server.ts and browser.ts.
 */
import { spawn } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';

/** Debian keeps the server programs of PostgreSQL out of PATH, one folder per major version. */
const POSTGRES_HOMES = ['/usr/lib/postgresql', '/usr/pgsql', '/opt/homebrew/opt', '/usr/local/opt'];
const OTHER_FOLDERS = ['/usr/local/pgsql/bin', '/usr/local/bin', '/usr/local/sbin', '/usr/bin', '/usr/sbin'];

/** Other names of the same program. */
const NAMES: Readonly<Record<string, readonly string[]>> = {
  chromium: ['chromium', 'chromium-browser', 'google-chrome-stable', 'google-chrome'],
};
/** What apt installs for a program. Ubuntu's package chromium only leads to snap: there the message says so. */
const PACKAGES: Readonly<Record<string, string>> = {
  initdb: 'postgresql',
  postgres: 'postgresql',
  'redis-server': 'redis-server',
  chromium: 'chromium',
};
const NEEDED = 'the tests need PostgreSQL (15 or newer), Redis (7 or newer) and Chromium';

/** Absolute path of a program (`initdb`, `postgres`, `redis-server`, `chromium`), or undefined. The newest PostgreSQL wins. */
export function findProgram(name: string): string | undefined {
  const inPath = (process.env.PATH ?? '').split(delimiter).filter((folder) => folder !== '');
  return (NAMES[name] ?? [name])
    .flatMap((one) => [...inPath, ...postgresFolders(), ...OTHER_FOLDERS].map((folder) => join(folder, one)))
    .find((path) => isExecutable(path));
}

/** Like findProgram, but throws an error that says what to install. */
export function requireProgram(name: string): string {
  const path = findProgram(name);
  if (path) return path;
  throw new Error(`the program ${name} is not installed: ${NEEDED}`);
}

/**
 * Makes sure that all of `names` are there. Missing ones are installed with apt-get when running as root; otherwise
 * rejects with a message that says what to install.
 */
export async function ensurePrograms(names: readonly string[]): Promise<void> {
  const missing = names.filter((name) => findProgram(name) === undefined);
  if (missing.length === 0) return;
  const packages = [...new Set(missing.map((name) => PACKAGES[name] ?? name))];
  const asRoot = process.getuid?.() === 0;
  if (!asRoot || !findProgram('apt-get')) {
    throw new Error(
      `missing: ${missing.join(', ')}; ${NEEDED}. ` +
        `For example: sudo apt-get install -y --no-install-recommends ${packages.join(' ')}`,
    );
  }
  await withoutStartingServices(async () => {
    await run('apt-get', ['update']);
    await run('apt-get', ['install', '-y', '--no-install-recommends', ...packages]);
  }).catch((error: unknown) => {
    throw new Error(`missing: ${missing.join(', ')}; ${NEEDED}. apt could not install them`, { cause: error });
  });
  for (const name of missing) requireProgram(name);
}

/** A policy-rc.d that answers 101 keeps Debian's package scripts from starting what they install. */
async function withoutStartingServices(work: () => Promise<void>): Promise<void> {
  const policy = '/usr/sbin/policy-rc.d';
  const ours = !existsSync(policy);
  if (ours) writeFileSync(policy, '#!/bin/sh\nexit 101\n', { mode: 0o755 });
  try {
    await work();
  } finally {
    if (ours) rmSync(policy, { force: true });
  }
}

function run(command: string, args: readonly string[]): Promise<void> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, {
      stdio: ['ignore', 'inherit', 'inherit'],
      env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
    });
    child.once('error', reject);
    child.once('exit', (code) => {
      if (code === 0) resolve();
      else reject(new Error(`${command} ${args.join(' ')} ended with ${code}`));
    });
  });
}

/** A user that may run PostgreSQL (which refuses root), or undefined when this process is not root. */
export function unprivilegedUser(): { uid: number; gid: number } | undefined {
  if (process.getuid?.() !== 0) return undefined;
  const entries = readFileSync('/etc/passwd', 'utf8').split('\n');
  for (const name of ['postgres', 'nobody']) {
    const fields = entries.find((line) => line.startsWith(`${name}:`))?.split(':');
    if (fields?.[2] && fields[3]) return { uid: Number(fields[2]), gid: Number(fields[3]) };
  }
  throw new Error('PostgreSQL refuses to run as root, and neither the user postgres nor nobody exists');
}

function postgresFolders(): string[] {
  return POSTGRES_HOMES.filter((home) => existsSync(home))
    .flatMap((home) => readdirSync(home).map((entry) => join(home, entry, 'bin')))
    .sort((a, b) => b.localeCompare(a, 'en', { numeric: true }));
}

function isExecutable(path: string): boolean {
  const stat = statSync(path, { throwIfNoEntry: false });
  return stat?.isFile() === true && (stat.mode & 0o111) !== 0;
}
