/**
 * Which share of the users a version gets, decided by a hash, so that a user sees one version and gateways agree
 * without talking. Pure arithmetic: it knows neither requests nor bindings.
 */
import { createHash } from 'node:crypto';

export interface Share {
  /** Name of the version. */
  readonly id: string;
  /** 0 or more. */
  readonly weight: number;
}

/**
 * The version with the highest score -weight / ln(point), the point being a hash of route, version and subject:
 * weighted rendezvous hashing (Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005). A version's score
 * depends on its own weight alone, so raising a weight only brings users to that version and lowering it only takes
 * users from it, whatever the number and order of the others. Thresholds on one line would not do that for the versions in
 * the middle. Undefined when no version that is accepted has a weight.
 */
export function shareOf<T extends Share>(
  routeId: string,
  shares: readonly T[],
  subject: string,
  accepts: (share: T) => boolean,
): T | undefined {
  let best: T | undefined;
  let bestScore = 0;
  for (const share of shares) {
    if (share.weight <= 0 || !accepts(share)) continue;
    const score = -share.weight / Math.log(pointOf(routeId, share.id, subject));
    if (score <= bestScore) continue;
    best = share;
    bestScore = score;
  }
  return best;
}

/** Whether the subject is among the `percent` (0 to 100) of subjects that a weight rule takes for a version. */
export function isAmong(routeId: string, version: string, percent: number, subject: string): boolean {
  // Another salt than that of the weights: else whom a rule left would not be divided by weight.
  return pointOf(`${routeId}\0rule`, version, subject) * 100 < percent;
}

/** Between 0 and 1, neither of them; salted by the route, so that the first users of every canary are not the same. */
function pointOf(salt: string, version: string, subject: string): number {
  const digest = createHash('sha256').update(`${salt}\0${version}\0${subject}`).digest();
  return (digest.readUIntBE(0, 6) + 0.5) / 2 ** 48;
}
