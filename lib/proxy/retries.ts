/**
 * The rules by which a request of a stateless service goes to another node when its node fails (spec §10). It sends
 * nothing itself. A request of a service with bound users never has one of these: no other node is any good to it.
 */
import type { OtherNode, RequestContext } from '../context.ts';
import { GatewayError } from '../errors.ts';
import type { Node } from '../model.ts';
import { REPLAY_BYTES, ReplayBuffer } from './replay-buffer.ts';

/**
 * How a node failed before it gave a head: `unreached` = there was no connection, so no byte was sent; `closed` = the
 * connection ended, or what came was no HTTP; `silent` = nothing came in time.
 */
export type NodeFailure = 'unreached' | 'closed' | 'silent';

/** No attempt begins later after the first than so many response timeouts. */
const BEGIN_WITHIN_TIMEOUTS = 2;

export class Retries {
  /** What has been sent of the body; of one that must not be sent twice, nothing. */
  readonly body: ReplayBuffer;
  readonly #context: RequestContext;
  readonly #otherNode: OtherNode;
  readonly #idempotent: boolean;
  readonly #untilMs: number;
  /** Those that had their turn, or were passed over. */
  readonly #tried: Node[] = [];
  #again: Node | null = null;
  #wasSilent = false;

  private constructor(context: RequestContext, otherNode: OtherNode, beginMs: number, length: number) {
    this.#context = context;
    this.#otherNode = otherNode;
    this.#idempotent = isIdempotent(context.request.method);
    this.#untilMs = beginMs;
    if (context.node) this.#tried.push(context.node);
    this.body = new ReplayBuffer(this.#idempotent && length <= REPLAY_BYTES ? REPLAY_BYTES : 0);
  }

  /**
   * Null for a request that stays with its node. `length`: of the body, -1 = not known; `nowMs` and `responseMs`: of
   * the same clock.
   */
  static of(context: RequestContext, length: number, nowMs: number, responseMs: number): Retries | null {
    const { otherNode, login } = context;
    // Below a route, what is a login for another version is an ordinary request here; what was read of its body is sent
    // anew with each attempt, if that is all of it.
    if (otherNode === null || (login !== null && !(login.bodyOnly && login.bodyComplete))) return null;
    return new Retries(context, otherNode, nowMs + BEGIN_WITHIN_TIMEOUTS * responseMs, length);
  }

  /**
   * Whether the request may be sent once more. After silence only once: what is too slow for one node may well be too
   * slow for all, and must not go through them one by one.
   */
  mayRepeat(failure: NodeFailure, nowMs: number): boolean {
    if (nowMs > this.#untilMs) return false;
    if (failure === 'unreached') return true;
    if (!this.#idempotent || !this.body.whole) return false;
    if (failure === 'closed') return true;
    if (this.#wasSilent) return false;
    this.#wasSilent = true;
    return true;
  }

  /**
   * The node's connection was a kept one and most likely closed before the request was seen: the node gets one more
   * turn, on a fresh connection, if no other node is fit.
   */
  allowAgain(node: Node): void {
    this.#again = node;
  }

  /** The node to go to instead, another one at each call; undefined = every one had its turn. */
  next(): Node | undefined {
    let node = this.#otherNode(this.#context, this.#tried, true);
    if (!node && this.#again) {
      node = this.#again;
      this.#again = null;
      return node;
    }
    node ??= this.#otherNode(this.#context, this.#tried, false);
    if (node) this.#tried.push(node);
    return node;
  }
}

/** What the client gets when every node had its turn. */
export function nothingLeft(last: GatewayError): GatewayError {
  // It is there and takes long: that says more than that no node is left.
  if (last.code === 'node_timeout') return last;
  return new GatewayError('no_node_available', 'no node of this service could be reached', {
    cause: last.cause ?? last,
  });
}

/** RFC 9110 section 9.2.2 */
export function isIdempotent(method: string | undefined): boolean {
  return (
    method === 'GET' ||
    method === 'HEAD' ||
    method === 'PUT' ||
    method === 'DELETE' ||
    method === 'OPTIONS' ||
    method === 'TRACE'
  );
}
