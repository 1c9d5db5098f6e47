/** The files for systemd, Docker and Kubernetes: that they are sound, and agree with the program and each other. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import * as path from 'node:path';
import { describe, it } from 'node:test';
import { parseAllDocuments } from 'yaml';
import { loadConfig } from '../../lib/config/load.ts';
import type { GatewayOptions } from '../../lib/config/options.ts';
import { findPackageFile } from '../../lib/process/package-file.ts';
import { findProgram } from '../support/programs.ts';
import { temporaryFolder } from '../support/temporary-folder.ts';

const ENVIRONMENT = {
  DATABASE_URL: 'postgres://gateway:secret@db:5432/gateway',
  REDIS_URL: 'redis://cache:6379',
  ADMIN_TOKEN: 'a-token-that-is-long-enough',
};

const read = (name: string) => fs.readFileSync(findPackageFile(`examples/${name}`), 'utf8');

function load(text: string, name: string): GatewayOptions {
  const loaded = loadConfig(text, name, ENVIRONMENT);
  if ('problems' in loaded) assert.fail(JSON.stringify(loaded.problems, null, 1));
  return loaded.options;
}

/** Directives of a unit file by section, without the sections' brackets. */
function readUnit(text: string): Map<string, string[]> {
  const directives = new Map<string, string[]>();
  let section = '';
  for (const line of text.split('\n')) {
    if (line === '' || line.startsWith('#')) continue;
    const head = /^\[(\w+)\]$/.exec(line);
    if (head) {
      section = head[1] ?? '';
      continue;
    }
    const [, key = '', value = ''] = /^(\w+)=(.*)$/.exec(line) ?? assert.fail(`not a directive: ${line}`);
    const name = `${section}.${key}`;
    directives.set(name, [...(directives.get(name) ?? []), value]);
  }
  return directives;
}

describe('the systemd units', () => {
  const service = readUnit(read('sticky-gateway.service'));
  const socket = readUnit(read('sticky-gateway.socket'));
  const value = (name: string) => service.get(`Service.${name}`)?.join(' ');

  it('start what the package has, reload it by SIGHUP, and let it finish', () => {
    const { bin } = JSON.parse(fs.readFileSync(findPackageFile('package.json'), 'utf8')) as {
      bin: Record<string, string>;
    };
    assert.ok(value('ExecStart')?.includes(`/sticky-gateway/${bin['sticky-gateway']} --config /`));
    assert.match(value('ExecReload') ?? '', /-HUP \$MAINPID$/);
    assert.deepEqual([value('Type'), value('NotifyAccess'), value('Restart')], ['notify', 'all', 'on-failure']);
    const { shutdown, store } = load(read('production.yaml'), 'production.yaml');
    assert.ok(Number(value('TimeoutStopSec')) * 1_000 > shutdown.delayMs + shutdown.graceMs);
    assert.equal(store.dataDir, `/var/lib/${value('StateDirectory')}`);
    assert.ok(Number(value('LimitNOFILE')) >= 65_536);
  });

  it('take every right away that a gateway does not need, and leave V8 its own', () => {
    for (const name of ['DynamicUser', 'NoNewPrivileges', 'ProtectHome', 'PrivateTmp', 'PrivateDevices'])
      assert.equal(value(name), 'yes', name);
    assert.equal(value('ProtectSystem'), 'strict');
    assert.equal(value('MemoryDenyWriteExecute'), 'no');
    assert.equal(value('CapabilityBoundingSet'), 'CAP_NET_BIND_SERVICE');
    // AF_UNIX: the notification socket, and a PostgreSQL or Redis that listens there.
    assert.equal(value('RestrictAddressFamilies'), 'AF_INET AF_INET6 AF_UNIX');
    assert.match(value('SystemCallFilter') ?? '', /@system-service .*~@privileged/);
  });

  it('listen where the configuration does', () => {
    const { listen } = load(read('production.yaml'), 'production.yaml');
    assert.deepEqual(
      socket.get('Socket.ListenStream'),
      listen.map(({ host, port }) => `${host}:${port}`),
    );
  });

  it('hold before systemd itself, where it is installed', async (t) => {
    const analyze = findProgram('systemd-analyze');
    // What the tests above read is all that can be said elsewhere.
    if (!analyze) return;
    const folder = await temporaryFolder(t);
    // It looks for the program too.
    const text = read('sticky-gateway.service').replaceAll('/usr/bin/node', process.execPath);
    fs.writeFileSync(path.join(folder, 'sticky-gateway.service'), text);
    fs.writeFileSync(path.join(folder, 'sticky-gateway.socket'), read('sticky-gateway.socket'));
    const run = (...args: string[]) => {
      const { status, stdout, stderr } = spawnSync(analyze, args, { cwd: folder, encoding: 'utf8' });
      return { status, output: `${stdout}${stderr}` };
    };
    const verified = run('verify', '--man=no', './sticky-gateway.service', './sticky-gateway.socket');
    assert.deepEqual(verified, { status: 0, output: '' });
    // Of 100; a unit without any hardening has 96.
    const secure = run('security', '--offline=true', '--threshold=20', './sticky-gateway.service');
    assert.equal(secure.status, 0, secure.output);
  });
});

