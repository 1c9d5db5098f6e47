/** Turns samples into tables: medians over the rounds, spreads, and ratios. Measures nothing. */
import type { LoadResult, RequestLoad } from './loads.ts';

export interface Sample extends LoadResult {
  readonly subject: string;
  readonly load: RequestLoad | 'sse';
  readonly round: number;
  /** CPU of the proxy, per request or event. */
  readonly userMicros: number;
  readonly systemMicros: number;
  /** Since the process started, earlier loads of the run included. */
  readonly peakMiB: number;
}

export function printLoad(samples: readonly Sample[], load: Sample['load'], title: string): void {
  const bySubject = new Map<string, Sample[]>();
  for (const sample of samples.filter((one) => one.load === load)) {
    bySubject.set(sample.subject, [...(bySubject.get(sample.subject) ?? []), sample]);
  }
  const cpuOf = (name: string) => median((bySubject.get(name) ?? []).map(cpu));
  console.log(`\n${title}`);
  printTable(
    HEADINGS,
    [...bySubject].map(([name, own]) => [name, ...row(own, cpuOf)]),
  );
  const errors = samples.filter((one) => one.load === load && one.socketErrors > 0);
  for (const { subject, round, socketErrors } of errors) {
    console.log(`${subject}, round ${round + 1}: ${socketErrors} connections failed or waited too long`);
  }
}
const HEADINGS = [
  '',
  'a second',
  'CPU µs',
  'min-max',
  'user',
  'system',
  'p50 ms',
  'p99 ms',
  'min-max',
  'peak MiB',
  '/ http-proxy',
  '/ nginx',
];

function row(own: readonly Sample[], cpuOf: (name: string) => number): string[] {
  const of = (figure: (sample: Sample) => number) => own.map(figure);
  const middle = median(own.map(cpu));
  return [
    text(median(of(({ count, seconds }) => count / seconds)), 0),
    text(middle),
    spread(own.map(cpu)),
    text(median(of(({ userMicros }) => userMicros))),
    text(median(of(({ systemMicros }) => systemMicros))),
    text(median(of(({ p50Ms }) => p50Ms)), 2),
    text(median(of(({ p99Ms }) => p99Ms)), 2),
    spread(of(({ p99Ms }) => p99Ms)),
    text(Math.max(...of((sample) => sample.peakMiB)), 0),
    text(middle / cpuOf('http-proxy'), 2),
    text(middle / cpuOf('nginx'), 2),
  ];
}

function cpu({ userMicros, systemMicros }: Sample): number {
  return userMicros + systemMicros;
}

/** Markdown, so that it can be quoted as it is. The first column is text, the others are figures. */
export function printTable(headings: readonly string[], rows: readonly (readonly string[])[]): void {
  const widths = headings.map((heading, column) =>
    Math.max(3, heading.length, ...rows.map((cells) => cells[column]?.length ?? 0)),
  );
  const pad = (cell: string, column: number) =>
    column === 0 ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0);
  const print = (cells: readonly string[]) => console.log(`| ${cells.map(pad).join(' | ')} |`);
  print(headings);
  print(widths.map((width, column) => (column === 0 ? '-'.repeat(width) : `${'-'.repeat(width - 1)}:`)));
  rows.forEach(print);
}

/** NaN for no values, so that what was not measured shows as such. */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((left, right) => left - right);
  const middle = (sorted.length - 1) / 2;
  return ((sorted[Math.floor(middle)] ?? Number.NaN) + (sorted[Math.ceil(middle)] ?? Number.NaN)) / 2;
}

export function spread(values: readonly number[], digits = 1): string {
  return `${text(Math.min(...values), digits)}-${text(Math.max(...values), digits)}`;
}

export function text(value: number, digits = 1): string {
  return Number.isFinite(value) ? value.toFixed(digits) : '-';
}
