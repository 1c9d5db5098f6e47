/** Import and export of a service's bindings as files, streamed both ways with back-pressure. */
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { type BindingImporter, ImportBusy, type ImportRow, MOST_FAULTS } from '../bindings/binding-import.ts';
import type { BindingStore } from '../bindings/binding-store.ts';
import type { Service } from '../model.ts';
import type { Clock } from '../support/clock.ts';
import { unstorable } from '../support/storable-text.ts';
import { AdminError, badField, type LineFault } from './admin-error.ts';
import { COLUMNS, csvLine, type FileRecord, ndjsonLine, readCsv, readNdjson, rowOf } from './binding-file.ts';
import { boundService, serviceOfCall } from './bindings.ts';
import { readChunks, requireMediaType } from './body.ts';
import { type AdminCall, type CallHandler, dryRunMark } from './call.ts';
import type { SnapshotSource } from './definitions.ts';

const CSV = 'text/csv';
const NDJSON = ['application/x-ndjson', 'application/ndjson'];
const BATCH_ROWS = 1_000;
const PAGE_ROWS = 1_000;
/** Longest time in which a reader of an export takes nothing. */
const READER_IDLE_MS = 60_000;

export interface TransferCallOptions {
  readonly registry: SnapshotSource;
  readonly importer: BindingImporter;
  readonly store: Pick<BindingStore, 'list'>;
}

export type TransferCalls = Record<'importFile' | 'exportFile', CallHandler>;

export function transferCalls({ registry, importer, store }: TransferCallOptions): TransferCalls {
  return {
    importFile: async (call) => {
      const service = boundService(registry, call);
      const type = requireMediaType(call.request, [CSV, ...NDJSON]);
      const { dryRun } = call;
      const chunks = readChunks(call.request, call.clock);
      const reader = new RowReader(service, fallbackNode(service, call));
      const records = type === CSV ? readCsv(chunks) : readNdjson(chunks);
      try {
        const outcome = await importer.run(service.id, reader.batches(records), () => reader.sound && !dryRun);
        const errorCount = reader.errorCount + outcome.faultCount;
        if (errorCount > 0) throw refusal([...reader.errors, ...outcome.faults], errorCount, call);
        const result = { rows: reader.rows, inserted: outcome.inserted, unchanged: reader.rows - outcome.inserted };
        call.audit.after = result;
        return { status: 200, body: { ...result, ...dryRunMark(call) } };
      } catch (error) {
        if (error instanceof ImportBusy)
          throw new AdminError('conflict', error.message, { headers: { 'Retry-After': '5' } });
        if (error instanceof TypeError && 'code' in error && error.code === 'ERR_ENCODING_INVALID_ENCODED_DATA')
          throw badField('', `the file is not UTF-8, from about line ${reader.lastLine + 1} on`);
        throw error;
      }
    },

    exportFile: async (call) => {
      const service = serviceOfCall(registry, call);
      const format = call.query.get('format') ?? 'csv';
      if (format !== 'csv' && format !== 'ndjson') throw badField('format', 'must be csv or ndjson');
      await writeFile(call, service, format, store);
      return null;
    },
  };
}

/** Where rows without a node go. */
function fallbackNode(service: Service, call: AdminCall): string | null {
  const named = call.query.get('nodeId');
  if (named === null) return service.defaultNodeId;
  if (!service.nodesById.has(named)) throw badField('nodeId', `names no node of service '${service.id}'`);
  return named;
}

function refusal(errors: readonly LineFault[], errorCount: number, call: AdminCall): AdminError {
  const sorted = [...errors].sort((left, right) => left.line - right.line).slice(0, MOST_FAULTS);
  const first = sorted[0];
  return new AdminError(
    'import_refused',
    `${errorCount} ${errorCount === 1 ? 'row is' : 'rows are'} faulty, nothing was imported; line ${first?.line}: ${first?.message}`,
    { details: { errors: sorted, errorCount, ...dryRunMark(call) } },
  );
}

