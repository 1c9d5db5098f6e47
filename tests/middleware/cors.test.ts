import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { cors } from '../../lib/middleware/cors.ts';
import { CorsPolicy } from '../../lib/middleware/cors-policy.ts';
import { fieldValue } from '../../lib/proxy/headers.ts';
import { contextOf, RecordedResponse, runStage } from '../support/stage.ts';

const policy = new CorsPolicy({
  enabled: true,
  allowedOriginPatterns: ['https://app.example'],
  allowCredentials: false,
  maxAgeMs: 3_600_000,
});
const PREFLIGHT = ['Origin', 'https://app.example', 'Access-Control-Request-Method', 'PUT'];

function run(stage: ReturnType<typeof cors>, method: string, rawHeaders: readonly string[]) {
  const response = new RecordedResponse();
  const context = contextOf({ method, rawHeaders }, response);
  context.requestId = 'req-1';
  return { ...runStage(stage, context), context, response };
}

describe('cors', () => {
  it('does nothing at all when it is off: preflights too are for the nodes', () => {
    const { nexts, passedOn, context, response } = run(cors(null), 'OPTIONS', PREFLIGHT);
    assert.deepEqual([nexts, passedOn], [1, true]);
    assert.deepEqual([context.corsHeaders, response.ended], [null, false]);
  });

  it('answers a preflight itself, with the request id and without a body', () => {
    const { nexts, response } = run(cors(policy), 'OPTIONS', PREFLIGHT);
    assert.equal(nexts, 0);
    assert.deepEqual([response.status, response.ended], [204, true]);
    assert.equal(fieldValue(response.headers, 'access-control-allow-origin'), 'https://app.example');
    assert.equal(fieldValue(response.headers, 'access-control-allow-methods'), 'PUT');
    assert.equal(fieldValue(response.headers, 'x-request-id'), 'req-1');
  });

  it('answers the preflight of a foreign origin without a permission', () => {
    const raw = ['Origin', 'https://evil.example', 'Access-Control-Request-Method', 'PUT'];
    const { nexts, response } = run(cors(policy), 'OPTIONS', raw);
    assert.deepEqual([nexts, response.status], [0, 204]);
    assert.equal(fieldValue(response.headers, 'access-control-allow-origin'), undefined);
  });

  it('passes an OPTIONS request on that is no preflight', () => {
    for (const raw of [[], ['Origin', 'https://app.example'], ['Access-Control-Request-Method', 'PUT']]) {
      const { nexts, passedOn, response } = run(cors(policy), 'OPTIONS', raw);
      assert.deepEqual([nexts, passedOn, response.ended], [1, true, false]);
    }
  });

  it('passes any other method on, even with the fields of a preflight', () => {
    assert.equal(run(cors(policy), 'PUT', PREFLIGHT).nexts, 1);
  });

  it('leaves the fields for the answer with the request', () => {
    const own = run(cors(policy), 'GET', ['Origin', 'https://app.example']).context.corsHeaders ?? [];
    assert.equal(fieldValue(own, 'access-control-allow-origin'), 'https://app.example');
    const foreign = run(cors(policy), 'GET', ['Origin', 'https://evil.example']).context.corsHeaders ?? [];
    assert.deepEqual(foreign, ['Vary', 'Origin']);
    assert.deepEqual(run(cors(policy), 'GET', []).context.corsHeaders, ['Vary', 'Origin']);
  });
});
