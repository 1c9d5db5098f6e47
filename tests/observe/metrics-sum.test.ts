import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Metrics, renderFamilies } from '../../lib/observe/metrics.ts';
import { MetricsSum } from '../../lib/observe/metrics-sum.ts';

describe('MetricsSum', () => {
  const render = (sum: MetricsSum) =>
    renderFamilies(sum.collect())
      .split('\n')
      .filter((line) => !line.startsWith('#') && line !== '');

  it('adds counters and histograms by name and labels, each family under one head', () => {
    const sum = new MetricsSum();
    for (const [place, count] of [
      ['1', 2],
      ['2', 3],
    ] as const) {
      const metrics = new Metrics();
      metrics.counter('a_total', 'Things', { kind: 'x' }).inc(count);
      metrics.counter('a_total', 'Things', { kind: place }).inc();
      const histogram = metrics.histogram('h', 'Times', {}, [1, 10]);
      histogram.observe(0.5);
      histogram.observe(count);
      histogram.observe(100);
      sum.update(place, metrics.collect());
    }
    assert.deepEqual(render(sum), [
      'a_total{kind="x"} 5',
      'a_total{kind="1"} 1',
      'a_total{kind="2"} 1',
      'h_bucket{le="1"} 2',
      'h_bucket{le="10"} 4',
      'h_bucket{le="+Inf"} 6',
      'h_sum 206',
      'h_count 6',
    ]);
    assert.equal(renderFamilies(sum.collect()).match(/# TYPE a_total counter/g)?.length, 1);
  });

  it('adds gauges, or takes the largest or the smallest of them, as each says', () => {
    const sum = new MetricsSum();
    for (const value of [3, 7]) {
      const metrics = new Metrics();
      metrics.gauge('in_flight', 'x', {}, () => value);
      metrics.gauge('age', 'x', {}, () => value, 'max');
      metrics.gauge('room', 'x', {}, () => value, 'min');
      metrics.gauge('unread', 'x', {}, () => (value === 3 ? Number.NaN : value));
      sum.update(String(value), metrics.collect());
    }
    assert.deepEqual(render(sum), ['in_flight 10', 'age 7', 'room 3', 'unread 7']);
  });

  it('takes a value that got lost on the way for none', () => {
    const sum = new MetricsSum();
    const metrics = new Metrics();
    metrics.gauge('g', 'x', {}, () => Number.NaN, 'max');
    // JSON knows no NaN.
    sum.update('1', JSON.parse(JSON.stringify(metrics.collect())));
    metrics.gauge('g', 'x', {}, () => 5, 'max');
    sum.update('2', metrics.collect());
    metrics.gauge('g', 'x', {}, () => Number.NaN, 'max');
    sum.update('3', JSON.parse(JSON.stringify(metrics.collect())));
    assert.deepEqual(render(sum), ['g 5']);
    const alone = new MetricsSum();
    alone.update('1', JSON.parse(JSON.stringify(metrics.collect())));
    assert.deepEqual(render(alone), ['g NaN']);
  });

  it('keeps what a process had counted when it is gone, but not its gauges, and goes on from there', () => {
    const sum = new MetricsSum();
    const process = () => {
      const metrics = new Metrics();
      const counter = metrics.counter('a_total', 'Things');
      metrics.gauge('in_flight', 'x', {}, () => 4);
      return { metrics, counter };
    };
    const first = process();
    first.counter.inc(10);
    sum.update('1', first.metrics.collect());
    sum.update('1', first.metrics.collect());
    assert.deepEqual(render(sum), ['a_total 10', 'in_flight 4'], 'told twice, counted once');
    sum.retire('1');
    sum.retire('unknown');
    assert.deepEqual(render(sum), ['a_total 10']);
    const second = process();
    second.counter.inc();
    sum.update('1', second.metrics.collect());
    assert.deepEqual(render(sum), ['a_total 11', 'in_flight 4']);
    sum.retire('1');
    sum.retire('1');
    assert.deepEqual(render(sum), ['a_total 11']);
  });

  it('never goes back by a hair either, whatever the fractions and whoever goes', () => {
    const sum = new MetricsSum();
    const places = ['1', '2', '3'];
    let live = places.map(() => new Metrics());
    const histogram = (metrics: Metrics) => metrics.histogram('h', 'x');
    let last = 0;
    const look = () => {
      const total = sum.collect()[0]?.series[0]?.values.at(-2) ?? 0;
      assert.ok(total >= last, `${total} < ${last}`);
      last = total;
    };
    for (let round = 0; round < 300; round += 1) {
      live.forEach((metrics, index) => {
        histogram(metrics).observe(0.1 * (round % 7) + 0.0123 * index);
        sum.update(places[index]!, metrics.collect());
        look();
      });
      const gone = round % 3;
      sum.retire(places[gone]!);
      look();
      live = live.map((metrics, index) => (index === gone ? new Metrics() : metrics));
    }
    assert.ok(last > 100);
  });
});
