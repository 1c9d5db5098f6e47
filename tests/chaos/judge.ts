/**
 * Says what a run proves: compares what the nodes saw with the history of every binding, and lists what must not have
 * happened. It only reads records; nothing is run here.
 */

/** A request as its client made it. Times are of one clock, milliseconds. */
export interface ClientRequest {
  readonly id: string;
  readonly user: string;
  readonly gateway: number;
  readonly sentMs: number;
  /** Of the login that gave the token; undefined = this is a login. */
  readonly tokenOf: ClientRequest | undefined;
  /** Undefined = no whole answer came. */
  answeredMs?: number;
  status?: number;
  error?: string;
  /** That a login was answered with. */
  token?: string;
}

/** A request as a node saw it. */
export interface Arrival {
  readonly node: string;
  readonly requestId: string;
  /** X-Gateway-Epoch, undefined = none. */
  readonly epoch: number | undefined;
}

/** What an operator did to a binding: epochs below `leastEpoch` are void from `committedMs` on. */
export interface Change {
  readonly startedMs: number;
  readonly committedMs: number;
  readonly leastEpoch: number;
  readonly removed: boolean;
}

export interface Outage {
  readonly store: 'postgres' | 'redis';
  /** Undefined = for all. */
  readonly gateway: number | undefined;
  readonly fromMs: number;
  /** Infinity = not over. */
  untilMs: number;
}

/** What a gateway logged of a login. */
export type LoginEvent = 'login_bound' | 'login_bind_failed' | 'login_bind_slow';

export interface Evidence {
  readonly requests: ReadonlyMap<string, ClientRequest>;
  readonly arrivals: readonly Arrival[];
  /** Node by epoch of each user, as the database recorded it. */
  readonly history: ReadonlyMap<string, ReadonlyMap<number, readonly string[]>>;
  readonly changes: ReadonlyMap<string, readonly Change[]>;
  readonly outages: readonly Outage[];
  readonly loginEvents: ReadonlyMap<string, ReadonlySet<LoginEvent>>;
  readonly ttlMs: number;
}

export interface Verdict {
  readonly faults: string[];
  readonly counts: Map<string, number>;
  /** Logins that must be good afterwards. */
  readonly kept: ClientRequest[];
  /** Logins answered while a store failed, which may have passed without a binding or token. */
  readonly passed: ClientRequest[];
}

/** A store may be failing for so long after its fault ended: breakers, back-off, connections that prove dead. */
const RECOVERY_MS = 4_000;
/** An entry is as old as the answer it came with, and machines are busy. */
const SLACK_MS = 1_000;
const UNANSWERED_MS = 10_000;

export function judge(evidence: Evidence): Verdict {
  return new Judge(evidence).judge();
}

class Judge {
  readonly #evidence: Evidence;
  readonly #verdict: Verdict = { faults: [], counts: new Map(), kept: [], passed: [] };
  readonly #kept = new Set<ClientRequest>();
  /** When a user was seen to be bound: the epoch, and the end of the request that showed it. */
  readonly #seen = new Map<string, { readonly epoch: number; readonly ms: number }[]>();

  constructor(evidence: Evidence) {
    this.#evidence = evidence;
  }

  judge(): Verdict {
    this.#checkHistory();
    for (const request of this.#evidence.requests.values()) this.#classify(request);
    for (const arrival of this.#evidence.arrivals) this.#noteBound(arrival);
    for (const arrival of this.#evidence.arrivals) this.#checkArrival(arrival);
    return this.#verdict;
  }

  #checkHistory(): void {
    for (const [user, epochs] of this.#evidence.history) {
      for (const [epoch, nodes] of epochs) {
        if (new Set(nodes).size > 1) this.#fault('two nodes in one epoch', `${user} ${epoch}: ${nodes.join(', ')}`);
      }
    }
  }

  #classify(request: ClientRequest): void {
    this.#count(`${request.tokenOf ? 'work' : 'login'} ${request.error ?? request.status ?? 'broken'}`);
    if (request.status === undefined || request.answeredMs === undefined) return;
    const allowed = [200, 502, 503, 504];
    if (!allowed.includes(request.status)) this.#fault(`status ${request.status}`, describe(request));
    if (request.tokenOf || request.status !== 200) return;
    const events = this.#evidence.loginEvents.get(request.id);
    const failing = this.#failing('postgres', request) || this.#failing('redis', request);
    if (events?.has('login_bind_failed') || events?.has('login_bind_slow')) {
      if (!failing) this.#fault('passed without a binding although the stores worked', describe(request));
      this.#verdict.passed.push(request);
    } else if (events?.has('login_bound') || !failing) {
      this.#kept.add(request);
      this.#verdict.kept.push(request);
    } else {
      // Its gateway was killed before it had written what became of the login.
      this.#count('login of unknown outcome');
    }
  }

  #noteBound({ requestId, epoch }: Arrival): void {
    const request = this.#evidence.requests.get(requestId);
    if (!request || epoch === undefined || request.answeredMs === undefined) return;
    const seen = this.#seen.get(request.user) ?? [];
    this.#seen.set(request.user, seen);
    seen.push({ epoch, ms: request.answeredMs });
  }