describe('the Dockerfile', () => {
  const lines = read('Dockerfile').split('\n');
  const last = (instruction: string) => lines.findLast((line) => line.startsWith(`${instruction} `)) ?? '';

  it('runs the gateway itself as a user that is not root', () => {
    const [program, script] = JSON.parse(last('ENTRYPOINT').slice('ENTRYPOINT '.length)) as string[];
    assert.deepEqual([program, script?.endsWith('/dist/bin/gateway.js')], ['node', true]);
    assert.match(last('USER'), /^USER [1-9]\d*:[1-9]\d*$/);
    assert.match(last('FROM'), /^FROM node:2\d-slim$/);
    assert.match(last('STOPSIGNAL'), /SIGTERM/);
  });

  it('takes files that are there, and that the ignore file lets through', () => {
    const ignored = fs.readFileSync(findPackageFile('.dockerignore'), 'utf8').split('\n');
    assert.equal(ignored[0], '*');
    for (const line of lines.filter((one) => /^COPY (?!--from)/.test(one))) {
      for (const source of line.split(' ').slice(1, -1)) {
        assert.ok(fs.existsSync(findPackageFile(source)), source);
        assert.ok(ignored.includes(`!${source}`), source);
      }
    }
  });

  it('asks for the health at the default address of the admin listener', () => {
    const options = load('services: [{ id: a, pathPrefix: /a, nodes: [] }]', 'least.yaml');
    const check = lines[lines.findIndex((line) => line.startsWith('HEALTHCHECK')) + 1] ?? '';
    const { host, port } = options.admin.listen ?? assert.fail('there is none');
    assert.ok(check.includes(`fetch('http://${host}:${port}/healthz')`), check);
    assert.match(last('EXPOSE'), new RegExp(`\\b${options.listen[0]?.port}\\b.*\\b${port}\\b`));
  });
});

interface Probe {
  readonly httpGet: { readonly path: string; readonly port: string };
}

interface Manifest {
  readonly kind: string;
  readonly metadata: { readonly name: string };
  readonly data?: Readonly<Record<string, string>>;
  readonly spec?: {
    readonly replicas: number;
    readonly minAvailable: number;
    readonly selector: Readonly<Record<string, unknown>>;
    readonly ports: readonly { readonly targetPort: string }[];
    readonly template: {
      readonly metadata: { readonly labels: object; readonly annotations: Readonly<Record<string, string>> };
      readonly spec: {
        readonly terminationGracePeriodSeconds: number;
        readonly securityContext: { readonly runAsNonRoot: boolean; readonly runAsUser: number };
        readonly containers: readonly {
          readonly args: readonly string[];
          readonly ports: readonly { readonly name: string; readonly containerPort: number }[];
          readonly startupProbe: Probe;
          readonly livenessProbe: Probe;
          readonly readinessProbe: Probe;
          readonly envFrom: readonly { readonly secretRef: { readonly name: string } }[];
          readonly securityContext: { readonly readOnlyRootFilesystem: boolean };
          readonly resources: { readonly requests: object; readonly limits: object };
          readonly volumeMounts: readonly { readonly name: string; readonly mountPath: string }[];
        }[];
        readonly volumes: readonly { readonly name: string; readonly configMap?: { readonly name: string } }[];
      };
    };
  };
}

