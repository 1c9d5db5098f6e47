/**
 * JSON with every digit: numbers are kept as their raw text, because a 19-digit user id does not fit a JavaScript
 * number. Objects have no prototype, so that no key of a document means anything to the program.
 */

/** A number as it stands in the document. */
export class JsonNumber {
  readonly raw: string;

  constructor(raw: string) {
    this.raw = raw;
  }
}

export type JsonObject = { readonly [key: string]: JsonValue };
export type JsonValue = string | boolean | null | JsonNumber | readonly JsonValue[] | JsonObject;

/** Deeper nesting than this is refused. */
const MAX_DEPTH = 64;
const MAX_IDENTIFIER = 256;

/**
 * Parses by the grammar of RFC 8259; of equal keys the last wins, or with `uniqueKeys` none does: it is a fault then.
 * Throws SyntaxError.
 */
export function parseJsonDigits(text: string, options: { readonly uniqueKeys?: boolean } = {}): JsonValue {
  const parser = new Parser(text, options.uniqueKeys === true);
  const value = parser.value(0);
  parser.end();
  return value;
}

/** The value at a dotted path (`data.userId`, `list.0.id`), or undefined. */
export function readPath(value: JsonValue, path: string): JsonValue | undefined {
  let current: JsonValue | undefined = value;
  for (const key of path.split('.')) {
    if (Array.isArray(current))
      current = /^\d+$/.test(key) ? (current as readonly JsonValue[])[Number(key)] : undefined;
    else if (isObject(current)) current = current[key];
    else return undefined;
  }
  return current;
}

/** A string that is not empty, or the digits of a whole number; undefined for everything that cannot name a user. */
export function asIdentifier(value: JsonValue | undefined): string | undefined {
  const text = value instanceof JsonNumber ? (/^-?\d+$/.test(value.raw) ? value.raw : '') : value;
  if (typeof text !== 'string' || text === '' || text.length > MAX_IDENTIFIER) return undefined;
  return /[\u0000-\u001f\u007f]/.test(text) ? undefined : text;
}

/** True when a document's value equals a configured one; numbers are compared by value. */
export function equalsScalar(value: JsonValue | undefined, expected: string | number | boolean | null): boolean {
  if (value instanceof JsonNumber) return typeof expected === 'number' && Number(value.raw) === expected;
  return value === expected;
}

function isObject(value: JsonValue | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof JsonNumber);
}

const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const BLANKS = /[ \t\n\r]*/y;

class Parser {
  readonly #text: string;
  readonly #uniqueKeys: boolean;
  #at = 0;

  constructor(text: string, uniqueKeys: boolean) {
    this.#text = text;
    this.#uniqueKeys = uniqueKeys;
  }

  value(depth: number): JsonValue {
    if (depth > MAX_DEPTH) throw new SyntaxError('too deeply nested');
    this.#skipBlanks();
    const first = this.#text[this.#at];
    if (first === '{') return this.#object(depth);
    if (first === '[') return this.#array(depth);
    if (first === '"') return this.#string();
    for (const [word, value] of WORDS) {
      if (!this.#text.startsWith(word, this.#at)) continue;
      this.#at += word.length;
      return value;
    }
    const raw = this.#take(NUMBER);
    if (raw === undefined) throw this.#unexpected();
    return new JsonNumber(raw);
  }

  end(): void {
    this.#skipBlanks();
    if (this.#at < this.#text.length) throw this.#unexpected();
  }

  #object(depth: number): JsonObject {
    const object: Record<string, JsonValue> = Object.create(null);
    this.#list('}', () => {
      this.#skipBlanks();
      const key = this.#string();
      if (this.#uniqueKeys && key in object) throw new SyntaxError(`the key ${JSON.stringify(key)} stands twice`);
      this.#skipBlanks();
      this.#expect(':');
      object[key] = this.value(depth + 1);
    });
    return object;
  }

  #array(depth: number): readonly JsonValue[] {
    const items: JsonValue[] = [];
    this.#list(']', () => items.push(this.value(depth + 1)));
    return items;
  }

  #list(close: string, readItem: () => void): void {
    this.#at += 1;
    this.#skipBlanks();
    if (this.#text[this.#at] === close) {
      this.#at += 1;
      return;
    }
    for (;;) {
      readItem();
      this.#skipBlanks();
      if (this.#text[this.#at] === close) {
        this.#at += 1;
        return;
      }
      this.#expect(',');
    }
  }

  /** Up to the first quote that no backslash stands before; JSON.parse then checks what is in it. */
  #string(): string {
    this.#expect('"');
    const start = this.#at - 1;
    // Not by a pattern: one that steps over escapes runs out of stack in a text of some megabytes.
    for (; this.#text[this.#at] !== '"'; this.#at += this.#text[this.#at] === '\\' ? 2 : 1) {
      if (this.#at >= this.#text.length) throw this.#unexpected();
    }
    this.#at += 1;
    return JSON.parse(this.#text.slice(start, this.#at)) as string;
  }

  #expect(character: string): void {
    if (this.#text[this.#at] !== character) throw this.#unexpected();
    this.#at += 1;
  }

  #skipBlanks(): void {
    this.#take(BLANKS);
  }

  #take(pattern: RegExp): string | undefined {
    pattern.lastIndex = this.#at;
    const found = pattern.exec(this.#text);
    if (!found) return undefined;
    this.#at = pattern.lastIndex;
    return found[0];
  }

  #unexpected(): SyntaxError {
    return new SyntaxError(`unexpected ${this.#at < this.#text.length ? 'character' : 'end'} at ${this.#at}`);
  }
}

const WORDS: readonly (readonly [string, boolean | null])[] = [
  ['true', true],
  ['false', false],
  ['null', null],
];
