import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import * as zlib from 'node:zlib';
import { readLoginResponse, readLoginUsername } from '../../lib/middleware/login-mapping.ts';
import type { LoginResponseMapping } from '../../lib/model.ts';

const JSON_TYPE = 'application/json';
const FORM = 'application/x-www-form-urlencoded';
/** 张三 in GBK: no UTF-8. */
const GBK_NAME = Buffer.from([0xd5, 0xc5, 0xc8, 0xfd]);

describe('readLoginUsername', () => {
  const cases: readonly (readonly [
    what: string,
    type: string | undefined,
    body: string | Buffer,
    name: string | null,
  ])[] = [
    ['JSON', JSON_TYPE, '{"username":"alice"}', 'alice'],
    ['JSON with a charset', 'Application/JSON; charset=utf-8', '{"username":"张三"}', '张三'],
    ['JSON of a vendor', 'application/vnd.x+json', '{"username":"alice"}', 'alice'],
    ['JSON behind a byte order mark', JSON_TYPE, '\ufeff{"username":"alice"}', 'alice'],
    ['JSON without a type', undefined, ' {"username":"alice"}', 'alice'],
    ['JSON said to be text', 'text/plain', '{"username":"alice"}', 'alice'],
    ['JSON with an escape', JSON_TYPE, '{"username":"\\u5f20"}', '张'],
    ['a long number', JSON_TYPE, '{"username":1790000000000000001}', '1790000000000000001'],
    ['the last of equal keys', JSON_TYPE, '{"username":"a","username":"b"}', 'b'],
    ['blanks that belong to the name', JSON_TYPE, '{"username":" alice "}', ' alice '],
    ['a form', FORM, 'password=x&username=a%20b+c', 'a b c'],
    ['a form with a charset', `${FORM};charset=UTF-8`, 'username=%E5%BC%A0', '张'],
    ['the first of equal form fields', FORM, 'username=a&username=b', 'a'],
    ['a form with a stray percent sign', FORM, 'username=100%', '100%'],
    ['an empty body', JSON_TYPE, '', null],
    ['an empty name', JSON_TYPE, '{"username":""}', null],
    ['an empty form field', FORM, 'username=', null],
    ['no name', JSON_TYPE, '{"user":"alice"}', null],
    ['no form field', FORM, 'user=alice', null],
    ['null', JSON_TYPE, '{"username":null}', null],
    ['an object', JSON_TYPE, '{"username":{"a":1}}', null],
    ['a list', JSON_TYPE, '["alice"]', null],
    ['a broken number', JSON_TYPE, '{"username":1.5}', null],
    ['cut-off JSON', JSON_TYPE, '{"username":"alice"', null],
    ['a control byte in a name', JSON_TYPE, '{"username":"a\\nb"}', null],
    ['HTML', 'text/html', '<html>', null],
    ['a form said to be JSON', JSON_TYPE, 'username=alice', null],
    [
      'multipart',
      'multipart/form-data; boundary=b',
      '--b\r\nContent-Disposition: form-data; name="username"\r\n\r\na\r\n--b--',
      null,
    ],
    [
      'JSON in another encoding',
      JSON_TYPE,
      Buffer.concat([Buffer.from('{"username":"'), GBK_NAME, Buffer.from('"}')]),
      null,
    ],
    ['a form in another encoding', FORM, 'username=%D5%C5%C8%FD', null],
    ['random bytes', undefined, Buffer.from([0, 255, 1, 254]), null],
    ['deep nesting', JSON_TYPE, '['.repeat(60_000), null],
  ];
  for (const [what, type, body, name] of cases) {
    it(`of ${what} is ${JSON.stringify(name)}`, () => {
      assert.equal(readLoginUsername(type, undefined, Buffer.from(body as string), 'username'), name);
    });
  }

  it('follows a dotted path, and never into a prototype', () => {
    const body = Buffer.from('{"user":{"names":["x","alice"]}}');
    assert.equal(readLoginUsername(JSON_TYPE, undefined, body, 'user.names.1'), 'alice');
    for (const path of [
      'user.names.2',
      'user.names.length',
      'user.names.-1',
      '__proto__',
      'constructor.name',
      'user.toString.name',
    ])
      assert.equal(readLoginUsername(JSON_TYPE, undefined, body, path), null, path);
    const own = Buffer.from('{"__proto__":{"name":"alice"}}');
    assert.equal(readLoginUsername(JSON_TYPE, undefined, own, '__proto__.name'), 'alice');
    assert.equal(readLoginUsername(JSON_TYPE, undefined, own, 'name'), null);
  });

  it('takes the path of a form field as its whole name', () => {
    assert.equal(readLoginUsername(FORM, undefined, Buffer.from('user.name=alice'), 'user.name'), 'alice');
  });

  it('does not look into a compressed body', () => {
    const body = zlib.gzipSync('{"username":"alice"}');
    assert.equal(readLoginUsername(JSON_TYPE, 'gzip', body, 'username'), null);
    assert.equal(readLoginUsername(JSON_TYPE, 'identity', Buffer.from('{"username":"alice"}'), 'username'), 'alice');
  });
});

