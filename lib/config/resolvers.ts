/** Checks of the token resolvers: Sa-Token, JWT, and sessions in Redis. */
import { Field, type FieldObject, Problems, type ResolvePath } from './fields.ts';
import {
  DEFAULTS,
  type JwtResolverOptions,
  type RedisOptions,
  type RedisResolverOptions,
  type ResolverOptions,
  type SaTokenResolverOptions,
} from './options.ts';
import { checkRedis } from './redis.ts';

export const RESOLVER_KEYS = {
  resolver: ['saToken', 'jwt', 'redis'],
  saToken: ['redis', 'tokenName', 'loginTypes', 'keyPrefix', 'codec', 'activeTimeout', 'dynamicActiveTimeout'],
  jwt: ['secret', 'publicKey', 'jwksFile', 'algorithms', 'claim', 'issuer', 'audience', 'leeway', 'saToken'],
  jwtSaToken: ['loginType'],
  redis: ['redis', 'key', 'field', 'jsonPath'],
} as const;
export const CODECS = ['auto', 'plain', 'json', 'kryo5', 'jdk'] as const;
export const SECRET_ALGORITHMS = ['HS256', 'HS384', 'HS512'] as const;
export const PUBLIC_ALGORITHMS = [
  'RS256',
  'RS384',
  'RS512',
  'PS256',
  'PS384',
  'PS512',
  'ES256',
  'ES384',
  'ES512',
  'EdDSA',
] as const;

export interface ResolverContext {
  /** The gateway has a Redis of its own. */
  readonly hasRedis: boolean;
  readonly resolvePath: ResolvePath;
  /** identity.token.header where the file names it: Sa-Token uses one name for header and keys. */
  readonly tokenHeader: string | null;
}

export function checkResolver(field: Field, context: ResolverContext): ResolverOptions {
  const object = field.object(RESOLVER_KEYS.resolver);
  const [kind, ...more] = object.keys;
  if (kind === undefined || more.length > 0) object.fail('must be one of saToken: {…}, jwt: {…}, redis: {…}');
  // What is wrong is said already: nothing may be asked of a stand-in.
  if (!RESOLVER_KEYS.resolver.some((one) => one === kind))
    return checkSaToken(new Field(new Problems(), [], {}), context);
  if (kind === 'jwt') return checkJwt(object.field('jwt'), context);
  if (kind === 'redis') return checkSessions(object.field('redis'), context);
  return checkSaToken(object.field('saToken'), context);
}

function ownRedis(object: FieldObject, context: ResolverContext): RedisOptions | null {
  const redis = object.field('redis');
  if (!redis.absent && redis.value !== null) return checkRedis(redis);
  if (!context.hasRedis) object.fail('needs a redis of its own, since store.redis is not set');
  return null;
}

function checkSaToken(field: Field, context: ResolverContext): SaTokenResolverOptions {
  const object = field.object(RESOLVER_KEYS.saToken);
  const defaults = DEFAULTS.saToken;
  const loginTypes = object.field('loginTypes');
  const types = loginTypes.list('a list of login types').map((type) => type.filled('login'));
  if (!loginTypes.absent && types.length === 0) loginTypes.fail('must name at least one login type');
  const activeTimeout = object.field('activeTimeout');
  const off =
    activeTimeout.absent ||
    activeTimeout.value === null ||
    activeTimeout.value === 'off' ||
    activeTimeout.value === false;
  return {
    type: 'saToken',
    redis: ownRedis(object, context),
    tokenName: object.field('tokenName').filled(context.tokenHeader ?? defaults.tokenName),
    loginTypes: types.length > 0 ? types : defaults.loginTypes,
    keyPrefix: object.field('keyPrefix').text(defaults.keyPrefix),
    codec: object.field('codec').choice(CODECS, defaults.codec),
    activeTimeoutSeconds: off ? null : Math.ceil(activeTimeout.period(1_000) / 1_000),
    dynamicActiveTimeout: object.field('dynamicActiveTimeout').flag(defaults.dynamicActiveTimeout),
  };
}

function checkJwt(field: Field, context: ResolverContext): JwtResolverOptions {
  const object = field.object(RESOLVER_KEYS.jwt);
  const sources = ['secret', 'publicKey', 'jwksFile'].filter(
    (key) => object.has(key) && object.field(key).value !== null,
  );
  if (sources.length !== 1) {
    object.fail(
      sources.length === 0 ? 'needs secret, publicKey or jwksFile' : `has ${sources.join(' and ')}: choose one`,
    );
  }
  const secret = checkSecret(object.field('secret'));
  const saToken = object.field('saToken');
  const jwksFile = object.field('jwksFile').textOrNull(null);
  const publicKey = checkSecret(object.field('publicKey'));
  return {
    type: 'jwt',
    secret,
    publicKey: publicKey === null || publicKey.includes('-----BEGIN') ? publicKey : context.resolvePath(publicKey),
    jwksFile: jwksFile === null ? null : context.resolvePath(jwksFile),
    algorithms: checkAlgorithms(object.field('algorithms'), secret !== null),
    claim: object.field('claim').filled(DEFAULTS.jwt.claim),
    issuer: object.field('issuer').textOrNull(null),
    audience: object.field('audience').textOrNull(null),
    leewayMs: object.field('leeway').duration(DEFAULTS.jwt.leewayMs),
    saToken:
      saToken.absent || saToken.value === null
        ? null
        : { loginType: saToken.object(RESOLVER_KEYS.jwtSaToken).field('loginType').filled('login') },
  };
}

function checkSecret(field: Field): string | null {
  if (field.absent || field.value === null) return null;
  const secret = field.secret();
  if (field.value === '') field.fail('must not be empty');
  return secret;
}

function checkAlgorithms(field: Field, secret: boolean): readonly string[] {
  const choices: readonly string[] = secret ? SECRET_ALGORITHMS : PUBLIC_ALGORITHMS;
  const fallback = secret ? 'HS256' : 'RS256';
  if (field.absent) return [fallback];
  const algorithms = field.list('a list of algorithms').map((item) => {
    const text = item.text(fallback);
    if (choices.includes(text)) return text;
    if (text.toLowerCase() === 'none') item.fail("'none' is no signature and is never accepted");
    else
      item.fail(`must be one of ${choices.join(', ')} with ${secret ? 'a secret' : 'a public key'}, not ${item.shown}`);
    return fallback;
  });
  if (algorithms.length === 0 && Array.isArray(field.value)) field.fail('must name at least one algorithm');
  return algorithms;
}

function checkSessions(field: Field, context: ResolverContext): RedisResolverOptions {
  const object = field.object(RESOLVER_KEYS.redis);
  const key = object.field('key');
  const text = key.text('');
  if (key.absent) key.fail('is missing: the key with {token} in it, such as sess:{token}');
  else if (!text.includes('{token}')) key.fail('must have {token} in it, such as sess:{token}');
  return {
    type: 'redis',
    redis: ownRedis(object, context),
    key: text,
    field: object.field('field').textOrNull(null),
    jsonPath: object.field('jsonPath').textOrNull(null),
  };
}
