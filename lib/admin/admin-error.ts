/**
 * Refusals of the admin API: a closed list of codes beside the gateway's own, in the same shape. How other errors
 * look to a client of the API is decided here too.
 */
import { GatewayError, OperatorError } from '../errors.ts';
import { StoreUnavailable } from '../stores/store-unavailable.ts';

/** Code -> HTTP status. The codes are part of the contract. */
export const ADMIN_STATUS_OF = {
  bad_request: 400,
  import_refused: 400,
  unauthorized: 401,
  forbidden: 403,
  ip_not_allowed: 403,
  foreign_origin: 403,
  not_found: 404,
  method_not_allowed: 405,
  request_timeout: 408,
  conflict: 409,
  users_bound: 409,
  changed_meanwhile: 412,
  body_too_large: 413,
  unsupported_media_type: 415,
  too_many_requests: 429,
  internal: 500,
  /** A worker died before it answered. */
  outcome_unknown: 502,
  overloaded: 503,
  not_ready: 503,
  store_unavailable: 503,
} as const;

export type AdminErrorCode = keyof typeof ADMIN_STATUS_OF;

/** One fault of a body or a query. */
export interface FieldFault {
  /** `nodes[0].weight`; empty = the body as a whole. */
  readonly field: string;
  readonly message: string;
}

export interface AdminErrorDetails {
  readonly fields?: readonly FieldFault[];
  /** Bound users that stand in the way. */
  readonly users?: number;
  /** Node id -> bound users. */
  readonly usersByNode?: Readonly<Record<string, number>>;
  readonly errors?: readonly LineFault[];
  readonly errorCount?: number;
  readonly dryRun?: true;
}

/** One fault of an imported file. */
export interface LineFault {
  /** From 1; of the record's first line. */
  readonly line: number;
  readonly message: string;
}

export interface AdminErrorOptions {
  readonly details?: AdminErrorDetails;
  readonly headers?: Readonly<Record<string, string>>;
  readonly cause?: unknown;
}

/** `message` is shown: never a secret or a stack. */
export class AdminError extends Error {
  readonly code: AdminErrorCode;
  readonly details: AdminErrorDetails;
  readonly headers: Readonly<Record<string, string>>;

  constructor(code: AdminErrorCode, message: string, options: AdminErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    // PostgresStore takes errors of any other name than 'Error' for a decision of its caller and passes them on.
    this.name = 'AdminError';
    this.code = code;
    this.details = options.details ?? {};
    this.headers = options.headers ?? {};
  }

  get status(): number {
    return ADMIN_STATUS_OF[this.code];
  }
}

const RETRY_SECONDS = '2';

/** Anything thrown as an answer. */
export function toAdminError(error: unknown): AdminError {
  if (error instanceof AdminError) return error;
  if (error instanceof StoreUnavailable || isDirectoryError(error)) {
    return new AdminError('store_unavailable', 'the store does not answer at the moment; nothing is half-done', {
      headers: { 'Retry-After': RETRY_SECONDS },
      cause: error,
    });
  }
  // What a store can never hold, and pages that do not exist.
  if (error instanceof OperatorError || (error instanceof GatewayError && error.code === 'bad_request'))
    return new AdminError('bad_request', error.message, { cause: error });
  return new AdminError('internal', 'the gateway failed to handle this request', { cause: error });
}

function isDirectoryError(error: unknown): boolean {
  return error instanceof GatewayError && error.code === 'directory_unavailable';
}

/** One fault, of one field. */
export function badField(field: string, message: string): AdminError {
  return new AdminError('bad_request', field === '' ? message : `${field}: ${message}`, {
    details: { fields: [{ field, message }] },
  });
}

export function badFields(fields: readonly FieldFault[], code: AdminErrorCode = 'bad_request'): AdminError {
  const text = fields.map(({ field, message }) => (field === '' ? message : `${field}: ${message}`)).join('; ');
  return new AdminError(code, text, { details: { fields } });
}

export function notFound(what: string): AdminError {
  return new AdminError('not_found', `there is no ${what}`);
}
