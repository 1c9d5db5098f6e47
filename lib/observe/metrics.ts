/**
 * Counters, gauges and histograms with bounded labels, rendered as Prometheus text. A counter is looked up once
 * per label set and then incremented directly, so that the hot path does no string work.
 */

export interface Counter {
  inc(by?: number): void;
  readonly value: number;
}

export interface Histogram {
  observe(value: number): void;
}

type Labels = Readonly<Record<string, string>>;

/** What a gauge shows for several processes that each have one. */
export type Across = 'sum' | 'max' | 'min';

/** One family with all its series as plain data, to be added to those of other processes. */
export interface FamilySnapshot {
  readonly name: string;
  readonly type: 'counter' | 'gauge' | 'histogram';
  readonly help: string;
  readonly across: Across;
  readonly series: readonly SeriesSnapshot[];
}

export interface SeriesSnapshot {
  /** As they stand between the braces; empty = none. */
  readonly labels: string;
  /** Upper bounds of a histogram's buckets; empty for the other types. */
  readonly bounds: readonly number[];
  /** One value; of a histogram its counts by bucket (each without those below it), the sum and the count. */
  readonly values: readonly number[];
}

interface Family {
  readonly type: FamilySnapshot['type'];
  readonly help: string;
  readonly across: Across;
  readonly series: Map<string, Series>;
}

interface Series {
  readonly bounds: readonly number[];
  read(): number[];
}

const NO_BOUNDS: readonly number[] = [];

class CounterSeries implements Counter, Series {
  readonly bounds = NO_BOUNDS;
  value = 0;

  inc(by = 1): void {
    this.value += by;
  }

  read(): number[] {
    return [this.value];
  }
}

class GaugeSeries implements Series {
  readonly bounds = NO_BOUNDS;
  readonly #read: () => number;

  constructor(read: () => number) {
    this.#read = read;
  }

  read(): number[] {
    return [this.#read()];
  }
}

/** Upper bounds in seconds for request durations. */
export const DURATION_BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];

class HistogramSeries implements Histogram, Series {
  readonly bounds: readonly number[];
  readonly #counts: number[];
  #sum = 0;
  #count = 0;

  constructor(bounds: readonly number[]) {
    this.bounds = bounds;
    this.#counts = new Array<number>(bounds.length).fill(0);
  }

  observe(value: number): void {
    this.#sum += value;
    this.#count += 1;
    for (let index = 0; index < this.bounds.length; index += 1) {
      if (value <= (this.bounds[index] ?? 0)) {
        this.#counts[index] = (this.#counts[index] ?? 0) + 1;
        return;
      }
    }
  }

  read(): number[] {
    return [...this.#counts, this.#sum, this.#count];
  }
}

export class Metrics {
  readonly #families = new Map<string, Family>();

  /** The counter `name` (ends in `_total`) with these labels; made at the first call. */
  counter(name: string, help: string, labels: Labels = {}): Counter {
    return this.#series(name, 'counter', help, labels, () => new CounterSeries()) as CounterSeries;
  }

  /** A total that is kept elsewhere and read when the metrics are rendered; it never falls. */
  counterOf(name: string, help: string, labels: Labels, read: () => number): void {
    this.#family(name, 'counter', help).series.set(renderLabels(labels), new GaugeSeries(read));
  }

  histogram(name: string, help: string, labels: Labels = {}, bounds: readonly number[] = DURATION_BUCKETS): Histogram {
    return this.#series(name, 'histogram', help, labels, () => new HistogramSeries(bounds)) as HistogramSeries;
  }

  /** A value read when the metrics are rendered. A second call with the same labels replaces the reader. */
  gauge(name: string, help: string, labels: Labels, read: () => number, across: Across = 'sum'): void {
    this.#family(name, 'gauge', help, across).series.set(renderLabels(labels), new GaugeSeries(read));
  }

  removeGauge(name: string, labels: Labels): void {
    this.#families.get(name)?.series.delete(renderLabels(labels));
  }

  /** All that is counted, as it is now. */
  collect(): FamilySnapshot[] {
    return [...this.#families].map(([name, { type, help, across, series }]) => ({
      name,
      type,
      help,
      across,
      series: [...series].map(([labels, one]) => ({ labels, bounds: one.bounds, values: one.read() })),
    }));
  }

  /** Prometheus text exposition format 0.0.4. */
  render(): string {
    return renderFamilies(this.collect());
  }

  #family(name: string, type: Family['type'], help: string, across: Across = 'sum'): Family {
    let family = this.#families.get(name);
    if (!family) {
      family = { type, help, across, series: new Map() };
      this.#families.set(name, family);
    }
    return family;
  }

  #series(name: string, type: Family['type'], help: string, labels: Labels, make: () => Series): Series {
    const family = this.#family(name, type, help);
    const key = renderLabels(labels);
    let series = family.series.get(key);
    if (!series) {
      series = make();
      family.series.set(key, series);
    }
    return series;
  }
}

function renderLabels(labels: Labels): string {
  return Object.entries(labels)
    .map(
      ([name, value]) => `${name}="${value.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n')}"`,
    )
    .join(',');
}

/** Prometheus text exposition format 0.0.4. */
export function renderFamilies(families: readonly FamilySnapshot[]): string {
  let text = '';
  for (const { name, type, help, series } of families) {
    text += `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n`;
    for (const one of series) text += type === 'histogram' ? renderHistogram(name, one) : renderValue(name, one);
  }
  return text;
}

function renderValue(name: string, { labels, values }: SeriesSnapshot): string {
  return `${name}${labels && `{${labels}}`} ${values[0]}\n`;
}

function renderHistogram(name: string, { labels, bounds, values }: SeriesSnapshot): string {
  const prefix = labels && `${labels},`;
  const [sum, count] = values.slice(bounds.length);
  let below = 0;
  let text = '';
  bounds.forEach((bound, index) => {
    below += values[index] ?? 0;
    text += `${name}_bucket{${prefix}le="${bound}"} ${below}\n`;
  });
  text += `${name}_bucket{${prefix}le="+Inf"} ${count}\n`;
  text += `${name}_sum${labels && `{${labels}}`} ${sum}\n`;
  return `${text}${name}_count${labels && `{${labels}}`} ${count}\n`;
}
