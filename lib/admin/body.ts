/**
 * Bodies of the admin API: small JSON read whole and strictly, large files piece by piece. A body that is too large,
 * too slow or not what it says is refused.
 */
import type { IncomingMessage } from 'node:http';
import type { Clock } from '../support/clock.ts';
import { JsonNumber, type JsonObject, type JsonValue, parseJsonDigits } from '../support/json-digits.ts';
import { readUtf8 } from '../support/utf8.ts';
import { AdminError, badField } from './admin-error.ts';

/** Of a JSON body. */
export const MOST_JSON_BYTES = 1_048_576;
/** The whole of a JSON body has to be there by then. */
const JSON_DEADLINE_MS = 10_000;
/** Longest silence within a file. */
const STREAM_IDLE_MS = 30_000;

/** The media type alone, lower case; empty = none was named. */
export function mediaTypeOf(request: IncomingMessage): string {
  return (request.headers['content-type']?.split(';')[0] ?? '').trim().toLowerCase();
}

/** Throws AdminError `unsupported_media_type`. */
export function requireMediaType(request: IncomingMessage, allowed: readonly string[]): string {
  const type = mediaTypeOf(request);
  if (!allowed.includes(type)) {
    throw new AdminError('unsupported_media_type', `Content-Type must be ${allowed.join(' or ')}`);
  }
  const charset = /charset\s*=\s*"?([^";\s]+)/i.exec(request.headers['content-type'] ?? '')?.[1];
  if (charset !== undefined && !/^utf-?8$/i.test(charset))
    throw new AdminError('unsupported_media_type', 'the charset must be UTF-8');
  const encoding = request.headers['content-encoding'];
  if (encoding !== undefined && encoding.toLowerCase() !== 'identity')
    throw new AdminError('unsupported_media_type', 'Content-Encoding must be identity');
  return type;
}

/** A JSON object without repeated keys, in UTF-8. Rejects with AdminError that names what is wrong. */
export async function readJsonObject(request: IncomingMessage, clock: Clock): Promise<JsonObject> {
  requireMediaType(request, ['application/json']);
  const text = readUtf8(await readWhole(request, clock));
  if (text === undefined) throw badField('', 'the body is not UTF-8');
  let value: JsonValue;
  try {
    value = parseJsonDigits(text, { uniqueKeys: true });
  } catch (error) {
    throw badField('', `the body is not sound JSON: ${(error as Error).message}`);
  }
  refuseLoneSurrogates(value, '');
  if (!isJsonObject(value)) throw badField('', 'the body must be a JSON object');
  return value;
}

export function isJsonObject(value: JsonValue | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof JsonNumber);
}

/** As JSON.parse would have it. Numbers that lose digits stay text, for a check to refuse. */
export function toPlain(value: JsonValue): unknown {
  if (value instanceof JsonNumber) {
    const number = Number(value.raw);
    return Number.isInteger(number) && !Number.isSafeInteger(number) ? value.raw : number;
  }
  if (Array.isArray(value)) return (value as readonly JsonValue[]).map(toPlain);
  if (isJsonObject(value)) return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, toPlain(item)]));
  return value;
}

/** A store would make U+FFFD of half a character, and two names the same. */
function refuseLoneSurrogates(value: JsonValue, path: string): void {
  if (typeof value === 'string') {
    if (/\p{Surrogate}/u.test(value)) throw badField(path, 'is not valid Unicode');
  } else if (Array.isArray(value)) {
    (value as readonly JsonValue[]).forEach((item, index) => {
      refuseLoneSurrogates(item, `${path}[${index}]`);
    });
  } else if (isJsonObject(value)) {
    for (const [key, item] of Object.entries(value)) {
      if (/\p{Surrogate}/u.test(key)) throw badField(path, 'has a key that is not valid Unicode');
      refuseLoneSurrogates(item, path === '' ? key : `${path}.${key}`);
    }
  }
}

function readWhole(request: IncomingMessage, clock: Clock): Promise<Buffer> {
  const tooLarge = () => new AdminError('body_too_large', `the body must not exceed ${MOST_JSON_BYTES} bytes`);
  if (Number(request.headers['content-length'] ?? 0) > MOST_JSON_BYTES) return Promise.reject(tooLarge());
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    const over = (settle: () => void) => {
      timer.cancel();
      request.off('data', onData).off('end', onEnd).off('close', onClose);
      settle();
    };
    const timer = clock.after(JSON_DEADLINE_MS, () =>
      over(() => reject(new AdminError('request_timeout', 'the body did not come in time'))),
    );
    const onData = (chunk: Buffer) => {
      bytes += chunk.length;
      chunks.push(chunk);
      if (bytes > MOST_JSON_BYTES) over(() => reject(tooLarge()));
    };
    const onEnd = () => over(() => resolve(Buffer.concat(chunks)));
    const onClose = () => over(() => reject(clientLeft()));
    request.on('data', onData).on('end', onEnd).on('close', onClose);
  });
}

/** The chunks of a body as they are asked for, so that a slow reader slows the sender down. */
export async function* readChunks(request: IncomingMessage, clock: Clock): AsyncGenerator<Buffer> {
  const chunks = request.iterator({ destroyOnReturn: false }) as AsyncIterator<Buffer>;
  for (;;) {
    const result = await nextChunk(chunks, clock);
    if (result.done) break;
    yield result.value;
  }
  if (!request.complete) throw clientLeft();
}

function nextChunk(chunks: AsyncIterator<Buffer>, clock: Clock): Promise<IteratorResult<Buffer>> {
  return new Promise((resolve, reject) => {
    const timer = clock.after(STREAM_IDLE_MS, () => {
      reject(new AdminError('request_timeout', 'the rest of the body did not come in time'));
    });
    chunks
      .next()
      .then(resolve, (error: unknown) => reject(clientLeft(error)))
      .finally(() => timer.cancel());
  });
}

/** Nobody reads this answer; it is for the audit. */
function clientLeft(cause?: unknown): AdminError {
  return new AdminError('bad_request', 'the connection ended in the middle of the body', { cause });
}
