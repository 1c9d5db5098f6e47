/** Waits for a condition that another part of the same process, or another process, is about to make true. */

/** Resolves with the first value that is not undefined or false; throws after `timeoutMs` milliseconds. */
export async function waitUntil<T>(
  what: string,
  read: () => T | undefined | false | Promise<T | undefined | false>,
  timeoutMs = 10_000,
): Promise<T> {
  for (const untilMs = Date.now() + timeoutMs; ; ) {
    const value = await read();
    if (value !== undefined && value !== false) return value;
    if (Date.now() > untilMs) throw new Error(`waited ${timeoutMs} ms in vain for: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}
