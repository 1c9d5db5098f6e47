import assert from 'node:assert/strict';
import * as crypto from 'node:crypto';
import * as fs from 'node:fs';
import * as os from 'node:os';
import * as path from 'node:path';
import { after, before, describe, it } from 'node:test';
import type { JwtResolverOptions } from '../../lib/config/options.ts';
import { OperatorError } from '../../lib/errors.ts';
import { JwtResolver } from '../../lib/tokens/jwt.ts';
import { FakeClock } from '../support/fake-clock.ts';

const NOW_S = 1_700_000_000;
const BASE: JwtResolverOptions = {
  type: 'jwt',
  secret: null,
  publicKey: null,
  jwksFile: null,
  algorithms: ['HS256'],
  claim: 'sub',
  issuer: null,
  audience: null,
  leewayMs: 0,
  saToken: null,
};

function encode(value: unknown): string {
  return Buffer.from(typeof value === 'string' ? value : JSON.stringify(value)).toString('base64url');
}

type Sign = (signed: string) => Buffer;
const hmac =
  (secret: string, hash = 'sha256'): Sign =>
  (signed) =>
    crypto.createHmac(hash, secret).update(signed).digest();

function token(header: unknown, claims: unknown, sign: Sign): string {
  const signed = `${encode(header)}.${encode(claims)}`;
  return `${signed}.${sign(signed).toString('base64url')}`;
}

