/**
 * Checks of single values, written once for everything an operator can write down: the file, rows of the database,
 * bodies of the admin API. Every check notes what is wrong and goes on with a stand-in, so that all mistakes are
 * found in one go. No message repeats a secret, and none that refuses a value shows what an environment variable holds.
 */
import { isCidr } from '../support/ip.ts';

/** The longest wait of a timer: 2^31 - 1 milliseconds. With a longer one Node fires at once. */
const LONGEST_MS = 2_147_483_647;

/** Makes a path in a file absolute. */
export type ResolvePath = (path: string) => string;

export type FieldPath = readonly (string | number)[];

/** `services[0].nodes[1].id` */
export function formatPath(path: FieldPath): string {
  return path.reduce<string>((text, part) => {
    if (typeof part === 'number') return `${text}[${part}]`;
    return text === '' ? part : `${text}.${part}`;
  }, '');
}

export interface Problem {
  readonly path: FieldPath;
  /** Whether the key or its value is at fault. */
  readonly at: 'key' | 'value';
  readonly message: string;
}

/** Collects what is wrong. */
export class Problems {
  readonly list: Problem[] = [];
  /** Texts that environment variables were put into: formatted path -> the variables' names. */
  readonly variables = new Map<string, readonly string[]>();

  add(path: FieldPath, message: string, at: 'key' | 'value' = 'value'): void {
    this.list.push({ path, at, message });
  }
}

/** A value at a place. */
export class Field {
  readonly problems: Problems;
  readonly path: FieldPath;
  readonly value: unknown;

  constructor(problems: Problems, path: FieldPath, value: unknown) {
    this.problems = problems;
    this.path = path;
    this.value = value;
  }

  get absent(): boolean {
    return this.value === undefined;
  }

  /** What stands here, for a message. */
  get shown(): string {
    const names = this.#variables;
    return names ? `the value of ${names.map((name) => `\${${name}}`).join(' and ')}` : describe(this.value);
  }

  /** True = an environment variable is part of the value, which no message may repeat then. */
  get fromEnvironment(): boolean {
    return this.#variables !== undefined;
  }

  fail(message: string): void {
    this.problems.add(this.path, message);
  }

  /** The value as an object with no keys but `keys`; an empty one, whose gaps are no faults, when it is not an object. */
  object(keys: readonly string[]): FieldObject {
    const { value } = this;
    if (value === undefined || isPlainObject(value)) {
      const object = new FieldObject(this.problems, this.path, value ?? {});
      object.refuseUnknown(keys);
      return object;
    }
    // No more than the kind: where a mapping belongs, a text may well be a whole URL with its password.
    this.fail(`must be a mapping with ${listOf(keys)}, not ${kindOf(value)}`);
    return new FieldObject(new Problems(), this.path, {});
  }

  /** The value as a list; empty when it is absent or not one. */
  list(what = 'a list'): Field[] {
    const { value } = this;
    if (value === undefined) return [];
    if (!Array.isArray(value)) {
      this.fail(`must be ${what}, not ${kindOf(value)}`);
      return [];
    }
    return value.map((item: unknown, index) => new Field(this.problems, [...this.path, index], item));
  }

  text(fallback: string): string {
    const { value } = this;
    if (value === undefined) return fallback;
    if (typeof value !== 'string') {
      const hint = typeof value === 'number' || typeof value === 'boolean' ? ` (quote it: "${String(value)}")` : '';
      this.fail(`must be text, not ${describe(value)}${hint}`);
      return fallback;
    }
    return this.#storable(value);
  }

  /** Text of at most so many characters, which is what the column of the database holds. */
  shortText(fallback: string, mostCharacters: number): string {
    const text = this.text(fallback);
    if (text.length > mostCharacters) this.fail(`must not be longer than ${mostCharacters} characters`);
    return text;
  }

  /** Text that no message may repeat. */
  secret(): string {
    const { value } = this;
    if (value === undefined || typeof value === 'string') return this.#storable(value ?? '');
    this.fail(
      typeof value === 'number' || typeof value === 'boolean'
        ? 'must be text: quote it'
        : `must be text, not ${kindOf(value)}`,
    );
    return '';
  }

