/**
 * Who calls, and what they may do: tokens of the configuration, three roles, and a brake on guessing. What each call
 * needs stands in the table of routes.
 */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { AdminToken } from '../config/options.ts';
import type { Clock } from '../support/clock.ts';
import { AddressList } from '../support/ip.ts';
import { Lru } from '../support/lru.ts';
import { AdminError } from './admin-error.ts';

export type Role = AdminToken['role'];

export interface Principal {
  /** Of the token; `local` without configured tokens. */
  readonly name: string;
  readonly role: Role;
}

const RANK: Readonly<Record<Role, number>> = { viewer: 1, operator: 2, admin: 3 };
/** So many failed attempts of one address within the window, then it has to wait for the window's end. */
const MOST_FAILURES = 10;
const WINDOW_MS = 60_000;
/** Addresses remembered; the one heard of longest ago is forgotten first. */
const MOST_ADDRESSES = 10_000;
const LOOPBACK = new AddressList(['127.0.0.0/8', '::1/128']);

interface Attempts {
  failures: number;
  readonly untilMs: number;
}

export function mayAct(principal: Principal, role: Role): boolean {
  return RANK[principal.role] >= RANK[role];
}

export class Authenticator {
  readonly #tokens: readonly { readonly principal: Principal; readonly hash: Buffer }[];
  readonly #clock: Clock;
  readonly #attempts = new Lru<string, Attempts>(MOST_ADDRESSES);

  constructor(tokens: readonly AdminToken[], clock: Clock) {
    this.#tokens = tokens.map(({ name, role, token }) => ({ principal: { name, role }, hash: hash(token) }));
    this.#clock = clock;
  }

  get hasTokens(): boolean {
    return this.#tokens.length > 0;
  }

  /**
   * `writes` = the call wants to change something: without a token that counts as an attempt, as every wrong token
   * does. Throws AdminError `too_many_requests`, `unauthorized` or, without configured tokens, `forbidden`.
   */
  authenticate(address: string, authorization: string | undefined, writes: boolean): Principal {
    if (!this.hasTokens) {
      if (LOOPBACK.has(address)) return { name: 'local', role: 'viewer' };
      throw new AdminError('forbidden', 'without admin.tokens the API answers loopback addresses only');
    }
    this.#refuseGuesser(address);
    const token = /^Bearer +([\x21-\x7e]+)$/i.exec(authorization ?? '')?.[1];
    const principal = token === undefined ? undefined : this.#find(token);
    if (principal) return principal;
    if (authorization !== undefined || writes) this.#failed(address);
    throw new AdminError(
      'unauthorized',
      authorization === undefined ? 'this call needs Authorization: Bearer TOKEN' : 'this token is not known',
      { headers: { 'WWW-Authenticate': 'Bearer realm="sticky-gateway admin"' } },
    );
  }

  /** Compares with every token, each in constant time: hashes have one length, and no early end tells which was near. */
  #find(token: string): Principal | undefined {
    const given = hash(token);
    let found: Principal | undefined;
    for (const known of this.#tokens) {
      if (timingSafeEqual(known.hash, given)) found = known.principal;
    }
    return found;
  }

  #refuseGuesser(address: string): void {
    const attempts = this.#attempts.get(address);
    if (!attempts || attempts.failures < MOST_FAILURES) return;
    const leftMs = attempts.untilMs - this.#clock.monotonic();
    if (leftMs <= 0) {
      this.#attempts.delete(address);
      return;
    }
    // Valid tokens wait as well: else the answer would still tell a guesser which one is valid.
    throw new AdminError('too_many_requests', 'too many failed attempts from this address', {
      headers: { 'Retry-After': String(Math.ceil(leftMs / 1_000)) },
    });
  }

  #failed(address: string): void {
    const nowMs = this.#clock.monotonic();
    const attempts = this.#attempts.get(address);
    if (attempts && attempts.untilMs > nowMs) attempts.failures += 1;
    else this.#attempts.set(address, { failures: 1, untilMs: nowMs + WINDOW_MS });
  }
}

function hash(token: string): Buffer {
  return createHash('sha256').update(token).digest();
}
