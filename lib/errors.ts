/**
 * The one error type of the program, its closed list of codes, and the table from code to HTTP status.
 * Rendering an error for a client is not done here.
 */

/** Code -> HTTP status. The codes are part of the contract: scripts and dashboards use them. */
export const STATUS_OF = {
  bad_request: 400,
  token_rejected: 401,
  ip_not_allowed: 403,
  no_route: 404,
  request_timeout: 408,
  body_too_large: 413,
  header_too_large: 431,
  internal: 500,
  node_unreachable: 502,
  node_broke_off: 502,
  node_bad_response: 502,
  node_down: 503,
  node_disabled: 503,
  node_unknown: 503,
  user_frozen: 503,
  user_not_bound: 503,
  no_node_available: 503,
  no_capacity: 503,
  identity_unavailable: 503,
  directory_unavailable: 503,
  service_disabled: 503,
  overloaded: 503,
  shutting_down: 503,
  node_timeout: 504,
} as const;

export type ErrorCode = keyof typeof STATUS_OF;
/** Who is at fault. */
export type ErrorSide = 'client' | 'gateway' | 'node' | 'store';

const SIDE_OF: Partial<Record<ErrorCode, ErrorSide>> = {
  internal: 'gateway',
  overloaded: 'gateway',
  shutting_down: 'gateway',
  no_node_available: 'gateway',
  no_capacity: 'gateway',
  service_disabled: 'gateway',
  user_frozen: 'gateway',
  user_not_bound: 'gateway',
  identity_unavailable: 'store',
  directory_unavailable: 'store',
  node_unreachable: 'node',
  node_broke_off: 'node',
  node_bad_response: 'node',
  node_down: 'node',
  node_disabled: 'node',
  node_unknown: 'node',
  node_timeout: 'node',
};

/** Seconds after which trying again can help, for the Retry-After field; absent = waiting does not help. */
const RETRY_AFTER_SECONDS: Partial<Record<ErrorCode, number>> = {
  node_down: 5,
  no_node_available: 5,
  no_capacity: 30,
  identity_unavailable: 2,
  directory_unavailable: 2,
  user_frozen: 10,
  node_unreachable: 2,
  node_broke_off: 2,
  overloaded: 1,
  shutting_down: 1,
  node_timeout: 5,
};

export interface GatewayErrorOptions {
  readonly cause?: unknown;
  readonly nodeId?: string;
}

/** An answer the gateway gives itself. `message` is shown to clients: never a secret, a base URL or a stack. */
export class GatewayError extends Error {
  readonly code: ErrorCode;
  readonly nodeId: string | undefined;

  constructor(code: ErrorCode, message: string, options: GatewayErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'GatewayError';
    this.code = code;
    this.nodeId = options.nodeId;
  }

  get status(): number {
    return STATUS_OF[this.code];
  }

  get side(): ErrorSide {
    return SIDE_OF[this.code] ?? 'client';
  }

  get retryAfterSeconds(): number | undefined {
    return RETRY_AFTER_SECONDS[this.code];
  }
}

/** Wraps anything thrown: a GatewayError stays, everything else becomes `internal` with the cause kept for the log. */
export function toGatewayError(error: unknown): GatewayError {
  return error instanceof GatewayError
    ? error
    : new GatewayError('internal', 'the gateway failed to handle this request', { cause: error });
}

/**
 * A fault an operator can mend: bad configuration, a broken journal, an unreachable store at start.
 * `bin/gateway.ts` prints the message without a stack and exits 1.
 */
export class OperatorError extends Error {
  constructor(message: string, options: { cause?: unknown } = {}) {
    super(message, options);
    this.name = 'OperatorError';
  }
}