/** Checks records one by one and gathers them into batches. */
class RowReader {
  rows = 0;
  lastLine = 0;
  errorCount = 0;
  readonly errors: LineFault[] = [];
  readonly #service: Service;
  readonly #fallbackNodeId: string | null;

  constructor(service: Service, fallbackNodeId: string | null) {
    this.#service = service;
    this.#fallbackNodeId = fallbackNodeId;
  }

  get sound(): boolean {
    return this.errorCount === 0;
  }

  async *batches(records: AsyncIterable<FileRecord>): AsyncGenerator<readonly ImportRow[]> {
    let batch: ImportRow[] = [];
    for await (const record of records) {
      this.rows += 1;
      this.lastLine = record.line;
      const row = this.#check(record);
      if (row) batch.push(row);
      if (batch.length < BATCH_ROWS) continue;
      yield batch;
      batch = [];
    }
    if (batch.length > 0) yield batch;
  }

  #check(record: FileRecord): ImportRow | null {
    if ('fault' in record) return this.#fail(record.line, record.fault);
    const { line, userId, username } = record;
    if (userId === null && username === null)
      return this.#fail(line, 'names no user: both user_id and username are empty');
    const idMistake = userId === null ? undefined : unstorable(userId);
    if (idMistake) return this.#fail(line, `user_id cannot be stored: ${idMistake}`);
    const nameMistake = username === null ? undefined : unstorable(username);
    if (nameMistake) return this.#fail(line, `username cannot be stored: ${nameMistake}`);
    const nodeId = record.nodeId ?? this.#fallbackNodeId;
    if (nodeId === null) return this.#fail(line, 'names no node, and there is neither ?nodeId= nor a default node');
    if (!this.#service.nodesById.has(nodeId))
      return this.#fail(line, `node '${nodeId.slice(0, 64)}' is no node of service '${this.#service.id}'`);
    return rowOf(record, nodeId);
  }

  #fail(line: number, message: string): null {
    this.errorCount += 1;
    if (this.errors.length < MOST_FAULTS) this.errors.push({ line, message });
    return null;
  }
}

async function writeFile(
  call: AdminCall,
  service: Service,
  format: 'csv' | 'ndjson',
  store: Pick<BindingStore, 'list'>,
): Promise<void> {
  const { response } = call;
  const lineOf = format === 'csv' ? csvLine : ndjsonLine;
  let after: string | null = null;
  let started = false;
  do {
    // The first page is there before the head goes out: a store that is away is told by a status.
    const page: Awaited<ReturnType<typeof store.list>> = await store.list(service.id, {
      limit: PAGE_ROWS,
      ...(after === null ? {} : { after }),
    });
    if (response.destroyed) return;
    if (!started) begin(response, service, format, call.requestId);
    started = true;
    if (page.bindings.length > 0 && !response.write(page.bindings.map(lineOf).join(''))) {
      await drained(response, call.clock);
    }
    after = page.next;
  } while (after !== null && !response.destroyed);
  response.end();
}

function begin(response: ServerResponse, service: Service, format: 'csv' | 'ndjson', requestId: string): void {
  response.writeHead(200, {
    'Content-Type': format === 'csv' ? `${CSV}; charset=utf-8` : NDJSON[0],
    'Content-Disposition': `attachment; filename="bindings-${service.id}.${format}"`,
    'Cache-Control': 'no-store',
    'X-Content-Type-Options': 'nosniff',
    'X-Request-Id': requestId,
  });
  if (format === 'csv') response.write(`${COLUMNS.join(',')}\n`);
}

/** Resolves when there is room again, or when the reader is gone; one that stands still for too long is sent away. */
async function drained(response: ServerResponse, clock: Clock): Promise<void> {
  const settled = new AbortController();
  const timer = clock.after(READER_IDLE_MS, () => response.destroy());
  try {
    await Promise.race([
      once(response, 'drain', { signal: settled.signal }),
      once(response, 'close', { signal: settled.signal }),
    ]);
  } finally {
    timer.cancel();
    settled.abort();
  }
}