describe('JwtResolver', () => {
  const clock = new FakeClock(NOW_S * 1_000);
  const rsa = crypto.generateKeyPairSync('rsa', { modulusLength: 2048 });
  const ec = crypto.generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const ed = crypto.generateKeyPairSync('ed25519');
  const pem = (key: crypto.KeyObject) => key.export({ type: 'spki', format: 'pem' }).toString();
  let folder: string;

  before(() => {
    folder = fs.mkdtempSync(path.join(os.tmpdir(), 'sticky-jwt-'));
  });
  after(() => fs.rmSync(folder, { recursive: true }));

  const userOf = async (options: Partial<JwtResolverOptions>, text: string) =>
    (await new JwtResolver({ ...BASE, ...options }, clock).resolve(text))?.userId;

  const hs = (claims: unknown, header: unknown = { alg: 'HS256' }) => token(header, claims, hmac('s'));

  it('reads the configured claim of a token whose signature holds', async () => {
    assert.equal(await userOf({ secret: 's' }, hs({ sub: 'alice' })), 'alice');
    assert.equal(
      await userOf({ secret: 's', claim: 'user.id' }, hs('{"user":{"id":9007199254740993}}')),
      '9007199254740993',
    );
    assert.equal(await userOf({ secret: 's' }, hs({})), undefined);
    assert.equal(await userOf({ secret: 's' }, hs({ sub: true })), undefined);
  });

  it('refuses a wrong secret, a changed byte, and every form that is not a signed token', async () => {
    const good = hs({ sub: 'alice' });
    assert.equal(await userOf({ secret: 'other' }, good), undefined);
    const [head, body, signature] = good.split('.');
    const bad = [
      `${head}.${encode({ sub: 'bob' })}.${signature}`,
      `${head}.${body}.${signature?.slice(0, -2)}`,
      `${head}.${body}.`,
      `${head}.${body}`,
      `${good}.x`,
      `${head}.${body}.${signature}=`,
      `..${signature}`,
      'not a token',
      '',
      token('not json', { sub: 'a' }, hmac('s')),
      token({ alg: 'HS256', crit: ['b64'] }, { sub: 'a' }, hmac('s')),
      token({ alg: 256 }, { sub: 'a' }, hmac('s')),
      token({}, { sub: 'a' }, hmac('s')),
      hs('not json'),
    ];
    for (const text of bad) assert.equal(await userOf({ secret: 's' }, text), undefined, text);
  });

  it('accepts the listed algorithms alone, and never none', async () => {
    const none = `${encode({ alg: 'none' })}.${encode({ sub: 'a' })}.`;
    assert.equal(await userOf({ secret: 's', algorithms: ['HS256', 'none'] }, none), undefined);
    const hs512 = token({ alg: 'HS512' }, { sub: 'a' }, hmac('s', 'sha512'));
    assert.equal(await userOf({ secret: 's' }, hs512), undefined);
    assert.equal(await userOf({ secret: 's', algorithms: ['HS512'] }, hs512), 'a');
    assert.equal(
      await userOf({ secret: 's', algorithms: ['XX999'] }, token({ alg: 'XX999' }, { sub: 'a' }, hmac('s'))),
      undefined,
    );
  });

  it('checks RSA, PSS, elliptic curves and Ed25519', async () => {
    const rs: Sign = (signed) => crypto.sign('sha256', Buffer.from(signed), rsa.privateKey);
    const ps: Sign = (signed) =>
      crypto.sign('sha256', Buffer.from(signed), {
        key: rsa.privateKey,
        padding: crypto.constants.RSA_PKCS1_PSS_PADDING,
        saltLength: crypto.constants.RSA_PSS_SALTLEN_DIGEST,
      });
    const es: Sign = (signed) =>
      crypto.sign('sha256', Buffer.from(signed), { key: ec.privateKey, dsaEncoding: 'ieee-p1363' });
    const eddsa: Sign = (signed) => crypto.sign(null, Buffer.from(signed), ed.privateKey);
    const cases: readonly (readonly [string, crypto.KeyObject, Sign])[] = [
      ['RS256', rsa.publicKey, rs],
      ['PS256', rsa.publicKey, ps],
      ['ES256', ec.publicKey, es],
      ['EdDSA', ed.publicKey, eddsa],
    ];
    for (const [alg, key, sign] of cases) {
      const options = { publicKey: pem(key), algorithms: [alg] };
      assert.equal(await userOf(options, token({ alg }, { sub: 'alice' }, sign)), 'alice', alg);
      assert.equal(await userOf(options, token({ alg }, { sub: 'alice' }, hmac('x'))), undefined, `${alg}, forged`);
      assert.equal(
        await userOf(
          options,
          token({ alg }, { sub: 'a' }, () => Buffer.alloc(64)),
        ),
        undefined,
        `${alg}, zeros`,
      );
    }
  });

  it('never takes a public key for a secret, nor one kind of key for another', async () => {
    const publicKey = pem(rsa.publicKey);
    const forged = token({ alg: 'HS256' }, { sub: 'a' }, hmac(publicKey));
    assert.equal(await userOf({ publicKey, algorithms: ['HS256', 'RS256'] }, forged), undefined);
    assert.equal(
      await userOf({ publicKey, algorithms: ['ES256'] }, token({ alg: 'ES256' }, { sub: 'a' }, hmac('x'))),
      undefined,
    );
  });

  it('takes the key that the token names from a key set, or one without a name, and reads the file again', async () => {
    const file = path.join(folder, 'keys.json');
    const jwk = (key: crypto.KeyObject, kid?: string) => ({
      ...key.export({ format: 'jwk' }),
      ...(kid ? { kid } : {}),
    });
    const es = (kid?: string) =>
      token({ alg: 'ES256', ...(kid ? { kid } : {}) }, { sub: 'a' }, (signed) =>
        crypto.sign('sha256', Buffer.from(signed), { key: ec.privateKey, dsaEncoding: 'ieee-p1363' }),
      );
    fs.writeFileSync(file, JSON.stringify({ keys: [jwk(rsa.publicKey, 'r'), jwk(ec.publicKey, 'e')] }));
    const resolver = new JwtResolver({ ...BASE, jwksFile: file, algorithms: ['ES256', 'RS256'] }, clock);
    assert.equal((await resolver.resolve(es('e')))?.userId, 'a');
    assert.equal((await resolver.resolve(es()))?.userId, 'a', 'without a name every key is tried');
    assert.equal(await resolver.resolve(es('r')), undefined);
    assert.equal(await resolver.resolve(es('unknown')), undefined);
    fs.writeFileSync(file, JSON.stringify({ keys: [jwk(ec.publicKey)] }));
    resolver.prepareReload()();
    assert.equal((await resolver.resolve(es('unknown')))?.userId, 'a', 'a key without a name fits every name');
    fs.writeFileSync(file, '{}');
    assert.throws(() => resolver.prepareReload(), OperatorError);
    assert.equal((await resolver.resolve(es('e')))?.userId, 'a', 'the old keys stay');
    fs.writeFileSync(file, '{"keys":[{"kty":"RSA"}]}');
    assert.throws(() => resolver.prepareReload(), /keys\[0\] is not a public key/);
  });

  it('leaves out keys of a set that are of another kind or for encryption, and wants one that is left', () => {
    const file = path.join(folder, 'mixed.json');
    const others = [
      { kty: 'oct', k: 'c2VjcmV0' },
      { kty: 'ML-DSA', pub: 'x' },
      { ...rsa.publicKey.export({ format: 'jwk' }), use: 'enc' },
      null,
      'key',
    ];
    const usable = { ...ec.publicKey.export({ format: 'jwk' }), use: 'sig' };
    fs.writeFileSync(file, JSON.stringify({ keys: [...others, usable] }));
    const resolver = new JwtResolver({ ...BASE, jwksFile: file, algorithms: ['ES256'] }, clock);
    fs.writeFileSync(file, JSON.stringify({ keys: others }));
    assert.throws(() => resolver.prepareReload(), /none of the 5 keys is a public key for signatures/);
    fs.writeFileSync(file, JSON.stringify({ keys: [...others, { kty: 'RSA' }] }));
    assert.throws(() => resolver.prepareReload(), /keys\[5\] is not a public key/);
  });

  it('reads a public key from a file, and says which one it cannot read', async () => {
    const file = path.join(folder, 'key.pem');
    fs.writeFileSync(file, pem(ed.publicKey));
    const eddsa = token({ alg: 'EdDSA' }, { sub: 'a' }, (signed) =>
      crypto.sign(null, Buffer.from(signed), ed.privateKey),
    );
    assert.equal(await userOf({ publicKey: file, algorithms: ['EdDSA'] }, eddsa), 'a');
    assert.throws(
      () => new JwtResolver({ ...BASE, publicKey: path.join(folder, 'none.pem') }, clock),
      /none\.pem: this is not a public key/,
    );
    assert.throws(
      () => new JwtResolver({ ...BASE, publicKey: '-----BEGIN nothing' }, clock),
      /jwt\.publicKey: this is not a public key/,
    );
    assert.equal(await userOf({}, hs({ sub: 'a' })), undefined, 'without a key nothing holds');
  });

  it('minds exp and nbf with the leeway, and tells how long the token is still good', async () => {
    const at = (claims: object, leewayMs = 0) =>
      new JwtResolver({ ...BASE, secret: 's', leewayMs }, clock).resolve(hs({ sub: 'a', ...claims }));
    assert.deepEqual(await at({ exp: NOW_S + 5 }), { userId: 'a', remainingMs: 5_000 });
    assert.deepEqual(await at({}), { userId: 'a', remainingMs: null });
    assert.equal(await at({ exp: NOW_S }), undefined);
    assert.deepEqual(await at({ exp: NOW_S - 4 }, 5_000), { userId: 'a', remainingMs: 1_000 });
    assert.equal(await at({ nbf: NOW_S + 5 }), undefined);
    assert.equal((await at({ nbf: NOW_S + 5 }, 5_000))?.userId, 'a');
    assert.equal(await at({ exp: 'tomorrow' }), undefined);
    assert.equal(await at({ nbf: null }), undefined);
  });

  it('minds issuer and audience', async () => {
    const options = { secret: 's', issuer: 'i', audience: 'me' };
    assert.equal(await userOf(options, hs({ sub: 'a', iss: 'i', aud: 'me' })), 'a');
    assert.equal(await userOf(options, hs({ sub: 'a', iss: 'i', aud: ['you', 'me'] })), 'a');
    assert.equal(await userOf(options, hs({ sub: 'a', iss: 'j', aud: 'me' })), undefined);
    assert.equal(await userOf(options, hs({ sub: 'a', iss: 'i', aud: ['you'] })), undefined);
    assert.equal(await userOf(options, hs({ sub: 'a', iss: 'i' })), undefined);
  });

  it("reads Sa-Token's claims instead, where that is configured", async () => {
    const at = (claims: string | object) =>
      new JwtResolver({ ...BASE, secret: 's', saToken: { loginType: 'login' } }, clock).resolve(hs(claims));
    assert.deepEqual(await at({ loginType: 'login', loginId: '1', eff: -1 }), { userId: '1', remainingMs: null });
    assert.deepEqual(await at({ loginType: 'login', loginId: 7, eff: NOW_S * 1_000 + 9 }), {
      userId: '7',
      remainingMs: 9,
    });
    assert.deepEqual(await at({ loginType: 'login', loginId: 7, eff: NOW_S * 1_000 }), { userId: '7', remainingMs: 1 });
    assert.equal(await at({ loginType: 'login', loginId: 7, eff: NOW_S * 1_000 - 1 }), undefined);
    assert.equal(await at({ loginType: 'login', loginId: 7 }), undefined);
    assert.equal(await at({ loginType: 'login', loginId: 7, eff: '-1' }), undefined);
    assert.equal(await at({ loginType: 'admin', loginId: 7, eff: -1 }), undefined);
    assert.equal(await at({ loginType: 'login', eff: -1 }), undefined);
  });
});
