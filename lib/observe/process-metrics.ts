/** Figures of the process itself, under the names that Prometheus client libraries give them. */
import { performance } from 'node:perf_hooks';
import type { Metrics } from './metrics.ts';

/** Adds the figures to `metrics`; each is read when the metrics are. `version`: of the package. */
export function describeProcess(metrics: Metrics, version: string): void {
  metrics.gauge('gateway_build_info', 'Always 1; the label says which version runs', { version }, () => 1, 'max');
  metrics.counterOf('process_cpu_seconds_total', 'CPU time used, user and system', {}, () => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1e6;
  });
  metrics.gauge('process_resident_memory_bytes', 'Memory in use, as the system sees it', {}, () =>
    process.memoryUsage.rss(),
  );
  metrics.gauge('nodejs_heap_used_bytes', 'Memory in use by objects', {}, () => process.memoryUsage().heapUsed);
  const startedSeconds = performance.timeOrigin / 1_000;
  metrics.gauge('process_start_time_seconds', 'When it started, Unix time', {}, () => startedSeconds, 'min');
  let before = performance.eventLoopUtilization();
  metrics.gauge(
    'nodejs_eventloop_utilization',
    'Share of the time since the last reading in which the event loop was busy, 0 to 1',
    {},
    () => {
      const { utilization } = performance.eventLoopUtilization(before);
      before = performance.eventLoopUtilization();
      return utilization;
    },
    'max',
  );
}
