/** Gets what the benchmark needs and the gateway does not: the Node peers, and on request Debian's packages. */
import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import * as path from 'node:path';
import { findProgram } from './processes.ts';
import { BENCH_FOLDER } from './setups.ts';

const PROGRAMS = ['wrk', 'nginx', 'haproxy'] as const;

/** Says what is missing, too: the run goes on without it. */
export function sayMissingPrograms(): void {
  const missing = missingPrograms();
  if (missing.length > 0) console.log(`not installed: ${missing.join(', ')} (--install fetches them with apt-get)`);
}

export function installPrograms(): void {
  const missing = missingPrograms();
  if (missing.length === 0) return;
  execFileSync('apt-get', ['install', '-y', '--no-install-recommends', ...missing], { stdio: 'inherit' });
}

/** Once; what cannot be fetched is left out of the run. */
export function installPeers(): void {
  if (fs.existsSync(path.join(BENCH_FOLDER, 'node_modules'))) return;
  try {
    execFileSync('npm', ['ci', '--no-audit', '--no-fund'], { cwd: BENCH_FOLDER, stdio: 'inherit' });
  } catch (error) {
    console.log(`the Node peers could not be installed: ${(error as Error).message}`);
  }
}

function missingPrograms(): string[] {
  return PROGRAMS.filter((name) => !findProgram(name));
}
