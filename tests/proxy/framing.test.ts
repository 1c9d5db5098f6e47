import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { checkFraming } from '../../lib/proxy/framing.ts';
import { type RequestSketch, requestOf } from '../support/stage.ts';

function check(rawHeaders: readonly string[], more: RequestSketch = {}): string | null {
  return checkFraming(requestOf({ rawHeaders, ...more }));
}

const HOST = ['Host', 'a'];

describe('checkFraming', () => {
  for (const [what, rawHeaders] of [
    ['a request without a body', HOST],
    ['a body with its length', [...HOST, 'Content-Length', '3']],
    ['a body in chunks', [...HOST, 'Transfer-Encoding', 'chunked']],
    ['chunks written another way', [...HOST, 'transfer-encoding', 'Chunked']],
    ['no Host at all, which is for the parser to say', []],
    ['fields that only look like Host', [...HOST, 'Hosts', 'b', 'X-Host', 'c', 'tsoh', 'd', 'Hos', 'e']],
    ['Host as the value of another field', [...HOST, 'X-A', 'host', 'X-B', 'Host']],
  ] as const) {
    it(`finds nothing wrong with ${what}`, () => {
      assert.equal(check(rawHeaders), null);
    });
  }

  for (const [what, rawHeaders, fault] of [
    [
      'both a length and chunks',
      [...HOST, 'Content-Length', '3', 'Transfer-Encoding', 'chunked'],
      /exclude each other/,
    ],
    [
      'both, the other way round',
      [...HOST, 'Transfer-Encoding', 'chunked', 'Content-Length', '3'],
      /exclude each other/,
    ],
    ['an empty length beside chunks', [...HOST, 'Transfer-Encoding', 'chunked', 'Content-Length', ''], /exclude/],
    ['another coding', [...HOST, 'Transfer-Encoding', 'gzip'], /only transfer coding/],
    ['another coding before chunks', [...HOST, 'Transfer-Encoding', 'gzip, chunked'], /only transfer coding/],
    [
      'chunks that are not the last coding',
      [...HOST, 'Transfer-Encoding', 'chunked, identity'],
      /only transfer coding/,
    ],
    ['chunks twice', [...HOST, 'Transfer-Encoding', 'chunked', 'Transfer-Encoding', 'chunked'], /only transfer coding/],
    ['a coding of no name', [...HOST, 'Transfer-Encoding', ''], /only transfer coding/],
    ['a coding that begins alike', [...HOST, 'Transfer-Encoding', 'chunkedx'], /only transfer coding/],
    ['two hosts', ['Host', 'a', 'Host', 'b'], /more than one Host/],
    ['one host twice, in any case', ['hOST', 'a', 'X-A', '1', 'HOST', 'a'], /more than one Host/],
  ] as const) {
    it(`refuses ${what}`, () => {
      assert.match(check(rawHeaders) ?? '', fault);
    });
  }

  it('takes HTTP/1.0 without chunks only', () => {
    assert.equal(check([...HOST, 'Content-Length', '3'], { httpVersion: '1.0' }), null);
    assert.equal(check([], { httpVersion: '1.0' }), null);
    assert.match(check([...HOST, 'Transfer-Encoding', 'chunked'], { httpVersion: '1.0' }) ?? '', /HTTP\/1\.0/);
  });

  for (const httpVersion of ['0.9', '2.0', '3.0']) {
    it(`does not take HTTP/${httpVersion} for something it understands`, () => {
      assert.match(check(HOST, { httpVersion }) ?? '', /only HTTP\/1\.0 and HTTP\/1\.1/);
    });
  }
});
