/**
 * Holds the one snapshot in force, swaps it whole and tells those who follow it. Where definitions come from is the
 * business of file-registry.ts and postgres-registry.ts.
 */
import type { RegistryDefinition, Snapshot } from '../model.ts';
import { buildSnapshot } from './snapshot.ts';

export type SnapshotListener = (snapshot: Snapshot, previous: Snapshot | undefined) => void;

export class Registry {
  #snapshot: Snapshot | undefined;
  #version = 0;
  readonly #listeners = new Set<SnapshotListener>();

  /** Undefined until the first load: requests get 503 then, and /readyz too. */
  get snapshot(): Snapshot | undefined {
    return this.#snapshot;
  }

  /** Replaces the snapshot; requests that hold the old one finish with it. */
  swap(definition: RegistryDefinition, meta: { loadedAtMs: number; stale: boolean }): void {
    this.#version += 1;
    const previous = this.#snapshot;
    const snapshot = buildSnapshot(definition, { version: this.#version, ...meta });
    this.#snapshot = snapshot;
    const errors: unknown[] = [];
    for (const listener of this.#listeners) {
      try {
        listener(snapshot, previous);
      } catch (error) {
        errors.push(error);
      }
    }
    // The others are to follow all the same, or nodes would be probed at addresses that requests no longer go to.
    if (errors.length > 0) throw errors[0];
  }

  /** Calls `listener` at every swap, and at once if there is a snapshot. Returns the way to end it. */
  subscribe(listener: SnapshotListener): () => void {
    this.#listeners.add(listener);
    if (this.#snapshot) listener(this.#snapshot, undefined);
    return () => this.#listeners.delete(listener);
  }
}
