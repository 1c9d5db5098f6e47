/**
 * The embedded store's file: an append-only journal of operations, flushed in groups, compacted through a temporary
 * file and rename, replayed at start. It knows how operations become durable and in which order, and nothing of what
 * they mean: who gets which node is decided in journal-bindings.ts.
 *
 * An operation changes the memory at once, which decides races, and is acknowledged when the line that holds it is on
 * disk. Until then its keys are pending: whoever reads or changes one of them waits. So no two commits in
 * flight touch the same key, and one that fails can be taken back by itself.
 */
import { join } from 'node:path';
import { OperatorError } from '../errors.ts';
import { describeError, type Logger } from '../observe/log.ts';
import { StoreUnavailable } from '../stores/store-unavailable.ts';
import type { Clock } from '../support/clock.ts';
import { type FileSystem, nodeFileSystem, type OpenFile, syncFolder, writeFully } from '../support/durable-file.ts';
import type { BindingTable } from './binding-table.ts';
import { COMPACTION_FILE, folderError, JOURNAL_FILE, type OpenedJournal, openJournal } from './journal-folder.ts';
import { type FolderLock, lockFolder } from './journal-lock.ts';
import { encodeLine, HEADER_LINE, type Operation, type RegistryDocument } from './journal-record.ts';
import type { JournalState, TokenEntry } from './journal-state.ts';

const REGISTRY_KEY = 'registry';
/** Operations written between two turns of the event loop; a few milliseconds. */
const SLICE_OPERATIONS = 1_000;
/** Operations in a line of a compacted file: fewer lines are read faster, a long one hides where it broke. */
const OPERATIONS_PER_LINE = 50;

export interface JournalOptions {
  readonly clock: Clock;
  readonly logger: Logger;
  readonly fileSystem?: FileSystem;
  /** A smaller file is not compacted; bytes, default 1 MiB. */
  readonly compactAboveBytes?: number;
}

/** What a decision comes to: nothing to write (`operations` empty), or the operations that make `result` true. */
export interface Change<T> {
  readonly operations: readonly Operation[];
  readonly result: T;
}

interface Commit {
  readonly sequence: number;
  readonly json: readonly string[];
  readonly undo: readonly Operation[];
  readonly keys: readonly string[];
  readonly promise: Promise<void>;
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

interface Compaction {
  readonly promise: Promise<boolean>;
  /** Lines that became durable since it began. */
  readonly tail: Buffer[];
  tailOperations: number;
  /** True = a commit was taken back, and what was copied may hold it. */
  spoiled: boolean;
}

/** Work that needs the file to itself, once every commit up to `after` has been settled. */
interface ExclusiveJob {
  readonly after: number;
  readonly run: () => Promise<void>;
}

export class Journal {
  readonly #dataDir: string;
  readonly #path: string;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #fileSystem: FileSystem;
  readonly #compactAboveBytes: number;
  readonly #lock: FolderLock;
  readonly #state: JournalState;
  #file: OpenFile;
  /** Bytes known to be good and durable; the next line goes there. */
  #size: number;
  /** Operations in the file, dead or alive. */
  #operations: number;
  #queue: Commit[] = [];
  readonly #jobs: ExclusiveJob[] = [];
  readonly #pending = new Map<string, Promise<void>>();
  #running: Promise<void> | undefined;
  #compaction: Compaction | undefined;
  /** Grows after a failed compaction, so that a full disk is not tried with every line. */
  #nextCompactionBytes: number;
  #lastSequence = 0;
  #settledSequence = 0;
  /** Bytes of a failed write may lie behind `#size`. */
  #tailDirty = false;
  /** The folder may still name the file of before the compaction. */
  #folderDirty = false;
  #failing = false;
  #stopped: Promise<void> | undefined;

  /**
   * Opens or creates the journal in `dataDir` (made if missing, mode 0700) and reads it. Rejects with OperatorError
   * when another process has it, when it is broken or newer than this program, or when the folder cannot be used.
   */
  static async open(dataDir: string, options: JournalOptions): Promise<Journal> {
    const fileSystem = options.fileSystem ?? nodeFileSystem;
    try {
      await fileSystem.mkdir(dataDir, { recursive: true, mode: 0o700 });
      const lock = await lockFolder(dataDir, fileSystem);
      try {
        const opened = await openJournal(dataDir, fileSystem, options);
        const journal = new Journal(dataDir, lock, opened, options);
        journal.#compactIfWorthIt();
        return journal;
      } catch (error) {
        // The first error says what is wrong; a lock file that stays behind is taken for stale once we have ended.
        await Promise.allSettled([lock.release()]);
        throw error;
      }
    } catch (error) {
      throw error instanceof OperatorError ? error : folderError(dataDir, error);
    }
  }