  /** Text with at least one character. */
  filled(fallback: string): string {
    const text = this.text(fallback);
    if (this.value === '') this.fail(this.#variables ? `is empty: nothing is in ${this.shown}` : 'must not be empty');
    return text;
  }

  textOrNull(fallback: string | null): string | null {
    if (this.value === null) return null;
    if (this.absent) return fallback;
    return this.filled('');
  }

  flag(fallback: boolean): boolean {
    const { value } = this;
    if (value === undefined) return fallback;
    if (value === true || value === 'true') return true;
    if (value === false || value === 'false') return false;
    const meant =
      typeof value !== 'string'
        ? ''
        : /^(yes|on)$/i.test(value)
          ? ' (did you mean true?)'
          : /^(no|off)$/i.test(value)
            ? ' (did you mean false?)'
            : '';
    this.fail(`must be true or false, not ${this.shown}${meant}`);
    return fallback;
  }

  number(fallback: number, range: NumberRange): number {
    const raw = this.value;
    if (raw === undefined) return fallback;
    const value = typeof raw === 'string' && /^-?\d+(\.\d+)?$/.test(raw) ? Number(raw) : raw;
    const most = range.most ?? Number.MAX_SAFE_INTEGER;
    const kind = range.whole ? 'a whole number' : 'a number';
    const bounds = range.most === undefined ? `${range.least} or more` : `from ${range.least} to ${range.most}`;
    const fits = typeof value === 'number' && value >= range.least && value <= most;
    if (fits && (!range.whole || Number.isInteger(value))) return value;
    this.fail(`must be ${kind}, ${bounds}, not ${this.shown}`);
    return fallback;
  }

  numberOrNull(fallback: number | null, range: NumberRange): number | null {
    if (this.value === null) return null;
    return this.absent ? fallback : this.number(range.least, range);
  }

  choice<T extends string>(choices: readonly T[], fallback: T): T {
    const { value } = this;
    if (value === undefined) return fallback;
    if (typeof value === 'string' && (choices as readonly string[]).includes(value)) return value as T;
    const hint = typeof value === 'string' ? didYouMean(value, choices) : '';
    this.fail(`must be one of ${choices.join(', ')}, not ${this.shown}${hint}`);
    return fallback;
  }

  /** `250ms`, `5s`, `2m`, `24h` -> milliseconds; at most what a timer can wait, unless told otherwise. */
  duration(fallbackMs: number, mostMs = LONGEST_MS): number {
    const { value } = this;
    if (value === undefined) return fallbackMs;
    const found = typeof value === 'string' ? /^(\d+(?:\.\d+)?)(ms|s|m|h)$/.exec(value) : null;
    if (found) {
      const durationMs = Math.round(Number(found[1]) * (MS_PER_UNIT[found[2] ?? ''] ?? 0));
      if (durationMs <= mostMs) return durationMs;
      this.fail(`must not be longer than ${Math.floor(mostMs / 3_600_000)}h`);
      return fallbackMs;
    }
    const hint = typeof value === 'number' ? ` (did you mean ${value}s?)` : '';
    this.fail(`must be a duration such as 250ms, 5s, 2m or 24h, not ${this.shown}${hint}`);
    return fallbackMs;
  }

  /** A duration above zero. */
  period(fallbackMs: number, mostMs = LONGEST_MS): number {
    const durationMs = this.duration(fallbackMs, mostMs);
    if (durationMs > 0) return durationMs;
    this.fail('must be longer than 0');
    return fallbackMs;
  }

  periodOrNull(fallbackMs: number | null): number | null {
    if (this.value === null) return null;
    return this.absent ? fallbackMs : this.period(1);
  }

  /** `64KB`, `10MB` (of 1024) -> bytes. */
  size(fallbackBytes: number): number {
    const { value } = this;
    if (value === undefined) return fallbackBytes;
    const found = typeof value === 'string' ? /^(\d+(?:\.\d+)?)(B|KB|MB|GB)$/i.exec(value) : null;
    const bytes = found ? Math.round(Number(found[1]) * (BYTES_PER_UNIT[(found[2] ?? '').toUpperCase()] ?? 0)) : 0;
    if (bytes > 0) return bytes;
    const hint = typeof value === 'number' ? ` (did you mean ${value}B?)` : '';
    this.fail(`must be a size such as 64KB or 10MB, not ${this.shown}${hint}`);
    return fallbackBytes;
  }

  sizeOrNull(fallbackBytes: number | null): number | null {
    if (this.value === null) return null;
    return this.absent ? fallbackBytes : this.size(1);
  }

  /** Addresses and networks: `10.0.0.0/8`, `::1`. */
  networks(fallback: readonly string[]): readonly string[] {
    if (this.absent) return fallback;
    return this.list('a list of networks such as 10.0.0.0/8').map((item) => {
      const text = item.text('127.0.0.1');
      if (!isCidr(text)) item.fail(`is not an address or a network such as 10.0.0.0/8: ${item.shown}`);
      return text;
    });
  }

  /** Letters, digits, dot, underscore, hyphen; 1 to 64. */
  id(): string {
    if (this.absent) {
      this.fail('is missing');
      return '';
    }
    const text = this.text('');
    if (typeof this.value === 'string' && !/^[A-Za-z0-9._-]{1,64}$/.test(text)) {
      this.fail(`must be 1 to 64 letters, digits, '.', '_' or '-', not ${this.shown}`);
    }
    return text;
  }

  get #variables(): readonly string[] | undefined {
    return this.problems.variables.get(formatPath(this.path));
  }

