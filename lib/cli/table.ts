/** Rows of text as aligned columns for people. Names come from users: nothing in them reaches the terminal as a command. */

/** Control and format characters, lone surrogates among them, as \\uXXXX: a terminal would obey them. */
export function printable(text: string): string {
  return text.replace(/\p{C}/gu, (character) =>
    character
      .split('')
      .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
      .join(''),
  );
}

/** East Asian Wide and Fullwidth (UAX 11), as coarsely as alignment needs. */
const WIDE =
  /[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\ua960-\ua97f\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;

/** Columns that a printable text takes on a terminal. */
export function displayWidth(text: string): number {
  let width = 0;
  for (const character of text) width += /\p{M}/u.test(character) ? 0 : WIDE.test(character) ? 2 : 1;
  return width;
}

export interface Cell {
  readonly text: string;
  /** Put around the text once it has its width: colours take no columns. */
  readonly paint?: (text: string) => string;
}

export type Row = readonly (string | Cell)[];

/** Keeps the widths of what it has shown, so that later pages of a long list stay aligned. */
export class Table {
  readonly #widths: number[] = [];

  /** The rows as lines. The last column is not filled up. */
  lines(rows: readonly Row[]): string[] {
    const cells = rows.map((row) => row.map((cell) => (typeof cell === 'string' ? { text: cell } : cell)));
    const texts = cells.map((row) => row.map(({ text }) => printable(text)));
    for (const row of texts) {
      for (const [column, text] of row.entries()) {
        this.#widths[column] = Math.max(this.#widths[column] ?? 0, displayWidth(text));
      }
    }
    return texts.map((row, index) =>
      row
        .map((text, column) => {
          const paint = cells[index]?.[column]?.paint ?? ((plain: string) => plain);
          const missing = column === row.length - 1 ? 0 : (this.#widths[column] ?? 0) - displayWidth(text);
          return paint(text) + ' '.repeat(missing);
        })
        .join('  ')
        .trimEnd(),
    );
  }
}
