/** One line per request, and its numbers in the metrics, when the exchange with the client is over. */
import type { Middleware, RequestContext } from '../context.ts';
import type { RenderedLogger } from '../observe/log.ts';
import type { Counter, Histogram, Metrics } from '../observe/metrics.ts';
import type { Clock } from '../support/clock.ts';

export interface AccessLogOptions {
  readonly enabled: boolean;
  readonly logger: RenderedLogger;
  readonly metrics: Metrics;
  readonly clock: Clock;
  /** The target as it may be written: values of tokens masked. */
  readonly maskTarget: (target: string) => string;
  readonly traffic: Traffic;
}

interface Series {
  readonly requests: Counter;
  readonly seconds: Histogram;
}

const CONTEXT = Symbol('context');
const NOWHERE = {};

/** Requests and tunnels under way. */
export interface Traffic {
  inFlight: number;
}

export function accessLog(options: AccessLogOptions): Middleware {
  const { traffic } = options;
  const recorder = new Recorder(options);
  function onClose(this: { [CONTEXT]?: RequestContext }): void {
    traffic.inFlight -= 1;
    const context = this[CONTEXT];
    if (context) recorder.record(context);
  }
  options.metrics.gauge('gateway_requests_in_flight', 'Requests and tunnels under way', {}, () => traffic.inFlight);
  return (context, next) => {
    traffic.inFlight += 1;
    // An opened tunnel leaves its response object unused; its end is the socket's.
    const end = context.upgrade ? context.upgrade.socket : context.response;
    (end as { [CONTEXT]?: RequestContext })[CONTEXT] = context;
    // It comes once, so the wrapper of once() is not needed.
    end.on('close', onClose);
    return next(context);
  };
}

class Recorder {
  readonly #options: AccessLogOptions;
  /** By node, or by service where no node was chosen; the objects of old snapshots go with them. */
  readonly #series = new WeakMap<object, Series[]>();
  readonly #decisions = new Map<string, Counter>();
  readonly #versions = new Map<string, Counter>();

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
    if (context.version !== null) this.#versionOf(context, context.version).inc();
    if (this.#options.enabled) this.#options.logger.infoRendered('request', this.#line(context, status, seconds));
  }

  /** Rendered by hand: JSON.stringify of an object would cost as much as all the rest of the record. */
  #line(context: RequestContext, status: number, seconds: number): string {
    const { request } = context;
    const path = this.#options.maskTarget(context.target || request.url || '');
    // What is not quoted through JSON.stringify has been checked before, or is the program's own.
    let line =
      `"requestId":"${context.requestId}","client":${quote(context.clientAddress)},"method":${quote(request.method ?? '')},` +
      `"path":${quote(path)},"status":${status},"bytes":${context.bytesSent},"durationMs":${(seconds * 1e3).toFixed(3)}`;
    if (context.service) line += `,"service":"${context.service.id}"`;
    if (context.version !== null) {
      line += `,"version":"${context.version}","versionReason":"${context.versionReason ?? ''}"`;
    }
    if (context.node) line += `,"node":"${context.node.id}"`;
    if (context.userId !== null) line += `,"user":${quote(context.userId)}`;
    if (context.epoch > 0) line += `,"epoch":${context.epoch}`;
    if (context.decision !== null) line += `,"decision":"${context.decision}"`;
    if (context.answeredBy !== null) line += `,"answeredBy":"${context.answeredBy}"`;
    line += `,"attempts":${context.attempts}`;
    return context.errorCode === null ? line : `${line},"error":"${context.errorCode}"`;
  }

  #seriesOf(context: RequestContext, status: number): Series {
    const service = context.service?.id ?? '';
    const node = context.node?.id ?? '';
    const key = context.node ?? context.service ?? NOWHERE;
    const statusClass = Math.floor(status / 100);
    let classes = this.#series.get(key);
    if (!classes) {
      classes = [];
      this.#series.set(key, classes);
    }
    let series = classes[statusClass];
    if (!series) {
      const labels = { service, node, status: `${statusClass}xx` };
      const { metrics } = this.#options;
      series = {
        requests: metrics.counter('gateway_requests_total', 'Requests answered', labels),
        seconds: metrics.histogram('gateway_request_seconds', 'Time from arrival to the end of the answer', labels),
      };
      classes[statusClass] = series;
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

  #versionOf(context: RequestContext, version: string): Counter {
    const route = context.match?.realm ?? '';
    const reason = context.versionReason ?? '';
    // Ids hold no blanks.
    const key = `${route} ${version} ${reason}`;
    let counter = this.#versions.get(key);
    if (!counter) {
      counter = this.#options.metrics.counter('gateway_version_decisions_total', "How a route's version was chosen", {
        route,
        version,
        reason,
      });
      this.#versions.set(key, counter);
    }
    return counter;
  }
}

const PLAIN = /^[ !#-[\]-~]*$/;

function quote(text: string): string {
  return PLAIN.test(text) ? `"${text}"` : JSON.stringify(text);
}
