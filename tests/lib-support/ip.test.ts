import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { AddressList, clientAddress, isCidr, plainAddress } from '../../lib/support/ip.ts';

describe('an address list', () => {
  const cases: readonly (readonly [cidr: string, address: string, inside: boolean])[] = [
    ['10.0.0.0/8', '10.255.0.1', true],
    ['10.0.0.0/8', '11.0.0.1', false],
    ['192.168.1.7', '192.168.1.7', true],
    ['192.168.1.7', '192.168.1.8', false],
    ['0.0.0.0/0', '8.8.8.8', true],
    ['127.0.0.1/32', '::ffff:127.0.0.1', true],
    ['127.0.0.1/32', '::FFFF:7f00:1', true],
    ['::ffff:10.0.0.0/104', '10.1.2.3', true],
    ['fd00::/8', 'fd12:3456::1', true],
    ['fd00::/8', 'fe80::1', false],
    ['fe80::/10', 'fe80::1%eth0', true],
    ['::1', '0:0:0:0:0:0:0:1', true],
    ['::1/128', '127.0.0.1', false],
    ['::/0', '2001:db8::1', true],
    ['10.0.0.0/8', '', false],
    ['10.0.0.0/8', 'garbage', false],
    ['172.16.0.0/12', '172.31.255.255', true],
    ['172.16.0.0/12', '172.32.0.0', false],
    ['10.1.0.0/16', '10.1.255.255', true],
    ['10.1.0.0/16', '10.2.0.0', false],
    ['10.1.2.0/17', '10.1.128.0', false],
    ['10.9.9.9/8', '10.0.0.1', true],
    ['2001:db8::/33', '2001:db8:8000::', false],
    ['2001:db8::/32', '2001:db8:ffff::1', true],
    ['1:2:3:4:5:6:7:8', '1:2:3:4:5:6:7:8', true],
    ['1:2:3:4:5:6:7:8', '1:2:3:4:5:6:7:9', false],
  ];
  for (const [cidr, address, inside] of cases) {
    it(`of ${cidr} ${inside ? 'has' : 'does not have'} '${address}'`, () => {
      const list = new AddressList([cidr]);
      assert.equal(list.has(address), inside);
      assert.equal(list.has(address), inside, 'asked again');
    });
  }

  it('without entries has nobody', () => {
    assert.equal(new AddressList([]).size, 0);
    assert.equal(new AddressList([]).has('127.0.0.1'), false);
  });

  it('refuses what is neither an address nor a network', () => {
    for (const text of [
      '10.0.0.0/33',
      '10.0.0/8',
      '10.0.0.0/-1',
      '10.0.0.0/8x',
      'fd00::/129',
      'localhost',
      '',
      '/8',
      '1.2.3.4.5',
      '256.1.1.1',
      '10.0.0.0/',
      ':::1',
      '1::2::3',
      '12345::',
    ]) {
      assert.equal(isCidr(text), false, text);
      assert.throws(() => new AddressList([text]), RangeError, text);
    }
    for (const text of ['10.0.0.0/8', '1.2.3.4', '::1', 'fd00::/8', '::ffff:1.2.3.4'])
      assert.equal(isCidr(text), true, text);
  });

  it('stays small and right however many addresses ask', () => {
    const list = new AddressList(['10.0.0.0/16']);
    for (let count = 0; count < 20_000; count += 1) list.has(`10.${(count >> 8) & 255}.${count & 255}.1`);
    assert.equal(list.has('10.0.3.4'), true);
    assert.equal(list.has('10.1.3.4'), false);
  });
});

describe('the address of a client', () => {
  const trusted = new AddressList(['127.0.0.1', '10.0.0.0/8', 'fd00::/8']);
  const cases: readonly (readonly [peer: string, forwarded: readonly string[], client: string])[] = [
    ['8.8.8.8', ['1.2.3.4'], '8.8.8.8'],
    ['127.0.0.1', [], '127.0.0.1'],
    ['::ffff:127.0.0.1', ['1.2.3.4'], '1.2.3.4'],
    ['127.0.0.1', ['6.6.6.6, 1.2.3.4, 10.0.0.9'], '1.2.3.4'],
    ['127.0.0.1', ['6.6.6.6', '1.2.3.4', '10.0.0.9'], '1.2.3.4'],
    ['127.0.0.1', ['10.0.0.1, 10.0.0.2'], '10.0.0.1'],
    ['127.0.0.1', ['1.2.3.4:5678'], '1.2.3.4'],
    ['127.0.0.1', ['"[2001:db8::1]:99"'], '2001:db8::1'],
    ['127.0.0.1', ['[2001:db8::1]'], '2001:db8::1'],
    ['127.0.0.1', ['2001:DB8::1'], '2001:db8::1'],
    ['127.0.0.1', ['1.2.3.4, unknown'], '127.0.0.1'],
    ['127.0.0.1', ['1.2.3.4, garbage, 10.0.0.9'], '10.0.0.9'],
    ['127.0.0.1', [''], '127.0.0.1'],
    ['127.0.0.1', ['1.2.3.4, ,', ','], '1.2.3.4'],
    ['127.0.0.1', [',10.0.0.7'], '10.0.0.7'],
    ['127.0.0.1', ['"1.2.3.4"'], '1.2.3.4'],
    ['127.0.0.1', ['::ffff:1.2.3.4'], '1.2.3.4'],
    ['127.0.0.1', ['[fe80::1%eth0]:80'], 'fe80::1'],
    ['127.0.0.1', ['"1.2.3.4'], '127.0.0.1'],
    ['127.0.0.1', ['1.2.3.4"'], '127.0.0.1'],
    ['127.0.0.1', ['"'], '127.0.0.1'],
    ['127.0.0.1', ['[2001:db8::1'], '127.0.0.1'],
    ['127.0.0.1', ['[2001:db8::1]x'], '127.0.0.1'],
    ['127.0.0.1', ['[1.2.3.4]'], '127.0.0.1'],
    ['127.0.0.1', ['1.2.3.4:http'], '127.0.0.1'],
    ['127.0.0.1', ['1.2.3.4:123456'], '127.0.0.1'],
    ['127.0.0.1', [':80'], '127.0.0.1'],
    ['127.0.0.1', ['_hidden'], '127.0.0.1'],
    ['127.0.0.1', ['1.2.3.4 5.6.7.8'], '127.0.0.1'],
    ['', ['1.2.3.4'], ''],
  ];
  for (const [peer, forwarded, client] of cases) {
    it(`is ${client} behind ${peer} with [${forwarded.join(' | ')}]`, () => {
      assert.equal(clientAddress(peer, forwarded, trusted), client);
    });
  }

  it('has one plain form', () => {
    assert.equal(plainAddress('::ffff:10.1.2.3'), '10.1.2.3');
    assert.equal(plainAddress('FE80::1%eth0'), 'fe80::1');
    assert.equal(plainAddress('10.1.2.3'), '10.1.2.3');
  });
});
