/** What is measured: the gateway and its peers, each as a process of its own in front of the same backends. */
import { type ChildProcess, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import * as net from 'node:net';
import * as path from 'node:path';
import { findPackageFile } from '../../lib/process/package-file.ts';

export interface Ports {
  readonly backend: number;
  readonly events: number;
  readonly first: number;
}

export interface Subject {
  readonly name: string;
  readonly port: number;
  /** In front of the backend that sends events. */
  readonly eventsPort: number;
}

export interface Running {
  readonly subject: Subject;
  /** The processes whose CPU and memory count. */
  readonly pids: readonly number[];
}

const NAMES = ['gateway', 'nginx', 'haproxy', 'http-proxy', 'http-proxy-3', 'httpxy', 'fastify', 'hello'];
const BENCH = path.join(path.dirname(findPackageFile('package.json')), 'tests', 'bench');
const COMMAND = path.join(path.dirname(findPackageFile('package.json')), 'dist', 'bin', 'gateway.js');

/** Starts things and ends every one of them, by pid. */
export class Setups {
  readonly #folder: string;
  readonly #ports: Ports;
  readonly #children: ChildProcess[] = [];
  readonly #nodeFlags: readonly string[];

  constructor(folder: string, ports: Ports, nodeFlags: readonly string[] = []) {
    this.#folder = folder;
    this.#ports = ports;
    this.#nodeFlags = nodeFlags;
  }

  static get names(): readonly string[] {
    return NAMES;
  }

  async startBackends(): Promise<void> {
    const { backend, events } = this.#ports;
    fs.mkdirSync(path.join(this.#folder, 'js', 'a'), { recursive: true });
    fs.writeFileSync(path.join(this.#folder, 'js', 'a', 'file'), Buffer.alloc(1_048_576, 'x'));
    // nginx runs its workers as another user when it is root.
    fs.chmodSync(this.#folder, 0o755);
    const login = '{"code":200,"data":{"token":"bench-token","userId":"1","username":"bench"}}';
    this.#nginx('backend', [
      `server { listen 127.0.0.1:${backend}; root ${this.#folder}; client_max_body_size 0;`,
      '  location = /js/a/file { }',
      `  location = /js/a/auth/login { default_type application/json; return 200 '${login}'; }`,
      "  location / { default_type text/plain; return 200 'hello, this is a small answer'; } }",
    ]);
    this.#node([path.join(BENCH, 'peer.mjs'), 'events', String(events), '']);
    await waitForPort(backend);
    await waitForPort(events);
  }

  /** Undefined = its program is not there. */
  async start(name: string): Promise<Running | undefined> {
    const index = NAMES.indexOf(name);
    const subject = { name, port: this.#ports.first + 2 * index, eventsPort: this.#ports.first + 2 * index + 1 };
    const pids = await this.#startAs(subject);
    if (!pids) return undefined;
    await waitForPort(subject.port);
    return { subject, pids: pids() };
  }

  stop(): void {
    for (const child of this.#children.splice(0).reverse()) child.kill('SIGTERM');
  }

  async #startAs({ name, port, eventsPort }: Subject): Promise<(() => number[]) | undefined> {
    const { backend, events } = this.#ports;
    if (name === 'nginx') {
      const pool = (upstream: string, to: number) => `upstream ${upstream} { server 127.0.0.1:${to}; keepalive 256; }`;
      const proxy = (upstream: string, at: number) =>
        `server { listen 127.0.0.1:${at}; client_max_body_size 0; location / { proxy_pass http://${upstream}; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $http_host; } }`;
      const master = this.#nginx('proxy', [
        pool('b', backend),
        pool('e', events),
        proxy('b', port),
        proxy('e', eventsPort),
      ]);
      return master && (() => childrenOf(master.pid));
    }
    if (name === 'haproxy') return this.#haproxy(port, eventsPort);
    if (name === 'gateway') return this.#gateway(port, eventsPort);
    const child = this.#node([path.join(BENCH, 'peer.mjs'), name, String(port), `http://127.0.0.1:${backend}`]);
    const second =
      name === 'hello'
        ? undefined
        : this.#node([path.join(BENCH, 'peer.mjs'), name, String(eventsPort), `http://127.0.0.1:${events}`]);
    return () => [child, second].flatMap((one) => one?.pid ?? []);
  }

  async #gateway(port: number, eventsPort: number): Promise<() => number[]> {
    const file = path.join(this.#folder, 'gateway.yaml');
    const { backend, events } = this.#ports;
    const service = (id: string, prefix: string, node: number) =>
      `  - { id: ${id}, pathPrefix: ${prefix}, loginPath: /auth/login, healthPath: null, nodes: [{ id: ${id}-1, baseUrl: "http://127.0.0.1:${node}" }] }\n`;
    fs.writeFileSync(
      file,
      `listen: ["127.0.0.1:${port}", "127.0.0.1:${eventsPort}"]\nadmin: { listen: "127.0.0.1:0" }\nstore: { dataDir: ${path.join(this.#folder, 'data')} }\n` +
        `services:\n${service('bench', '/js/a', backend)}${service('events', '/js/e', events)}`,
    );
    // The access log goes to a file, as it does behind systemd or a container's log driver.
    const log = fs.openSync(path.join(this.#folder, 'access.log'), 'w');
    const child = spawn(process.execPath, [...this.#nodeFlags, COMMAND, '--config', file], {
      stdio: ['ignore', log, 'inherit'],
    });
    this.#children.push(child);
    await waitForPort(port);
    for (const prefix of ['/js/a', '/js/e']) {
      const answer = await fetch(`http://127.0.0.1:${port}${prefix}/auth/login`, {
        method: 'POST',
        body: '{"username":"bench"}',
      });
      if (!answer.ok) throw new Error(`the login through the gateway failed: ${answer.status}`);
      await answer.text();
    }
    return () => [child.pid ?? 0];
  }

  #haproxy(port: number, eventsPort: number): (() => number[]) | undefined {
    const { backend, events } = this.#ports;
    const file = path.join(this.#folder, 'haproxy.cfg');
    fs.writeFileSync(
      file,
      `global\n  nbthread 1\n  maxconn 8192\ndefaults\n  mode http\n  timeout connect 3s\n  timeout client 5m\n  timeout server 5m\n  http-reuse always\n` +
        `listen b\n  bind 127.0.0.1:${port}\n  server n 127.0.0.1:${backend}\nlisten e\n  bind 127.0.0.1:${eventsPort}\n  server n 127.0.0.1:${events}\n`,
    );
    const child = this.#spawn('haproxy', ['-db', '-q', '-f', file]);
    return child && (() => [child.pid ?? 0]);
  }

  #nginx(name: string, lines: readonly string[]): ChildProcess | undefined {
    const file = path.join(this.#folder, `${name}.conf`);
    fs.writeFileSync(
      file,
      `worker_processes 1; daemon off; pid ${this.#folder}/${name}.pid; error_log ${this.#folder}/${name}.err;\n` +
        `events { worker_connections 8192; }\nhttp { access_log off; keepalive_requests 100000000; client_body_temp_path ${this.#folder}/${name}.body;\n${lines.join('\n')}\n}\n`,
    );
    return this.#spawn('nginx', ['-c', file]);
  }

  #node(args: readonly string[]): ChildProcess {
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'ignore', 'inherit'] });
    this.#children.push(child);
    return child;
  }

  #spawn(program: string, args: readonly string[]): ChildProcess | undefined {
    const found = (process.env['PATH'] ?? '')
      .split(':')
      .map((folder) => path.join(folder, program))
      .find((file) => fs.existsSync(file));
    if (!found) return undefined;
    const child = spawn(found, args, { stdio: ['ignore', 'ignore', 'inherit'] });
    this.#children.push(child);
    return child;
  }
}

function childrenOf(pid: number | undefined): number[] {
  const children = fs.readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim();
  return children === '' ? [] : children.split(' ').map(Number);
}

async function waitForPort(port: number): Promise<void> {
  for (let attempt = 0; attempt < 250; attempt += 1) {
    const open = await new Promise<boolean>((resolve) => {
      const socket = net.connect({ host: '127.0.0.1', port });
      socket.once('connect', () => resolve(true));
      socket.once('error', () => resolve(false));
      socket.once('connect', () => socket.destroy());
    });
    if (open) return;
    await new Promise((resolve) => setTimeout(resolve, 40));
  }
  throw new Error(`nothing listens on port ${port}`);
}
