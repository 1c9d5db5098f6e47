/** The audit log in PostgreSQL: table gateway_audit. An entry can be part of the transaction of what it tells of. */
import type { Queryable } from '../stores/postgres.ts';
import { type AuditEntry, type AuditLog, type AuditPage, auditPage, type StoredAuditEntry } from './audit-log.ts';

interface Row {
  readonly id: string;
  readonly time_ms: string;
  readonly actor: string;
  readonly address: string | null;
  readonly action: string;
  readonly target: string | null;
  readonly outcome: string | null;
  readonly before: unknown;
  readonly after: unknown;
  readonly reason: string | null;
  readonly request_id: string | null;
}

export class PostgresAudit implements AuditLog {
  readonly #postgres: Queryable;

  constructor(postgres: Queryable) {
    this.#postgres = postgres;
  }

  record(entry: AuditEntry): Promise<void> {
    return this.recordIn(this.#postgres, entry);
  }

  async recordIn(client: Queryable, entry: AuditEntry): Promise<void> {
    await client.query(
      `INSERT INTO gateway_audit (time, actor, address, action, target, outcome, before, after, reason, request_id)
       VALUES (to_timestamp($1::double precision / 1000), $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
      [
        entry.timeMs,
        entry.actor,
        entry.address,
        entry.action,
        storable(entry.target),
        storable(entry.outcome),
        jsonOrNull(entry.before),
        jsonOrNull(entry.after),
        entry.reason === null ? null : storable(entry.reason),
        entry.requestId,
      ],
    );
  }

  async page(limit: number, after: string | undefined): Promise<AuditPage> {
    const { rows } = await this.#postgres.query<Row>(
      `SELECT id::text AS id, round(extract(epoch FROM time) * 1000)::text AS time_ms, actor, address, action, target,
         outcome, before, after, reason, request_id
       FROM gateway_audit WHERE $1::bigint IS NULL OR id < $1::bigint ORDER BY gateway_audit.id DESC LIMIT $2`,
      [after ?? null, limit + 1],
      { name: 'gateway_audit_page' },
    );
    return auditPage(rows.map(entryOf), limit);
  }
}

/** PostgreSQL has no NUL in texts. */
function storable(text: string): string {
  return text.replaceAll('\0', '\ufffd');
}

function jsonOrNull(value: unknown): string | null {
  return value === null || value === undefined ? null : JSON.stringify(value);
}

function entryOf(row: Row): StoredAuditEntry {
  return {
    id: row.id,
    timeMs: Number(row.time_ms),
    actor: row.actor,
    address: row.address ?? '',
    action: row.action,
    target: row.target ?? '',
    outcome: row.outcome ?? '',
    before: row.before,
    after: row.after,
    reason: row.reason,
    requestId: row.request_id ?? '',
  };
}
