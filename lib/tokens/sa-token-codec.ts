/**
 * The forms in which Java applications leave Sa-Token's login id in Redis: plain text, a JSON string, a Kryo 5 string,
 * a serialised Java string.
 */
import type { SaTokenResolverOptions } from '../config/options.ts';
import { readUtf8 } from '../support/utf8.ts';

export type SaTokenCodec = SaTokenResolverOptions['codec'];

const MAX_BYTES = 256;
const QUOTE = 0x22;
const KRYO_STRING = 0x03;
/** STREAM_MAGIC, STREAM_VERSION, TC_STRING (Java Object Serialization Specification section 6.4). */
const JDK_STRING = Buffer.from([0xac, 0xed, 0x00, 0x05, 0x74]);

/** The text, or undefined for bytes that no login id can be. `auto` goes by the first bytes. */
export function decodeLoginId(bytes: Buffer, codec: SaTokenCodec): string | undefined {
  if (bytes.length === 0) return '';
  const text = decodeAs(bytes, codec === 'auto' ? guess(bytes) : codec);
  if (text === undefined || Buffer.byteLength(text) > MAX_BYTES) return undefined;
  return /[\u0000-\u001f\u007f]/.test(text) ? undefined : text;
}

function guess(bytes: Buffer): Exclude<SaTokenCodec, 'auto'> {
  if (bytes.length > 1 && bytes[0] === QUOTE && bytes[bytes.length - 1] === QUOTE) return 'json';
  if (bytes[0] === KRYO_STRING) return 'kryo5';
  return bytes.subarray(0, JDK_STRING.length).equals(JDK_STRING) ? 'jdk' : 'plain';
}

function decodeAs(bytes: Buffer, codec: Exclude<SaTokenCodec, 'auto'>): string | undefined {
  switch (codec) {
    case 'plain':
      return readUtf8(bytes);
    case 'json':
      return decodeJson(bytes);
    case 'kryo5':
      return decodeKryo(bytes);
    case 'jdk':
      return decodeJdk(bytes);
  }
}

function decodeJson(bytes: Buffer): string | undefined {
  const text = readUtf8(bytes);
  if (text === undefined) return undefined;
  // A bare number keeps its digits: it is never made a JavaScript number.
  if (/^-?\d+$/.test(text)) return text;
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'string' ? value : undefined;
  } catch {
    // Not JSON at all.
    return undefined;
  }
}

/** Either 2 to 32 ASCII characters with bit 7 set on the last, or a length byte `80|(n+1)` and n characters of UTF-8. */
function decodeKryo(bytes: Buffer): string | undefined {
  const first = bytes[1];
  if (bytes[0] !== KRYO_STRING || first === undefined) return undefined;
  if ((first & 0x80) === 0) return decodeKryoAscii(bytes.subarray(1));
  const length = kryoLength(bytes);
  if (length === undefined || length.characters < 0) return undefined;
  const text = readUtf8(bytes.subarray(length.next));
  return text !== undefined && text.length === length.characters ? text : undefined;
}

function decodeKryoAscii(bytes: Buffer): string | undefined {
  const last = bytes.length - 1;
  for (const [index, byte] of bytes.entries()) if (byte > 0x7f !== (index === last)) return undefined;
  const plain = Buffer.from(bytes);
  plain[last] = (plain[last] ?? 0) & 0x7f;
  return plain.toString('latin1');
}

/** The first byte has 6 bits and a flag 0x40 for more, each further byte 7 bits and a flag 0x80. */
function kryoLength(bytes: Buffer): { characters: number; next: number } | undefined {
  const first = bytes[1] ?? 0;
  let value = first & 0x3f;
  let next = 2;
  let more = (first & 0x40) !== 0;
  for (let shift = 6; more; shift += 7) {
    const byte = bytes[next];
    if (byte === undefined || shift > 27) return undefined;
    value |= (byte & 0x7f) << shift;
    more = (byte & 0x80) !== 0;
    next += 1;
  }
  return { characters: value - 1, next };
}

function decodeJdk(bytes: Buffer): string | undefined {
  if (bytes.length < JDK_STRING.length + 2 || !bytes.subarray(0, JDK_STRING.length).equals(JDK_STRING))
    return undefined;
  const length = bytes.readUInt16BE(JDK_STRING.length);
  const text = bytes.subarray(JDK_STRING.length + 2);
  return text.length === length ? readUtf8(text) : undefined;
}
