/** TLS on both sides: a listener with a certificate that can be replaced, and https nodes that are verified. */
import assert from 'node:assert/strict';
import { createPublicKey } from 'node:crypto';
import * as fs from 'node:fs';
import * as https from 'node:https';
import type { AddressInfo } from 'node:net';
import * as os from 'node:os';
import * as path from 'node:path';
import { after, before, describe, it } from 'node:test';
import * as tls from 'node:tls';
import { loadConfig } from '../../lib/config/load.ts';
import { BackendNode } from '../support/backend-node.ts';
import { type Certificate, FIRST, NODE, SECOND } from '../support/certificates.ts';
import {
  configText,
  type GatewaySetup,
  openStores,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';

/** Puts a certificate into files, as an operator has it. */
function write(folder: string, { cert, key }: Certificate): Certificate {
  const files = { cert: path.join(folder, 'served.pem'), key: path.join(folder, 'served.key') };
  fs.writeFileSync(files.cert, cert);
  fs.writeFileSync(files.key, key);
  return files;
}

function nameShownAt(port: number): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = tls.connect({ host: '127.0.0.1', port, rejectUnauthorized: false }, () => {
      resolve(String(socket.getPeerCertificate().subject.CN));
      socket.destroy();
    });
    socket.on('error', reject);
  });
}

describe('TLS', () => {
  let folder: string;
  let stores: StoreSetup;
  before(async () => {
    folder = fs.mkdtempSync(path.join(os.tmpdir(), 'sticky-tls-'));
    stores = await openStores('embedded');
  });
  after(async () => {
    await stores?.close();
    fs.rmSync(folder, { recursive: true });
  });

  it('is spoken by a listener that has a certificate, which is read again on reload', async () => {
    const node = await new BackendNode('n1').start();
    const shown = write(folder, FIRST);
    const listen = `{ host: 127.0.0.1, port: 0, tls: { cert: ${shown.cert}, key: ${shown.key} } }`;
    const setup: GatewaySetup = { stores, nodes: [node], listen };
    const gateway = await startGateway(setup);
    try {
      const answer = await new Promise<{ status: number; proto: unknown }>((resolve, reject) => {
        const request = https.get(
          { host: '127.0.0.1', port: gateway.port, path: '/js/a/x', ca: FIRST.cert, agent: false },
          (response) => {
            response.resume();
            response.on('end', () =>
              resolve({ status: response.statusCode ?? 0, proto: node.journal.at(-1)?.headers['x-forwarded-proto'] }),
            );
          },
        );
        request.on('error', reject);
      });
      assert.deepEqual(answer, { status: 200, proto: 'https' });
      assert.equal(await nameShownAt(gateway.port), 'first');

      fs.writeFileSync(shown.key, SECOND.key);
      const loaded = loadConfig(configText(setup), 'test.yaml', {});
      assert.ok('options' in loaded, 'the file is sound');
      await assert.rejects(
        gateway.gateway.reload(loaded.options),
        /served\.pem.*is not possible/,
        'a key of another certificate',
      );
      assert.equal(await nameShownAt(gateway.port), 'first', 'the old one stays');
      fs.writeFileSync(shown.cert, SECOND.cert);
      await gateway.gateway.reload(loaded.options);
      assert.equal(await nameShownAt(gateway.port), 'second');
    } finally {
      await gateway.stop();
      await node.stop();
    }
  });

  it('takes over no file of a reload in which another cannot be used', async () => {
    const node = await new BackendNode('n1').start();
    const shown = write(folder, FIRST);
    const jwks = path.join(folder, 'keys.json');
    fs.writeFileSync(jwks, JSON.stringify({ keys: [createPublicKey(FIRST.cert).export({ format: 'jwk' })] }));
    const setup: GatewaySetup = {
      stores,
      nodes: [node],
      listen: `{ host: 127.0.0.1, port: 0, tls: { cert: ${shown.cert}, key: ${shown.key} } }`,
      config: `identity: { resolvers: [{ jwt: { jwksFile: ${jwks}, algorithms: [RS256, ES256] } }] }`,
    };
    const gateway = await startGateway(setup);
    try {
      const loaded = loadConfig(configText(setup), 'test.yaml', {});
      assert.ok('options' in loaded, 'the file is sound');
      const keys = fs.readFileSync(jwks);
      write(folder, SECOND);
      fs.writeFileSync(jwks, 'not JSON');
      await assert.rejects(gateway.gateway.reload(loaded.options), /keys\.json/);
      assert.equal(await nameShownAt(gateway.port), 'first');
      fs.writeFileSync(jwks, keys);
      await gateway.gateway.reload(loaded.options);
      assert.equal(await nameShownAt(gateway.port), 'second');
    } finally {
      await gateway.stop();
      await node.stop();
    }
  });

  it('to a node is verified: against its ca, not at all if so configured, and refused otherwise', async () => {
    const ca = path.join(folder, 'ca.pem');
    fs.writeFileSync(ca, NODE.cert);
    const server = https.createServer({ cert: NODE.cert, key: NODE.key }, (request, response) => {
      response.end(`tls ${request.headers['x-forwarded-proto']}`);
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address() as AddressInfo;
    const cases: readonly (readonly [extra: string, status: number])[] = [
      [`ca: ${ca}`, 200],
      ['insecure: true', 200],
      ['insecure: false', 502],
    ];
    try {
      for (const [extra, status] of cases) {
        const services = `services:\n  - { id: demo, pathPrefix: /js/a, healthPath: null, ${extra}, nodes: [{ id: t1, baseUrl: "https://127.0.0.1:${port}" }] }`;
        const own = await openStores('embedded');
        const gateway = await startGateway({ stores: own, nodes: [], services, config: 'health: { failures: 100 }' });
        const answer = await gateway.get('/js/a/x');
        assert.equal(answer.status, status, `${extra}: ${answer.text}`);
        if (status === 200) assert.equal(answer.text, 'tls http');
        else assert.equal(answer.json()['error'], 'node_unreachable');
        await gateway.stop();
        await own.close();
      }
    } finally {
      server.close();
      server.closeAllConnections();
    }
  });

  it('with files that cannot be read stops the start, naming them', async () => {
    const missing = path.join(folder, 'none.pem');
    const own = await openStores('embedded');
    const listen = `{ host: 127.0.0.1, port: 0, tls: { cert: ${missing}, key: ${missing} } }`;
    await assert.rejects(
      startGateway({ stores: own, nodes: [], listen, services: 'services: [{ id: a, pathPrefix: /a }]' }),
      /none\.pem.*is not possible/,
    );
    await own.close();
  });
});
