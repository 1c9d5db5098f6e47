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

interface Family {
  readonly type: 'counter' | 'gauge' | 'histogram';
  readonly help: string;
  readonly series: Map<string, Series>;
}

interface Series {
  render(name: string, labels: string): string;
}

class CounterSeries implements Counter, Series {
  value = 0;

  inc(by = 1): void {
    this.value += by;
  }

  render(name: string, labels: string): string {
    return `${name}${labels && `{${labels}}`} ${this.value}\n`;
  }
}

class GaugeSeries implements Series {
  readonly #read: () => number;

  constructor(read: () => number) {
    this.#read = read;
  }

  render(name: string, labels: string): string {
    return `${name}${labels && `{${labels}}`} ${this.#read()}\n`;
  }
}

/** Upper bounds in seconds for request durations. */
export const DURATION_BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];

class HistogramSeries implements Histogram, Series {
  readonly #bounds: readonly number[];
  readonly #counts: number[];
  #sum = 0;
  #count = 0;

  constructor(bounds: readonly number[]) {
    this.#bounds = bounds;
    this.#counts = new Array<number>(bounds.length).fill(0);
  }

  observe(value: number): void {
    this.#sum += value;
    this.#count += 1;
    for (let index = 0; index < this.#bounds.length; index += 1) {
      if (value <= (this.#bounds[index] ?? 0)) {
        this.#counts[index] = (this.#counts[index] ?? 0) + 1;
        return;
      }
    }
  }

  render(name: string, labels: string): string {
    const prefix = labels && `${labels},`;
    let below = 0;
    let text = '';
    this.#bounds.forEach((bound, index) => {
      below += this.#counts[index] ?? 0;
      text += `${name}_bucket{${prefix}le="${bound}"} ${below}\n`;
    });
    text += `${name}_bucket{${prefix}le="+Inf"} ${this.#count}\n`;
    text += `${name}_sum${labels && `{${labels}}`} ${this.#sum}\n`;
    return `${text}${name}_count${labels && `{${labels}}`} ${this.#count}\n`;
  }
}

export class Metrics {
  readonly #families = new Map<string, Family>();

  /** The counter `name` (ends in `_total`) with these labels; made at the first call. */
  counter(name: string, help: string, labels: Labels = {}): Counter {
    return this.#series(name, 'counter', help, labels, () => new CounterSeries()) as CounterSeries;
  }

  histogram(name: string, help: string, labels: Labels = {}, bounds: readonly number[] = DURATION_BUCKETS): Histogram {
    return this.#series(name, 'histogram', help, labels, () => new HistogramSeries(bounds)) as HistogramSeries;
  }

  /** A value read when the metrics are rendered. A second call with the same labels replaces the reader. */
  gauge(name: string, help: string, labels: Labels, read: () => number): void {
    this.#family(name, 'gauge', help).series.set(renderLabels(labels), new GaugeSeries(read));
  }

  removeGauge(name: string, labels: Labels): void {
    this.#families.get(name)?.series.delete(renderLabels(labels));
  }

  /** Prometheus text exposition format 0.0.4. */
  render(): string {
    let text = '';
    for (const [name, family] of this.#families) {
      text += `# HELP ${name} ${family.help}\n# TYPE ${name} ${family.type}\n`;
      for (const [labels, series] of family.series) text += series.render(name, labels);
    }
    return text;
  }

  #family(name: string, type: Family['type'], help: string): Family {
    let family = this.#families.get(name);
    if (!family) {
      family = { type, help, series: new Map() };
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
