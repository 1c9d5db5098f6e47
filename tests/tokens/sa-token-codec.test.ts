import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { decodeLoginId, type SaTokenCodec } from '../../lib/tokens/sa-token-codec.ts';

const hex = (text: string) => Buffer.from(text.replaceAll(' ', ''), 'hex');
const kryo = (length: string, text: string) => Buffer.concat([hex(`03 ${length}`), Buffer.from(text)]);

describe('a login id in Redis', () => {
  const decoded: readonly (readonly [string, Buffer, SaTokenCodec, string | undefined])[] = [
    ['plain text', Buffer.from('10001'), 'auto', '10001'],
    ['plain text with blanks, which are part of it', Buffer.from(' 10001'), 'auto', ' 10001'],
    ['nothing', Buffer.alloc(0), 'auto', ''],
    ['a lone quote', Buffer.from('"'), 'auto', '"'],
    ['a JSON string', Buffer.from('"a\\u0062"'), 'auto', 'ab'],
    ['broken JSON', Buffer.from('"a\\"'), 'auto', undefined],
    ['JSON read as plain', Buffer.from('"10001"'), 'plain', '"10001"'],
    ['a JSON number, digit by digit', Buffer.from('9007199254740993'), 'json', '9007199254740993'],
    ['a JSON object', Buffer.from('{}'), 'json', undefined],
    ['no JSON', Buffer.from('abc'), 'json', undefined],
    ['JSON that is not UTF-8', hex('22 ff 22'), 'json', undefined],
    ['a Kryo ASCII string', hex('03 31 30 30 30 b1'), 'auto', '10001'],
    ['a Kryo string of one character', hex('03 82 31'), 'auto', '1'],
    ['a Kryo string beyond ASCII', kryo('83', 'é1'), 'auto', 'é1'],
    ['a long Kryo string', kryo('c1 01', 'x'.repeat(64)), 'auto', 'x'.repeat(64)],
    ['a Kryo string that is too short', kryo('84', 'ab'), 'auto', undefined],
    ['a Kryo length without an end', hex('03 c1 ff ff ff ff'), 'auto', undefined],
    ['a Kryo length cut off', hex('03 c1'), 'auto', undefined],
    ['a Kryo null', hex('03 80'), 'auto', undefined],
    ['a Kryo ASCII string without its last', hex('03 31 30'), 'auto', undefined],
    ['a Kryo ASCII string that ends too early', hex('03 31 b0 31 b0'), 'auto', undefined],
    ['a Kryo mark alone', hex('03'), 'auto', undefined],
    ['something else read as Kryo', Buffer.from('abc'), 'kryo5', undefined],
    ['a JDK string', Buffer.concat([hex('aced 0005 74 0005'), Buffer.from('10001')]), 'auto', '10001'],
    ['a JDK string cut off', Buffer.concat([hex('aced 0005 74 0006'), Buffer.from('10001')]), 'auto', undefined],
    ['a JDK head alone', hex('aced 0005 74'), 'auto', undefined],
    ['something else read as JDK', Buffer.from('a longer text'), 'jdk', undefined],
    ['bytes that are not UTF-8', hex('ff fe 01'), 'auto', undefined],
    ['control characters', Buffer.from('a\u0001b'), 'auto', undefined],
    ['more than 256 bytes', Buffer.from('x'.repeat(257)), 'auto', undefined],
    ['256 bytes', Buffer.from('x'.repeat(256)), 'auto', 'x'.repeat(256)],
  ];
  for (const [what, bytes, codec, text] of decoded) {
    it(`that is ${what} gives ${text === undefined ? 'nothing' : `'${text.slice(0, 20)}'`} with ${codec}`, () => {
      assert.equal(decodeLoginId(bytes, codec), text);
    });
  }
});
