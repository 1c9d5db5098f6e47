import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  asIdentifier,
  equalsScalar,
  JsonNumber,
  type JsonValue,
  parseJsonDigits,
  readPath,
} from '../../lib/support/json-digits.ts';

/** What JSON.parse would have made of it. */
function plain(value: JsonValue): unknown {
  if (value instanceof JsonNumber) return Number(value.raw);
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value === 'object' && value !== null) {
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, plain(item)]));
  }
  return value;
}

/** Small and repeatable; good enough for shuffling bytes. */
function seeded(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fffffff;
    return Math.floor((state / 0x80000000) * below);
  };
}

describe('JSON with digits', () => {
  it('keeps every digit of a number', () => {
    const document = parseJsonDigits('{"data":{"userId":1790000000000000001}}');
    assert.equal(asIdentifier(readPath(document, 'data.userId')), '1790000000000000001');
  });

  it('agrees with JSON.parse on what is JSON and what it says, over 20,000 mutations', () => {
    const random = seeded(42);
    const samples = [
      '{"code":200,"data":{"token":"t","userId":12,"list":[1,-2.5e+3,true,false,null,"\\u00e9\\n"]}}',
      ' [ ] ',
      '{"a":{"a":{"a":[{}]}},"b":""}',
      '"text with \\"quotes\\" and \\\\"',
      '-0.0',
    ];
    const alphabet = '{}[]",:.\\ \n\t0123456789eE+-truefalsn/u\u0001é';
    for (let round = 0; round < 20_000; round += 1) {
      let text = samples[random(samples.length)] ?? '';
      for (let change = random(3); change > 0; change -= 1) {
        const at = random(text.length + 1);
        const put = alphabet[random(alphabet.length)] ?? '';
        text = text.slice(0, at) + (random(3) === 0 ? '' : put) + text.slice(at + random(2));
      }
      let expected: unknown;
      let valid = true;
      try {
        expected = JSON.parse(text);
      } catch {
        valid = false;
      }
      if (valid) assert.deepEqual(plain(parseJsonDigits(text)), expected, text);
      else assert.throws(() => parseJsonDigits(text), SyntaxError, text);
    }
  });

  it('gives keys no meaning to the program', () => {
    const document = parseJsonDigits('{"__proto__":{"admin":true},"constructor":1}');
    assert.equal(readPath(document, 'admin'), undefined);
    assert.equal(readPath(document, '__proto__.admin'), true);
    assert.equal(readPath(parseJsonDigits('{}'), 'constructor'), undefined);
    assert.equal(readPath(parseJsonDigits('{}'), 'toString'), undefined);
  });

  it('takes the last of equal keys, as JSON.parse does', () => {
    assert.equal(readPath(parseJsonDigits('{"a":"1","a":"2"}'), 'a'), '2');
  });

  it('refuses nesting that is too deep instead of running out of stack', () => {
    assert.throws(() => parseJsonDigits('['.repeat(100_000)), /too deeply nested/);
    assert.doesNotThrow(() => parseJsonDigits('['.repeat(60) + ']'.repeat(60)));
  });

  it('walks into lists by position, and nowhere else', () => {
    const document = parseJsonDigits('{"list":[{"id":"x"}],"text":"abc"}');
    assert.equal(readPath(document, 'list.0.id'), 'x');
    assert.equal(readPath(document, 'list.1.id'), undefined);
    assert.equal(readPath(document, 'list.length'), undefined);
    assert.equal(readPath(document, 'text.0'), undefined);
    assert.equal(readPath(document, 'list.0.id.more'), undefined);
  });

  it('takes texts and whole numbers for identifiers, and nothing else', () => {
    const identifiers: readonly (readonly [string, string | undefined])[] = [
      ['"a b"', 'a b'],
      ['-8', '-8'],
      ['0', '0'],
      ['1.0', undefined],
      ['1e3', undefined],
      ['true', undefined],
      ['null', undefined],
      ['""', undefined],
      ['{}', undefined],
      ['[1]', undefined],
      ['"a\\u0000"', undefined],
      [`"${'x'.repeat(256)}"`, 'x'.repeat(256)],
      [`"${'x'.repeat(257)}"`, undefined],
    ];
    for (const [text, id] of identifiers) assert.equal(asIdentifier(parseJsonDigits(text)), id, text);
    assert.equal(asIdentifier(undefined), undefined);
  });

  it('compares with configured values by kind, numbers by value', () => {
    assert.ok(equalsScalar(parseJsonDigits('200.0'), 200), 'a number');
    assert.ok(!equalsScalar(parseJsonDigits('"200"'), 200), 'text is no number');
    assert.ok(!equalsScalar(parseJsonDigits('200'), '200'), 'a number is no text');
    assert.ok(equalsScalar(parseJsonDigits('null'), null), 'null');
    assert.ok(!equalsScalar(undefined, null), 'absent is not null');
    assert.ok(equalsScalar(parseJsonDigits('true'), true), 'true');
  });

  it('reads texts of any length, and refuses one that never ends', () => {
    const escaped = '\\n'.repeat(4_000_000);
    assert.equal((parseJsonDigits(`"${escaped}"`) as string).length, 4_000_000);
    assert.throws(() => parseJsonDigits(`"${escaped}`), SyntaxError);
    for (const text of ['"', '"\\', '"\\"', '"\\\\\\"']) assert.throws(() => parseJsonDigits(text), SyntaxError, text);
  });
});
