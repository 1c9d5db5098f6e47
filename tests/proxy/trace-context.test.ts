import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { makeTraceparent } from '../../lib/proxy/trace-context.ts';

describe('makeTraceparent', () => {
  const FORM = /^00-([0-9a-f]{32})-([0-9a-f]{16})-01$/;

  it('takes the trace id from a request id that is a UUID, and a new span id each time', () => {
    const id = '6F9619FF-8b86-4d01-b42d-00cf4fc964ff';
    const made = [makeTraceparent(id), makeTraceparent(id)].map((value) => FORM.exec(value));
    for (const parts of made) assert.equal(parts?.[1], '6f9619ff8b864d01b42d00cf4fc964ff');
    assert.notEqual(made[0]?.[2], made[1]?.[2]);
  });

  it('makes one trace id of every other request id, the same each time', () => {
    const traceOf = (id: string) => FORM.exec(makeTraceparent(id))?.[1];
    assert.equal(traceOf('order-7'), traceOf('order-7'));
    assert.notEqual(traceOf('order-7'), traceOf('order-8'));
  });
});
