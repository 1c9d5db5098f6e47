/**
 * Reads a journal from its first line to its last into memory. A line that was torn at the very end is left out; one
 * that is broken anywhere else stops the start, because what follows may depend on it. It writes nothing.
 */
import { OperatorError } from '../errors.ts';
import type { OpenFile } from '../support/durable-file.ts';
import { decodeLine, JOURNAL_VERSION, type Operation, parseHeader } from './journal-record.ts';
import type { JournalState } from './journal-state.ts';

const CHUNK_BYTES = 1_048_576;
const NEWLINE = 0x0a;

export interface Replayed {
  /** Bytes of good lines, from the start of the file. */
  readonly size: number;
  readonly lines: number;
  readonly operations: number;
  /** Bytes behind them. */
  readonly tornBytes: number;
}

/** Rejects with OperatorError, `path:line: what is wrong`. */
export async function replayJournal(
  file: OpenFile,
  path: string,
  state: JournalState,
  nowMs: number,
): Promise<Replayed> {
  let size = 0;
  let lines = 0;
  let operations = 0;
  let broken = false;
  const tornBytes = await eachLine(file, (line, complete) => {
    if (broken) throw brokenLine(path, lines + 1);
    if (lines === 0) {
      checkHeader(line, complete, path);
      size = line.length + 1;
      lines = 1;
      return true;
    }
    const decoded = complete ? decodeLine(line) : 'broken';
    if (decoded === 'unknown') throw unknownLine(path, lines + 1);
    if (decoded === 'broken') {
      // Only the last line may be broken: remembered, and an error as soon as another one follows.
      broken = true;
      return false;
    }
    for (const operation of decoded) state.apply(expire(operation, nowMs));
    size += line.length + 1;
    lines += 1;
    operations += decoded.length;
    return true;
  });
  if (lines === 0) throw new OperatorError(`${path}:1: is empty, which no journal is; ${RESTORE}`);
  return { size, lines, operations, tornBytes };
}

const RESTORE = 'restore it from a backup, or move it away to start without bindings';

function checkHeader(line: Buffer, complete: boolean, path: string): void {
  const version = complete ? parseHeader(line) : undefined;
  if (version === undefined || version < 1) {
    throw new OperatorError(`${path}:1: is not a journal of this gateway; ${RESTORE}`);
  }
  if (version > JOURNAL_VERSION) {
    throw new OperatorError(
      `${path}:1: was written by a newer version (${version}), this one reads ${JOURNAL_VERSION}: install the newer one`,
    );
  }
}

function brokenLine(path: string, line: number): OperatorError {
  return new OperatorError(
    `${path}:${line}: the line is broken and more lines follow, so this is no interrupted write but damage; ${RESTORE}`,
  );
}

function unknownLine(path: string, line: number): OperatorError {
  return new OperatorError(`${path}:${line}: holds what this version cannot read: install the version that wrote it`);
}

/** A token that has expired takes an older value of itself with it. */
function expire(operation: Operation, nowMs: number): Operation {
  return operation[0] === 't' && operation[3] <= nowMs ? ['x', operation[1]] : operation;
}

/**
 * Calls `visit` with each line, without its newline; `complete` = it had one. `visit` says whether the line counts.
 * Resolves with the number of bytes that did not.
 */
async function eachLine(file: OpenFile, visit: (line: Buffer, complete: boolean) => boolean): Promise<number> {
  const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
  let carried: Buffer[] = [];
  let position = 0;
  let unused = 0;
  for (;;) {
    const { bytesRead } = await file.read(chunk, 0, CHUNK_BYTES, position);
    if (bytesRead === 0) break;
    position += bytesRead;
    let start = 0;
    for (let end = chunk.indexOf(NEWLINE); end !== -1 && end < bytesRead; end = chunk.indexOf(NEWLINE, start)) {
      const piece = chunk.subarray(start, end);
      const line = carried.length === 0 ? piece : Buffer.concat([...carried, piece]);
      carried = [];
      if (!visit(line, true)) unused += line.length + 1;
      start = end + 1;
    }
    // The chunk is used again, so what is carried over must be a copy.
    if (start < bytesRead) carried.push(Buffer.from(chunk.subarray(start, bytesRead)));
  }
  const rest = Buffer.concat(carried);
  if (rest.length > 0 && !visit(rest, false)) unused += rest.length;
  return unused;
}
