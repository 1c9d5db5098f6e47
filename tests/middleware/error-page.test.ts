import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { GatewayError } from '../../lib/errors.ts';
import { renderError } from '../../lib/middleware/error-page.ts';

const BROWSER = 'text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8';
const down = new GatewayError('node_down', 'the node of this user is down', {
  nodeId: 'node-1',
  cause: new Error('secret'),
});

function text(error: GatewayError, accept?: string): string {
  return renderError(error, 'r1', accept).body.toString('utf8');
}

describe('renderError', () => {
  it('gives scripts exactly this JSON', () => {
    assert.equal(
      text(down),
      '{"code":503,"error":"node_down","message":"the node of this user is down","nodeId":"node-1","requestId":"r1"}',
    );
    assert.equal(
      text(new GatewayError('no_route', '没有 "route"')),
      '{"code":404,"error":"no_route","message":"没有 \\"route\\"","requestId":"r1"}',
    );
    assert.equal(renderError(down, 'r1', undefined).contentType, 'application/json; charset=utf-8');
  });

  it('gives a browser navigation a page that says the same', () => {
    const page = renderError(down, 'r1', BROWSER);
    assert.equal(page.contentType, 'text/html; charset=utf-8');
    const body = page.body.toString('utf8');
    for (const part of ['503 node_down', 'the node of this user is down', 'node-1', 'r1'])
      assert.ok(body.includes(part), part);
    assert.ok(!text(new GatewayError('no_route', 'm'), BROWSER).includes('Node<'), 'no node where there is none');
  });

  it('shows neither the cause nor a stack nor anything from another host', () => {
    for (const accept of [undefined, BROWSER]) {
      assert.doesNotMatch(text(down, accept), /secret|\bat .*:\d+|src=|href=|https?:/);
    }
  });

  it('escapes everything that is not its own', () => {
    const nasty = `<script>"&'</script>`;
    const page = renderError(new GatewayError('bad_request', nasty, { nodeId: nasty }), nasty, BROWSER).body.toString(
      'utf8',
    );
    assert.equal(page.split('&lt;script&gt;&quot;&amp;&#39;&lt;/script&gt;').length - 1, 3);
    assert.ok(!page.includes('<script'));
  });

  const choices: readonly (readonly [accept: string | undefined, html: boolean])[] = [
    [undefined, false],
    ['', false],
    ['*/*', false],
    ['text/*', false],
    ['application/json', false],
    ['application/json, text/plain, */*', false],
    ['text/html', true],
    ['TEXT/HTML', true],
    [BROWSER, true],
    ['text/html;q=0', false],
    ['text/html;q=0.000', false],
    ['text/html; q=0.5, application/json;q=0.4', true],
    ['text/html;q=0.5, application/json', false],
    ['application/json, text/html', true],
    ['text/html;level=1;q=0.3', true],
    ['text/html;q=nonsense', false],
    ['text/html;q=2', false],
    ['text/htmlx, */*', false],
    ['x/text/html', false],
  ];
  for (const [accept, html] of choices) {
    it(`answers ${JSON.stringify(accept)} with ${html ? 'a page' : 'JSON'}`, () => {
      assert.equal(renderError(down, 'r1', accept).contentType.startsWith('text/html'), html);
    });
  }
});