const MAPPING: LoginResponseMapping = {
  success: { code: 200 },
  userId: 'data.userId',
  username: 'data.username',
  token: 'data.token',
};
const OK = '{"code":200,"data":{"userId":1790000000000000001,"username":"alice","token":"t-1"}}';
const ALICE = { userId: '1790000000000000001', username: 'alice', token: 't-1' };

function read(
  body: string | Buffer,
  more: {
    status?: number;
    headers?: readonly string[];
    mapping?: Partial<LoginResponseMapping>;
    requestUsername?: string;
  } = {},
) {
  return readLoginResponse(
    { status: more.status ?? 200, rawHeaders: more.headers ?? [], body: Buffer.from(body as string) },
    { ...MAPPING, ...more.mapping },
    more.requestUsername ?? null,
  );
}

describe('readLoginResponse', () => {
  it('reads a success, with every digit of the user id', async () => {
    assert.deepEqual(await read(OK), ALICE);
    assert.deepEqual(await read(`\ufeff${OK}`), ALICE);
    assert.deepEqual(await read(OK, { status: 201 }), ALICE);
  });

  it('reads it out of every coding, and out of several', async () => {
    const codings: readonly (readonly [headers: readonly string[], body: Buffer])[] = [
      [['Content-Encoding', 'gzip'], zlib.gzipSync(OK)],
      [['content-encoding', 'X-GZIP'], zlib.gzipSync(OK)],
      [['Content-Encoding', 'br'], zlib.brotliCompressSync(OK)],
      [['Content-Encoding', 'deflate'], zlib.deflateSync(OK)],
      [['Content-Encoding', 'deflate'], zlib.deflateRawSync(OK)],
      [['Content-Encoding', 'identity'], Buffer.from(OK)],
      [['Content-Encoding', ''], Buffer.from(OK)],
      [['Content-Encoding', 'gzip, br'], zlib.brotliCompressSync(zlib.gzipSync(OK))],
      [['Content-Encoding', 'gzip', 'Content-Encoding', 'br'], zlib.brotliCompressSync(zlib.gzipSync(OK))],
    ];
    for (const [headers, body] of codings) assert.deepEqual(await read(body, { headers }), ALICE, headers.join());
  });

  it('takes nothing from a coding it does not know', async () => {
    assert.equal(await read(OK, { headers: ['Content-Encoding', 'zstd'] }), null);
    assert.equal(await read(OK, { headers: ['Content-Encoding', 'zstd, gzip'] }).catch(() => null), null);
  });

  it('rejects for a body that is broken, cut off or a bomb', async () => {
    const gzip = ['Content-Encoding', 'gzip'];
    await assert.rejects(read(OK, { headers: gzip }));
    await assert.rejects(read(zlib.gzipSync(OK).subarray(0, 30), { headers: gzip }));
    const bomb = Buffer.concat([Buffer.from(OK), Buffer.alloc(5 * 1_048_576, ' ')]);
    assert.deepEqual(await read(bomb), ALICE, 'the same body, not compressed, is read');
    const bombs: readonly (readonly [coding: string, body: Buffer])[] = [
      ['gzip', zlib.gzipSync(bomb)],
      ['br', zlib.brotliCompressSync(bomb, { params: { [zlib.constants.BROTLI_PARAM_QUALITY]: 1 } })],
      ['deflate', zlib.deflateSync(bomb)],
      ['deflate', zlib.deflateRawSync(bomb)],
    ];
    for (const [coding, body] of bombs) {
      await assert.rejects(
        read(body, { headers: ['Content-Encoding', coding] }),
        { code: 'ERR_BUFFER_TOO_LARGE' },
        coding,
      );
    }
  });

  const failures: readonly (readonly [what: string, body: string, status?: number])[] = [
    ['another status', OK, 401],
    ['a redirect', OK, 302],
    ['an interim status', OK, 199],
    ['another code', OK.replace('200', '40001')],
    ['a code that is text', OK.replace('200', '"200"')],
    ['no code', OK.replace('"code":200,', '')],
    ['no user id', OK.replace('userId', 'id')],
    ['a user id that is null', OK.replace('1790000000000000001', 'null')],
    ['an empty user id', OK.replace('1790000000000000001', '""')],
    ['no username', OK.replace('username', 'name')],
    ['an empty username', OK.replace('alice', '')],
    ['an empty body', ''],
    ['a body that is cut off', OK.slice(0, -1)],
    ['HTML', '<html>200</html>'],
    ['a list', `[${OK}]`],
  ];
  for (const [what, body, status] of failures) {
    it(`finds no success in ${what}`, async () => {
      assert.equal(await read(body, status === undefined ? {} : { status }), null);
    });
  }

  it('says so when a success names a user that nobody can be', async () => {
    const id = (value: string) => OK.replace('1790000000000000001', value);
    for (const value of ['1.5', '12.0', '1e3', 'true', '{}', '["a"]', '"a\\u0000"', '"a\\tb"', `"${'a'.repeat(257)}"`])
      assert.equal(await read(id(value)), 'unusable', value);
    for (const value of ['x'.repeat(257), 'a\\u0000'])
      assert.equal(await read(OK.replace('alice', value)), 'unusable', value);
  });

  it('leaves out a username that no store can hold', async () => {
    assert.deepEqual(await read(OK.replace('alice', '\\ud800')), { ...ALICE, username: null });
    assert.equal(readLoginUsername('application/json', undefined, Buffer.from('{"u":"\\udc00x"}'), 'u'), null);
  });

  it('wants every success field equal, of its own kind', async () => {
    const success = { ok: true, code: '0', 'status.error': null };
    const body = (ok: unknown, code: unknown, error: unknown) =>
      JSON.stringify({ ok, code, status: { error }, data: { userId: 'u', username: 'n' } });
    const found = { userId: 'u', username: 'n', token: null };
    assert.deepEqual(await read(body(true, '0', null), { mapping: { success } }), found);
    for (const values of [
      [1, '0', null],
      [true, 0, null],
      [true, '0', 'x'],
      [true, '0', undefined],
    ] as const)
      assert.equal(await read(body(values[0], values[1], values[2]), { mapping: { success } }), null, values.join());
    assert.deepEqual(await read(body(false, 'x', 'x'), { mapping: { success: {} } }), found);
  });

  it("takes the request's username only where the mapping has none", async () => {
    const named = { requestUsername: 'Bob' };
    const anonymous = { mapping: { username: null } };
    assert.deepEqual(await read(OK, named), ALICE);
    assert.deepEqual(await read(OK, { ...named, ...anonymous }), { ...ALICE, username: 'Bob' });
    assert.deepEqual(await read(OK, anonymous), { ...ALICE, username: null });
    assert.equal(await read(OK, { ...named, mapping: { username: 'data.nick' } }), null);
  });

  it('binds by the id alone when the name is in another encoding', async () => {
    const [head = '', tail = ''] = OK.split('alice');
    const body = Buffer.concat([Buffer.from(head), GBK_NAME, Buffer.from(tail)]);
    assert.deepEqual(await read(body), { ...ALICE, username: null });
  });

  describe('the token', () => {
    const tokenOf = async (token: string | null, headers: readonly string[] = [], body: string = OK) => {
      const success = await read(body, { headers, mapping: { token } });
      return success === 'unusable' ? assert.fail('unusable') : success?.token;
    };

    it('comes from a dotted path, and may be missing', async () => {
      assert.equal(await tokenOf('data.token'), 't-1');
      assert.equal(await tokenOf('data.userId'), '1790000000000000001');
      assert.equal(await tokenOf('data.missing'), null);
      assert.equal(await tokenOf('data'), null);
      assert.equal(await tokenOf('data.token', [], OK.replace('t-1', '')), null);
      assert.equal(await tokenOf(null), null);
    });

    it('of any length comes whole: a JWT is longer than an id may be', async () => {
      const jwt = 'x'.repeat(2_000);
      assert.equal(await tokenOf('data.token', [], OK.replace('t-1', jwt)), jwt);
    });

    it('comes from a field, whose first line counts', async () => {
      assert.equal(await tokenOf('header:X-Auth', ['x-AUTH', 't-2', 'X-Auth', 't-3']), 't-2');
      assert.equal(await tokenOf('header:X-Auth', ['X-Auth', '']), null);
      assert.equal(await tokenOf('header:X-Auth'), null);
    });

    const cookies: readonly (readonly [lines: readonly string[], token: string | null])[] = [
      [['SESSION=t-2; Path=/; HttpOnly'], 't-2'],
      [[' SESSION = t-2 '], 't-2'],
      [['SESSION="t-2"; Path=/'], 't-2'],
      [['SESSION=a=b=='], 'a=b=='],
      [['SESSION=old', 'other=x', 'SESSION=new'], 'new'],
      [['SESSION=old', 'SESSION=; Max-Age=0'], null],
      [['SESSION=x; Max-Age=0', 'SESSION=new'], 'new'],
      [['SESSION=x; Max-Age=-1'], null],
      [['SESSION=x; max-age=3600; Expires=Thu, 01 Jan 1970 00:00:00 GMT'], 'x'],
      [['SESSION=x; EXPIRES=Thu, 01 Jan 1970 00:00:00 GMT'], null],
      [['SESSION=x; Expires=Wed, 01 Jan 2098 00:00:00 GMT'], 'x'],
      [['SESSION=x; Expires=someday'], 'x'],
      [['session=x'], null],
      [['XSESSION=x', 'a=SESSION=x', 'SESSION'], null],
      [[], null],
    ];
    for (const [lines, token] of cookies) {
      it(`of the cookies [${lines.join(' | ')}] is ${token}`, async () => {
        const headers = lines.flatMap((line, index) => [index % 2 === 0 ? 'Set-Cookie' : 'set-cookie', line]);
        assert.equal(await tokenOf('cookie:SESSION', headers), token);
      });
    }
  });
});