  /** PostgreSQL has no NUL in a text, header fields have none of the others; tab and line feed may be in a PEM. */
  #storable(text: string): string {
    if (/[\0-\x08\x0b\x0c\x0e-\x1f\x7f]/.test(text)) this.fail('must hold no control characters');
    return text;
  }
}

export interface NumberRange {
  readonly least: number;
  readonly most?: number;
  readonly whole?: boolean;
}

/** An object whose keys have been checked against those that exist. */
export class FieldObject {
  readonly #problems: Problems;
  readonly #path: FieldPath;
  readonly #value: Readonly<Record<string, unknown>>;

  constructor(problems: Problems, path: FieldPath, value: Readonly<Record<string, unknown>>) {
    this.#problems = problems;
    this.#path = path;
    this.#value = value;
  }

  get keys(): readonly string[] {
    return Object.keys(this.#value);
  }

  field(key: string): Field {
    const value = Object.hasOwn(this.#value, key) ? this.#value[key] : undefined;
    return new Field(this.#problems, [...this.#path, key], value);
  }

  has(key: string): boolean {
    return Object.hasOwn(this.#value, key);
  }

  /** A fault of the object as a whole. */
  fail(message: string): void {
    this.#problems.add(this.#path, message);
  }

  refuseUnknown(known: readonly string[]): void {
    for (const key of this.keys) {
      if (known.includes(key)) continue;
      this.#problems.add([...this.#path, key], `unknown key${didYouMean(key, known)}`, 'key');
    }
  }
}

const MS_PER_UNIT: Readonly<Record<string, number>> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000 };
const BYTES_PER_UNIT: Readonly<Record<string, number>> = {
  B: 1,
  KB: 1_024,
  MB: 1_048_576,
  GB: 1_073_741_824,
};

export function isPlainObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** What a value is, for a message: never more than its kind and, if it is short and simple, itself. */
function describe(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'object') return 'a mapping';
  if (typeof value === 'string') return value === '' ? 'empty text' : value.length > 40 ? 'text' : `'${value}'`;
  return String(value);
}

/** For places where the value itself may be a secret. */
function kindOf(value: unknown): string {
  return typeof value === 'string' ? 'text' : typeof value === 'number' ? 'a number' : describe(value);
}

function listOf(keys: readonly string[]): string {
  return keys.length > 4 ? `keys such as ${keys.slice(0, 3).join(', ')}` : keys.join(', ');
}

/** ` (did you mean …?)` for the nearest of `known`, or nothing. */
export function didYouMean(word: string, known: readonly string[]): string {
  const plain = simplify(word);
  let best: string | undefined;
  let bestDistance = Math.max(1, Math.floor(plain.length / 3)) + 1;
  for (const candidate of known) {
    const distance = editDistance(plain, simplify(candidate));
    if (distance >= bestDistance) continue;
    best = candidate;
    bestDistance = distance;
  }
  return best === undefined ? '' : ` (did you mean ${best}?)`;
}

function simplify(word: string): string {
  return word.toLowerCase().replaceAll(/[_\- ]/g, '');
}

/** Levenshtein distance. */
function editDistance(left: string, right: string): number {
  let above = Array.from({ length: right.length + 1 }, (_, index) => index);
  for (let row = 1; row <= left.length; row += 1) {
    const current = [row];
    for (let column = 1; column <= right.length; column += 1) {
      const change = (above[column - 1] ?? 0) + (left[row - 1] === right[column - 1] ? 0 : 1);
      current.push(Math.min(change, (above[column] ?? 0) + 1, (current[column - 1] ?? 0) + 1));
    }
    above = current;
  }
  return above[right.length] ?? 0;
}
