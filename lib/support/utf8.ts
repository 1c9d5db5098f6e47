/** Bytes as text, strictly: Node's own decoding makes one and the same character of everything that is no UTF-8. */

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Undefined = these bytes are not UTF-8. */
export function readUtf8(bytes: Uint8Array): string | undefined {
  try {
    return decoder.decode(bytes);
  } catch {
    // Not UTF-8: the answer, not a failure.
    return undefined;
  }
}
