/** The configuration texts of what is measured and of the backends behind it. Starts nothing. */
import * as path from 'node:path';
import { PATHS, TOKENS } from './loads.ts';

export interface Ports {
  /** Small answers, uploads and downloads. */
  readonly web: number;
  readonly events: number;
}

const SUCCESSFUL_LOGIN = JSON.stringify({
  code: 200,
  data: { token: TOKENS.requests, userId: '1', username: 'bench' },
});

export function nginxBackend(folder: string, port: number): string {
  return nginx(folder, 'backend', [
    `server { listen 127.0.0.1:${port} backlog=4096; root ${folder}; client_max_body_size 0; client_body_buffer_size 64k;`,
    `  location = ${PATHS.download} { }`,
    `  location = /js/a/auth/login { default_type application/json; return 200 '${SUCCESSFUL_LOGIN}'; }`,
    // `return` alone answers before the body is there, which no application does; mirroring reads it first.
    `  location = ${PATHS.post} { mirror /mirrored; error_page 405 =200 @taken; }`,
    '  location = /mirrored { internal; return 204; }',
    "  location @taken { default_type text/plain; return 200 'taken'; }",
    "  location / { default_type text/plain; return 200 'hello, this is a small answer'; } }",
  ]);
}

/** As bare as fair: by default nginx would write each upload of 16 KB to a file, and hold events back. */
export function nginxProxy(folder: string, at: Ports, to: Ports): string {
  const pool = (name: string, port: number) => `upstream ${name} { server 127.0.0.1:${port}; keepalive 256; }`;
  const proxy = (name: string, port: number, extra: string) =>
    `server { listen 127.0.0.1:${port} backlog=4096; client_max_body_size 0; client_body_buffer_size 64k; location / { proxy_pass http://${name}; ` +
    `proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $http_host; ${extra} } }`;
  return nginx(folder, 'proxy', [
    pool('web', to.web),
    pool('events', to.events),
    proxy('web', at.web, ''),
    proxy('events', at.events, 'proxy_buffering off;'),
  ]);
}

function nginx(folder: string, name: string, lines: readonly string[]): string {
  const file = path.join(folder, name);
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    (kind) => `${kind}_temp_path ${file}.${kind};`,
  );
  return [
    `worker_processes 1; daemon off; pid ${file}.pid; error_log ${file}.err;`,
    'events { worker_connections 8192; }',
    `http { access_log off; keepalive_requests 100000000; ${temporary.join(' ')}`,
    ...lines,
    '}\n',
  ].join('\n');
}

/** Without http-no-delay HAProxy lets the kernel wait for more before an event leaves. */
export function haproxy(at: Ports, to: Ports): string {
  return [
    'global',
    '  nbthread 1',
    '  maxconn 8192',
    'defaults',
    '  mode http',
    '  timeout connect 3s',
    '  timeout client 5m',
    '  timeout server 5m',
    '  http-reuse always',
    'listen web',
    `  bind 127.0.0.1:${at.web}`,
    `  server node 127.0.0.1:${to.web}`,
    'listen events',
    '  option http-no-delay',
    `  bind 127.0.0.1:${at.events}`,
    `  server node 127.0.0.1:${to.events}\n`,
  ].join('\n');
}

export function gateway(folder: string, at: Ports, to: Ports): string {
  const service = (id: string, prefix: string, port: number) =>
    `  - { id: ${id}, pathPrefix: ${prefix}, loginPath: /auth/login, healthPath: null, ` +
    `nodes: [{ id: ${id}-1, baseUrl: "http://127.0.0.1:${port}" }] }`;
  return [
    `listen: ["127.0.0.1:${at.web}", "127.0.0.1:${at.events}"]`,
    'admin: { listen: "127.0.0.1:0" }',
    `store: { dataDir: ${JSON.stringify(path.join(folder, 'data'))} }`,
    'services:',
    service('web', '/js/a', to.web),
    `${service('events', '/js/e', to.events)}\n`,
  ].join('\n');
}
