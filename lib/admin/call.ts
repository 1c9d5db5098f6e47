/** What one call of the API carries from the router to its handler, and what a handler gives back. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Clock } from '../support/clock.ts';
import type { JsonObject } from '../support/json-digits.ts';
import { badField } from './admin-error.ts';
import type { AuditEntry } from './audit-log.ts';
import type { Principal } from './auth.ts';
import { readJsonObject } from './body.ts';

const MOST_REASON = 512;
const NOBODY: Principal = { name: '-', role: 'viewer' };

export interface Reply {
  readonly status: number;
  /** Rendered as JSON; undefined = the answer has no body. */
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
}

/** Null = the handler has answered by itself. */
export type CallHandler = (call: AdminCall) => Reply | null | Promise<Reply | null>;

/** What the audit will say; handlers fill it in as they learn of it. */
export interface AuditDraft {
  target: string;
  before: unknown;
  after: unknown;
  reason: string | null;
  /** True = the entry was stored together with the change. */
  recorded: boolean;
}

export interface AdminCallParts {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly params: Readonly<Record<string, string>>;
  readonly query: URLSearchParams;
  readonly action: string;
  readonly target: string;
  readonly address: string;
  readonly requestId: string;
  readonly clock: Clock;
}

export class AdminCall {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly query: URLSearchParams;
  /** Set when the caller is known. */
  principal: Principal = NOBODY;
  readonly address: string;
  readonly requestId: string;
  readonly clock: Clock;
  readonly action: string;
  readonly audit: AuditDraft;
  readonly #params: Readonly<Record<string, string>>;

  constructor(parts: AdminCallParts) {
    this.request = parts.request;
    this.response = parts.response;
    this.query = parts.query;
    this.address = parts.address;
    this.requestId = parts.requestId;
    this.clock = parts.clock;
    this.action = parts.action;
    this.audit = { target: parts.target, before: null, after: null, reason: null, recorded: false };
    this.#params = parts.params;
  }

  /** A part of the path, decoded. */
  param(name: string): string {
    return this.#params[name] ?? '';
  }

  /** True = nothing is to be changed. */
  get dryRun(): boolean {
    const value = this.query.get('dryRun');
    if (value === null || value === '0' || value === 'false') return false;
    if (value === '1' || value === 'true' || value === '') return true;
    throw badField('dryRun', 'must be 1 or 0');
  }

  /** Throws for query parameters that the call does not know: a mistyped dryRun must not become a real run. */
  allowQuery(names: readonly string[]): void {
    for (const name of this.query.keys()) {
      if (!names.includes(name)) throw badField(name, 'is no parameter of this call');
    }
  }

  limit(most: number, fallback: number): number {
    const text = this.query.get('limit');
    if (text === null) return fallback;
    const limit = /^\d{1,6}$/.test(text) ? Number(text) : 0;
    if (limit < 1 || limit > most) throw badField('limit', `must be a whole number from 1 to ${most}`);
    return limit;
  }

  json(): Promise<JsonObject> {
    return readJsonObject(this.request, this.clock);
  }

  /** Takes note of why, for the audit. */
  giveReason(field: string, reason: unknown): void {
    if (reason === undefined || reason === null) return;
    if (typeof reason !== 'string') throw badField(field, 'must be text');
    if (reason.length > MOST_REASON || /[\0-\x08\x0b-\x1f\x7f]/.test(reason))
      throw badField(field, `must be at most ${MOST_REASON} characters, without control characters`);
    this.audit.reason = reason;
  }

  entry(outcome: string): AuditEntry {
    const { target, before, after, reason } = this.audit;
    return {
      timeMs: this.clock.now(),
      actor: this.principal.name,
      address: this.address,
      action: this.action,
      target,
      outcome,
      before,
      after,
      reason,
      requestId: this.requestId,
    };
  }
}

/** What an answer to a write says besides. */
export function dryRunMark(call: AdminCall): { dryRun?: true } {
  return call.dryRun ? { dryRun: true } : {};
}
