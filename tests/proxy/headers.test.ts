import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  contentLengthOf,
  fieldValue,
  fieldValues,
  hasToken,
  interimHeaders,
  type RequestAdditions,
  type ResponseAdditions,
  reasonPhrase,
  requestHeaders,
  responseHeaders,
  trailerHeaders,
} from '../../lib/proxy/headers.ts';

/** `Name: value` lines to and from the raw form, for tables that can be read. */
const raw = (...lines: readonly string[]) =>
  lines.flatMap((line) => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 1).trimStart()]);
const lines = (fields: readonly string[]) =>
  fields.flatMap((name, index) => (index % 2 === 0 ? [`${name}: ${fields[index + 1]}`] : []));

const PLAIN: RequestAdditions = {
  requestId: 'r1',
  epoch: 0,
  forwardedFor: '9.9.9.9',
  trustedPeer: false,
  proto: 'http',
  host: 'h',
  hostOverride: null,
  via: null,
  acceptEncodingIdentity: false,
  keepUpgrade: false,
};
const ADDED = ['X-Forwarded-For: 9.9.9.9', 'X-Forwarded-Proto: http', 'X-Forwarded-Host: h', 'X-Request-Id: r1'];

const toNode = (sent: readonly string[], more: Partial<RequestAdditions> = {}) =>
  lines(requestHeaders(raw('Host: h', ...sent), { ...PLAIN, ...more })).slice(1);