  #checkArrival(arrival: Arrival): void {
    const request = this.#evidence.requests.get(arrival.requestId);
    if (!request) {
      this.#fault('a request nobody sent', arrival.requestId);
      return;
    }
    if (arrival.epoch !== undefined) this.#checkEpoch(arrival, arrival.epoch, request);
    else if (request.tokenOf) this.#checkAnonymous(arrival, request.tokenOf, request);
    else this.#checkCandidate(arrival, request);
  }

  #checkEpoch(arrival: Arrival, epoch: number, request: ClientRequest): void {
    const nodes = this.#evidence.history.get(request.user)?.get(epoch) ?? [];
    if (!nodes.includes(arrival.node)) {
      this.#fault('a wrong node', `${describe(request)} epoch ${epoch} on ${arrival.node}, not ${nodes.join(', ')}`);
      return;
    }
    const overtaken = (this.#evidence.changes.get(request.user) ?? []).find(
      ({ leastEpoch, committedMs }) =>
        leastEpoch > epoch && request.sentMs > committedMs + this.#evidence.ttlMs + SLACK_MS,
    );
    if (!overtaken) {
      this.#count('arrived where the user was bound');
      return;
    }
    const lateMs = Math.round(request.sentMs - overtaken.committedMs);
    if (this.#failing('postgres', request)) this.#count('late while PostgreSQL failed');
    else this.#fault('late', `${describe(request)} epoch ${epoch} on ${arrival.node}, ${lateMs} ms after its end`);
  }

  #checkAnonymous(arrival: Arrival, login: ClientRequest, request: ClientRequest): void {
    if (!this.#kept.has(login)) this.#count('anonymous with a token that may not have been kept');
    else this.#fault('anonymous', `${describe(request)} on ${arrival.node}, token of ${describe(login)}`);
  }

  /** A user who is bound is not placed anew, unless nobody could say so. */
  #checkCandidate(arrival: Arrival, request: ClientRequest): void {
    const changes = this.#evidence.changes.get(request.user) ?? [];
    const bound = (this.#seen.get(request.user) ?? []).find(
      ({ epoch, ms }) =>
        ms < request.sentMs &&
        !changes.some(
          ({ removed, leastEpoch, startedMs }) => removed && leastEpoch > epoch && startedMs <= endOf(request),
        ),
    );
    if (!bound) this.#count('login of a new user');
    else if (this.#failing('postgres', request)) this.#count('login elsewhere while PostgreSQL failed');
    else this.#fault('login elsewhere', `${describe(request)} on ${arrival.node}, bound in epoch ${bound.epoch}`);
  }

  #failing(store: Outage['store'], request: ClientRequest): boolean {
    return this.#evidence.outages.some(
      (outage) =>
        outage.store === store &&
        (outage.gateway === undefined || outage.gateway === request.gateway) &&
        outage.fromMs <= endOf(request) &&
        outage.untilMs + RECOVERY_MS >= request.sentMs,
    );
  }

  #fault(kind: string, details: string): void {
    this.#count(`FAULT ${kind}`);
    this.#verdict.faults.push(`${kind}: ${details}`);
  }

  #count(what: string): void {
    this.#verdict.counts.set(what, (this.#verdict.counts.get(what) ?? 0) + 1);
  }
}

function endOf(request: ClientRequest): number {
  return request.answeredMs ?? request.sentMs + UNANSWERED_MS;
}

export function describe(request: ClientRequest): string {
  const what = request.tokenOf ? 'request' : 'login';
  return `${what} ${request.id} of ${request.user} at gateway ${request.gateway}, sent at ${Math.round(request.sentMs)} ms`;
}
