/**
 * The same key to the same node, on every gateway, for as long as the node is there; adding a node moves about 1/N
 * of the keys, all of them to it. Where the key comes from is the caller's to say.
 */
import type { Selectable, Selector } from './selector.ts';

interface Ring<T> {
  /** Ids and weights the ring was built from. */
  readonly signature: string;
  /** Ascending positions of the virtual nodes. */
  readonly points: Uint32Array;
  /** For each point, the index of its node in `nodes`. */
  readonly owners: Uint32Array;
  nodes: readonly T[];
  /** For each node, the number of the last pick that refused it. */
  readonly refusedIn: Float64Array;
}

/** Virtual nodes per unit of weight (spec §10). */
const POINTS_PER_WEIGHT = 150;
/** Beyond this many points all nodes get proportionally fewer, so that weights in the hundreds stay cheap. */
const MAX_POINTS = 131_072;
/** Hash and owner share one double while sorting: 32 bits and 20 bits of its 53. */
const OWNER_RANGE = 2 ** 20;

export class ConsistentHash<T extends Selectable> implements Selector<T> {
  #list: readonly T[] | null = null;
  #ring: Ring<T> | null = null;
  #pickNumber = 0;

  /** Without a key all requests are one key. Weight 0 gets nothing. */
  next(nodes: readonly T[], accepts: (node: T) => boolean, key = ''): T | undefined {
    const ring = this.#ringFor(nodes);
    const { points, owners, refusedIn } = ring;
    this.#pickNumber += 1;
    let refused = 0;
    let at = firstAtOrAfter(points, hashText(key));
    while (refused < ring.nodes.length) {
      if (at === points.length) at = 0;
      const owner = owners[at] ?? 0;
      at += 1;
      if (refusedIn[owner] === this.#pickNumber) continue;
      const node = ring.nodes[owner];
      if (node !== undefined && accepts(node)) return node;
      refusedIn[owner] = this.#pickNumber;
      refused += 1;
    }
    return undefined;
  }

  retain(): void {
    // The ring follows from the list of nodes alone.
  }

  keep(): () => void {
    return () => undefined;
  }

  #ringFor(nodes: readonly T[]): Ring<T> {
    if (this.#ring && nodes === this.#list) return this.#ring;
    // By id, so that gateways that list the nodes in another order agree.
    const members = nodes.filter((node) => node.weight > 0).sort((a, b) => (a.id < b.id ? -1 : 1));
    const signature = members.map((node) => `${node.id} ${node.weight}`).join('\n');
    if (this.#ring?.signature === signature) this.#ring.nodes = members;
    else this.#ring = buildRing(members, signature);
    this.#list = nodes;
    return this.#ring;
  }
}

function buildRing<T extends Selectable>(members: readonly T[], signature: string): Ring<T> {
  const wanted = members.reduce((sum, node) => sum + node.weight, 0) * POINTS_PER_WEIGHT;
  const perWeight = wanted > MAX_POINTS ? (POINTS_PER_WEIGHT * MAX_POINTS) / wanted : POINTS_PER_WEIGHT;
  const packed: number[] = [];
  members.forEach((node, owner) => {
    const count = Math.max(1, Math.round(perWeight * node.weight));
    for (let index = 0; index < count; index += 1) {
      packed.push(hashText(`${node.id}#${index}`) * OWNER_RANGE + owner);
    }
  });
  const sorted = Float64Array.from(packed).sort();
  return {
    signature,
    points: Uint32Array.from(sorted, (value) => Math.floor(value / OWNER_RANGE)),
    owners: Uint32Array.from(sorted, (value) => value % OWNER_RANGE),
    nodes: members,
    refusedIn: new Float64Array(members.length),
  };
}

/** Index of the first point at or after `hash`; the length if there is none. */
function firstAtOrAfter(points: Uint32Array, hash: number): number {
  let low = 0;
  let high = points.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((points[middle] ?? 0) < hash) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** 32 bits: FNV-1a over the code units, then the finalizer of MurmurHash3, as FNV alone clusters similar texts. */
function hashText(text: string): number {
  let hash = 0x811c9dc5;
  for (let index = 0; index < text.length; index += 1) {
    hash = Math.imul(hash ^ text.charCodeAt(index), 0x01000193);
  }
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}
