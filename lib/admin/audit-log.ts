/**
 * The contract of the audit log: what an operator did or was refused. It lies in gateway_audit, or with the embedded
 * store in a file of its own beside the journal. Values in it are definitions and bindings, which hold no secrets.
 */

export interface AuditEntry {
  readonly timeMs: number;
  /** Name of the token; `-` = none that is known. */
  readonly actor: string;
  readonly address: string;
  /** `node.change` */
  readonly action: string;
  /** `services/ai-server/nodes/node-1` */
  readonly target: string;
  /** `done`, or the code and message of the refusal. */
  readonly outcome: string;
  readonly before: unknown;
  readonly after: unknown;
  readonly reason: string | null;
  readonly requestId: string;
}

export interface StoredAuditEntry extends AuditEntry {
  /** Counts up. */
  readonly id: string;
}

export interface AuditPage {
  /** Newest first. */
  readonly entries: readonly StoredAuditEntry[];
  /** null = the last page. */
  readonly next: string | null;
}

export interface AuditLog {
  /** Durable when it resolves. */
  record(entry: AuditEntry): Promise<void>;
  /** `after`: the `next` of the page before; entries older than it. */
  page(limit: number, after: string | undefined): Promise<AuditPage>;
}

/** One more entry than asked for tells whether there is a next page. */
export function auditPage(found: readonly StoredAuditEntry[], limit: number): AuditPage {
  const entries = found.slice(0, limit);
  return { entries, next: found.length > limit ? (entries.at(-1)?.id ?? null) : null };
}
