/** Cookies of a request. */

/**
 * The value of the first cookie `name` (case-sensitive), without its quotes; undefined if there is none. Browsers send
 * the cookie of the longest path first (RFC 6265 section 5.4), so the first is the most specific one.
 */
export function readCookie(header: string, name: string): string | undefined {
  let start = 0;
  while (start < header.length) {
    let end = header.indexOf(';', start);
    if (end < 0) end = header.length;
    const equals = header.indexOf('=', start);
    if (equals >= 0 && equals < end && header.slice(start, equals).trim() === name) {
      const value = header.slice(equals + 1, end).trim();
      return value.length > 1 && value.startsWith('"') && value.endsWith('"') ? value.slice(1, -1) : value;
    }
    start = end + 1;
  }
  return undefined;
}
