/**
 * What one request carries through the pipeline, with the stage that sets each field, and the types of a stage.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import type { Match, Node, Service, Snapshot } from './model.ts';

/** How the node was chosen. */
export type DecisionKind = 'bound' | 'candidate' | 'default' | 'anonymous' | 'balanced';
/** Which cache or store answered for the binding. */
export type AnsweredBy = 'local' | 'redis' | 'store' | 'stale';
/** Why a route's version was chosen: a rule asked for it, the user is bound there, by weight, or there is no other. */
export type VersionReason = 'rule' | 'bound' | 'weight' | 'only';

/**
 * Takes the node's response before a byte of it goes to the client; set by the login response stage. It calls
 * `relay` exactly once, now or later, with what it has read; the forward stage sends that and the rest.
 */
export type ResponseInterceptor = (
  context: RequestContext,
  nodeResponse: IncomingMessage,
  relay: (chunksRead: readonly Buffer[]) => void,
) => void;

/** The client's connection of an upgrade request, and the bytes that arrived behind its head. */
export interface UpgradeParts {
  readonly socket: Duplex;
  readonly head: Buffer;
}

/**
 * Another node for a request whose node failed: none of `tried`, and if `fit` none that is DOWN. Undefined = there is
 * none.
 */
export type OtherNode = (context: RequestContext, tried: readonly Node[], fit: boolean) => Node | undefined;

export class RequestContext {
  readonly request: IncomingMessage;
  /** For an upgrade: answers a refusal; never used once the tunnel is open. */
  readonly response: ServerResponse;
  /** null = a plain request. */
  readonly upgrade: UpgradeParts | null;
  /** Clock.monotonic at arrival. */
  readonly startedAtMs: number;

  /** Why the request's framing cannot be trusted; set before the pipeline, null = sound */
  framingFault: string | null = null;
  /** request id stage */
  requestId = '';
  /** access log stage takes it when the exchange ends */
  errorCode: string | null = null;
  /** The address at the other end of the connection, and the client's after the trusted proxies; ip allow stage */
  peerAddress = '';
  trustedPeer = false;
  clientAddress = '';
  /** Fields of CORS that take the place of the node's; cors stage, null = the node's stay */
  corsHeaders: readonly string[] | null = null;
  /** Origin form of the request target, byte for byte as sent; match stage */
  target = '';
  /** Authority the client asked for: of an absolute-form target, else Host; match stage */
  host: string | undefined = undefined;
  /** The target without its query; match stage */
  path = '';
  /** match stage */
  snapshot: Snapshot | null = null;
  match: Match | null = null;
  /** match stage; below a route one of the version stages */
  service: Service | null = null;
  /** Version chosen by a route; version by rule stage, else version by user stage */
  version: string | null = null;
  versionReason: VersionReason | null = null;
  /** login request stage; null = not a login */
  login: LoginAttempt | null = null;
  /** version by user stage, else sticky route stage */
  token: string | null = null;
  userId: string | null = null;
  /** True = token and userId have been looked up; version by user stage */
  identified = false;
  decision: DecisionKind | null = null;
  node: Node | null = null;
  /** 0 = the request is not bound */
  epoch = 0;
  answeredBy: AnsweredBy | null = null;
  /** balance stage; null = the request stays with its node, whatever happens: all of affinity `user` does */
  otherNode: OtherNode | null = null;
  /** Why the directory could not be asked at a login that was let through; null = it could */
  directoryError: unknown = null;
  /** login response stage; such an exchange goes on when the client leaves after its body arrived */
  interceptor: ResponseInterceptor | null = null;
  /** Called once when the exchange with the node is over, if there was one; whoever waits for that sets it */
  settled: (() => void) | null = null;
  /** forward stage */
  attempts = 0;
  nodeStatus = 0;
  bytesSent = 0;

  constructor(request: IncomingMessage, response: ServerResponse, upgrade: UpgradeParts | null, startedAtMs: number) {
    this.request = request;
    this.response = response;
    this.upgrade = upgrade;
    this.startedAtMs = startedAtMs;
  }

  /** error boundary stage; takes every error from then on */
  errorHandler: ((context: RequestContext, error: unknown) => void) | null = null;

  /** Answers with an error, at any time after the error boundary. */
  fail(error: unknown): void {
    if (!this.errorHandler) throw error;
    this.errorHandler(this, error);
  }
}

/** A login under way. */
export interface LoginAttempt {
  /** As the request named it; null = not known, or not before the version is chosen. */
  readonly username: string | null;
  /** Id of each service for which this is a login, with the username as that service's mapping finds it. */
  readonly usernames: ReadonlyMap<string, string | null>;
  /** True = the chosen version has no login at this path: only the bytes read are kept here. */
  readonly bodyOnly: boolean;
  /** The request's bytes read so far, in order; forwarded before the rest of the stream. */
  readonly bodyRead: readonly Buffer[];
  /** True = bodyRead is the whole body. */
  readonly bodyComplete: boolean;
  /** Keeps the candidate shared with other logins of this user; sticky route stage, null = there is none. */
  seat: CandidateSeat | null;
}

/** A place at the candidate that overlapping logins of one new user share. */
export interface CandidateSeat {
  /** One more reason to keep it. */
  hold(): void;
  /** One reason less; the last one frees it. */
  leave(): void;
}

export type Handler = (context: RequestContext) => void | Promise<void>;

/**
 * One stage of the pipeline. It calls `next` once or answers itself. A stage that did nothing asynchronous returns
 * what `next` returned, so that a request with warm caches reaches the node in the tick it arrived in.
 */
export type Middleware = (context: RequestContext, next: Handler) => void | Promise<void>;

/** Composes stages from first to last; the last one's `next` must not be called. */
export function compose(stages: readonly Middleware[]): Handler {
  return stages.reduceRight<Handler>(
    (next, stage) => (context) => stage(context, next),
    () => {
      throw new Error('the last stage of the pipeline called next');
    },
  );
}
