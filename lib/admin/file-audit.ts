/**
 * The audit log of a gateway with the embedded store: `audit.jsonl` in the data folder, one JSON line an entry,
 * flushed to disk. A full file is renamed to `audit.1.jsonl`, which replaces the one before: the newest few thousand
 * entries are kept. One process writes it, the one that holds the lock of the folder.
 */
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { type AuditEntry, type AuditLog, type AuditPage, auditPage, type StoredAuditEntry } from './audit-log.ts';

const MOST_BYTES = 4_194_304;

export class FileAudit implements AuditLog {
  readonly #path: string;
  readonly #olderPath: string;
  readonly #mostBytes: number;
  /** Entries are written one after the other. */
  #last: Promise<unknown> = Promise.resolve();
  #lastId: number | undefined;

  constructor(dataDir: string, mostBytes = MOST_BYTES) {
    this.#path = join(dataDir, 'audit.jsonl');
    this.#olderPath = join(dataDir, 'audit.1.jsonl');
    this.#mostBytes = mostBytes;
  }

  record(entry: AuditEntry): Promise<void> {
    return this.#inTurn(() => this.#append(entry));
  }

  page(limit: number, after: string | undefined): Promise<AuditPage> {
    const before = after === undefined ? Number.POSITIVE_INFINITY : Number(after);
    return this.#inTurn(async () => {
      const newest = (await readEntries(this.#path)).filter(({ id }) => Number(id) < before).reverse();
      if (newest.length > limit) return auditPage(newest, limit);
      const older = (await readEntries(this.#olderPath)).filter(({ id }) => Number(id) < before).reverse();
      return auditPage([...newest, ...older], limit);
    });
  }

  async #append(entry: AuditEntry): Promise<void> {
    this.#lastId ??= await this.#readLastId();
    const file = await fs.open(this.#path, 'a', 0o600);
    let size: number;
    try {
      const id = this.#lastId + 1;
      // A line that was torn by a crash must not swallow this one: an empty line does no harm.
      await file.appendFile(`\n${JSON.stringify({ id: String(id), ...entry })}\n`);
      this.#lastId = id;
      await file.datasync();
      size = (await file.stat()).size;
    } finally {
      await file.close();
    }
    if (size >= this.#mostBytes) await fs.rename(this.#path, this.#olderPath);
  }

  async #readLastId(): Promise<number> {
    const entries = [...(await readEntries(this.#olderPath)), ...(await readEntries(this.#path))];
    return Number(entries.at(-1)?.id ?? 0);
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#last.then(work, work);
    this.#last = result;
    return result;
  }
}

async function readEntries(path: string): Promise<StoredAuditEntry[]> {
  let text: string;
  try {
    text = await fs.readFile(path, 'utf8');
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return [];
    throw error;
  }
  return text.split('\n').flatMap((line) => {
    try {
      return line === '' ? [] : [JSON.parse(line) as StoredAuditEntry];
    } catch {
      // Torn by a crash; what it told of was never acknowledged.
      return [];
    }
  });
}