describe('the Kubernetes manifest', () => {
  const documents = parseAllDocuments(read('kubernetes.yaml'), { strict: true });
  const manifests = documents.map((document) => document.toJS() as Manifest);
  const of = (kind: string) => manifests.find((one) => one.kind === kind) ?? assert.fail(`no ${kind}`);
  const template = of('Deployment').spec?.template ?? assert.fail('no template');
  const pod = template.spec;
  const container = pod.containers[0] ?? assert.fail('no container');
  const options = load(of('ConfigMap').data?.['gateway.yaml'] ?? '', 'gateway.yaml');
  const portOf = (name: string) => container.ports.find((port) => port.name === name)?.containerPort;

  it('is YAML without a mistake, and has all its parts', () => {
    for (const document of documents) assert.deepEqual([...document.errors, ...document.warnings], []);
    assert.deepEqual(manifests.map(({ kind }) => kind).sort(), [
      'ConfigMap',
      'Deployment',
      'PodDisruptionBudget',
      'Service',
    ]);
  });

  it('has the ports of the configuration, and probes that reach the admin listener', () => {
    assert.equal(portOf('http'), options.listen[0]?.port);
    assert.equal(portOf('admin'), options.admin.listen?.port);
    assert.deepEqual([options.listen[0]?.host, options.admin.listen?.host], ['0.0.0.0', '0.0.0.0']);
    assert.ok(options.admin.allow.includes('10.0.0.0/8'), 'the kubelet is no loopback');
    assert.equal(template.metadata.annotations['prometheus.io/port'], String(portOf('admin')));
    const probes = [container.startupProbe, container.livenessProbe, container.readinessProbe];
    assert.deepEqual(
      probes.map(({ httpGet }) => httpGet),
      ['/healthz', '/healthz', '/readyz'].map((probed) => ({ path: probed, port: 'admin' })),
    );
    assert.equal(of('Service').spec?.ports[0]?.targetPort, 'http');
  });

  it('leaves a pod the time to finish, and one pod at work', () => {
    const { delayMs, graceMs } = options.shutdown;
    assert.ok(delayMs > 0);
    assert.ok(pod.terminationGracePeriodSeconds * 1_000 > delayMs + graceMs);
    const { replicas = 0 } = of('Deployment').spec ?? {};
    const { minAvailable = 0 } = of('PodDisruptionBudget').spec ?? {};
    assert.ok(replicas >= 2 && minAvailable >= 1 && minAvailable < replicas);
  });

  it('selects the pods it makes', () => {
    const { labels } = template.metadata;
    assert.deepEqual(of('Service').spec?.selector, labels);
    for (const kind of ['Deployment', 'PodDisruptionBudget'])
      assert.deepEqual(of(kind).spec?.selector, { matchLabels: labels });
  });

  it('mounts the configuration where the command reads it, and a folder for the data', () => {
    const mounted = (name: string) => container.volumeMounts.find((mount) => mount.name === name)?.mountPath;
    const config = pod.volumes.find(({ configMap }) => configMap?.name === of('ConfigMap').metadata.name);
    assert.equal(container.args[0], '--config');
    assert.equal(container.args[1], `${mounted(config?.name ?? '')}/gateway.yaml`);
    assert.equal(mounted('data'), options.store.dataDir);
    assert.ok(container.securityContext.readOnlyRootFilesystem);
  });

  it('runs as the user of the image, with bounds, and keeps secrets out of the file', () => {
    const user = /^USER (\d+)/m.exec(read('Dockerfile'))?.[1];
    assert.deepEqual([pod.securityContext.runAsNonRoot, pod.securityContext.runAsUser], [true, Number(user)]);
    assert.ok('memory' in container.resources.limits && 'cpu' in container.resources.requests);
    assert.equal(container.envFrom[0]?.secretRef.name, 'sticky-gateway');
    assert.equal(options.store.postgres?.url, ENVIRONMENT.DATABASE_URL);
    assert.doesNotMatch(read('kubernetes.yaml').replaceAll(/^#.*$/gm, ''), /postgres:\/\/|redis:\/\//);
  });
});
