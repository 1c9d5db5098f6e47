/**
 * Files of bindings, read piece by piece: CSV (RFC 4180) and NDJSON to rows with their line numbers, and rows to lines.
 * Whether nodes exist and users clash is not looked at here.
 */
import type { ImportRow } from '../bindings/binding-import.ts';
import type { Binding } from '../model.ts';
import { JsonNumber, type JsonValue, parseJsonDigits } from '../support/json-digits.ts';
import { isJsonObject } from './body.ts';

/** One record as it stands in the file; absent values are null. */
export type FileRecord =
  | ({ readonly line: number } & Readonly<Record<'userId' | 'username' | 'nodeId', string | null>>)
  | { readonly line: number; readonly fault: string };

export const COLUMNS = ['user_id', 'username', 'node_id'] as const;
/** A quote that is never closed must not gather the whole file. */
const MOST_RECORD = 65_536;

/** Throws TypeError for bytes that are no UTF-8. */
async function* decode(chunks: AsyncIterable<Buffer>): AsyncGenerator<string> {
  const decoder = new TextDecoder('utf-8', { fatal: true });
  for await (const chunk of chunks) yield decoder.decode(chunk, { stream: true });
  yield decoder.decode();
}

/** Lines that hold one JSON object each; empty lines count and are passed over. */
export async function* readNdjson(chunks: AsyncIterable<Buffer>): AsyncGenerator<FileRecord> {
  let line = 0;
  let rest = '';
  for await (const text of decode(chunks)) {
    const lines = (rest + text).split('\n');
    rest = lines.pop() ?? '';
    for (const one of lines) {
      line += 1;
      if (one.trim() !== '') yield readObject(line, one);
    }
    if (rest.length > MOST_RECORD) {
      yield { line: line + 1, fault: `is longer than ${MOST_RECORD} characters; nothing behind it was read` };
      return;
    }
  }
  if (rest.trim() !== '') yield readObject(line + 1, rest);
}

function readObject(line: number, text: string): FileRecord {
  let value: JsonValue;
  try {
    value = parseJsonDigits(text, { uniqueKeys: true });
  } catch (error) {
    return { line, fault: `is not sound JSON: ${(error as Error).message}` };
  }
  if (!isJsonObject(value)) return { line, fault: 'is not a JSON object' };
  const object = value;
  const read = (name: string, column: string): string | null | undefined => {
    const found = object[name] ?? object[column] ?? null;
    if (found === null || found === '') return null;
    if (found instanceof JsonNumber) return /^-?\d+$/.test(found.raw) ? found.raw : undefined;
    return typeof found === 'string' ? found : undefined;
  };
  const known = new Set<string>(['userId', 'username', 'nodeId', ...COLUMNS]);
  const unknown = Object.keys(object).find((key) => !known.has(key));
  if (unknown !== undefined) return { line, fault: `unknown key '${unknown.slice(0, 40)}'` };
  const userId = read('userId', 'user_id');
  const username = read('username', 'username');
  const nodeId = read('nodeId', 'node_id');
  if (userId === undefined) return { line, fault: 'userId must be text or a whole number' };
  if (username === undefined) return { line, fault: 'username must be text' };
  if (nodeId === undefined) return { line, fault: 'nodeId must be text' };
  return { line, userId, username, nodeId };
}

/** Records of `user_id,username[,node_id]`; a first record that names the columns may have them in any order. */
export async function* readCsv(chunks: AsyncIterable<Buffer>): AsyncGenerator<FileRecord> {
  const parser = new CsvParser();
  let columns: readonly string[] | null = null;
  for await (const text of decode(chunks)) {
    for (const record of parser.push(text)) {
      if (columns === null) {
        const header = headerOf(record.fields);
        columns = header ?? COLUMNS;
        if (header) continue;
      }
      yield toRecord(record, columns);
    }
    if (parser.tooLong) {
      yield { line: parser.line, fault: `is longer than ${MOST_RECORD} characters; nothing behind it was read` };
      return;
    }
  }
  const last = parser.end();
  if (last && (columns !== null || !headerOf(last.fields))) yield toRecord(last, columns ?? COLUMNS);
}

function headerOf(fields: readonly string[]): readonly string[] | null {
  const names = fields.map((field) => field.trim().toLowerCase());
  const known = names.every((name) => (COLUMNS as readonly string[]).includes(name));
  return known && new Set(names).size === names.length ? names : null;
}

