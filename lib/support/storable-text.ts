/** What a varchar(256) column of PostgreSQL can hold without changing it. */

const MOST_CHARACTERS = 256;

/** Why a text can never be stored, for an error message, or undefined. An unpaired surrogate would be stored as U+FFFD. */
export function unstorable(text: string): string | undefined {
  if (text === '') return 'it is empty';
  if (text.length > MOST_CHARACTERS) return `it is longer than ${MOST_CHARACTERS} characters`;
  if (text.includes('\0')) return 'it contains a NUL character';
  return /\p{Surrogate}/u.test(text) ? 'it is not valid Unicode' : undefined;
}
