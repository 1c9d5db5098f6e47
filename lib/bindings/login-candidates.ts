/**
 * Logins of one new user that overlap share one candidate node, so that no second home is started. Bindings decide
 * between gateways; this only keeps one gateway from racing with itself.
 */
import type { CandidateSeat } from '../context.ts';
import type { Node } from '../model.ts';

interface Group {
  holders: number;
  choice: Promise<Node> | undefined;
  /** Every node chosen so far; each has a place reserved. */
  readonly chosen: Node[];
}

export class LoginCandidates {
  readonly #groups = new Map<string, Group>();
  readonly #release: (node: Node) => void;

  /** `release` gives back the place that a choice has reserved; called when the last of the group's logins is over. */
  constructor(release: (node: Node) => void) {
    this.#release = release;
  }

  get size(): number {
    return this.#groups.size;
  }

  /** Joins the logins of this user that are under way; `username` is normalized. Every join wants one leave. */
  join(serviceId: string, username: string): Seat {
    const key = `${serviceId}:${username}`;
    const group = this.#groups.get(key) ?? { holders: 0, choice: undefined, chosen: [] };
    this.#groups.set(key, group);
    group.holders += 1;
    return new Seat(group, () => {
      // Others may have begun a new group in the meantime.
      if (this.#groups.get(key) === group) this.#groups.delete(key);
      for (const node of group.chosen.splice(0)) this.#release(node);
    });
  }
}

export class Seat implements CandidateSeat {
  readonly #group: Group;
  readonly #free: () => void;

  constructor(group: Group, free: () => void) {
    this.#group = group;
    this.#free = free;
  }

  /**
   * The node of the first to ask; chosen anew when that one is not acceptable any more or could not be chosen.
   * `choose` reserves a place on what it returns.
   */
  async choose(choose: () => Node | Promise<Node>, acceptable: (node: Node) => boolean): Promise<Node> {
    for (;;) {
      const choice = this.#group.choice;
      if (choice === undefined) break;
      const node = await choice.catch(() => undefined);
      if (node && acceptable(node)) return node;
      // Whoever comes first after the wait chooses anew; the others find that choice and wait for it.
      if (this.#group.choice === choice) this.#group.choice = undefined;
    }
    const choice = Promise.resolve()
      .then(choose)
      .then((node) => {
        this.#group.chosen.push(node);
        // Everybody left while it was being chosen.
        if (this.#group.holders === 0) this.#free();
        return node;
      });
    this.#group.choice = choice;
    return choice;
  }

  hold(): void {
    this.#group.holders += 1;
  }

  leave(): void {
    this.#group.holders -= 1;
    if (this.#group.holders === 0) this.#free();
  }
}