function toRecord({ line, fields, fault }: CsvRecord, columns: readonly string[]): FileRecord {
  if (fault !== null) return { line, fault };
  const most = columns === COLUMNS ? 3 : columns.length;
  const least = columns === COLUMNS ? 2 : columns.length;
  if (fields.length < least || fields.length > most)
    return { line, fault: `has ${fields.length} fields instead of ${columns.slice(0, most).join(', ')}` };
  const read = (column: string): string | null => {
    const index = columns.indexOf(column);
    return index === -1 ? null : fields[index] || null;
  };
  return { line, userId: read('user_id'), username: read('username'), nodeId: read('node_id') };
}

interface CsvRecord {
  readonly line: number;
  readonly fields: readonly string[];
  readonly fault: string | null;
}

const PLAIN_RUN = /[^",\r\n]+/y;
const QUOTED_RUN = /[^"]+/y;

function runAt(text: string, index: number, pattern: RegExp): string {
  pattern.lastIndex = index;
  return pattern.exec(text)?.[0] ?? '';
}

/** A state machine, so that chunks may end anywhere. */
class CsvParser {
  /** Of the record under way. */
  line = 1;
  #lines = 1;
  #fields: string[] = [];
  #field = '';
  #length = 0;
  #fault: string | null = null;
  #state: 'start' | 'plain' | 'quoted' | 'quote' = 'start';
  #afterReturn = false;

  get tooLong(): boolean {
    return this.#length > MOST_RECORD;
  }

  *push(text: string): Generator<CsvRecord> {
    for (let index = 0; index < text.length && !this.tooLong; ) {
      const run = runAt(text, index, this.#state === 'quoted' ? QUOTED_RUN : PLAIN_RUN);
      if (run !== '') {
        this.#takeRun(run);
        index += run.length;
        continue;
      }
      const character = text[index] as string;
      index += 1;
      const afterReturn = this.#afterReturn;
      this.#afterReturn = character === '\r';
      if (character === '\n' && afterReturn) continue;
      this.#length += 1;
      if (this.#state === 'quoted') this.#state = 'quote';
      else if (character === '\n' || character === '\r') {
        this.#lines += 1;
        const record = this.#finish();
        if (record) yield record;
      } else this.#take(character);
    }
  }

  /** The last record, if the file does not end with a line break. */
  end(): CsvRecord | null {
    if (this.#state === 'quoted') this.#fault ??= 'has a quote that is not closed';
    return this.#finish();
  }

  /** Characters that mean nothing but themselves, as many as there are: one by one they would cost ten times as much. */
  #takeRun(run: string): void {
    this.#afterReturn = false;
    this.#length += run.length;
    this.#field += run;
    if (this.#state === 'quoted') this.#lines += run.split('\n').length - 1;
    else if (this.#state === 'quote') this.#fault ??= 'has something behind a closing quote';
    else this.#state = 'plain';
  }

  /** A comma or a quote outside of quotes. */
  #take(character: string): void {
    if (character === ',') {
      this.#fields.push(this.#field);
      this.#field = '';
      this.#state = 'start';
    } else if (this.#state === 'start') this.#state = 'quoted';
    else if (this.#state === 'quote') {
      this.#field += '"';
      this.#state = 'quoted';
    } else {
      this.#fault ??= 'has a quote in a field that does not begin with one';
      this.#field += character;
    }
  }

  /** Null = an empty line. */
  #finish(): CsvRecord | null {
    const empty = this.#fields.length === 0 && this.#field === '' && this.#state === 'start';
    const record = { line: this.line, fields: [...this.#fields, this.#field], fault: this.#fault };
    this.line = this.#lines;
    this.#fields = [];
    this.#field = '';
    this.#length = 0;
    this.#fault = null;
    this.#state = 'start';
    return empty ? null : record;
  }
}

export function csvLine({ userId, username, nodeId }: Binding): string {
  return `${[userId, username, nodeId].map(csvField).join(',')}\n`;
}

/** Quoted where it must be, or where a reader could take it for something else. */
function csvField(value: string | null): string {
  if (value === null) return '';
  return /[",\r\n]|^\s|\s$/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
}

export function ndjsonLine({ userId, username, nodeId }: Binding): string {
  return `${JSON.stringify({ userId, username, nodeId })}\n`;
}

/** For callers that know the node. */
export function rowOf(record: Exclude<FileRecord, { fault: string }>, nodeId: string): ImportRow {
  return { line: record.line, userId: record.userId, username: record.username, nodeId };
}
