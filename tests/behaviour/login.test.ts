/** A login through the gateway: what binds and what does not, and that every byte passes untouched either way. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import * as net from 'node:net';
import { after, before, beforeEach, describe, it } from 'node:test';
import * as zlib from 'node:zlib';
import { Client } from 'pg';
import { BackendNode, loginSuccess, newToken, sendJson, userIdOf } from '../support/backend-node.ts';
import { counterOf } from '../support/counter-of.ts';
import {
  type GatewayFixture,
  openStores,
  STORE_KINDS,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';
import { type Answer, call } from '../support/http-client.ts';
import { waitUntil } from '../support/wait-until.ts';

const LOGIN = '/js/a/auth/login';
const SERVICE = `    login:
      also: [/auth/sms, /oauth/callback]
      request: { username: username }`;
const HEAD = { 'Content-Type': 'application/json' };

let people = 0;

function newName(): string {
  people += 1;
  return `person${people}`;
}

/** Answers with these bytes, framed by their length, and keeps them to compare. */
function bytes(response: ServerResponse, body: Buffer, headers: Record<string, string> = HEAD, status = 200): void {
  response.writeHead(status, { ...headers, 'Content-Length': body.length });
  response.end(body);
}

for (const kind of STORE_KINDS) {
  describe(`a login on the ${kind} store`, () => {
    const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
    let stores: StoreSetup;
    let gateway: GatewayFixture;

    before(async () => {
      for (const node of nodes) await node.start();
      stores = await openStores(kind);
      gateway = await startGateway({ stores, nodes, service: SERVICE, config: 'timeouts: { idle: 300ms }' });
    });
    after(async () => {
      await gateway?.stop();
      await stores?.close();
      for (const node of nodes) await node.stop();
    });
    beforeEach(() => {
      for (const node of nodes) {
        node.journal.length = 0;
        node.loginAnswer = undefined;
        node.handler = undefined;
      }
    });

    const nodeNamed = (answer: Answer) => nodes.find(({ id }) => id === answer.headers['x-gateway-node'])!;

    /** The row of a user, as another gateway would see it. */
    async function rowOf(userId: string): Promise<{ nodeId: string; username: string | null } | undefined> {
      if (stores.postgresUrl === null) {
        const { bindings } = gateway.gateway.parts;
        // What is cached was durable before, but a row is what is asked for here.
        bindings.drop({ keys: [{ kind: 'id', serviceId: 'demo', userId }] });
        const { binding } = await bindings.findByUserId('demo', userId);
        return binding && { nodeId: binding.nodeId, username: null };
      }
      const client = new Client({ connectionString: stores.postgresUrl });
      await client.connect();
      const { rows } = await client.query('SELECT node_id, username FROM gateway_user_route WHERE user_id = $1', [
        userId,
      ]);
      await client.end();
      assert.ok(rows.length <= 1);
      return rows[0] && { nodeId: rows[0].node_id, username: rows[0].username };
    }

    function answerAll(answer: NonNullable<BackendNode['loginAnswer']>): void {
      for (const node of nodes) node.loginAnswer = answer;
    }

    /** Logs in while the nodes answer so; resolves with what came back and what is bound then. */
    async function logIn(name: string, answer: NonNullable<BackendNode['loginAnswer']>) {
      answerAll(answer);
      const got = await gateway.login(name);
      return { got, row: await rowOf(userIdOf(name)) };
    }

    async function assertServedAtHome(token: string, home: string): Promise<void> {
      for (let turn = 0; turn < 4; turn += 1) {
        assert.equal((await gateway.get('/js/a/notes', token)).headers['x-gateway-node'], home);
      }
    }

    describe('that the node answers with a success', () => {
      it('binds the user to the node before the client has the answer, and asks for no compression', async () => {
        const name = newName();
        const answer = await gateway.login(name, {}, { 'Accept-Encoding': 'gzip, br' });
        const home = nodeNamed(answer);
        assert.equal((await rowOf(userIdOf(name)))?.nodeId, home.id);
        assert.equal(home.journal[0]?.headers['accept-encoding'], 'identity');
        await assertServedAtHome((answer.json()['data'] as { token: string }).token, home.id);
      });

      const codings: [string, (body: Buffer) => Buffer, string][] = [
        ['gzip', zlib.gzipSync, 'gzip'],
        ['brotli', zlib.brotliCompressSync, 'br'],
        ['deflate', zlib.deflateSync, 'deflate'],
        ['deflate without its wrapper', zlib.deflateRawSync, 'deflate'],
      ];
      for (const [title, compress, coding] of codings) {
        it(`binds the user when the node compressed it all the same: ${title}`, async () => {
          const name = newName();
          const token = newToken();
          const sent = compress(Buffer.from(JSON.stringify(loginSuccess(name, userIdOf(name), token))));
          const { got, row } = await logIn(name, (_, response) =>
            bytes(response, sent, { ...HEAD, 'Content-Encoding': coding, ETag: '"x"' }),
          );
          assert.deepEqual(got.body, sent);
          assert.equal(got.headers['content-encoding'], coding);
          assert.equal(got.headers['content-length'], String(sent.length));
          assert.equal(row?.nodeId, nodeNamed(got).id);
          await assertServedAtHome(token, nodeNamed(got).id);
        });
      }

      it('binds the user when the chunks cut the user id in two, and inside a character', async () => {
        const name = newName();
        const sent = Buffer.from(JSON.stringify({ ...loginSuccess(name), note: '李雷' }));
        const cuts = [sent.indexOf(userIdOf(name)) + 3, sent.indexOf('李') + 1];
        cuts.sort((a, b) => a - b);
        const { got, row } = await logIn(name, (_, response) => {
          response.writeHead(200, HEAD);
          response.write(sent.subarray(0, cuts[0]));
          setImmediate(() => {
            response.write(sent.subarray(cuts[0], cuts[1]));
            setImmediate(() => response.end(sent.subarray(cuts[1])));
          });
        });
        assert.deepEqual(got.body, sent);
        assert.equal(row?.nodeId, nodeNamed(got).id);
      });

      it('binds the user by its answer when the request names nobody', async () => {
        const requests: [string, string][] = [
          ['', ''],
          ['application/json', '{"user'],
          ['application/json', '[]'],
          ['application/json', '{"username":{"not":"a name"}}'],
          ['text/plain', 'hello'],
        ];
        for (const [type, body] of requests) {
          const userId = `u-${newName()}`;
          answerAll((_, response) => sendJson(response, loginSuccess('whoever', userId)));
          const answer = await call(gateway.port, LOGIN, {
            method: 'POST',
            headers: type === '' ? {} : { 'Content-Type': type },
            body,
          });
          assert.equal(answer.status, 200, body);
          assert.equal(nodeNamed(answer).journal.at(-1)?.body, body, 'the body passed as it was');
          assert.equal((await rowOf(userId))?.nodeId, nodeNamed(answer).id, body);
        }
      });

      it('takes the username out of a form', async () => {
        const name = `${newName()} ü`;
        const body = new URLSearchParams({ a: '1', username: name, password: 'x' }).toString();
        const headers = { 'Content-Type': 'application/x-www-form-urlencoded; charset=utf-8' };
        const homes = new Set<string>();
        for (let turn = 0; turn < 4; turn += 1) {
          const answer = await call(gateway.port, LOGIN, { method: 'POST', headers, body });
          assert.equal(nodeNamed(answer).journal.at(-1)?.body, body);
          homes.add(nodeNamed(answer).id);
        }
        assert.equal(homes.size, 1, 'known by name from the second time on');
      });

      it('binds by the further login paths too, and by no other', async () => {
        // What a node may take for its login path is one too: the token it gives must be known.
        for (const path of [
          '/js/a/auth/sms',
          '/js/a/oauth/callback',
          '/js/a/auth/login?lang=zh',
          '/js/a/auth/login/',
          '/js/a/AUTH/login',
          '/js/a/auth/%6Cogin',
          '/js/a//auth/login',
          '/js/a/auth;v=1/login;jsessionid=2',
        ]) {
          const name = newName();
          for (const node of nodes) node.handler = (_, response) => sendJson(response, loginSuccess(name));
          answerAll((_, response) => sendJson(response, loginSuccess(name)));
          const answer = await call(gateway.port, path, { method: 'POST', headers: HEAD, body: '{}' });
          assert.equal((await rowOf(userIdOf(name)))?.nodeId, nodeNamed(answer).id, path);
        }
        for (const path of ['/js/a/auth/login/x', '/js/a/auth', '/js/a/auth/smsx', '/js/a/auth%2Flogin']) {
          const name = newName();
          for (const node of nodes) node.handler = (_, response) => sendJson(response, loginSuccess(name));
          assert.equal((await call(gateway.port, path, { method: 'POST', headers: HEAD, body: '{}' })).status, 200);
          assert.equal(await rowOf(userIdOf(name)), undefined, path);
        }
      });

      it('is no login unless it is a POST', async () => {
        for (const method of ['GET', 'PUT', 'DELETE']) {
          const name = newName();
          for (const node of nodes) node.handler = (_, response) => sendJson(response, loginSuccess(name));
          const answer = await call(gateway.port, LOGIN, { method, headers: { 'Accept-Encoding': 'gzip' } });
          assert.equal(answer.status, 200);
          assert.equal(nodeNamed(answer).journal.at(-1)?.headers['accept-encoding'], 'gzip');
          assert.equal(await rowOf(userIdOf(name)), undefined, method);
        }
      });
    });

    describe('that is no success', () => {
      const success = (name: string) => Buffer.from(JSON.stringify(loginSuccess(name)));
      const change = (name: string, changes: object) =>
        Buffer.from(JSON.stringify({ ...(loginSuccess(name) as object), ...changes }));
      const cases: [string, number, (name: string) => Buffer, Record<string, string>?][] = [
        ['answered 401', 401, success],
        ['answered 302', 302, success],
        ['answered 500', 500, success],
        ['of code 40001', 200, (name) => change(name, { code: 40001 })],
        ['of code "200 "', 200, (name) => change(name, { code: '200 ' })],
        ['without a code', 200, (name) => change(name, { code: undefined })],
        ['without a user id', 200, (name) => change(name, { data: { username: name, token: 't' } })],
        ['with an empty user id', 200, (name) => change(name, { data: { userId: '', username: name, token: 't' } })],
        ['without a username', 200, (name) => change(name, { data: { userId: userIdOf(name), token: 't' } })],
        ['answered in HTML', 200, () => Buffer.from('<!doctype html><p>200'), { 'Content-Type': 'text/html' }],
        ['with broken gzip', 200, success, { ...HEAD, 'Content-Encoding': 'gzip' }],
        ['in an unknown coding', 200, success, { ...HEAD, 'Content-Encoding': 'zstd' }],
        ['with an empty body', 200, () => Buffer.alloc(0)],
      ];
      for (const [title, status, body, headers] of cases) {
        it(`passes byte for byte and binds nobody: ${title}`, async () => {
          const name = newName();
          const sent = body(name);
          const { got, row } = await logIn(name, (_, response) => bytes(response, sent, headers, status));
          assert.equal(got.status, status);
          assert.deepEqual(got.body, sent);
          assert.equal(row, undefined);
        });
      }

      it('passes byte for byte and binds nobody when it is 3 MB with the fields at the end', async () => {
        const name = newName();
        const end = JSON.stringify(loginSuccess(name)).slice(1);
        const sent = Buffer.from(`{"padding":"${'x'.repeat(3 * 1024 * 1024)}",${end}`);
        const before = counterOf(gateway, 'gateway_logins_total{result="too_large"}');
        const { got, row } = await logIn(name, (_, response) => bytes(response, sent));
        assert.ok(got.body.equals(sent));
        assert.equal(row, undefined);
        assert.equal(counterOf(gateway, 'gateway_logins_total{result="too_large"}') - before, 1);
        assert.ok(gateway.events('login_response_too_large').length > 0);
      });

      it('is 502 when the node breaks off in the middle of its answer, and binds nobody', async () => {
        const name = newName();
        const sent = success(name);
        const { got, row } = await logIn(name, (_, response) => {
          response.writeHead(200, { ...HEAD, 'Content-Length': sent.length + 1 });
          response.write(sent, () => response.destroy());
        });
        assert.equal(`${got.status} ${got.json()['error']}`, '502 node_broke_off');
        assert.equal(row, undefined);
      });
    });

    describe('whose body', () => {
      it('is larger than 64 KB passes whole, with a length or in chunks, and binds by its answer', async () => {
        for (const chunked of [false, true]) {
          const name = newName();
          const body = JSON.stringify({ padding: 'x'.repeat(300_000), username: name });
          const headers = { ...HEAD, ...(chunked ? { 'Transfer-Encoding': 'chunked' } : {}) };
          const answer = await call(gateway.port, LOGIN, { method: 'POST', headers, body });
          assert.equal(answer.status, 200);
          assert.ok(nodeNamed(answer).journal.at(-1)?.body === body, 'whole');
          assert.equal((await rowOf(userIdOf(name)))?.nodeId, nodeNamed(answer).id);
        }
      });

      it('waits for 100 Continue gets it, small or large', async () => {
        for (const size of [10, 300_000]) {
          const name = newName();
          const body = JSON.stringify({ padding: 'x'.repeat(size), username: name });
          const socket = net.connect(gateway.port, '127.0.0.1');
          let received = '';
          socket.setEncoding('latin1').on('data', (text: string) => {
            received += text;
          });
          socket.write(
            `POST ${LOGIN} HTTP/1.1\r\nHost: demo\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n` +
              `Content-Length: ${body.length}\r\nConnection: close\r\n\r\n`,
          );
          await waitUntil('100 Continue', () => received.startsWith('HTTP/1.1 100 Continue\r\n\r\n'), 3_000);
          socket.write(body);
          await once(socket, 'close');
          assert.match(received, /^HTTP\/1\.1 100 Continue\r\n\r\nHTTP\/1\.1 200 /);
          const entry = nodes.flatMap((node) => node.journal).find((each) => each.body === body);
          assert.ok(entry, 'the node has the whole body');
          assert.ok(await rowOf(userIdOf(name)));
        }
      });

      it('stops coming ends in 408 and reaches no node', async () => {
        const socket = net.connect(gateway.port, '127.0.0.1');
        let received = '';
        socket.setEncoding('latin1').on('data', (text: string) => {
          received += text;
        });
        socket.write(`POST ${LOGIN} HTTP/1.1\r\nHost: demo\r\nContent-Length: 100\r\n\r\n{"username":`);
        await waitUntil('the answer', () => received.includes('request_timeout'), 5_000);
        assert.match(received, /^HTTP\/1\.1 408 /);
        socket.destroy();
        assert.equal(
          nodes.reduce((sum, node) => sum + node.journal.length, 0),
          0,
        );
      });

      it('breaks off with its client reaches no node', async () => {
        const socket = net.connect(gateway.port, '127.0.0.1');
        await once(socket, 'connect');
        const lines = gateway.events('request').length;
        socket.write(`POST ${LOGIN} HTTP/1.1\r\nHost: demo\r\nContent-Length: 100\r\n\r\n{"username":`);
        await waitUntil('it to arrive', () => counterOf(gateway, 'gateway_requests_in_flight') === 1);
        socket.destroy();
        await waitUntil('the gateway to notice', () => gateway.events('request').length > lines);
        await gateway.get('/js/a/after');
        assert.ok(!nodes.some((node) => node.journal.some((entry) => entry.method === 'POST')));
      });
    });

    describe('whose client goes away', () => {
      it('binds the user all the same when the node answers a success afterwards', async () => {
        const name = newName();
        const token = newToken();
        const held: ServerResponse[] = [];
        answerAll((_, response) => void held.push(response));
        const body = JSON.stringify({ username: name });
        const socket = net.connect(gateway.port, '127.0.0.1');
        socket.write(`POST ${LOGIN} HTTP/1.1\r\nHost: demo\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
        const response = await waitUntil('the node to have the login', () => held[0]);
        const home = nodes.find((node) => node.journal.length > 0)!;
        const lines = gateway.events('request').length;
        socket.destroy();
        await waitUntil('the gateway to notice', () => gateway.events('request').length > lines);
        assert.equal(await rowOf(userIdOf(name)), undefined);
        sendJson(response, loginSuccess(name, userIdOf(name), token));
        const row = await waitUntil('the binding', () => rowOf(userIdOf(name)));
        assert.equal(row.nodeId, home.id);
        await waitUntil('the exchange to be over', () => gateway.gateway.parts.forwarder.inFlight === 0);
        await assertServedAtHome(token, home.id);
      });

      it('binds nobody when the node then answers no success, and leaves nothing behind', async () => {
        const name = newName();
        const held: ServerResponse[] = [];
        answerAll((_, response) => void held.push(response));
        const body = JSON.stringify({ username: name });
        const socket = net.connect(gateway.port, '127.0.0.1');
        socket.write(`POST ${LOGIN} HTTP/1.1\r\nHost: demo\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
        const response = await waitUntil('the node to have the login', () => held[0]);
        const lines = gateway.events('request').length;
        socket.destroy();
        await waitUntil('the gateway to notice', () => gateway.events('request').length > lines);
        bytes(response, Buffer.from('{"code":40001}'));
        await waitUntil('the exchange to be over', () => gateway.gateway.parts.forwarder.inFlight === 0);
        assert.equal(await rowOf(userIdOf(name)), undefined);
      });
    });
  });
}
