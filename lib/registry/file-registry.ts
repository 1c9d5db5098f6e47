/**
 * Services and routes of a gateway with the embedded store: the configuration file where it changed, the journal where
 * it did not, edits by the admin API in between. Reading the file is the loader's duty, following the snapshot the
 * registry's.
 */
import { createHash } from 'node:crypto';
import type { BindingStore } from '../bindings/binding-store.ts';
import type { Journal } from '../bindings/journal.ts';
import { OperatorError } from '../errors.ts';
import type { RegistryDefinition } from '../model.ts';
import type { Logger } from '../observe/log.ts';
import type { Clock } from '../support/clock.ts';

/** Takes the definition into force. */
export interface RegistryTarget {
  swap(definition: RegistryDefinition, meta: { loadedAtMs: number; stale: boolean }): void;
}

export interface FileRegistryOptions {
  readonly journal: Pick<Journal, 'registry' | 'writeRegistry'>;
  readonly bindings: Pick<BindingStore, 'countByNode'>;
  readonly target: RegistryTarget;
  /** Of the configuration file. */
  readonly definition: RegistryDefinition;
  /** `definitionHash` of it. */
  readonly fileHash: string;
  readonly clock: Clock;
  readonly logger: Logger;
}

/** What an edit comes to. */
export interface RegistryEdit<T> {
  /** null = nothing is to be changed. */
  readonly next: RegistryDefinition | null;
  readonly result: T;
}

interface VanishedNode {
  readonly serviceId: string;
  readonly nodeId: string;
  readonly users: number;
}

export class FileRegistry {
  readonly #journal: FileRegistryOptions['journal'];
  readonly #bindings: FileRegistryOptions['bindings'];
  readonly #target: RegistryTarget;
  readonly #definition: RegistryDefinition;
  readonly #fileHash: string;
  readonly #clock: Clock;
  readonly #logger: Logger;
  /** Changes run one after the other: each is checked against the outcome of the one before. */
  #last: Promise<unknown> = Promise.resolve();
  #started: Promise<void> | undefined;

  constructor(options: FileRegistryOptions) {
    this.#journal = options.journal;
    this.#bindings = options.bindings;
    this.#target = options.target;
    this.#definition = options.definition;
    this.#fileHash = options.fileHash;
    this.#clock = options.clock;
    this.#logger = options.logger;
  }

