/** Colours for a terminal, or none: https://no-color.org. */

export type Paint = (text: string) => string;

export interface Style {
  readonly bold: Paint;
  readonly dim: Paint;
  readonly red: Paint;
  readonly green: Paint;
  readonly yellow: Paint;
}

export function styleFor(isTerminal: boolean, env: Readonly<Record<string, string | undefined>>): Style {
  const plain = !isTerminal || (env['NO_COLOR'] ?? '') !== '' || env['TERM'] === 'dumb';
  const paint =
    (code: number): Paint =>
    (text) =>
      plain || text === '' ? text : `\u001b[${code}m${text}\u001b[0m`;
  return { bold: paint(1), dim: paint(2), red: paint(31), green: paint(32), yellow: paint(33) };
}
