/**
 * The contract of the gateway's own token stores (Redis, PostgreSQL, the embedded journal) and of the resolvers
 * that ask somebody else's. Both answer "nobody" with undefined and reject when they cannot answer.
 */

export interface TokenStore {
  readonly name: 'redis' | 'postgres' | 'journal';
  /** Resolves with the user id, or undefined for a token nobody has. Rejects with StoreUnavailable. */
  find(realm: string, token: string): Promise<string | undefined>;
  /** Durable (as far as the store is) when it resolves. `ttlMs`: more than 0. */
  save(realm: string, token: string, userId: string, ttlMs: number): Promise<void>;
  /** Forgets a token; no error if there is none. */
  remove(realm: string, token: string): Promise<void>;
}

export interface ResolvedToken {
  readonly userId: string;
  /** How long the token is still good for; null = not known or for ever. */
  readonly remainingMs: number | null;
}

export interface TokenResolver {
  /** For logs and explain: `saToken`, `jwt`, `redis`. */
  readonly name: string;
  /** Undefined = provably nobody, as far as this resolver knows. Rejects when it could not be looked up. */
  resolve(token: string, realm: string): Promise<ResolvedToken | undefined>;
}
