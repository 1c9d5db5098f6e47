#!/usr/bin/env node
// A small backend that keeps each user's notes in a folder of its own, so that a request on the wrong node shows at
// once: another node has neither the notes nor the token. Plain Node.js, no packages.
//
//   node examples/demo-node.mjs --id node-1 --port 9001 [--data demo-data] [--prefix /js/a]     (--port 0 = any free one)
import * as crypto from 'node:crypto';
import * as fs from 'node:fs/promises';
import * as http from 'node:http';
import * as path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const MAX_BODY_BYTES = 65_536;
/** Longest wait at the end for requests that are under way. */
const GRACE_MS = 2_000;
const TICK_MS = 1_000;

const { id, port, data, prefix } = readOptions();
const folder = path.join(data, id);
const tokensFile = path.join(folder, 'tokens.json');

/** Changes of files, one after the other: two requests that arrive together must not overwrite each other's change. */
let lastChange = Promise.resolve();
/** Open event streams; they have no end of their own. */
const streams = new Set();
/** Token -> username. Only this node knows the tokens it gave out; they survive its restart. */
let tokens;
try {
  await fs.mkdir(folder, { recursive: true });
  tokens = new Map(Object.entries(await readJson(tokensFile, {})));
} catch (error) {
  fail(1, `cannot use the folder ${folder}: ${error.message}`);
}

function readOptions() {
  const here = path.dirname(fileURLToPath(import.meta.url));
  let values;
  try {
    values = parseArgs({
      options: {
        id: { type: 'string', default: 'node-1' },
        port: { type: 'string', default: '9001' },
        data: { type: 'string', default: path.join(here, '..', 'demo-data') },
        prefix: { type: 'string', default: '/js/a' },
      },
    }).values;
  } catch (error) {
    fail(2, error.message);
  }
  // The id names a folder.
  if (!/^(?!\.+$)[A-Za-z0-9._-]{1,64}$/.test(values.id)) fail(2, `--id must be a plain name, not '${values.id}'`);
  if (!/^\d{1,5}$/.test(values.port) || Number(values.port) > 65_535)
    fail(2, `--port must be 0 to 65535, not '${values.port}'`);
  return { ...values, port: Number(values.port), prefix: values.prefix.replace(/\/+$/, '') };
}

function fail(code, message) {
  console.error(`demo-node: ${message}`);
  process.exit(code);
}

async function readJson(file, fallback) {
  try {
    return JSON.parse(await fs.readFile(file, 'utf8'));
  } catch (error) {
    if (error.code === 'ENOENT') return fallback;
    throw error;
  }
}

/** Through a temporary file, so that a killed node never leaves half a file. */
async function writeJson(file, value) {
  await fs.writeFile(`${file}.tmp`, JSON.stringify(value));
  await fs.rename(`${file}.tmp`, file);
}

/** Runs `change` when all changes before it are over, whether they worked or not. */
function inTurn(change) {
  const result = lastChange.then(change);
  lastChange = result.catch(() => 'whoever asked for the change has the error');
  return result;
}

/** The same on every node, as if the nodes shared a table of users: 19 digits, more than a JavaScript number holds. */
function userIdOf(username) {
  const digest = crypto.createHash('sha256').update(username.toLowerCase()).digest();
  return String(1_000_000_000_000_000_000n + (digest.readBigUInt64BE() % 8_000_000_000_000_000_000n));
}

/** Named by the id, never by the name: a user may be called `../../etc/passwd`. */
function notesFile(username) {
  return path.join(folder, `notes-${userIdOf(username)}.json`);
}

/** A JSON object, or an error with the status to answer. */
async function readBody(request) {
  const chunks = [];
  let size = 0;
  for await (const chunk of request) {
    size += chunk.length;
    // What is too much is read all the same and dropped, or the client would not see the answer.
    if (size <= MAX_BODY_BYTES) chunks.push(chunk);
  }
  if (size > MAX_BODY_BYTES) throw refusal(413, 'the body is too large');
  let body;
  try {
    body = JSON.parse(Buffer.concat(chunks).toString('utf8'));
  } catch {
    throw refusal(400, 'the body is not JSON');
  }
  if (typeof body !== 'object' || body === null) throw refusal(400, 'the body is not a JSON object');
  return body;
}