describe('the fields of a request', () => {
  it('keep names, case, order, duplicates and empty values', () => {
    const sent = [
      'aCCept: */*',
      'X-A: 1',
      'x-a: 2',
      'X-A:',
      'Cookie: a=1',
      'Cookie: b=2',
      'Content-Length: 5',
      'Expect: 100-continue',
    ];
    assert.deepEqual(toNode(sent), [...sent.map((line) => (line === 'X-A:' ? 'X-A: ' : line)), ...ADDED]);
  });

  it('do not change the array they come from', () => {
    const sent = Object.freeze(raw('Host: h', 'Connection: x-a', 'X-A: 1'));
    requestHeaders(sent, PLAIN);
    assert.deepEqual(sent, raw('Host: h', 'Connection: x-a', 'X-A: 1'));
  });

  it('lose what belongs to one hop, however it is spelt', () => {
    const sent = [
      'Connection: keep-alive',
      'CONNECTION: close',
      'keep-ALIVE: timeout=5',
      'Proxy-Connection: keep-alive',
      'Proxy-Authenticate: Basic',
      'proxy-authorization: Basic eDp5',
      'Transfer-Encoding: chunked',
      'UPGRADE: h2c',
      'te: gzip',
      'X-End: stays',
    ];
    assert.deepEqual(toNode(sent), ['X-End: stays', ...ADDED]);
  });

  it('keep those whose names only look like them', () => {
    const sent = [
      'Ta: 1',
      'Hose: 1',
      'Updated: 1',
      'Forwarder: 1',
      'User-Agent: x',
      'Konnection: 1',
      'X-Request-Ip: 1',
      'X-Gatewayed: 1',
      'X-Forward-For: 1',
      'Transfer-Encodinh: 1',
      'Proxy-Authenticats: 1',
    ];
    assert.deepEqual(toNode(sent), [...sent, ...ADDED]);
  });

  it('lose what Connection names, in any case, before it or behind it', () => {
    const sent = [
      'x-HOP: 1',
      'X-B: 1',
      'Connection: close,, X-Hop ,',
      'Connection:',
      'connection: x-b',
      'X-Hop: 2',
      'X-End: stays',
    ];
    assert.deepEqual(toNode(sent), ['X-End: stays', ...ADDED]);
  });

  it('do not let Connection take away what the gateway answers for', () => {
    const named =
      'host, content-length, x-request-id, X-Forwarded-For, x-forwarded-proto, x-gateway-epoch, via, traceparent';
    const sent = [`Connection: ${named}`, 'Content-Length: 5', 'Via: 1.0 a', 'traceparent: 00-a-b-01'];
    assert.deepEqual(lines(requestHeaders(raw('Host: h', ...sent), { ...PLAIN, epoch: 3 })), [
      'Host: h',
      ...sent.slice(1),
      ...ADDED,
      'X-Gateway-Epoch: 3',
    ]);
  });

  it('keep "trailers" of TE, with its connection option', () => {
    assert.deepEqual(toNode(['TE: deflate;q=0.5, Trailers', 'Connection: TE']), [
      ...ADDED,
      'TE: trailers',
      'Connection: TE',
    ]);
  });

  it('keep Upgrade only for a tunnel', () => {
    const sent = ['Connection: keep-alive, Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Key: k'];
    assert.deepEqual(toNode(sent), ['Sec-WebSocket-Key: k', ...ADDED]);
    assert.deepEqual(toNode(sent, { keepUpgrade: true }), [...sent.slice(1), ...ADDED, 'Connection: Upgrade']);
    assert.deepEqual(toNode([...sent, 'TE: trailers'], { keepUpgrade: true }).slice(-2), [
      'TE: trailers',
      'Connection: Upgrade, TE',
    ]);
  });

  it('never carry X-Gateway-* of the client', () => {
    const sent = ['X-Gateway-Epoch: 9', 'x-gateway-node: n', 'X-GATEWAY-: 1', 'x-Gateway-Anything: 1'];
    for (const trustedPeer of [false, true]) {
      assert.deepEqual(toNode(sent, { trustedPeer, epoch: 12 }), [...ADDED, 'X-Gateway-Epoch: 12']);
    }
  });

  it('replace what a peer that is not trusted says about forwarding', () => {
    const sent = [
      'X-Forwarded-For: 1.1.1.1',
      'x-forwarded-for: 2.2.2.2',
      'X-Forwarded-Proto: https',
      'X-FORWARDED-HOST: evil',
      'X-Forwarded-Port: 1',
      'x-forwarded-prefix: /x',
      'Forwarded: for=1.1.1.1',
    ];
    assert.deepEqual(toNode(sent), ADDED);
  });

  it('append to what a trusted peer says about forwarding', () => {
    const sent = [
      'X-Forwarded-For: 1.1.1.1, 2.2.2.2',
      'x-forwarded-proto: https',
      'X-Forwarded-For:',
      'X-Forwarded-For: 3.3.3.3',
      'X-Forwarded-Host: public',
      'X-Forwarded-Port: 443',
      'Forwarded: for=1.1.1.1',
    ];
    assert.deepEqual(toNode(sent, { trustedPeer: true }), [
      'x-forwarded-proto: https',
      'X-Forwarded-Host: public',
      'X-Forwarded-Port: 443',
      'Forwarded: for=1.1.1.1',
      'X-Forwarded-For: 1.1.1.1, 2.2.2.2, 3.3.3.3, 9.9.9.9',
      'X-Request-Id: r1',
    ]);
    assert.deepEqual(toNode([], { trustedPeer: true, proto: 'https' }), [
      'X-Forwarded-For: 9.9.9.9',
      'X-Forwarded-Proto: https',
      'X-Forwarded-Host: h',
      'X-Request-Id: r1',
    ]);
  });

  it('carry one request id: the one in force', () => {
    assert.deepEqual(toNode(['X-Request-ID: mine', 'x-request-id: also']), ADDED);
  });

  it('carry one Host: as sent, overridden in its place, or added where there was none', () => {
    const host = (sent: readonly string[], more: Partial<RequestAdditions>) =>
      lines(requestHeaders(raw(...sent), { ...PLAIN, ...more })).filter((line) => /^host/i.test(line));
    assert.deepEqual(host(['hOsT: a:1', 'X-A: 1'], {}), ['hOsT: a:1']);
    assert.deepEqual(host(['Host: a', 'host: b'], {}), ['Host: a']);
    assert.deepEqual(host(['Host: a'], { hostOverride: 'n:1' }), ['Host: n:1']);
    assert.deepEqual(host([], { hostOverride: 'n:1', host: undefined }), ['Host: n:1']);
    assert.deepEqual(host([], { host: 'h' }), ['Host: h']);
    assert.deepEqual(host([], { host: undefined }), []);
    assert.deepEqual(host(['Host:'], {}), ['Host: ']);
  });

  it('name no X-Forwarded-Host where there is none', () => {
    assert.equal(
      toNode([], { host: undefined }).some((line) => line.startsWith('X-Forwarded-Host')),
      false,
    );
  });

  it('ask for an answer that can be read, for a login only', () => {
    assert.deepEqual(toNode(['accept-encoding: gzip, br']), ['accept-encoding: gzip, br', ...ADDED]);
    assert.deepEqual(toNode(['accept-encoding: gzip', 'Accept-Encoding: br'], { acceptEncodingIdentity: true }), [
      ...ADDED,
      'Accept-Encoding: identity',
    ]);
  });

  it('get a Via line behind those there are, and a traceparent where there is none', () => {
    assert.deepEqual(toNode(['Via: 1.0 a'], { via: '1.1 gateway' }), ['Via: 1.0 a', ...ADDED, 'Via: 1.1 gateway']);
    assert.deepEqual(toNode([], { traceparent: (id) => `of ${id}` }), [...ADDED, 'traceparent: of r1']);
    assert.deepEqual(toNode(['TraceParent: theirs'], { traceparent: () => 'made' }), ['TraceParent: theirs', ...ADDED]);
  });

  it('of an array with an odd end are those that are whole', () => {
    assert.deepEqual(lines(requestHeaders(['Host', 'h', 'X-A'], PLAIN)), ['Host: h', ...ADDED]);
  });
});

