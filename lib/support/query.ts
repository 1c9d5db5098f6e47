/** Query strings, read as forms encode them. Nothing here is written back. */

/** `+` is a blank, `%xx` a byte of UTF-8; what is not encoded properly stays as it is. */
export function decodeQueryText(text: string): string {
  if (!/[%+]/.test(text)) return text;
  try {
    return decodeURIComponent(text.replaceAll('+', ' '));
  } catch {
    // A lone '%': the text is taken literally, as a look-up of it harms nobody.
    return text;
  }
}

/** The value of the first `name` in the query of `target`, '' for a name without '='; undefined if it is not there. */
export function firstQueryValue(target: string, name: string): string | undefined {
  const question = target.indexOf('?');
  if (question < 0) return undefined;
  for (const pair of target.slice(question + 1).split('&')) {
    const equals = pair.indexOf('=');
    const found = equals < 0 ? pair : pair.slice(0, equals);
    if (found !== '' && decodeQueryText(found) === name)
      return equals < 0 ? '' : decodeQueryText(pair.slice(equals + 1));
  }
  return undefined;
}