function refusal(status, message) {
  return Object.assign(new Error(message), { status });
}

/** `body`: JSON text, or what is to become it. */
function send(response, status, body) {
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  response.writeHead(status, { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(text) });
  response.end(text);
}

async function logIn(request, response) {
  const { username, password } = await readBody(request);
  if (typeof username !== 'string' || username === '' || password === 'wrong') {
    send(response, 200, { code: 40001, message: 'wrong name or password' });
    return;
  }
  const token = crypto.randomBytes(16).toString('hex');
  await inTurn(async () => {
    await writeJson(tokensFile, { ...Object.fromEntries(tokens), [token]: username });
    tokens.set(token, username);
  });
  // The id goes out as a JSON number, as Java services send theirs.
  const user = `"userId":${userIdOf(username)},"username":${JSON.stringify(username)}`;
  send(response, 200, `{"code":200,"data":{"token":"${token}",${user}}}`);
}

async function serve(request, response) {
  const { method } = request;
  const pathname = request.url.split('?', 1)[0];
  if (pathname === '/health') return send(response, 200, { status: 'UP', node: id });
  if (pathname === `${prefix}/auth/login` && method === 'POST') return logIn(request, response);
  if (pathname === `${prefix}/`) return send(response, 200, { node: id, user: null });
  const user = tokens.get(request.headers['x-token']);
  if (user === undefined) return send(response, 401, { node: id, error: 'this node does not know that token' });
  if (pathname === `${prefix}/whoami`) return send(response, 200, { node: id, user, pid: process.pid });
  if (pathname === `${prefix}/notes` && method === 'GET') return sendNotes(response, user);
  if (pathname === `${prefix}/notes` && method === 'POST') return addNote(request, response, user);
  if (pathname === `${prefix}/events`) return sendEvents(response);
  send(response, 404, { node: id, error: 'there is nothing here' });
}

async function sendNotes(response, user) {
  send(response, 200, { node: id, user, notes: await readJson(notesFile(user), []) });
}

async function addNote(request, response, user) {
  const { text } = await readBody(request);
  if (typeof text !== 'string') throw refusal(400, 'text is missing');
  const notes = await inTurn(async () => {
    const all = [...(await readJson(notesFile(user), [])), text];
    await writeJson(notesFile(user), all);
    return all;
  });
  send(response, 200, { node: id, user, notes });
}

function sendEvents(response) {
  response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
  let count = 0;
  const tick = () => {
    count += 1;
    response.write(`data: {"node":"${id}","tick":${count}}\n\n`);
  };
  tick();
  const timer = setInterval(tick, TICK_MS);
  streams.add(response);
  response.on('close', () => {
    clearInterval(timer);
    streams.delete(response);
  });
}

const server = http.createServer((request, response) => {
  serve(request, response).catch((error) => {
    // A client that left in the middle of its body is no fault of the node.
    if (error.status === undefined && !request.destroyed) console.error(error);
    if (response.headersSent) response.destroy();
    else send(response, error.status ?? 500, { node: id, error: error.status ? error.message : 'internal error' });
  });
});
server.on('error', (error) => {
  const reason = error.code === 'EADDRINUSE' ? 'it is taken' : error.message;
  fail(1, `${id} cannot listen on port ${port}: ${reason}`);
});
server.listen(port, '127.0.0.1', () => {
  console.log(`${id} listens on http://127.0.0.1:${server.address().port} (pid ${process.pid}), data in ${folder}`);
});

for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP']) {
  process.on(signal, () => {
    // Requests under way are answered, so their changes are written.
    server.close(() => process.exit(0));
    for (const response of streams) response.end();
    // Connections that become idle from now on would be kept for further requests.
    setInterval(() => server.closeIdleConnections(), 20).unref();
    setTimeout(() => server.closeAllConnections(), GRACE_MS).unref();
  });
}