const ANSWER: ResponseAdditions = {
  nodeId: 'n1',
  version: null,
  requestId: 'r1',
  cors: null,
  via: null,
  close: false,
  keepUpgrade: false,
};
const STAMP = ['X-Gateway-Node: n1', 'X-Request-Id: r1'];
const toClient = (sent: readonly string[], more: Partial<ResponseAdditions> = {}) =>
  lines(responseHeaders(raw(...sent), { ...ANSWER, ...more }));

describe('the fields of a response', () => {
  it('keep names, order, cookies and lengths', () => {
    const sent = [
      'date: Mon',
      'Server: s',
      'Set-Cookie: a=1',
      'set-cookie: b=2',
      'Content-Length: 5',
      'X-Gateway-Other: 1',
    ];
    assert.deepEqual(toClient(sent), [...sent, ...STAMP]);
  });

  it('lose what belongs to one hop and what Connection names, but no length', () => {
    const sent = [
      'Connection: close, X-Hop, Content-Length, Upgrade',
      'Keep-Alive: timeout=77',
      'Proxy-Connection: x',
      'Proxy-Authenticate: Basic',
      'Proxy-Authorization: x',
      'Transfer-Encoding: chunked',
      'Upgrade: h2c',
      'TE: x',
      'x-hop: 1',
      'Content-Length: 5',
    ];
    assert.deepEqual(toClient(sent), ['Content-Length: 5', ...STAMP]);
  });

  it('say themselves which node and version it was', () => {
    const sent = ['x-gateway-NODE: evil', 'X-Gateway-Version: v9', 'X-REQUEST-ID: theirs'];
    assert.deepEqual(toClient(sent), STAMP);
    assert.deepEqual(toClient(sent, { version: 'v2' }), [
      'X-Gateway-Node: n1',
      'X-Gateway-Version: v2',
      'X-Request-Id: r1',
    ]);
  });

  it("replace the node's fields of CORS only where the gateway answers for it", () => {
    const sent = ['access-control-allow-origin: *', 'Access-Control-Max-Age: 1', 'Access-Control: 1', 'Vary: Accept'];
    assert.deepEqual(toClient(sent), [...sent, ...STAMP]);
    assert.deepEqual(toClient(sent, { cors: ['Access-Control-Allow-Origin', 'https://a', 'Vary', 'Origin'] }), [
      'Access-Control: 1',
      'Vary: Accept',
      ...STAMP,
      'Access-Control-Allow-Origin: https://a',
      'Vary: Origin',
    ]);
    assert.deepEqual(toClient(sent, { cors: [] }), ['Access-Control: 1', 'Vary: Accept', ...STAMP]);
  });

  it('get Via and Connection when told', () => {
    assert.deepEqual(toClient(['Via: 1.1 a'], { via: '1.1 gateway', close: true }), [
      'Via: 1.1 a',
      ...STAMP,
      'Via: 1.1 gateway',
      'Connection: close',
    ]);
    assert.deepEqual(toClient(['Connection: Upgrade', 'Upgrade: websocket'], { keepUpgrade: true, close: true }), [
      'Upgrade: websocket',
      ...STAMP,
      'Connection: Upgrade',
    ]);
  });

  it('announce trailers only where there can be some', () => {
    assert.deepEqual(toClient(['Trailer: X-Sum', 'A: 1']), ['Trailer: X-Sum', 'A: 1', ...STAMP]);
    assert.deepEqual(toClient(['Trailer: X-Sum', 'A: 1'], { trailers: false }), ['A: 1', ...STAMP]);
    assert.deepEqual(toClient(['trailer: X-Sum', 'Content-Length: 1']), ['Content-Length: 1', ...STAMP]);
  });
});

