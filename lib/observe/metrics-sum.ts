/**
 * Adds up the metrics of several processes. What a process counted stays when it is gone, so that no total ever goes
 * back. It fetches nothing.
 */
import type { FamilySnapshot, SeriesSnapshot } from './metrics.ts';

/** One place that a process may hold, one after another. */
interface Place {
  /** Counters and histograms of the processes that held it before. */
  before: readonly FamilySnapshot[];
  now: readonly FamilySnapshot[];
}

export class MetricsSum {
  readonly #places = new Map<string, Place>();

  /** What the process at `place` has counted since it began; replaces what it said before. */
  update(place: string, families: readonly FamilySnapshot[]): void {
    const now = families.map(restoreNumbers);
    const known = this.#places.get(place);
    if (known) known.now = now;
    else this.#places.set(place, { before: [], now });
  }

  /** The process at `place` is gone: what it counted stays, its gauges go. */
  retire(place: string): void {
    const known = this.#places.get(place);
    if (!known) return;
    known.before = totalOf(known).filter(({ type }) => type !== 'gauge');
    known.now = [];
  }

  /**
   * Places are added in a fixed order, and each is added up the same way before and after its process is gone: with
   * fractions another order could give a total that is smaller by a hair, which a reader takes for a restart.
   */
  collect(): FamilySnapshot[] {
    return addUp([...this.#places.values()].map(totalOf));
  }
}

function totalOf({ before, now }: Place): FamilySnapshot[] {
  return addUp([before, now]);
}

/** What came as JSON has null for NaN. */
function restoreNumbers(family: FamilySnapshot): FamilySnapshot {
  if (family.type !== 'gauge') return family;
  const restore = (values: readonly (number | null)[]) => values.map((value) => value ?? Number.NaN);
  return { ...family, series: family.series.map((one) => ({ ...one, values: restore(one.values) })) };
}

type Across = FamilySnapshot['across'];

function addUp(parts: readonly (readonly FamilySnapshot[])[]): FamilySnapshot[] {
  const families = new Map<string, { family: FamilySnapshot; series: Map<string, SeriesSnapshot> }>();
  for (const family of parts.flat()) {
    let sum = families.get(family.name);
    if (!sum) {
      sum = { family, series: new Map() };
      families.set(family.name, sum);
    }
    for (const one of family.series) {
      const other = sum.series.get(one.labels);
      sum.series.set(one.labels, other ? combine(other, one, sum.family.across) : one);
    }
  }
  return [...families.values()].map(({ family, series }) => ({ ...family, series: [...series.values()] }));
}

function combine(left: SeriesSnapshot, right: SeriesSnapshot, across: Across): SeriesSnapshot {
  return { ...left, values: left.values.map((value, index) => pick(value, right.values[index], across)) };
}

/** A gauge that cannot be read is no number, and says nothing about the others. */
function pick(left: number, right: number | undefined, across: Across): number {
  if (right === undefined || Number.isNaN(right)) return left;
  if (Number.isNaN(left)) return right;
  if (across === 'sum') return left + right;
  return across === 'max' ? Math.max(left, right) : Math.min(left, right);
}
