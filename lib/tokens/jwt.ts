/**
 * Signed tokens (RFC 7519, RFC 7515): the signature with pinned algorithms, then the claims. Also the form of Sa-Token's
 * mixin and stateless modes, which have `eff` instead of `exp`.
 */
import * as crypto from 'node:crypto';
import * as fs from 'node:fs';
import type { JwtResolverOptions } from '../config/options.ts';
import { OperatorError } from '../errors.ts';
import type { Clock } from '../support/clock.ts';
import { asIdentifier, JsonNumber, type JsonValue, parseJsonDigits, readPath } from '../support/json-digits.ts';
import type { ResolvedToken, TokenResolver } from './token-store.ts';

interface Key {
  readonly kid: string | null;
  readonly key: crypto.KeyObject;
}

interface Algorithm {
  readonly hash: string | null;
  readonly family: 'HS' | 'RS' | 'PS' | 'ES' | 'EdDSA';
}

export class JwtResolver implements TokenResolver {
  readonly name = 'jwt';
  readonly #options: JwtResolverOptions;
  readonly #clock: Clock;
  #keys: readonly Key[];

  /** Reads the key files. Throws OperatorError when one cannot be used. */
  constructor(options: JwtResolverOptions, clock: Clock) {
    this.#options = options;
    this.#clock = clock;
    this.#keys = readKeys(options);
  }

  /** Reads the key files again (OperatorError) and returns what puts the keys in force. */
  prepareReload(): () => void {
    const keys = readKeys(this.#options);
    return () => {
      this.#keys = keys;
    };
  }

  async resolve(token: string): Promise<ResolvedToken | undefined> {
    const claims = this.#verify(token);
    if (claims === undefined) return undefined;
    return this.#options.saToken
      ? this.#readSaToken(claims, this.#options.saToken.loginType)
      : this.#readStandard(claims);
  }

  /** The claims of a token whose signature holds. */
  #verify(token: string): JsonValue | undefined {
    const [head, body, signature, ...more] = token.split('.');
    if (head === undefined || body === undefined || signature === undefined || more.length > 0) return undefined;
    const header = parsePart(head);
    if (header === undefined) return undefined;
    const name = readPath(header, 'alg');
    if (typeof name !== 'string' || !this.#options.algorithms.includes(name)) return undefined;
    // RFC 7515 section 4.1.11: what must be understood and is not makes the token invalid.
    if (readPath(header, 'crit') !== undefined) return undefined;
    const kid = readPath(header, 'kid');
    const algorithm = parseAlgorithm(name);
    if (!algorithm || !/^[A-Za-z0-9_-]*$/.test(signature)) return undefined;
    const signed = Buffer.from(`${head}.${body}`, 'latin1');
    const bytes = Buffer.from(signature, 'base64url');
    const holds = this.#candidates(kid).some(({ key }) => verifySignature(algorithm, key, signed, bytes));
    return holds ? parsePart(body) : undefined;
  }

  #candidates(kid: JsonValue | undefined): readonly Key[] {
    if (typeof kid !== 'string') return this.#keys;
    const named = this.#keys.filter((key) => key.kid === kid);
    return named.length > 0 ? named : this.#keys.filter((key) => key.kid === null);
  }

  #readStandard(claims: JsonValue): ResolvedToken | undefined {
    const { issuer, audience, leewayMs, claim } = this.#options;
    const now = this.#clock.now();
    const expiresMs = readTime(claims, 'exp');
    const notBeforeMs = readTime(claims, 'nbf');
    if (Number.isNaN(expiresMs) || Number.isNaN(notBeforeMs)) return undefined;
    if (expiresMs !== undefined && now >= expiresMs + leewayMs) return undefined;
    if (notBeforeMs !== undefined && now < notBeforeMs - leewayMs) return undefined;
    if (issuer !== null && readPath(claims, 'iss') !== issuer) return undefined;
    if (audience !== null && !isFor(readPath(claims, 'aud'), audience)) return undefined;
    const userId = asIdentifier(readPath(claims, claim));
    if (userId === undefined) return undefined;
    return { userId, remainingMs: expiresMs === undefined ? null : Math.max(1, expiresMs + leewayMs - now) };
  }

  /** `eff`: -1 = for ever, else the end in epoch milliseconds; a token without it is of the simple mode. */
  #readSaToken(claims: JsonValue, loginType: string): ResolvedToken | undefined {
    if (readPath(claims, 'loginType') !== loginType) return undefined;
    const eff = readPath(claims, 'eff');
    if (!(eff instanceof JsonNumber)) return undefined;
    const endsMs = Number(eff.raw);
    const now = this.#clock.now();
    if (endsMs !== -1 && !(endsMs >= now)) return undefined;
    const userId = asIdentifier(readPath(claims, 'loginId'));
    if (userId === undefined) return undefined;
    return { userId, remainingMs: endsMs === -1 ? null : Math.max(1, endsMs - now) };
  }
}

