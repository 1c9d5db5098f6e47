import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { RequestContext } from '../../lib/context.ts';
import { ipAllow } from '../../lib/middleware/ip-allow.ts';
import { AddressList } from '../../lib/support/ip.ts';
import { contextOf, runStage } from '../support/stage.ts';

interface Setup {
  readonly allow?: readonly string[];
  readonly trusted?: readonly string[];
  readonly peer?: string;
  readonly forwardedFor?: readonly string[];
}

function enter({ allow = [], trusted = [], peer, forwardedFor = [] }: Setup): RequestContext {
  const context = contextOf({
    rawHeaders: forwardedFor.flatMap((value) => ['X-Forwarded-For', value]),
    ...(peer === undefined ? {} : { remoteAddress: peer }),
  });
  const stage = ipAllow(new AddressList(allow), new AddressList(trusted));
  assert.deepEqual(runStage(stage, context), { nexts: 1, passedOn: true });
  return context;
}

const facts = ({ peerAddress, clientAddress, trustedPeer }: RequestContext) => [
  peerAddress,
  clientAddress,
  trustedPeer,
];
const refused = { code: 'ip_not_allowed', status: 403 };

describe('ipAllow', () => {
  it('lets everybody in when nothing is said', () => {
    assert.deepEqual(facts(enter({ peer: '192.0.2.1' })), ['192.0.2.1', '192.0.2.1', false]);
  });

  it('lets in whom the list has, and nobody else', () => {
    enter({ allow: ['10.0.0.0/8', '::1'], peer: '10.1.2.3' });
    enter({ allow: ['10.0.0.0/8', '::1'], peer: '::ffff:10.1.2.3' });
    enter({ allow: ['10.0.0.0/8', '::1'], peer: '::1' });
    assert.throws(() => enter({ allow: ['10.0.0.0/8', '::1'], peer: '11.0.0.1' }), refused);
    assert.throws(() => enter({ allow: ['10.0.0.0/8', '::1'], peer: '::2' }), refused);
  });

  it('writes an IPv4 address as one, however it came', () => {
    assert.deepEqual(facts(enter({ peer: '::ffff:192.0.2.1' })), ['192.0.2.1', '192.0.2.1', false]);
  });

  it('believes X-Forwarded-For of a trusted proxy only', () => {
    const forwardedFor = ['203.0.113.9'];
    assert.deepEqual(facts(enter({ peer: '192.0.2.1', forwardedFor })), ['192.0.2.1', '192.0.2.1', false]);
    assert.deepEqual(facts(enter({ peer: '192.0.2.1', forwardedFor, trusted: ['192.0.2.2'] })), [
      '192.0.2.1',
      '192.0.2.1',
      false,
    ]);
    assert.deepEqual(facts(enter({ peer: '::ffff:192.0.2.1', forwardedFor, trusted: ['192.0.2.0/24'] })), [
      '192.0.2.1',
      '203.0.113.9',
      true,
    ]);
  });

  it('goes back through the hops, over several lines, to the first that is not trusted', () => {
    const forwardedFor = ['10.9.9.9, 203.0.113.9', '192.0.2.7'];
    const context = enter({ peer: '192.0.2.1', trusted: ['192.0.2.0/24'], forwardedFor });
    assert.equal(context.clientAddress, '203.0.113.9');
  });

  it('is the proxy itself when it forwards for nobody', () => {
    assert.deepEqual(facts(enter({ peer: '192.0.2.1', trusted: ['192.0.2.0/24'] })), ['192.0.2.1', '192.0.2.1', true]);
  });

  it('asks for the client, not for the proxy in front of it', () => {
    const behind = { peer: '192.0.2.1', trusted: ['192.0.2.1'], allow: ['203.0.113.0/24'] };
    enter({ ...behind, forwardedFor: ['203.0.113.9'] });
    assert.throws(() => enter({ ...behind, forwardedFor: ['198.51.100.1'] }), refused);
    assert.throws(() => enter(behind), refused);
    assert.throws(
      () => enter({ peer: '198.51.100.1', allow: ['203.0.113.0/24'], forwardedFor: ['203.0.113.9'] }),
      refused,
      'a stranger cannot write himself in',
    );
  });

  it('turns away a client that is gone already where not everybody may come in', () => {
    assert.deepEqual(facts(enter({})), ['', '', false]);
    assert.throws(() => enter({ allow: ['0.0.0.0/0'] }), refused);
  });

  it('says who was turned away to the stages that log it', () => {
    const context = contextOf({ remoteAddress: '192.0.2.1' });
    const stage = ipAllow(new AddressList(['10.0.0.0/8']), new AddressList([]));
    assert.throws(() => runStage(stage, context), refused);
    assert.equal(context.clientAddress, '192.0.2.1');
  });
});
