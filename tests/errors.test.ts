import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { type ErrorCode, GatewayError, OperatorError, STATUS_OF, toGatewayError } from '../lib/errors.ts';

/** The contract, code by code: status, who is at fault, seconds for Retry-After (undefined = waiting does not help). */
const CONTRACT: Readonly<Record<ErrorCode, readonly [number, string, number | undefined]>> = {
  bad_request: [400, 'client', undefined],
  token_rejected: [401, 'client', undefined],
  ip_not_allowed: [403, 'client', undefined],
  no_route: [404, 'client', undefined],
  request_timeout: [408, 'client', undefined],
  body_too_large: [413, 'client', undefined],
  header_too_large: [431, 'client', undefined],
  internal: [500, 'gateway', undefined],
  node_unreachable: [502, 'node', 2],
  node_broke_off: [502, 'node', 2],
  node_bad_response: [502, 'node', undefined],
  node_down: [503, 'node', 5],
  node_disabled: [503, 'node', undefined],
  node_unknown: [503, 'node', undefined],
  user_frozen: [503, 'gateway', 10],
  user_not_bound: [503, 'gateway', undefined],
  no_node_available: [503, 'gateway', 5],
  no_capacity: [503, 'gateway', 30],
  identity_unavailable: [503, 'store', 2],
  directory_unavailable: [503, 'store', 2],
  service_disabled: [503, 'gateway', undefined],
  overloaded: [503, 'gateway', 1],
  shutting_down: [503, 'gateway', 1],
  node_timeout: [504, 'node', 5],
};

describe('GatewayError', () => {
  it('has the codes of the contract and no others', () => {
    assert.deepEqual(Object.keys(STATUS_OF).sort(), Object.keys(CONTRACT).sort());
  });

  for (const [code, [status, side, retryAfter]] of Object.entries(CONTRACT)) {
    it(`answers ${code} with ${status}, a fault of the ${side}`, () => {
      const error = new GatewayError(code as ErrorCode, 'words');
      assert.deepEqual([error.status, error.side, error.retryAfterSeconds], [status, side, retryAfter]);
    });
  }

  it('carries the message, the node and the cause, and is an error', () => {
    const cause = new Error('refused');
    const error = new GatewayError('node_unreachable', 'words', { cause, nodeId: 'n1' });
    assert.ok(error instanceof Error);
    assert.deepEqual(
      [error.name, error.message, error.code, error.nodeId, error.cause],
      ['GatewayError', 'words', 'node_unreachable', 'n1', cause],
    );
  });

  it('has neither node nor cause when none is given', () => {
    const error = new GatewayError('no_route', 'words');
    assert.equal(error.nodeId, undefined);
    assert.ok(!('cause' in error));
    assert.equal(new GatewayError('internal', 'words', { cause: null }).cause, null);
  });
});

describe('toGatewayError', () => {
  it('leaves a GatewayError as it is', () => {
    const error = new GatewayError('no_route', 'words');
    assert.equal(toGatewayError(error), error);
  });

  it('makes an internal error of anything else, which says nothing of it to the client', () => {
    for (const thrown of [new Error('secret'), 'secret', undefined, null]) {
      const error = toGatewayError(thrown);
      assert.equal(error.code, 'internal');
      assert.ok(!error.message.includes('secret'));
      assert.equal(error.cause, thrown);
    }
  });
});

describe('OperatorError', () => {
  it('is told from other errors by its class, and carries a cause', () => {
    const cause = new Error('ENOENT');
    const error = new OperatorError('gateway.yaml cannot be read', { cause });
    assert.ok(error instanceof Error && !(error instanceof GatewayError));
    assert.deepEqual([error.name, error.message, error.cause], ['OperatorError', 'gateway.yaml cannot be read', cause]);
    assert.ok(!('cause' in new OperatorError('words')));
  });
});
