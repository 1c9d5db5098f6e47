/** Brings paths that servers commonly take for one and the same into one form, to compare them; nothing is forwarded in it. */

/**
 * Decodes escapes of characters that need none, drops path parameters (`;x=1`), repeated and trailing slashes, and the
 * difference of case. Encoded slashes stay encoded. `path`: without a query.
 */
export function foldPath(path: string): string {
  if (!/[%;A-Z]|\/\/|.\/$/.test(path)) return path;
  return path
    .replace(/%[0-9a-f]{2}/gi, decodePlain)
    .replace(/;[^/]*/g, '')
    .replace(/\/{2,}/g, '/')
    .replace(/(?<=.)\/$/, '')
    .toLowerCase();
}

function decodePlain(encoded: string): string {
  const character = String.fromCharCode(Number.parseInt(encoded.slice(1), 16));
  return /[A-Za-z0-9._~!$&'()*+,;=:@-]/.test(character) ? character : encoded;
}
