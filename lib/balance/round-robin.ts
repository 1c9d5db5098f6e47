/** Each node in turn, in the order of the list. Weights are not looked at. */
import type { Selectable, Selector } from './selector.ts';

export class RoundRobin<T extends Selectable> implements Selector<T> {
  #lastId: string | null = null;
  #lastIndex = -1;

  next(nodes: readonly T[], accepts: (node: T) => boolean): T | undefined {
    const start = this.#startIn(nodes);
    for (let step = 0; step < nodes.length; step += 1) {
      const index = (start + step) % nodes.length;
      const node = nodes[index];
      if (node === undefined || !accepts(node)) continue;
      this.#lastId = node.id;
      this.#lastIndex = index;
      return node;
    }
    return undefined;
  }

  retain(): void {
    // All that is remembered is whose turn it was; the place of a node that is gone stands for its successor.
  }

  keep(): () => void {
    const lastId = this.#lastId;
    const lastIndex = this.#lastIndex;
    return () => {
      this.#lastId = lastId;
      this.#lastIndex = lastIndex;
    };
  }

  #startIn(nodes: readonly T[]): number {
    if (this.#lastId === null || nodes[this.#lastIndex]?.id === this.#lastId) return this.#lastIndex + 1;
    const moved = nodes.findIndex((node) => node.id === this.#lastId);
    return moved === -1 ? this.#lastIndex : moved + 1;
  }
}
