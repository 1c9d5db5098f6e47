import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { TokenSourceOptions } from '../../lib/config/options.ts';
import { extractToken, maskQueryToken } from '../../lib/tokens/extract-token.ts';

const SOURCE: TokenSourceOptions = { header: 'x-token', cookie: 'sid', query: 'token', prefix: null };
const extract = (rawHeaders: readonly string[], url = '/', source: Partial<TokenSourceOptions> = {}) =>
  extractToken({ rawHeaders, url }, { ...SOURCE, ...source });

describe('a token', () => {
  it('is read from header, cookie and query in this order, the first that is not empty', () => {
    const url = '/p?token=q';
    assert.equal(extract(['X-Token', 'h', 'Cookie', 'sid=c'], url), 'h');
    assert.equal(extract(['X-Token', '', 'Cookie', 'sid=c'], url), 'c');
    assert.equal(extract(['Cookie', 'sid='], url), 'q');
    assert.equal(extract([], '/p?token='), null);
    assert.equal(extract([]), null);
  });

  it('is the first of repeated header lines, as the Java side reads it', () => {
    assert.equal(extract(['x-token', 'one', 'X-TOKEN', 'two']), 'one');
  });

  it('is found whatever the case of the field name, on either side', () => {
    assert.equal(extract(['X-tOkEn', 'h']), 'h');
    assert.equal(extract(['authorization', 'h'], '/', { header: 'Authorization' }), 'h');
    assert.equal(extract(['x-tokem', 'h']), null);
  });

  it('is not read from sources that are switched off', () => {
    const off = { header: null, cookie: null, query: null };
    assert.equal(extract(['X-Token', 'h', 'Cookie', 'sid=c'], '/?token=q', off), null);
  });

  it('must have the prefix, in any case, followed by a blank, and is looked up without it', () => {
    const bearer = (value: string) => extract(['X-Token', value], '/', { prefix: 'Bearer' });
    assert.equal(bearer('Bearer t'), 't');
    assert.equal(bearer('bearer \t t '), 't');
    for (const value of ['t', 'Bearert', 'Bearer', 'Bearer ', 'Basic t']) assert.equal(bearer(value), null, value);
    assert.equal(
      extract(['X-Token', 't', 'Cookie', 'sid=Bearer c'], '/', { prefix: 'Bearer' }),
      'c',
      'the next source is asked',
    );
  });

  it('in the query is decoded as forms encode it, or taken as it is', () => {
    assert.equal(extract([], '/?a=1&token=a%2Bb+c&token=second'), 'a+b c');
    assert.equal(extract([], '/?to%6ben=x'), 'x');
    assert.equal(extract([], '/?token=100%'), '100%');
    assert.equal(extract([], '/?token'), null);
    assert.equal(extractToken({ rawHeaders: [] }, SOURCE), null, 'no url at all');
  });

  it('in the query is masked wherever it stands, and nothing else is', () => {
    assert.equal(maskQueryToken('/p?a=1&token=secret&b=2&to%6ben=secret', SOURCE), '/p?a=1&token=***&b=2&to%6ben=***');
    assert.equal(maskQueryToken('/token=x', SOURCE), '/token=x');
    assert.equal(maskQueryToken('/p?tokens=x&token', SOURCE), '/p?tokens=x&token');
    assert.equal(maskQueryToken('/p?token=x', { ...SOURCE, query: null }), '/p?token=x');
  });
});
