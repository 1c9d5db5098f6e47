/** Edits of the registry with the embedded store: the journal takes them, and the file they came from stays as it is. */
import type { BindingStore } from '../bindings/binding-store.ts';
import { describeError, type Logger } from '../observe/log.ts';
import type { FileRegistry } from '../registry/file-registry.ts';
import type { AuditEntry, AuditLog } from './audit-log.ts';
import type { Edit, EditContext, EditOutcome, RegistryEditor } from './registry-editor.ts';

export class FileEditor implements RegistryEditor {
  readonly #registry: FileRegistry;
  readonly #bindings: Pick<BindingStore, 'countByNode'>;
  readonly #audit: AuditLog;
  readonly #logger: Logger;

  constructor(registry: FileRegistry, bindings: Pick<BindingStore, 'countByNode'>, audit: AuditLog, logger: Logger) {
    this.#registry = registry;
    this.#bindings = bindings;
    this.#audit = audit;
    this.#logger = logger;
  }

  async edit<T>(change: (context: EditContext) => Promise<Edit<T>>, entry: () => AuditEntry): Promise<EditOutcome<T>> {
    let written = false;
    const result = await this.#registry.edit(async (current) => {
      const ids = {
        service: new Set(current.services.map(({ id }) => id)),
        node: new Set(current.services.flatMap(({ nodes }) => nodes.map(({ id }) => id))),
        route: new Set(current.routes.map(({ id }) => id)),
      };
      const edit = await change({
        current,
        isTaken: (kind, id) => ids[kind].has(id),
        // It counts what is in memory, in this tick: a binding that is being written is among them.
        countUsers: (serviceId) => this.#bindings.countByNode(serviceId),
      });
      written = edit.next !== null;
      return edit;
    });
    if (written) await this.#record(entry());
    return { result, inForce: true };
  }

  async #record(entry: AuditEntry): Promise<void> {
    try {
      await this.#audit.record(entry);
    } catch (error) {
      // The change is in force: what cannot be told to the file is told to the log.
      this.#logger.error('audit_not_written', { ...entry, error: describeError(error) });
    }
  }
}