function parsePart(part: string): JsonValue | undefined {
  if (!/^[A-Za-z0-9_-]+$/.test(part)) return undefined;
  try {
    return parseJsonDigits(Buffer.from(part, 'base64url').toString('utf8'));
  } catch {
    // Not a token of this kind.
    return undefined;
  }
}

/** Seconds since the epoch in the claim -> milliseconds; NaN = there is something, but no number. */
function readTime(claims: JsonValue, claim: string): number | undefined {
  const value = readPath(claims, claim);
  if (value === undefined) return undefined;
  return value instanceof JsonNumber ? Number(value.raw) * 1_000 : Number.NaN;
}

function isFor(audience: JsonValue | undefined, wanted: string): boolean {
  return Array.isArray(audience) ? audience.includes(wanted) : audience === wanted;
}

function parseAlgorithm(name: string): Algorithm | undefined {
  if (name === 'EdDSA') return { family: 'EdDSA', hash: null };
  const found = /^(HS|RS|PS|ES)(256|384|512)$/.exec(name);
  return found ? { family: found[1] as 'HS', hash: `sha${found[2]}` } : undefined;
}

const KEY_TYPES: Readonly<Record<Algorithm['family'], readonly (string | undefined)[]>> = {
  HS: [undefined],
  RS: ['rsa'],
  PS: ['rsa', 'rsa-pss'],
  ES: ['ec'],
  EdDSA: ['ed25519', 'ed448'],
};

function verifySignature(algorithm: Algorithm, key: crypto.KeyObject, signed: Buffer, signature: Buffer): boolean {
  const { family, hash } = algorithm;
  // A public key must never serve as an HMAC secret, nor one kind of key as another.
  if (!KEY_TYPES[family].includes(key.asymmetricKeyType)) return false;
  if (family === 'HS') {
    const expected = crypto
      .createHmac(hash ?? '', key)
      .update(signed)
      .digest();
    return expected.length === signature.length && crypto.timingSafeEqual(expected, signature);
  }
  try {
    return crypto.verify(hash, signed, verifyOptions(family, key), signature);
  } catch {
    // A signature of the wrong shape for this key.
    return false;
  }
}

function verifyOptions(family: Algorithm['family'], key: crypto.KeyObject): crypto.VerifyKeyObjectInput {
  if (family === 'ES') return { key, dsaEncoding: 'ieee-p1363' };
  if (family !== 'PS') return { key };
  return {
    key,
    padding: crypto.constants.RSA_PKCS1_PSS_PADDING,
    saltLength: crypto.constants.RSA_PSS_SALTLEN_DIGEST,
  };
}

function readKeys(options: JwtResolverOptions): readonly Key[] {
  if (options.secret !== null) return [{ kid: null, key: crypto.createSecretKey(Buffer.from(options.secret, 'utf8')) }];
  if (options.publicKey !== null) return [{ kid: null, key: readPublicKey(options.publicKey) }];
  return options.jwksFile === null ? [] : readJwks(options.jwksFile);
}

function readPublicKey(pemOrFile: string): crypto.KeyObject {
  const fromFile = !pemOrFile.includes('-----BEGIN');
  try {
    return crypto.createPublicKey(fromFile ? fs.readFileSync(pemOrFile, 'utf8') : pemOrFile);
  } catch (error) {
    const place = fromFile ? pemOrFile : 'identity.resolvers: jwt.publicKey';
    throw new OperatorError(
      `${place}: this is not a public key in PEM form that can be read: ${(error as Error).message}`,
    );
  }
}

/**
 * The keys for signatures. RFC 7517 section 5: keys of kinds that are not understood are left out, so that a provider
 * may add new ones; without any usable key the file is of no use.
 */
function readJwks(file: string): readonly Key[] {
  let keys: readonly unknown[];
  try {
    keys = (JSON.parse(fs.readFileSync(file, 'utf8')) as { keys: unknown[] }).keys;
    if (!Array.isArray(keys)) throw new Error('there is no list "keys" in it');
  } catch (error) {
    throw new OperatorError(`${file}: this is not a JSON Web Key Set that can be read: ${(error as Error).message}`);
  }
  const usable = keys.filter(isForSignatures);
  if (usable.length === 0)
    throw new OperatorError(`${file}: none of the ${keys.length} keys is a public key for signatures`);
  return usable.map((jwk) => {
    try {
      const key = crypto.createPublicKey({ key: jwk, format: 'jwk' });
      return { kid: typeof jwk['kid'] === 'string' ? jwk['kid'] : null, key };
    } catch (error) {
      throw new OperatorError(`${file}: keys[${keys.indexOf(jwk)}] is not a public key: ${(error as Error).message}`);
    }
  });
}

function isForSignatures(jwk: unknown): jwk is crypto.JsonWebKey {
  if (typeof jwk !== 'object' || jwk === null || !('kty' in jwk)) return false;
  if ('use' in jwk && jwk.use !== 'sig') return false;
  return jwk.kty === 'RSA' || jwk.kty === 'EC' || jwk.kty === 'OKP';
}
