/**
 * The form of the journal's lines: a CRC-32 in 8 hexadecimal digits, a blank, and a JSON array of operations. One line
 * is written whole or counts as not written. Files and their order are the business of journal.ts.
 */
import { crc32 } from 'node:zlib';
import type { RegistryDefinition } from '../model.ts';

/** Registry as last written, with the hash of the configuration file that it came from. */
export interface RegistryDocument {
  readonly fileHash: string;
  readonly definition: RegistryDefinition;
}

/** Row `id` of a service is now this: service, id, user id, username, node, epoch, frozen. */
export type PutBinding = readonly ['b', string, number, string | null, string | null, string, number, 0 | 1];
/** Row `id` is gone; its epoch is kept as a floor: service, id, epoch. */
export type RemoveBinding = readonly ['-', string, number, number];
/** Highest epoch removed in a service. */
export type EpochFloor = readonly ['f', string, number];
/** No row id below this one is given out again. */
export type NextRowId = readonly ['n', number];
/** SHA-256 of realm and token (base64url), user id, expiry in epoch milliseconds. */
export type PutToken = readonly ['t', string, string, number];
export type RemoveToken = readonly ['x', string];
/** null = there is none. */
export type PutRegistry = readonly ['r', RegistryDocument | null];
export type Operation = PutBinding | RemoveBinding | EpochFloor | NextRowId | PutToken | RemoveToken | PutRegistry;

export const JOURNAL_VERSION = 1;
const FORMAT = 'sticky-gateway-journal';
/** `xxxxxxxx ` before the JSON. */
const CHECKSUM_BYTES = 9;

/** The first line. It is plain JSON, so that every later version can be told by every earlier one. */
export const HEADER_LINE = `${JSON.stringify({ format: FORMAT, version: JOURNAL_VERSION })}\n`;

/** The version a first line names, or undefined if it is not a journal's. */
export function parseHeader(line: Buffer): number | undefined {
  const header = parseJson(line.toString('utf8'));
  if (typeof header !== 'object' || header === null) return undefined;
  const { format, version } = header as { format?: unknown; version?: unknown };
  return format === FORMAT && typeof version === 'number' ? version : undefined;
}

/** `operations`: the JSON of each operation. */
export function encodeLine(operations: readonly string[]): Buffer {
  const line = Buffer.from(`00000000 [${operations.join(',')}]\n`);
  const sum = crc32(line.subarray(CHECKSUM_BYTES, line.length - 1));
  line.write(sum.toString(16).padStart(8, '0'), 0, 8, 'latin1');
  return line;
}

/**
 * The operations of a line (without its newline). `broken` = the checksum does not fit; `unknown` = it does, but this
 * program cannot read what is there, which no interrupted write explains.
 */
export function decodeLine(line: Buffer): Operation[] | 'broken' | 'unknown' {
  if (line.length <= CHECKSUM_BYTES || line[CHECKSUM_BYTES - 1] !== 0x20) return 'broken';
  const stated = line.toString('latin1', 0, CHECKSUM_BYTES - 1);
  const body = line.subarray(CHECKSUM_BYTES);
  if (crc32(body).toString(16).padStart(8, '0') !== stated) return 'broken';
  const operations = parseJson(body.toString('utf8'));
  return Array.isArray(operations) && operations.every(isOperation) ? operations : 'unknown';
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    // The caller reports what is not JSON, with its line number.
    return undefined;
  }
}

function isOperation(value: unknown): value is Operation {
  if (!Array.isArray(value)) return false;
  switch (value[0]) {
    case 'b':
      return (
        isText(value[1]) &&
        isCount(value[2]) &&
        (value[3] === null || isText(value[3])) &&
        (value[4] === null || isText(value[4])) &&
        isText(value[5]) &&
        isCount(value[6]) &&
        (value[7] === 0 || value[7] === 1)
      );
    case '-':
      return isText(value[1]) && isCount(value[2]) && isCount(value[3]);
    case 'f':
      return isText(value[1]) && isCount(value[2]);
    case 'n':
      return isCount(value[1]);
    case 't':
      return isText(value[1]) && isText(value[2]) && typeof value[3] === 'number';
    case 'x':
      return isText(value[1]);
    case 'r':
      return value[1] === null || isDocument(value[1]);
    default:
      return false;
  }
}

function isDocument(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false;
  const { fileHash, definition } = value as { fileHash?: unknown; definition?: unknown };
  return isText(fileHash) && typeof definition === 'object' && definition !== null;
}

function isText(value: unknown): boolean {
  return typeof value === 'string';
}

function isCount(value: unknown): boolean {
  return Number.isSafeInteger(value);
}
