// One peer as a process of its own: node peer.mjs NAME PORT TARGET. All keep their connections to the target alive and
// do nothing else: no log, no metrics, no look-up.
import * as http from 'node:http';

const [name, port, target] = process.argv.slice(2);
const megabyte = Buffer.alloc(1_048_576, 'x');
const agent = new http.Agent({ keepAlive: true, maxFreeSockets: 256 });

function listen(handler) {
  http.createServer(handler).listen(Number(port), '127.0.0.1');
}

function answerLogin(response, { token, userId }) {
  response.setHeader('Content-Type', 'application/json');
  response.end(JSON.stringify({ code: 200, data: { token, userId, username: 'bench' } }));
}

function refuse(_error, _request, response) {
  if (response.writeHead && !response.headersSent) response.writeHead(502);
  response.end?.();
}

switch (name) {
  case 'hello':
    listen((_request, response) => response.end('hello, this is a small answer'));
    break;
  case 'http-proxy': {
    const { default: httpProxy } = await import('http-proxy');
    const proxy = httpProxy.createProxyServer({ target, agent });
    proxy.on('error', refuse);
    listen((request, response) => proxy.web(request, response));
    break;
  }
  case 'http-proxy-3': {
    const { createProxyServer } = await import('http-proxy-3');
    const proxy = createProxyServer({ target, agent });
    proxy.on('error', refuse);
    listen((request, response) => proxy.web(request, response));
    break;
  }
  case 'httpxy': {
    const { createProxyServer } = await import('httpxy');
    const proxy = createProxyServer({ target, agent });
    listen((request, response) => proxy.web(request, response).catch((error) => refuse(error, request, response)));
    break;
  }
  case 'fastify': {
    const [{ default: fastify }, { default: plugin }] = await Promise.all([
      import('fastify'),
      import('@fastify/http-proxy'),
    ]);
    const server = fastify({ logger: false });
    server.register(plugin, { upstream: target, http: { agents: { 'http:': agent } } });
    await server.listen({ port: Number(port), host: '127.0.0.1' });
    break;
  }
  case 'backend':
    // Where there is no nginx: a small answer, a sink, a megabyte, and an answer to logins.
    listen((request, response) => {
      request.resume();
      request.on('end', () => {
        if (request.url === '/js/a/file') response.end(megabyte);
        else if (request.url === '/js/a/auth/login') answerLogin(response, { token: 'bench-token', userId: '1' });
        else response.end('hello, this is a small answer');
      });
    });
    break;
  case 'events':
    // A backend: ten events a second on every connection, and an answer to logins.
    listen((request, response) => {
      if (request.method === 'POST') {
        request.resume();
        answerLogin(response, { token: 'bench-events-token', userId: '2' });
        return;
      }
      response.writeHead(200, { 'Content-Type': 'text/event-stream' });
      const timer = setInterval(() => response.write(`data: ${Date.now()}\n\n`), 100);
      response.on('close', () => clearInterval(timer));
    });
    break;
  default:
    console.error(`no peer '${name}'`);
    process.exit(2);
}
process.on('SIGTERM', () => process.exit(0));
