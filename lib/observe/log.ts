/**
 * Structured logs: one line of JSON (or text) each, to one destination. Tokens, passwords and bodies are never
 * given to it; `maskToken` is the only form of a token that may be.
 */
import type { LogLevel } from '../config/options.ts';

export type LogFields = Readonly<Record<string, unknown>>;

export interface Logger {
  debug(event: string, fields?: LogFields): void;
  info(event: string, fields?: LogFields): void;
  warn(event: string, fields?: LogFields): void;
  error(event: string, fields?: LogFields): void;
}

/** Takes info lines whose fields the caller has rendered as the inside of a JSON object: for one line per request. */
export interface RenderedLogger {
  infoRendered(event: string, fieldsJson: string): void;
}

/** Says from now on what is written, without a restart. */
export interface LeveledLogger {
  setLevel(level: LogLevel): void;
}

export interface LineSink {
  write(line: string): void;
}

const RANK: Record<LogLevel, number> = { debug: 10, info: 20, warn: 30, error: 40 };

/** First 6 characters and an ellipsis; a token of 12 or fewer characters shows less than half of itself. */
export function maskToken(token: string): string {
  return `${token.slice(0, Math.min(6, Math.floor(token.length / 3)))}…`;
}

const MOST_CAUSES = 8;

/** An error as log fields: name, message, code and the chain of causes; the stack only for unexpected ones. */
export function describeError(error: unknown, depth = 0): string {
  if (!(error instanceof Error)) return String(error);
  // Causes can go round in a circle.
  if (depth > MOST_CAUSES) return '…';
  const code = 'code' in error && typeof error.code === 'string' ? ` (${error.code})` : '';
  // AggregateError of a failed connect has an empty message; its parts say what happened.
  const parts =
    error instanceof AggregateError ? error.errors.map((part) => describeError(part, depth + 1)).join('; ') : '';
  const own = `${error.message || parts || error.name}${code}`;
  return error.cause === undefined ? own : `${own}: ${describeError(error.cause, depth + 1)}`;
}

export class LineLogger implements Logger, RenderedLogger, LeveledLogger {
  #rank: number;
  readonly #format: 'json' | 'text';
  readonly #sink: LineSink;
  /** Fields that stand in every line, rendered as the inside of a JSON object, with a comma behind them. */
  readonly #fixed: LogFields;
  readonly #fixedJson: string;
  #stampedMs = 0;
  #stamp = '';

  /** `fixed`: fields of every line. */
  constructor(options: { level: LogLevel; format: 'json' | 'text' }, sink: LineSink, fixed: LogFields = {}) {
    this.#rank = RANK[options.level];
    this.#format = options.format;
    this.#sink = sink;
    this.#fixed = fixed;
    const json = JSON.stringify(fixed).slice(1, -1);
    this.#fixedJson = json === '' ? '' : `${json},`;
  }

  setLevel(level: LogLevel): void {
    this.#rank = RANK[level];
  }

  debug(event: string, fields?: LogFields): void {
    this.#write('debug', event, fields);
  }

  info(event: string, fields?: LogFields): void {
    this.#write('info', event, fields);
  }

  warn(event: string, fields?: LogFields): void {
    this.#write('warn', event, fields);
  }

  error(event: string, fields?: LogFields): void {
    this.#write('error', event, fields);
  }

  infoRendered(event: string, fieldsJson: string): void {
    if (RANK.info < this.#rank) return;
    if (this.#format === 'json') {
      this.#sink.write(
        `{"time":"${this.#timestamp()}","level":"info","event":"${event}",${this.#fixedJson}${fieldsJson}}\n`,
      );
    } else this.#write('info', event, JSON.parse(`{${fieldsJson}}`) as LogFields);
  }

  /** Rendered once a millisecond: many lines share one. */
  #timestamp(): string {
    const nowMs = Date.now();
    if (nowMs !== this.#stampedMs) {
      this.#stampedMs = nowMs;
      this.#stamp = new Date(nowMs).toISOString();
    }
    return this.#stamp;
  }

  #write(level: LogLevel, event: string, fields: LogFields | undefined): void {
    if (RANK[level] < this.#rank) return;
    const time = this.#timestamp();
    this.#sink.write(
      this.#format === 'json'
        ? `${JSON.stringify({ time, level, event, ...this.#fixed, ...fields })}\n`
        : `${time} ${level.padEnd(5)} ${event}${textFields({ ...this.#fixed, ...fields })}\n`,
    );
  }
}

function textFields(fields: LogFields | undefined): string {
  if (!fields) return '';
  return Object.entries(fields)
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => ` ${key}=${typeof value === 'string' && BARE.test(value) ? value : quote(value)}`)
    .join('');
}

/** Nothing that ends a field or a line, and no control or format character. */
const BARE = /^[^\s"\p{C}]+$/u;

/** JSON leaves DEL, the C1 controls and the changes of direction as they are; a terminal obeys them. */
function quote(value: unknown): string {
  return (JSON.stringify(value) ?? String(value)).replace(/[\x7f-\x9f]|\p{Cf}/gu, escapeUnits);
}

function escapeUnits(character: string): string {
  return character
    .split('')
    .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
    .join('');
}

const ignore = () => undefined;

export const silentLogger: Logger = { debug: ignore, info: ignore, warn: ignore, error: ignore };