  /** For `open`, which has the lock and has read the file. */
  constructor(dataDir: string, lock: FolderLock, opened: OpenedJournal, options: JournalOptions) {
    this.#dataDir = dataDir;
    this.#path = join(dataDir, JOURNAL_FILE);
    this.#clock = options.clock;
    this.#logger = options.logger;
    this.#fileSystem = options.fileSystem ?? nodeFileSystem;
    this.#compactAboveBytes = options.compactAboveBytes ?? 1_048_576;
    this.#nextCompactionBytes = this.#compactAboveBytes;
    this.#lock = lock;
    this.#state = opened.state;
    this.#file = opened.file;
    this.#size = opened.size;
    this.#operations = opened.operations;
  }

  get bindings(): BindingTable {
    return this.#state.bindings;
  }

  get tokens(): Map<string, TokenEntry> {
    return this.#state.tokens;
  }

  /** The registry as last written; null = it never was. */
  get registry(): RegistryDocument | null {
    return this.#state.registry;
  }

  /** For metrics: bytes of the file, operations in it, and how many of them still count. */
  get figures(): { readonly bytes: number; readonly operations: number; readonly live: number } {
    return { bytes: this.#size, operations: this.#operations, live: this.#state.live };
  }

  /** Durable when it resolves; rejects with StoreUnavailable. */
  writeRegistry(document: RegistryDocument): Promise<void> {
    return this.change(
      () => [REGISTRY_KEY],
      () => ({ operations: [['r', document]], result: undefined }),
    );
  }

  /** True = a commit in flight touches the key. */
  isPending(key: string): boolean {
    return this.#pending.has(key);
  }

  /** Reads once nothing in flight touches the keys: what is shown is on disk. */
  async read<T>(keys: readonly string[], look: () => T): Promise<T> {
    for (let pending = this.#pendingOf(keys); pending; pending = this.#pendingOf(keys)) {
      // After a failed write the memory is as before, and that is the answer.
      await Promise.allSettled([pending]);
    }
    return look();
  }

  /**
   * Decides and applies in one tick, once nothing in flight touches the keys; resolves when that is durable, all or
   * none. `keysOf` is asked again after each wait, and names everything that the decision reads or changes. The
   * losers of a race wait here for the winner's write and fail with it: StoreUnavailable, the memory as before.
   */
  async change<T>(keysOf: () => readonly string[], decide: () => Change<T>): Promise<T> {
    let keys = keysOf();
    for (let pending = this.#pendingOf(keys); pending; pending = this.#pendingOf(keys)) {
      await pending;
      keys = keysOf();
    }
    // No await from here to the commit: another change of the same keys would slip in between.
    const { operations, result } = decide();
    if (operations.length > 0) await this.#commit(operations, keys);
    return result;
  }

  /** Resolves when everything committed before the call has been settled, whatever the outcome. */
  async barrier(): Promise<void> {
    await Promise.allSettled(this.#pending.values());
  }

  #pendingOf(keys: readonly string[]): Promise<void> | undefined {
    for (const key of keys) {
      const pending = this.#pending.get(key);
      if (pending) return pending;
    }
    return undefined;
  }

  /** Applies the operations to the memory now and resolves when they are durable. No key may be pending. */
  #commit(operations: readonly Operation[], keys: readonly string[]): Promise<void> {
    if (this.#stopped) return Promise.reject(new StoreUnavailable('journal', new Error('the journal is closed')));
    const json = operations.map((operation) => JSON.stringify(operation));
    // Memory gets what the disk would give back. It also frees it of slices that keep whole response bodies alive.
    const applied = JSON.parse(`[${json.join(',')}]`) as Operation[];
    const undo: Operation[] = [];
    for (const operation of applied) {
      const inverse = this.#state.inverse(operation);
      if (inverse) undo.unshift(inverse);
      this.#state.apply(operation);
    }
    this.#lastSequence += 1;
    const commit = newCommit(this.#lastSequence, json, undo, keys);
    for (const key of keys) this.#pending.set(key, commit.promise);
    this.#queue.push(commit);
    this.#work();
    return commit.promise;
  }

  /**
   * Rewrites the file without what no longer counts, while commits go on. Resolves with false if it had to be given
   * up (logged); the old file is then still in use.
   */
  compact(): Promise<boolean> {
    if (this.#compaction) return this.#compaction.promise;
    if (this.#stopped) return Promise.resolve(false);
    // Deferred by a turn, so that the compaction is registered before its first step.
    const promise: Promise<boolean> = Promise.resolve().then(() => this.#compact(compaction));
    const compaction: Compaction = { promise, tail: [], tailOperations: 0, spoiled: false };
    this.#compaction = compaction;
    return promise;
  }

  /** Writes what was committed, closes the file and lets the folder go. Idempotent; later commits are refused. */
  stop(): Promise<void> {
    this.#stopped ??= this.#close();
    return this.#stopped;
  }

  async #close(): Promise<void> {
    // Every commit made before this call is in the queue; nothing is added to it any more.
    await this.#running;
    await this.#compaction?.promise;
    await this.#file.close();
    try {
      await this.#lock.release();
    } catch (error) {
      this.#logger.warn('journal_lock_left', { path: this.#dataDir, error: describeError(error) });
    }
  }

  #work(): void {
    this.#running ??= this.#run();
  }

  /** The only place that touches the file: one flush or one exclusive job at a time. */
  async #run(): Promise<void> {
    // Commits of the same tick share the first flush.
    await Promise.resolve();
    while (this.#queue.length > 0 || this.#jobs.length > 0) {
      if (this.#queue.length > 0) await this.#flush();
      const job = this.#jobs[0];
      if (job && job.after <= this.#settledSequence) {
        this.#jobs.shift();
        await job.run();
      }
    }
    // In the same tick as the last look at the queue: a commit made later starts a new run.
    this.#running = undefined;
  }

  async #flush(): Promise<void> {
    const batch = this.#queue;
    this.#queue = [];
    const json = batch.flatMap((commit) => commit.json);
    let line: Buffer;
    try {
      line = encodeLine(json);
      await this.#repair();
      this.#tailDirty = true;
      await writeFully(this.#file, line, this.#size);
      await this.#file.datasync();
      this.#tailDirty = false;
    } catch (error) {
      await this.#fail(batch, error);
      return;
    }
    this.#size += line.length;
    this.#operations += json.length;
    if (this.#compaction) {
      this.#compaction.tail.push(line);
      this.#compaction.tailOperations += json.length;
    }
    if (this.#failing) this.#logger.info('journal_recovered', { path: this.#path });
    this.#failing = false;
    for (const commit of batch) this.#settle(commit, undefined);
    this.#compactIfWorthIt();
  }

  /** Makes good what an earlier failure left: bytes behind the end, a rename that may not be durable. */
  async #repair(): Promise<void> {
    if (this.#tailDirty) {
      await this.#file.truncate(this.#size);
      this.#tailDirty = false;
    }
    if (this.#folderDirty) {
      await syncFolder(this.#fileSystem, this.#dataDir);
      this.#folderDirty = false;
    }
  }

  async #fail(batch: readonly Commit[], error: unknown): Promise<void> {
    if (!this.#failing) this.#logger.error('journal_write_failed', { path: this.#path, error: describeError(error) });
    this.#failing = true;
    if (this.#compaction) this.#compaction.spoiled = true;
    try {
      // A refused login must not come back after a restart.
      await this.#repair();
    } catch (cause) {
      this.#logger.warn('journal_truncate_failed', { path: this.#path, error: describeError(cause) });
    }
    const unavailable = new StoreUnavailable('journal', error);
    for (const commit of batch) {
      for (const operation of commit.undo) this.#state.apply(operation);
      this.#settle(commit, unavailable);
    }
  }

  #settle(commit: Commit, error: StoreUnavailable | undefined): void {
    this.#settledSequence = commit.sequence;
    for (const key of commit.keys) this.#pending.delete(key);
    if (error) commit.reject(error);
    else commit.resolve();
  }

  #compactIfWorthIt(): void {
    if (this.#size < this.#nextCompactionBytes || this.#stopped || this.#compaction) return;
    if (this.#operations - this.#state.live > this.#state.live) void this.compact();
  }

  async #compact(compaction: Compaction): Promise<boolean> {
    const path = join(this.#dataDir, COMPACTION_FILE);
    const before = this.#size;
    let file: OpenFile | undefined;
    try {
      file = await this.#fileSystem.open(path, 'w', 0o600);
      const copy = await this.#copy(file);
      await this.#exclusively(() => this.#replace(compaction, path, copy));
      this.#nextCompactionBytes = this.#compactAboveBytes;
      this.#logger.info('journal_compacted', { path: this.#path, bytesBefore: before, bytes: this.#size });
      return true;
    } catch (error) {
      this.#nextCompactionBytes = this.#size + this.#compactAboveBytes;
      this.#logger.warn('journal_compaction_failed', { path: this.#path, error: describeError(error) });
      if (file) await this.#discard(file, path);
      return false;
    } finally {
      this.#compaction = undefined;
    }
  }

  /** Writes the memory as it is now and becomes meanwhile; see JournalState.slices. */
  async #copy(file: OpenFile): Promise<{ file: OpenFile; size: number; operations: number }> {
    let size = 0;
    let operations = 0;
    for (const { bytes, count } of compactedSlices(this.#state, this.#clock.now())) {
      if (this.#stopped) throw new Error('the journal is being closed');
      await writeFully(file, bytes, size);
      size += bytes.length;
      operations += count;
    }
    // The bulk of it reaches the disk here, while commits still go on.
    await file.datasync();
    return { file, size, operations };
  }

  async #replace(
    compaction: Compaction,
    path: string,
    copy: { file: OpenFile; size: number; operations: number },
  ): Promise<void> {
    if (compaction.spoiled) throw new Error('a commit failed meanwhile');
    let size = copy.size;
    for (const line of compaction.tail) {
      await writeFully(copy.file, line, size);
      size += line.length;
    }
    await copy.file.datasync();
    await this.#fileSystem.rename(path, this.#path);
    const old = this.#file;
    this.#file = copy.file;
    this.#size = size;
    this.#operations = copy.operations + compaction.tailOperations;
    this.#tailDirty = false;
    this.#folderDirty = true;
    try {
      await old.close();
      await this.#repair();
    } catch (error) {
      // The new file is in force all the same; the next flush syncs the folder before it acknowledges anything.
      this.#logger.warn('journal_folder_sync_failed', { path: this.#path, error: describeError(error) });
    }
  }

  /** Runs `job` between two flushes, after every commit made so far has been settled. */
  #exclusively(job: () => Promise<void>): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#jobs.push({ after: this.#lastSequence, run: () => job().then(resolve, reject) });
      this.#work();
    });
  }

  async #discard(file: OpenFile, path: string): Promise<void> {
    try {
      await file.close();
      await this.#fileSystem.unlink(path);
    } catch (error) {
      // The next start removes it.
      this.#logger.warn('journal_temporary_left', { path, error: describeError(error) });
    }
  }
}

function* compactedSlices(state: JournalState, nowMs: number): Generator<{ bytes: Buffer; count: number }> {
  yield { bytes: Buffer.from(HEADER_LINE), count: 0 };
  for (const slice of state.slices(SLICE_OPERATIONS, nowMs)) {
    const lines: Buffer[] = [];
    for (let start = 0; start < slice.length; start += OPERATIONS_PER_LINE) {
      lines.push(encodeLine(slice.slice(start, start + OPERATIONS_PER_LINE).map((each) => JSON.stringify(each))));
    }
    yield { bytes: Buffer.concat(lines), count: slice.length };
  }
}

function newCommit(
  sequence: number,
  json: readonly string[],
  undo: readonly Operation[],
  keys: readonly string[],
): Commit {
  const { promise, resolve, reject } = withResolvers();
  return { sequence, json, undo, keys, promise, resolve, reject };
}

// Promise.withResolvers came with Node 22.
function withResolvers(): { promise: Promise<void>; resolve: () => void; reject: (error: unknown) => void } {
  let resolve: () => void = () => undefined;
  let reject: (error: unknown) => void = () => undefined;
  const promise = new Promise<void>((onResolve, onReject) => {
    resolve = onResolve;
    reject = onReject;
  });
  return { promise, resolve, reject };
}
