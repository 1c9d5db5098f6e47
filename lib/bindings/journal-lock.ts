/**
 * Keeps a second process out of a data folder. Every starter creates a lock file whose name is its own for ever (pid,
 * start time, boot), and only then looks for others: of two starters at least one sees the other, and removing a dead
 * process's file can never remove a living one's. Processes in other pid namespaces (two containers on one volume)
 * cannot be told from dead ones.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { OperatorError } from '../errors.ts';
import { errorCode, type FileSystem } from '../support/durable-file.ts';

const PREFIX = 'gateway.lock.';
const NAME = /^gateway\.lock\.(\d+)\.(\d+)\.([0-9a-f]+)$/;
/** How long the first of several starters waits for the others to step back. */
const PATIENCE_MS = 1_000;
const POLL_MS = 20;

export interface FolderLock {
  /** Rejects when the lock file cannot be removed; a left-over one does no harm once the process has ended. */
  release(): Promise<void>;
}

/** Rejects with OperatorError naming the process that holds the folder, or with the system's error. */
export async function lockFolder(folder: string, fileSystem: FileSystem): Promise<FolderLock> {
  const own = lockName(process.pid);
  await create(folder, own, fileSystem);
  try {
    await stepInFront(folder, own, fileSystem);
  } catch (error) {
    await fileSystem.unlink(join(folder, own));
    throw error;
  }
  return { release: () => fileSystem.unlink(join(folder, own)) };
}

/** The lock file of a process that runs now. Without /proc the start time is not known and is 0. */
export function lockName(pid: number): string {
  return `${PREFIX}${pid}.${startTimeOf(pid) ?? '0'}.${bootId()}`;
}

async function create(folder: string, own: string, fileSystem: FileSystem): Promise<void> {
  try {
    const file = await fileSystem.open(join(folder, own), 'wx', 0o600);
    await file.close();
  } catch (error) {
    if (errorCode(error) === 'EEXIST') throw inUse(folder, process.pid, own);
    throw error;
  }
}

/** Resolves when no other living process is in the folder. */
async function stepInFront(folder: string, own: string, fileSystem: FileSystem): Promise<void> {
  for (let waitedMs = 0; ; waitedMs += POLL_MS) {
    const others = await livingOthers(folder, own, fileSystem);
    const first = others[0];
    if (first === undefined) return;
    // Starters that see each other must not all step back: the first by name waits, the others leave at once. One
    // that does not leave is no starter, it holds the folder.
    if (first < own || waitedMs >= PATIENCE_MS) throw inUse(folder, Number(NAME.exec(first)?.[1]), first);
    // Not the injected clock: what is waited for is another process, and it lives in real time.
    await pause(POLL_MS);
  }
}

/** Lock files of other living processes, in order; those of dead ones are removed. */
async function livingOthers(folder: string, own: string, fileSystem: FileSystem): Promise<string[]> {
  const living: string[] = [];
  for (const name of await fileSystem.readdir(folder)) {
    const parts = NAME.exec(name);
    if (!parts || name === own) continue;
    if (isAlive(Number(parts[1]), parts[2] ?? '', parts[3] ?? '')) living.push(name);
    else await removeDead(join(folder, name), fileSystem);
  }
  return living.sort();
}

async function removeDead(path: string, fileSystem: FileSystem): Promise<void> {
  try {
    await fileSystem.unlink(path);
  } catch (error) {
    // Another starter was faster.
    if (errorCode(error) !== 'ENOENT') throw error;
  }
}

function isAlive(pid: number, startTime: string, boot: string): boolean {
  if (boot !== bootId()) return false;
  // A pid that was given to a new process has another start time.
  if (startTime !== '0') return startTimeOf(pid) === startTime;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return errorCode(error) === 'EPERM';
  }
}

/** Clock ticks from boot to the start of a process, proc(5); undefined = no such process, or no /proc. */
function startTimeOf(pid: number): string | undefined {
  const stat = readText(`/proc/${pid}/stat`);
  // The command's name is in parentheses and may itself hold blanks and parentheses.
  const fields = stat?.slice(stat.lastIndexOf(')') + 2).split(' ');
  // A zombie has ended; only its parent has not asked yet.
  return fields === undefined || fields[0] === 'Z' || fields[0] === 'X' ? undefined : fields[19];
}

function bootId(): string {
  return readText('/proc/sys/kernel/random/boot_id')?.slice(0, 8) ?? '0';
}

function readText(path: string): string | undefined {
  try {
    return readFileSync(path, 'latin1');
  } catch (error) {
    const code = errorCode(error);
    if (code === 'ENOENT' || code === 'ESRCH' || code === 'EACCES') return undefined;
    throw error;
  }
}

function inUse(folder: string, pid: number, name: string): OperatorError {
  return new OperatorError(
    `${folder} is in use by process ${pid} (${name}): stop that process, or set another store.dataDir`,
  );
}
