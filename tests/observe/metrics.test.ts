import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { DURATION_BUCKETS, Metrics } from '../../lib/observe/metrics.ts';

describe('Metrics', () => {
  it('counts by ones or by more', () => {
    const metrics = new Metrics();
    const counter = metrics.counter('a_total', 'Things');
    counter.inc();
    counter.inc(2.5);
    counter.inc(0);
    assert.equal(counter.value, 3.5);
    assert.equal(metrics.render(), '# HELP a_total Things\n# TYPE a_total counter\na_total 3.5\n');
  });

  it('has one counter for one set of labels, and renders each under one head', () => {
    const metrics = new Metrics();
    metrics.counter('a_total', 'Things', { kind: 'x' }).inc();
    metrics.counter('b_total', 'Others').inc();
    metrics.counter('a_total', 'Things', { kind: 'x' }).inc();
    metrics.counter('a_total', 'Things', { kind: 'y', of: 'z' }).inc();
    assert.equal(
      metrics.render(),
      [
        '# HELP a_total Things',
        '# TYPE a_total counter',
        'a_total{kind="x"} 2',
        'a_total{kind="y",of="z"} 1',
        '# HELP b_total Others',
        '# TYPE b_total counter',
        'b_total 1',
        '',
      ].join('\n'),
    );
  });

  it('shows a counter from its first look-up on, at zero', () => {
    const metrics = new Metrics();
    metrics.counter('a_total', 'Things', { kind: 'x' });
    assert.match(metrics.render(), /^a_total\{kind="x"\} 0$/m);
  });

  it('escapes what would break out of a label', () => {
    const metrics = new Metrics();
    metrics.counter('a_total', 'Things', { id: 'a"b\\c\nd' }).inc();
    assert.match(metrics.render(), /^a_total\{id="a\\"b\\\\c\\nd"\} 1$/m);
  });

  it('reads a gauge when it renders, by the last reader given', () => {
    const metrics = new Metrics();
    let value = 1;
    metrics.gauge('g', 'Level', { id: 'a' }, () => value);
    metrics.gauge('g', 'Level', { id: 'b' }, () => 0.5);
    metrics.gauge('plain', 'Level', {}, () => -1);
    value = 7;
    assert.match(metrics.render(), /# TYPE g gauge\ng\{id="a"\} 7\ng\{id="b"\} 0.5\n/);
    assert.match(metrics.render(), /^plain -1$/m);
    metrics.gauge('g', 'Level', { id: 'a' }, () => 8);
    assert.match(metrics.render(), /^g\{id="a"\} 8$/m);
    assert.equal(metrics.render().split('g{id="a"}').length, 2);
  });

  it('forgets a gauge, and does not mind one that is not there', () => {
    const metrics = new Metrics();
    metrics.gauge('g', 'Level', { id: 'a' }, () => 1);
    metrics.gauge('g', 'Level', { id: 'b' }, () => 2);
    metrics.removeGauge('g', { id: 'a' });
    metrics.removeGauge('g', { id: 'never' });
    metrics.removeGauge('never', {});
    assert.ok(!metrics.render().includes('id="a"'));
    assert.match(metrics.render(), /^g\{id="b"\} 2$/m);
  });

  it('adds a histogram up from bucket to bucket, its bounds included', () => {
    const metrics = new Metrics();
    const histogram = metrics.histogram('h', 'Sizes', {}, [1, 10]);
    for (const value of [0, 1, 1.5, 10, 11]) histogram.observe(value);
    assert.equal(
      metrics.render(),
      [
        '# HELP h Sizes',
        '# TYPE h histogram',
        'h_bucket{le="1"} 2',
        'h_bucket{le="10"} 4',
        'h_bucket{le="+Inf"} 5',
        'h_sum 23.5',
        'h_count 5',
        '',
      ].join('\n'),
    );
  });

  it('keeps the labels of a histogram on every line of it', () => {
    const metrics = new Metrics();
    metrics.histogram('h', 'Times', { service: 's' }, [1]).observe(0.5);
    metrics.histogram('h', 'Times', { service: 's' }, [1]).observe(2);
    assert.match(
      metrics.render(),
      /h_bucket\{service="s",le="1"\} 1\nh_bucket\{service="s",le="\+Inf"\} 2\nh_sum\{service="s"\} 2.5\nh_count\{service="s"\} 2\n$/,
    );
  });

  it('measures durations in seconds from one millisecond to a minute, in rising order', () => {
    assert.deepEqual([DURATION_BUCKETS[0], DURATION_BUCKETS.at(-1)], [0.001, 60]);
    assert.deepEqual(
      DURATION_BUCKETS,
      [...DURATION_BUCKETS].sort((a, b) => a - b),
    );
    const metrics = new Metrics();
    metrics.histogram('h', 'Times');
    assert.equal(metrics.render().split('_bucket').length - 1, DURATION_BUCKETS.length + 1);
  });

  it('renders nothing when there is nothing', () => {
    assert.equal(new Metrics().render(), '');
  });
});
