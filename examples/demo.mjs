#!/usr/bin/env node
// `npm start`: two demo nodes and a gateway in front of them, with the lines to try. Ctrl-C ends them all.
import { spawn } from 'node:child_process';
import * as fs from 'node:fs';
import * as net from 'node:net';
import * as path from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..');
const COMMAND = path.join(ROOT, 'dist', 'bin', 'gateway.js');
const PORTS = { 'node-1': 9001, 'node-2': 9002, gateway: 8080, 'gateway (admin)': 9090 };

const LINES = `
Try this in another terminal:

  # 1. log in; the answer holds a token
  TOKEN=$(curl -s http://127.0.0.1:8080/js/a/auth/login -H 'content-type: application/json' \\
    -d '{"username":"alice"}' | sed 's/.*"token":"\\([^"]*\\)".*/\\1/'); echo $TOKEN

  # 2. see which node is alice's: X-Gateway-Node
  curl -i http://127.0.0.1:8080/js/a/whoami -H "x-token: $TOKEN"

  # 3. add a note, list it
  curl -s http://127.0.0.1:8080/js/a/notes -H "x-token: $TOKEN" -d '{"text":"buy milk"}'; echo
  curl -s http://127.0.0.1:8080/js/a/notes -H "x-token: $TOKEN"; echo

  # 4. kill alice's node: she gets 503 node_down, and never another node
  NODE=$(curl -si http://127.0.0.1:8080/js/a/whoami -H "x-token: $TOKEN" | sed -n 's/^x-gateway-node: \\(node-[12]\\).*/\\1/ip')
  pkill -f "demo-node.mjs --id $NODE"; sleep 5
  curl -s http://127.0.0.1:8080/js/a/notes -H "x-token: $TOKEN"; echo

  # 5. start it again: the note is there
  node examples/demo-node.mjs --id $NODE --port 900\${NODE#node-} &
  sleep 2; curl -s http://127.0.0.1:8080/js/a/notes -H "x-token: $TOKEN"; echo
`;

if (!fs.existsSync(COMMAND)) fail('the gateway is not built yet: run npm run build');
for (const [name, port] of Object.entries(PORTS)) {
  if (await isTaken(port)) fail(`port ${port} (${name}) is taken: end the program that listens there`);
}

const children = [
  run('node-1', 'examples/demo-node.mjs', '--id', 'node-1', '--port', '9001'),
  run('node-2', 'examples/demo-node.mjs', '--id', 'node-2', '--port', '9002'),
];
const gateway = run('gateway', COMMAND, 'serve', '--config', 'examples/quickstart.yaml');
children.push(gateway);
// A killed node is part of the demo; without the gateway there is none.
gateway.on('exit', (code) => end(code ?? 1));
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => end(0));

let ending = false;
function end(code) {
  if (ending) return;
  ending = true;
  for (const child of children) child.kill('SIGTERM');
  Promise.all(
    children.map(
      (child) => child.exitCode ?? child.signalCode ?? new Promise((resolve) => child.once('exit', resolve)),
    ),
  ).then(() => process.exit(code));
}

function run(name, ...args) {
  const child = spawn(process.execPath, args, { cwd: ROOT, stdio: ['ignore', 'pipe', 'pipe'] });
  let told = false;
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8');
    stream.on('data', (text) => {
      for (const line of text.split('\n')) if (line !== '') console.log(`${name.padEnd(8)} | ${line}`);
      if (name === 'gateway' && !told && text.includes('"event":"listening"')) {
        told = true;
        console.log(LINES);
      }
    });
  }
  if (name !== 'gateway') child.on('exit', () => !ending && console.log(`${name.padEnd(8)} | has ended`));
  return child;
}

function isTaken(port) {
  return new Promise((resolve) => {
    const server = net.createServer();
    server.once('error', () => resolve(true));
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(false)));
  });
}

function fail(message) {
  console.error(`demo: ${message}`);
  process.exit(1);
}
