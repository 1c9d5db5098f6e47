/** A bounded map that forgets the entry used longest ago. */

interface Link<K, V> {
  readonly key: K;
  value: V;
  older: Link<K, V> | null;
  newer: Link<K, V> | null;
}

/**
 * The order of use is a list, not the order of the map: a map that deletes and sets at each reading fills with holes
 * and is copied whole again and again. With 100,000 entries that takes four times as long as moving a link.
 */
export class Lru<K, V> {
  readonly #links = new Map<K, Link<K, V>>();
  readonly #maxEntries: number;
  #oldest: Link<K, V> | null = null;
  #newest: Link<K, V> | null = null;

  /** `maxEntries`: 1 or more. */
  constructor(maxEntries: number) {
    this.#maxEntries = maxEntries;
  }

  get size(): number {
    return this.#links.size;
  }

  /** Reads and marks as just used. */
  get(key: K): V | undefined {
    const link = this.#links.get(key);
    if (link === undefined) return undefined;
    this.#use(link);
    return link.value;
  }

  /** Reads without marking. */
  peek(key: K): V | undefined {
    return this.#links.get(key)?.value;
  }

  set(key: K, value: V): void {
    const known = this.#links.get(key);
    if (known !== undefined) {
      known.value = value;
      this.#use(known);
      return;
    }
    const link: Link<K, V> = { key, value, older: null, newer: null };
    this.#links.set(key, link);
    this.#append(link);
    if (this.#links.size > this.#maxEntries && this.#oldest) this.delete(this.#oldest.key);
  }

  delete(key: K): boolean {
    const link = this.#links.get(key);
    if (link === undefined) return false;
    this.#links.delete(key);
    this.#unlink(link);
    return true;
  }

  clear(): void {
    this.#links.clear();
    this.#oldest = null;
    this.#newest = null;
  }

  /** From the one used longest ago to the last used. Nothing may be read or changed on the way, but by `peek`. */
  *entries(): IterableIterator<[K, V]> {
    for (let link = this.#oldest; link; link = link.newer) yield [link.key, link.value];
  }

  #use(link: Link<K, V>): void {
    if (link === this.#newest) return;
    this.#unlink(link);
    this.#append(link);
  }

  #append(link: Link<K, V>): void {
    link.older = this.#newest;
    if (this.#newest) this.#newest.newer = link;
    else this.#oldest = link;
    this.#newest = link;
  }

  #unlink(link: Link<K, V>): void {
    const { older, newer } = link;
    if (older) older.newer = newer;
    else this.#oldest = newer;
    if (newer) newer.older = older;
    else this.#newest = older;
    link.older = null;
    link.newer = null;
  }
}
