import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { requestId } from '../../lib/middleware/request-id.ts';
import { contextOf, runStage } from '../support/stage.ts';

const MADE = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

function idOf(rawHeaders: readonly string[]): string {
  const context = contextOf({ rawHeaders });
  assert.deepEqual(runStage(requestId(), context), { nexts: 1, passedOn: true });
  return context.requestId;
}

describe('requestId', () => {
  for (const sent of ['a', 'req-1', 'A.b_c:d/e+f=g-h', '0'.repeat(128)]) {
    it(`keeps the client's ${sent.slice(0, 20)} of ${sent.length} characters`, () => {
      assert.equal(idOf(['x-request-id', sent]), sent);
    });
  }

  for (const [what, rawHeaders] of [
    ['when there is none', []],
    ['for an empty one', ['X-Request-Id', '']],
    ['for one of 129 characters', ['X-Request-Id', '0'.repeat(129)]],
    ['for one with a blank in it', ['X-Request-Id', 'a b']],
    ['for one that could end a line of a log', ['X-Request-Id', 'a\tb']],
    ['for one with quotes', ['X-Request-Id', '"a"']],
    ['for one beyond ASCII', ['X-Request-Id', 'ä']],
    ['for one with a line end behind it', ['X-Request-Id', 'a\n']],
    ['for two of them', ['X-Request-Id', 'a', 'X-Request-Id', 'b']],
  ] as const) {
    it(`makes a new one ${what}`, () => {
      assert.match(idOf(rawHeaders), MADE);
    });
  }

  it('makes another one for every request', () => {
    assert.notEqual(idOf([]), idOf([]));
  });
});
