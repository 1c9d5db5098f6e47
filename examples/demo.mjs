#!/usr/bin/env node
// `npm start`: two demo nodes and a gateway in front of them, with the lines to try. Ctrl-C ends them all. A node that
// is killed stays away until somebody starts it: that is what the demo shows. `npm run demo:canary` runs three nodes, one
// of which is a new version of the other two.
import { spawn } from 'node:child_process';
import * as fs from 'node:fs';
import * as net from 'node:net';
import * as path from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..');
const COMMAND = path.join(ROOT, 'dist', 'bin', 'gateway.js');
const CANARY = process.argv[2] === 'canary';
const NODES = { 'node-1': 9001, 'node-2': 9002, ...(CANARY ? { 'node-3': 9003 } : {}) };
const PORTS = { ...NODES, gateway: 8080, 'gateway, admin': 9090 };

const LINES = `
Try this in another terminal, in ${ROOT}:

  # 1. log in: the answer holds a token
  TOKEN=$(curl -s http://127.0.0.1:8080/js/a/auth/login -H 'content-type: application/json' \\
    -d '{"username":"alice"}' | sed -n 's/.*"token":"\\([^"]*\\)".*/\\1/p'); echo $TOKEN

  # 2. see which node alice is on: X-Gateway-Node
  curl -i http://127.0.0.1:8080/js/a/whoami -H "x-token: $TOKEN"; echo

  # 3. add a note, list it
  curl -s http://127.0.0.1:8080/js/a/notes -H "x-token: $TOKEN" -d '{"text":"buy milk"}'; echo
  curl -s http://127.0.0.1:8080/js/a/notes -H "x-token: $TOKEN"; echo

  # 4. kill that node: alice gets 503 node_down, and never another node
  ME=$(curl -s http://127.0.0.1:8080/js/a/whoami -H "x-token: $TOKEN"); echo $ME
  NODE=$(echo $ME | sed -n 's/.*"node":"\\([^"]*\\)".*/\\1/p')
  kill $(echo $ME | sed -n 's/.*"pid":\\([0-9]*\\).*/\\1/p'); sleep 5
  curl -s http://127.0.0.1:8080/js/a/notes -H "x-token: $TOKEN"; echo

  # 5. start it again: the note is there
  node examples/demo-node.mjs --id $NODE --port 900\${NODE#node-} &
  sleep 3; curl -s http://127.0.0.1:8080/js/a/notes -H "x-token: $TOKEN"; echo

The node of step 5 belongs to that terminal: end it there with kill %1. Ctrl-C here ends the rest.
`;

const CANARY_LINES = `
node-1 and node-2 are version v1, node-3 is v2, which gets 10 percent of the new users. In another terminal, in ${ROOT}:

  login() { curl -si http://127.0.0.1:8080/js/a/auth/login -H 'content-type: application/json' \\
    -d '{"username":"'$1'"}' "\${@:2}" | tr -d '\\r'; }

  # 1. log some users in: few of them get v2, and each the same every time
  for name in alice bob carol dave erin frank grace heidi; do
    echo $name $(login $name | sed -n 's/^X-Gateway-Version: //p'); done

  # 2. a cookie brings anybody to v2, who gets a home of their own there
  login dave -b version=beta | grep X-Gateway; login dave | grep X-Gateway

  # 3. half of the new users: write weight: 50 for both in examples/canary.yaml, then reload
  kill -HUP GATEWAY
  # those of step 1 stay where they are; of new names about half get v2
  for name in alice bob carol ivan judy mike nina olga; do
    echo $name $(login $name | sed -n 's/^X-Gateway-Version: //p'); done

Ctrl-C here ends everything. gateway-data/ holds who is bound where: without it, step 1 starts afresh.
`;

const children = [];
let ending = false;

if (!fs.existsSync(COMMAND)) fail('the gateway is not built yet: run npm run build');
for (const [name, port] of Object.entries(PORTS)) await ensureFree(name, port);
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => end(0));
for (const [id, port] of Object.entries(NODES)) {
  const node = run(id, ['examples/demo-node.mjs', '--id', id, '--port', String(port)]);
  node.on('exit', () => ending || print(id, `has ended; again: node examples/demo-node.mjs --id ${id} --port ${port}`));
}
const config = `examples/${CANARY ? 'canary' : 'quickstart'}.yaml`;
const gateway = run('gateway', [COMMAND, 'serve', '--config', config], (line) => {
  if (!line.includes('"event":"listening"')) return;
  console.log(CANARY ? CANARY_LINES.replace('GATEWAY', String(gateway.pid)) : LINES);
});
// Without the gateway there is no demo.
gateway.on('exit', (code) => end(code ?? 1));

/** Starts a child and prints what it writes, each line behind its name. */
function run(name, args, onLine) {
  // In a group of its own: a Ctrl-C reaches the demo alone, which then ends them one time each.
  const child = spawn(process.execPath, args, { cwd: ROOT, stdio: ['ignore', 'pipe', 'pipe'], detached: true });
  for (const input of [child.stdout, child.stderr]) {
    createInterface({ input }).on('line', (line) => {
      print(name, line);
      onLine?.(line);
    });
  }
  children.push(child);
  return child;
}

function print(name, line) {
  console.log(`${name.padEnd(8)} | ${line}`);
}

/** Ends all children, then the demo. */
async function end(code) {
  if (ending) return;
  ending = true;
  const running = children.filter((child) => child.exitCode === null && child.signalCode === null);
  const ended = running.map((child) => new Promise((resolve) => child.once('close', resolve)));
  for (const child of running) child.kill('SIGTERM');
  await Promise.all(ended);
  process.exit(code);
}

async function ensureFree(name, port) {
  const server = net.createServer();
  const error = await new Promise((resolve) => {
    server.once('error', resolve);
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(undefined)));
  });
  if (error?.code === 'EADDRINUSE') fail(`port ${port} (${name}) is taken: end the program that listens there`);
  if (error) fail(`port ${port} (${name}) cannot be used: ${error.message}`);
}

function fail(message) {
  console.error(`demo: ${message}`);
  process.exit(1);
}