  /**
   * Applies the file if it changed since it was last applied, else brings the journaled definition into force. Rejects
   * with OperatorError where `apply` does. Idempotent.
   */
  start(): Promise<void> {
    this.#started ??= this.#inTurn(async () => {
      const changed = await this.#apply(this.#definition, this.#fileHash);
      if (!changed) this.#swap(this.#journal.registry?.definition ?? this.#definition);
    });
    return this.#started;
  }

  /** Waits for changes under way. Idempotent. */
  async stop(): Promise<void> {
    await Promise.allSettled([this.#last]);
  }

  /**
   * Takes over a file as a whole: what it does not name is removed. Resolves with false if this file was applied last,
   * so that edits made since then stand. Rejects with OperatorError, changing nothing, if users are bound to what it
   * would remove; with StoreUnavailable if it cannot be made durable.
   */
  apply(definition: RegistryDefinition, fileHash: string): Promise<boolean> {
    return this.#inTurn(() => this.#apply(definition, fileHash));
  }

  /**
   * Takes over an edit by the admin API, which has checked it. Durable and in force when it resolves; rejects with
   * StoreUnavailable.
   */
  write(definition: RegistryDefinition): Promise<void> {
    return this.#inTurn(async () => {
      const fileHash = this.#journal.registry?.fileHash ?? this.#fileHash;
      await this.#journal.writeRegistry({ fileHash, definition });
      this.#swap(definition);
    });
  }

  /**
   * Runs an edit by the admin API, after the changes before it: `change` gets the definition in force and resolves with
   * the next one, or null to leave it (it must have checked it). Durable and in force when it resolves; rejects with
   * what `change` rejects with, or with StoreUnavailable, changing nothing.
   */
  edit<T>(change: (current: RegistryDefinition) => Promise<RegistryEdit<T>>): Promise<T> {
    return this.#inTurn(async () => {
      const current = this.#journal.registry?.definition ?? this.#definition;
      const { next, result } = await change(current);
      if (next === null) return result;
      const fileHash = this.#journal.registry?.fileHash ?? this.#fileHash;
      await this.#journal.writeRegistry({ fileHash, definition: next });
      this.#swap(next);
      // As after a file: a login that chose its node before the swap may bind to it after the check.
      for (const { serviceId, nodeId, users } of await this.#boundOnVanished(current, next)) {
        this.#logger.warn('registry_users_on_removed_node', { service: serviceId, node: nodeId, users });
      }
      return result;
    });
  }

  async #apply(definition: RegistryDefinition, fileHash: string): Promise<boolean> {
    const current = this.#journal.registry;
    if (current?.fileHash === fileHash) return false;
    const before = current?.definition ?? { services: [], routes: [] };
    const bound = await this.#boundOnVanished(before, definition);
    if (bound.length > 0) throw refusal(bound);
    await this.#journal.writeRegistry({ fileHash, definition });
    this.#swap(definition);
    this.#logger.info('registry_file_applied', {
      services: definition.services.length,
      routes: definition.routes.length,
      // A drain made through the API ends here, unless the file has it too.
      switched: switchesThatDiffer(before, definition),
    });
    // A login that chose its node before the swap may bind to it after the check; nobody else can.
    for (const { serviceId, nodeId, users } of await this.#boundOnVanished(before, definition)) {
      this.#logger.warn('registry_users_on_removed_node', { service: serviceId, node: nodeId, users });
    }
    return true;
  }

  /** Nodes of `before` that are not in `after` (in the same service) and still have users. */
  async #boundOnVanished(before: RegistryDefinition, after: RegistryDefinition): Promise<VanishedNode[]> {
    const kept = new Map(after.services.map((service) => [service.id, new Set(service.nodes.map((node) => node.id))]));
    const bound: VanishedNode[] = [];
    for (const service of before.services) {
      const keptNodes = kept.get(service.id);
      const known = new Set(service.nodes.map((node) => node.id));
      for (const [nodeId, users] of await this.#bindings.countByNode(service.id)) {
        // With its service goes every binding, also one whose node had vanished before.
        const vanishes = keptNodes === undefined || (known.has(nodeId) && !keptNodes.has(nodeId));
        if (vanishes) bound.push({ serviceId: service.id, nodeId, users });
      }
    }
    return bound;
  }

  #swap(definition: RegistryDefinition): void {
    this.#target.swap(definition, { loadedAtMs: this.#clock.now(), stale: false });
  }

  #inTurn<T>(change: () => Promise<T>): Promise<T> {
    const result = this.#last.then(change, change);
    this.#last = result;
    return result;
  }
}

/** SHA-256 of the definition's JSON with sorted keys: the order in which a file names things within a mapping is no change. */
export function definitionHash(definition: RegistryDefinition): string {
  return createHash('sha256').update(canonicalJson(definition)).digest('hex');
}

function canonicalJson(value: unknown): string {
  return JSON.stringify(value, (_key, part: unknown) =>
    typeof part === 'object' && part !== null && !Array.isArray(part)
      ? Object.fromEntries(Object.entries(part).sort(([a], [b]) => (a < b ? -1 : 1)))
      : part,
  );
}

function refusal(bound: readonly VanishedNode[]): OperatorError {
  const places = bound.map(
    ({ serviceId, nodeId, users }) =>
      `node ${nodeId} of service ${serviceId} (${users} ${users === 1 ? 'user' : 'users'})`,
  );
  return new OperatorError(
    `the file removes nodes that users are bound to: ${places.join(', ')}; nothing was applied. Move or unbind the users first, or put the nodes back`,
  );
}

const SWITCHES = ['enabled', 'draining', 'weight', 'maxUsers'] as const;
/** More are not named in one line of the log. */
const MOST_SWITCHES = 50;

/** `demo/node-1 draining: true -> false`, for nodes that are in both. */
function switchesThatDiffer(before: RegistryDefinition, after: RegistryDefinition): string[] | undefined {
  const nodes = new Map(before.services.flatMap(({ id, nodes }) => nodes.map((node) => [`${id}/${node.id}`, node])));
  const changes = after.services.flatMap((service) =>
    service.nodes.flatMap((node) => {
      const name = `${service.id}/${node.id}`;
      const was = nodes.get(name);
      if (!was) return [];
      return SWITCHES.filter((key) => was[key] !== node[key]).map(
        (key) => `${name} ${key}: ${was[key]} -> ${node[key]}`,
      );
    }),
  );
  return changes.length === 0 ? undefined : changes.slice(0, MOST_SWITCHES);
}
