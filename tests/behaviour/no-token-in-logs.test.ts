/** Secrets stay out of what a gateway writes: drives it through successes and failures at level debug, then searches. */
import assert from 'node:assert/strict';
import { createHmac, randomInt } from 'node:crypto';
import { after, before, describe, it } from 'node:test';
import { maskToken } from '../../lib/observe/log.ts';
import { BackendNode, loginSuccess, sendJson, userIdOf } from '../support/backend-node.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import { type Answer, call } from '../support/http-client.ts';
import { createDatabase, type TestDatabase } from '../support/postgres-server.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { TcpGate } from '../support/tcp-gate.ts';
import { waitUntil } from '../support/wait-until.ts';

/** Of a token at most this much may be seen; one character more is too much. */
const SHOWN = 6;
/** Letters that no id, digest or time in a log line is made of, so that a find is never by chance. */
const LETTERS = 'GHJKLMNPQRSTVWXYZ';

function newSecret(): string {
  return Array.from({ length: 40 }, () => LETTERS[randomInt(LETTERS.length)]).join('');
}

/** A JSON web token whose signature does not match. */
function forgedJwt(): string {
  const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const signed = `${encode({ alg: 'HS256' })}.${encode({ sub: 'eve', nonce: newSecret() })}`;
  return `${signed}.${createHmac('sha256', newSecret()).update(signed).digest('base64url')}`;
}

for (const kind of ['embedded', 'postgres+redis'] as const) {
  describe(`the log of a gateway on the ${kind} store`, () => {
    const node = new BackendNode('n1');
    const passwords: string[] = [];
    /** Whole tokens; the part that may be shown is cut off before the search. */
    const tokens: string[] = [];
    const refusals: Answer[] = [];
    let database: TestDatabase | undefined;
    let gate: TcpGate | undefined;
    let redis: RedisServer;
    let stores: StoreSetup;
    let gateway: GatewayFixture;

    const newPassword = () => {
      const password = newSecret();
      passwords.push(password);
      return password;
    };
    const newToken = () => {
      const token = newSecret();
      tokens.push(token);
      return token;
    };

    before(async () => {
      redis = await startRedis();
      const redisPassword = newPassword();
      await redis.command('CONFIG', 'SET', 'requirepass', redisPassword);
      const embedded = await openStores('embedded');
      let postgresUrl: string | null = null;
      if (kind === 'postgres+redis') {
        database = await createDatabase();
        const url = new URL(database.url);
        gate = await TcpGate.open(Number(url.port));
        url.port = String(gate.port);
        url.password = newPassword();
        postgresUrl = url.href;
      }
      const redisUrl = `redis://:${redisPassword}@127.0.0.1:${redis.port}`;
      stores = { ...embedded, postgresUrl, redisUrl: postgresUrl === null ? null : redisUrl };
      node.loginAnswer = (username, response) => {
        const token = newToken();
        if (username === 'refused') response.writeHead(401).end(JSON.stringify({ code: 401, data: { token } }));
        else if (username === 'failed') sendJson(response, { code: 40001, data: { token, userId: 'u', username } });
        else if (username === 'broken') response.writeHead(200).end(`{"code":200,"data":{"token":"${token}","userId`);
        else sendJson(response, loginSuccess(username, userIdOf(username), token));
      };
      await node.start();
      gateway = await startGateway({
        stores,
        nodes: [node],
        config: [
          'identity:',
          '  token: { header: x-token, cookie: session, query: token }',
          '  resolvers:',
          `    - jwt: { secret: "${newPassword()}" }`,
          `    - redis: { redis: { url: "${redisUrl}" }, key: "sess:{token}", field: user }`,
          // A server that knows another password.
          `    - saToken: { redis: { url: "redis://:${newPassword()}@127.0.0.1:${redis.port}" } }`,
        ].join('\n'),
      });
    });
    after(async () => {
      await gateway?.stop();
      await gate?.close();
      await redis?.stop();
      await database?.drop();
      await stores?.close();
      await node.stop();
    });

    const login = (username: string) => gateway.login(username, { password: newPassword() });

    async function useEverywhere(token: string): Promise<number[]> {
      const answers = [
        await gateway.get('/js/a/notes', token),
        await gateway.get('/js/a/notes', undefined, { Cookie: `session=${token}` }),
        await gateway.get(`/js/a/notes?x=1&token=${token}`),
        await gateway.get(`/js/a/../notes?token=${token}`),
      ];
      refusals.push(...answers.filter((answer) => answer.status >= 400));
      return answers.map((answer) => answer.status);
    }

    function assertSilent(where: string, text: string): void {
      for (const password of passwords) {
        assert.ok(!text.includes(password.slice(0, SHOWN)), `a password is in ${where}`);
      }
      for (const token of tokens) assert.ok(!text.includes(token.slice(0, SHOWN + 1)), `a token is in ${where}`);
    }

    it('is written for logins, requests and failures of all kinds', async () => {
      assert.equal((await login('alice')).status, 200);
      assert.deepEqual(await useEverywhere(tokens.at(-1)!), [200, 200, 200, 400]);
      for (const username of ['refused', 'failed', 'broken']) {
        const answer = await login(username);
        assert.equal(answer.status, username === 'refused' ? 401 : 200);
      }
      await call(gateway.port, '/js/a/auth/login', {
        method: 'POST',
        headers: { 'Content-Type': 'application/x-www-form-urlencoded' },
        body: `username=bob&password=${newPassword()}`,
      });
      await call(gateway.port, '/js/a/auth/login', { method: 'POST', body: `{"password":"${newPassword()}",` });
      // Nobody's tokens: the resolver with the wrong password fails, so that they are not taken for nobody's.
      assert.deepEqual(await useEverywhere(newToken()), [503, 503, 503, 400]);
      const forged = forgedJwt();
      assert.equal((await gateway.get('/js/a/notes', forged)).status, 503);
      // Every part of a forged token is checked for, not only its head, which all of them share.
      tokens.push(...forged.split('.').slice(1));
      // Tokens in the places of others: not to be used, and not to be shown.
      await node.stop();
      await login('carol');
      assert.equal((await gateway.get('/js/a/notes', tokens[0])).status, 502);
      await node.start();
      await redis.kill();
      assert.deepEqual(await useEverywhere(newToken()), [503, 503, 503, 400]);
      await login('dora');
      await gate?.close();
      await login('erin');
      assert.deepEqual(await useEverywhere(newToken()), [503, 503, 503, 400]);
      if (gate)
        await waitUntil('a login that could not be bound', () => gateway.events('login_bind_failed').length > 0);
      else assert.equal(gateway.events('login_bind_failed').length, 0);
      assert.ok(gateway.events('token_lookup_failed').length > 0, 'look-ups have failed');
      assert.ok(
        gateway.lines.some((line) => line.includes(maskToken(tokens[0]!))),
        'tokens are shown masked',
      );
    });

    it('shows no token, no password of a user and none of a store', () => {
      assert.ok(gateway.lines.length > 20, `${gateway.lines.length} lines`);
      for (const line of gateway.lines) assertSilent(`the line ${line}`, line);
    });

    it('has as little to hide as the metrics and the answers of the gateway', async () => {
      const metrics = await call(gateway.adminPort, '/metrics');
      assert.equal(metrics.status, 200);
      assert.match(metrics.text, /gateway_store_errors_total\{store="saToken",use="tokens"\} \d/);
      assertSilent('the metrics', metrics.text);
      assert.ok(refusals.length > 0);
      for (const answer of refusals) assertSilent('an answer', `${answer.rawHeaders.join('\n')}\n${answer.text}`);
    });
  });
}
