#!/usr/bin/env node
// A small backend that keeps each user's notes in a folder of its own, so that a request on the wrong node shows at
// once: another node has neither the notes nor the token. Plain Node.js, no packages.
//
//   node examples/demo-node.mjs --id node-1 --port 9001 [--data demo-data] [--prefix /js/a]
import * as crypto from 'node:crypto';
import * as fs from 'node:fs/promises';
import * as http from 'node:http';
import * as path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const HERE = path.dirname(fileURLToPath(import.meta.url));
const { values: options } = parseArgs({
  options: {
    id: { type: 'string', default: 'node-1' },
    port: { type: 'string', default: '9001' },
    data: { type: 'string', default: path.join(HERE, '..', 'demo-data') },
    prefix: { type: 'string', default: '/js/a' },
  },
});
const { id, prefix } = options;
const folder = path.join(options.data, id);
const MAX_BODY = 65_536;

await fs.mkdir(folder, { recursive: true });

/** Token -> username. Only this node knows the tokens it gave out; they survive its restart. */
const tokens = new Map(Object.entries(await readJson(path.join(folder, 'tokens.json'), {})));
/** Writes happen one after the other. */
let writing = Promise.resolve();

async function readJson(file, fallback) {
  try {
    return JSON.parse(await fs.readFile(file, 'utf8'));
  } catch (error) {
    if (error.code === 'ENOENT') return fallback;
    throw error;
  }
}

/** Through a temporary file, so that a killed node never leaves half a file. */
function writeJson(file, value) {
  writing = writing.then(async () => {
    await fs.writeFile(`${file}.tmp`, JSON.stringify(value));
    await fs.rename(`${file}.tmp`, file);
  });
  return writing;
}

/** The same on every node, as if the nodes shared a table of users: 19 digits, more than a JavaScript number holds. */
function userIdOf(username) {
  const digest = crypto.createHash('sha256').update(username.toLowerCase()).digest();
  return String(1_000_000_000_000_000_000n + (digest.readBigUInt64BE() % 8_000_000_000_000_000_000n));
}

function notesFile(username) {
  return path.join(folder, `notes-${userIdOf(username)}.json`);
}

async function readBody(request) {
  const chunks = [];
  let size = 0;
  for await (const chunk of request) {
    size += chunk.length;
    if (size > MAX_BODY) throw Object.assign(new Error('too large'), { status: 413 });
    chunks.push(chunk);
  }
  try {
    return JSON.parse(Buffer.concat(chunks).toString('utf8') || '{}');
  } catch {
    throw Object.assign(new Error('the body is not JSON'), { status: 400 });
  }
}

function send(response, status, text) {
  const body = typeof text === 'string' ? text : JSON.stringify(text);
  response.writeHead(status, {
    'Content-Type': 'application/json',
    'Content-Length': Buffer.byteLength(body),
  });
  response.end(body);
}

async function logIn(request, response) {
  const { username, password } = await readBody(request);
  if (typeof username !== 'string' || username === '' || password === 'wrong') {
    send(response, 200, { code: 40001, message: 'wrong name or password' });
    return;
  }
  const token = crypto.randomBytes(16).toString('hex');
  tokens.set(token, username);
  await writeJson(path.join(folder, 'tokens.json'), Object.fromEntries(tokens));
  // The id goes out as a JSON number, as Java services send theirs.
  const data = JSON.stringify({ token, userId: '@', username }).replace('"@"', userIdOf(username));
  send(response, 200, `{"code":200,"data":${data}}`);
}

async function serve(request, response) {
  const { pathname } = new URL(request.url, 'http://node');
  if (pathname === '/health') return send(response, 200, { status: 'UP', node: id });
  if (request.method === 'POST' && pathname === `${prefix}/auth/login`) return logIn(request, response);
  if (pathname === `${prefix}/`) return send(response, 200, { node: id, user: null });
  const username = tokens.get(request.headers['x-token']);
  if (username === undefined) return send(response, 401, { node: id, error: 'this node does not know that token' });
  if (pathname === `${prefix}/whoami`) return send(response, 200, { node: id, user: username });
  if (pathname === `${prefix}/notes`) return serveNotes(request, response, username);
  if (pathname === `${prefix}/events`) return serveEvents(response);
  send(response, 404, { node: id, error: 'no such page' });
}

async function serveNotes(request, response, username) {
  const notes = await readJson(notesFile(username), []);
  if (request.method === 'POST') {
    const { text } = await readBody(request);
    if (typeof text !== 'string') return send(response, 400, { node: id, error: 'text is missing' });
    notes.push(text);
    await writeJson(notesFile(username), notes);
  }
  send(response, 200, { node: id, user: username, notes });
}

function serveEvents(response) {
  response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
  let count = 0;
  const timer = setInterval(() => {
    count += 1;
    response.write(`data: {"node":"${id}","tick":${count}}\n\n`);
  }, 1_000);
  response.on('close', () => clearInterval(timer));
}

const server = http.createServer((request, response) => {
  serve(request, response).catch((error) => {
    if (!error.status) console.error(error);
    if (response.headersSent) response.destroy();
    else
      send(response, error.status ?? 500, {
        node: id,
        error: error.status ? error.message : 'internal error',
      });
  });
});
server.on('error', (error) => {
  console.error(
    `${id}: cannot listen on port ${options.port}: ${error.code === 'EADDRINUSE' ? 'it is taken' : error.message}`,
  );
  process.exit(1);
});
server.listen(Number(options.port), '127.0.0.1', () => {
  console.log(`${id} listens on http://127.0.0.1:${server.address().port} (pid ${process.pid}), data in ${folder}`);
});

for (const signal of ['SIGTERM', 'SIGINT']) {
  process.on(signal, () => {
    server.close(() => process.exit(0));
    server.closeAllConnections();
  });
}
