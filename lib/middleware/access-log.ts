/** One line per request, and its numbers in the metrics, when the exchange with the client is over. */
import type { Middleware, RequestContext } from '../context.ts';
import type { Logger } from '../observe/log.ts';
import type { Counter, Histogram, Metrics } from '../observe/metrics.ts';
import type { Clock } from '../support/clock.ts';

export interface AccessLogOptions {
  readonly enabled: boolean;
  readonly logger: Logger;
  readonly metrics: Metrics;
  readonly clock: Clock;
  /** The target as it may be written: values of tokens masked. */
  readonly maskTarget: (target: string) => string;
}

interface Series {
  readonly requests: Counter;
  readonly seconds: Histogram;
}

const CONTEXT = Symbol('context');

export function accessLog(options: AccessLogOptions): Middleware {
  const recorder = new Recorder(options);
  function onClose(this: { [CONTEXT]?: RequestContext }): void {
    const context = this[CONTEXT];
    if (context) recorder.record(context);
  }
  let inFlight = 0;
  options.metrics.gauge('gateway_requests_in_flight', 'Requests being answered', {}, () => inFlight);
  function countDown(): void {
    inFlight -= 1;
  }
  return (context, next) => {
    inFlight += 1;
    // An opened tunnel leaves its response object unused; its end is the socket's.
    const end = context.upgrade ? context.upgrade.socket : context.response;
    (end as { [CONTEXT]?: RequestContext })[CONTEXT] = context;
    end.once('close', onClose);
    end.once('close', countDown);
    return next(context);
  };
}

class Recorder {
  readonly #options: AccessLogOptions;
  readonly #series = new Map<string, Series>();
  readonly #decisions = new Map<string, Counter>();

  constructor(options: AccessLogOptions) {
    this.#options = options;
  }

  record(context: RequestContext): void {
    const seconds = (this.#options.clock.monotonic() - context.startedAtMs) / 1000;
    const { response } = context;
    const tunnel = context.upgrade !== null && context.nodeStatus === 101;
    // 499 (nginx's): the client left before a head could be sent.
    const status = tunnel ? 101 : response.headersSent ? response.statusCode : 499;
    const series = this.#seriesOf(context, status);
    series.requests.inc();
    series.seconds.observe(seconds);
    if (context.decision) this.#decisionOf(context.decision).inc();
    if (this.#options.enabled) this.#options.logger.info('request', this.#line(context, status, seconds));
  }

  #line(context: RequestContext, status: number, seconds: number): Record<string, unknown> {
    const { request } = context;
    return {
      requestId: context.requestId,
      client: context.clientAddress,
      method: request.method,
      path: this.#options.maskTarget(context.target || request.url || ''),
      status,
      bytes: context.bytesSent,
      durationMs: Math.round(seconds * 1e6) / 1e3,
      service: context.service?.id,
      version: context.version ?? undefined,
      node: context.node?.id,
      user: context.userId ?? undefined,
      epoch: context.epoch || undefined,
      decision: context.decision ?? undefined,
      answeredBy: context.answeredBy ?? undefined,
      attempts: context.attempts,
      error: context.errorCode ?? undefined,
    };
  }

  #seriesOf(context: RequestContext, status: number): Series {
    const service = context.service?.id ?? '';
    const node = context.node?.id ?? '';
    const statusClass = `${Math.floor(status / 100)}xx`;
    const key = `${service}/${node}/${statusClass}`;
    let series = this.#series.get(key);
    if (!series) {
      const labels = { service, node, status: statusClass };
      const { metrics } = this.#options;
      series = {
        requests: metrics.counter('gateway_requests_total', 'Requests answered', labels),
        seconds: metrics.histogram('gateway_request_seconds', 'Time from arrival to the end of the answer', labels),
      };
      this.#series.set(key, series);
    }
    return series;
  }

  #decisionOf(kind: string): Counter {
    let counter = this.#decisions.get(kind);
    if (!counter) {
      counter = this.#options.metrics.counter('gateway_decisions_total', 'How the node was chosen', { kind });
      this.#decisions.set(kind, counter);
    }
    return counter;
  }
}
