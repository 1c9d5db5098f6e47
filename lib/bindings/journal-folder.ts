/**
 * The files of a data folder at the start: makes or opens the journal, clears away what a killed process left, and
 * says what is wrong with a folder that cannot be used. Appending and compacting are the business of journal.ts.
 */
import { join } from 'node:path';
import { OperatorError } from '../errors.ts';
import { describeError, type Logger } from '../observe/log.ts';
import type { Clock } from '../support/clock.ts';
import { errorCode, type FileSystem, type OpenFile, syncFolder, writeFully } from '../support/durable-file.ts';
import { HEADER_LINE } from './journal-record.ts';
import { replayJournal } from './journal-replay.ts';
import { JournalState } from './journal-state.ts';

export const JOURNAL_FILE = 'gateway.journal';
export const COMPACTION_FILE = 'gateway.journal.compacting';

export interface OpenedJournal {
  readonly file: OpenFile;
  readonly state: JournalState;
  /** Bytes of good lines, all durable. */
  readonly size: number;
  readonly operations: number;
}

/** Reads the journal of a folder that the caller has locked, or makes an empty one. */
export async function openJournal(
  dataDir: string,
  fileSystem: FileSystem,
  options: { readonly clock: Clock; readonly logger: Logger },
): Promise<OpenedJournal> {
  const path = join(dataDir, JOURNAL_FILE);
  await removeIfThere(join(dataDir, COMPACTION_FILE), fileSystem);
  const file = await openOrCreate(dataDir, path, fileSystem);
  try {
    const state = new JournalState();
    const replayed = await replayJournal(file, path, state, options.clock.now());
    if (replayed.tornBytes > 0) {
      options.logger.warn('journal_torn_tail_dropped', {
        path,
        line: replayed.lines + 1,
        bytes: replayed.tornBytes,
      });
      await file.truncate(replayed.size);
    }
    // A killed process may have left lines and a rename in the kernel's memory only; from here on they are relied on.
    await file.datasync();
    await syncFolder(fileSystem, dataDir);
    return { file, state, size: replayed.size, operations: replayed.operations };
  } catch (error) {
    await file.close();
    throw error;
  }
}

async function openOrCreate(dataDir: string, path: string, fileSystem: FileSystem): Promise<OpenFile> {
  try {
    return await fileSystem.open(path, 'r+');
  } catch (error) {
    if (errorCode(error) !== 'ENOENT') throw error;
  }
  // Made under another name, so that there is never a journal without its first line.
  const temporary = join(dataDir, COMPACTION_FILE);
  const file = await fileSystem.open(temporary, 'w+', 0o600);
  try {
    await writeFully(file, Buffer.from(HEADER_LINE), 0);
    await file.datasync();
    await fileSystem.rename(temporary, path);
    return file;
  } catch (error) {
    await file.close();
    throw error;
  }
}

async function removeIfThere(path: string, fileSystem: FileSystem): Promise<void> {
  try {
    await fileSystem.unlink(path);
  } catch (error) {
    if (errorCode(error) !== 'ENOENT') throw error;
  }
}

const FIXES: Readonly<Record<string, string>> = {
  EACCES: "give the gateway's user the right to read and write it, or set another store.dataDir",
  EPERM: "give the gateway's user the right to read and write it, or set another store.dataDir",
  EROFS: 'the file system is read-only: set another store.dataDir',
  ENOSPC: 'the disk is full: make room, or set another store.dataDir',
  EDQUOT: 'the disk quota is used up: make room, or set another store.dataDir',
  ENOTDIR: 'it must be a folder: set another store.dataDir',
  EEXIST: 'it must be a folder: set another store.dataDir',
};

/** What to tell the operator about a data folder that cannot be used. */
export function folderError(dataDir: string, error: unknown): OperatorError {
  const fix = FIXES[errorCode(error) ?? ''] ?? 'look at the disk, or set another store.dataDir';
  return new OperatorError(`cannot use the data folder ${dataDir}: ${describeError(error)}; ${fix}`, {
    cause: error,
  });
}