describe('the fields of a 1xx answer', () => {
  it('pass as they are, without those of one hop and of a body', () => {
    const sent = raw('Link: </a>', 'Link: </b>', 'Connection: X-Hop', 'x-hop: 1', 'Keep-Alive: 1', 'Content-Length: 3');
    assert.deepEqual(lines(interimHeaders(sent)), ['Link: </a>', 'Link: </b>']);
    for (const name of [
      'Connection',
      'Keep-Alive',
      'Proxy-Connection',
      'Proxy-Authenticate',
      'TE',
      'Upgrade',
      'Transfer-Encoding',
      'Content-Length',
    ])
      assert.deepEqual(interimHeaders([name, '1']), [], name);
    assert.deepEqual(interimHeaders(raw('X-Stamp: untouched')), raw('X-Stamp: untouched'));
  });
});

describe('the fields of a trailer section', () => {
  it('pass in pairs, but for those that would change the message', () => {
    const sent = raw(
      'X-Sum: abc',
      'x-sum:',
      'Server-Timing: a',
      'Content-Length: 5',
      'TRANSFER-ENCODING: chunked',
      'Host: evil',
      'Set-Cookie: a=1',
      'Authorization: x',
      'Content-Type: text/html',
      'X-Forwarded-For: 1.1.1.1',
      'X-Gateway-Node: evil',
      'X-Request-Id: x',
    );
    assert.deepEqual(trailerHeaders(sent), [
      ['X-Sum', 'abc'],
      ['x-sum', ''],
      ['Server-Timing', 'a'],
    ]);
  });

  it('are never framing, routing, a condition, a credential or a word on how to read the content', () => {
    const names =
      'Connection Keep-Alive Proxy-Connection TE Transfer-Encoding Upgrade Trailer Content-Length Content-Encoding ' +
      'Content-Type Content-Range Host Expect Max-Forwards Pragma Range Cache-Control Age Date Expires Location ' +
      'Retry-After Vary Set-Cookie Cookie Authorization Proxy-Authorization Proxy-Authenticate WWW-Authenticate ' +
      'Forwarded Via X-Request-Id If-Match If-None-Match If-Modified-Since If-Unmodified-Since If-Range';
    for (const name of names.split(' ')) assert.deepEqual(trailerHeaders([name, '1']), [], name);
  });
});

describe('reading raw fields', () => {
  const fields = raw('X-A: 1', 'x-a: 2', 'X-B:', 'Content-Length: 0');

  it('finds by name in any case', () => {
    assert.equal(fieldValue(fields, 'x-a'), '1');
    assert.equal(fieldValue(fields, 'x-b'), '');
    assert.equal(fieldValue(fields, 'x-c'), undefined);
    assert.deepEqual(fieldValues(fields, 'x-a'), ['1', '2']);
    assert.deepEqual(fieldValues(fields, 'x-c'), []);
    // A value is never taken for a name.
    assert.equal(fieldValue(raw('A: x-z', 'B: 1'), 'x-z'), undefined);
  });

  it('takes digits alone for a length', () => {
    assert.equal(contentLengthOf(fields), 0);
    assert.equal(contentLengthOf(raw('CONTENT-LENGTH: 10485760')), 10_485_760);
    for (const value of ['', '+5', '-5', '5, 5', '0x5', '5 ', '1e1', '\u0665'])
      assert.equal(contentLengthOf(['Content-Length', value]), null, value);
    assert.equal(contentLengthOf([]), null);
  });

  it('finds a token in a list, whole', () => {
    for (const value of ['close', 'Close', 'a, CLOSE ,b', 'close;q=1', ',close'])
      assert.equal(hasToken(value, 'close'), true, value);
    for (const value of ['', 'closed', 'xclose', 'not close', 'a;close'])
      assert.equal(hasToken(value, 'close'), false, value);
    assert.equal(hasToken(undefined, 'close'), false);
  });

  it('drops a reason phrase that must not be sent', () => {
    assert.equal(reasonPhrase('Not Found'), 'Not Found');
    assert.equal(reasonPhrase('a\tb\xe9'), 'a\tb\xe9');
    for (const text of [undefined, '', 'a\rb', 'a\0', 'a\x7f', '\u4f60']) assert.equal(reasonPhrase(text), '');
  });
});
