/** Every kind of mistake in a configuration file, with the exact text and place it is reported at. */
import assert from 'node:assert/strict';
import * as fs from 'node:fs';
import * as os from 'node:os';
import * as path from 'node:path';
import { describe, it } from 'node:test';
import { ConfigError, formatProblem, loadConfig, readConfigFile } from '../../lib/config/load.ts';

/** Five lines of a sound file; what follows begins on line 6. */
const SOUND = 'services:\n  - id: a\n    pathPrefix: /a\n    nodes:\n      - { id: n1, baseUrl: "http://h:1" }\n';

const MISTAKES: readonly (readonly [title: string, text: string, problem: string])[] = [
  ['an unknown key at the top', SOUND + 'listn: ":80"\n', 'g.yaml:6:1: listn: unknown key (did you mean listen?)'],
  [
    'a key in another spelling',
    SOUND + 'trusted_proxies: []\n',
    'g.yaml:6:1: trusted_proxies: unknown key (did you mean trustedProxies?)',
  ],
  ['a key that is like nothing', SOUND + 'frobnicate: 1\n', 'g.yaml:6:1: frobnicate: unknown key'],
  ['a key that stands twice', SOUND + 'workers: 1\nworkers: 1\n', 'g.yaml:7:1: workers: this key stands here twice'],
  ['a tab as indentation', 'services:\n	- id: a\n', 'g.yaml:2:1: tabs must not be used for indentation: use blanks'],
  [
    'YAML that does not parse',
    SOUND + 'allow: [a, b\n',
    'g.yaml:7:1: this is not YAML: Flow sequence in block collection must be sufficiently indented and end with a ]',
  ],
  ['no services', 'workers: 1\n', 'g.yaml:1:1: services is missing: at least one is needed'],
  ['an empty file', '', 'g.yaml:1:1: services is missing: at least one is needed'],
  ['an empty list of services', 'services: []\n', 'g.yaml:1:11: services: must name at least one service'],
  [
    'services that are no list',
    'services: { id: a }\n',
    'g.yaml:1:11: services: must be a list of services, not a mapping',
  ],
  [
    'a listen address without a port',
    SOUND + 'listen: localhost\n',
    "g.yaml:6:9: listen: must be host:port, such as 0.0.0.0:8080 or [::]:8080, not 'localhost'",
  ],
  [
    'a port above 65535 in text',
    SOUND + 'listen: "0.0.0.0:99999"\n',
    "g.yaml:6:9: listen: has a port above 65535: '0.0.0.0:99999'",
  ],
  [
    'a port above 65535 in a mapping',
    SOUND + 'listen: { host: h, port: 99999 }\n',
    'g.yaml:6:26: listen.port: must be a whole number, from 0 to 65535, not 99999',
  ],
  [
    'a bare number as address',
    SOUND + 'listen: 8080\n',
    'g.yaml:6:9: listen: must be \'host:port\' (did you mean ":8080"?)',
  ],
  [
    'two equal addresses',
    SOUND + 'listen: [":80", "0.0.0.0:80"]\n',
    'g.yaml:6:17: listen[1]: is listened on already: 0.0.0.0:80',
  ],
  [
    'TLS without a key',
    SOUND + 'listen: { port: 443, tls: { cert: c.pem } }\n',
    'g.yaml:6:27: listen.tls.key: is missing: the path of a PEM file',
  ],
  ['no workers', SOUND + 'workers: 0\n', 'g.yaml:6:10: workers: must be a whole number, 1 or more, not 0'],
  [
    'workers without PostgreSQL',
    SOUND + 'workers: auto\n',
    'g.yaml:6:10: workers: more than one worker needs store.postgres: the embedded store belongs to one process',
  ],
  [
    'a network that is none',
    SOUND + 'allow: [10.0.0.0/33]\n',
    "g.yaml:6:9: allow[0]: is not an address or a network such as 10.0.0.0/8: '10.0.0.0/33'",
  ],
  [
    'a list that is text',
    SOUND + 'trustedProxies: 10.0.0.0/8\n',
    'g.yaml:6:17: trustedProxies: must be a list of networks such as 10.0.0.0/8, not text',
  ],
  [
    'a duration without a unit',
    SOUND + 'cache: { ttl: 10 }\n',
    'g.yaml:6:15: cache.ttl: must be a duration such as 250ms, 5s, 2m or 24h, not 10 (did you mean 10s?)',
  ],
  [
    'a duration in days',
    SOUND + 'cache: { ttl: 1d }\n',
    "g.yaml:6:15: cache.ttl: must be a duration such as 250ms, 5s, 2m or 24h, not '1d'",
  ],
  ['a period of zero', SOUND + 'timeouts: { connect: 0s }\n', 'g.yaml:6:22: timeouts.connect: must be longer than 0'],
  [
    'a size without a unit',
    SOUND + 'limits: { header: 32768 }\n',
    'g.yaml:6:19: limits.header: must be a size such as 64KB or 10MB, not 32768 (did you mean 32768B?)',
  ],
  [
    'a size of zero',
    SOUND + 'limits: { body: 0KB }\n',
    "g.yaml:6:17: limits.body: must be a size such as 64KB or 10MB, not '0KB'",
  ],
  [
    'a count with a fraction',
    SOUND + 'health: { failures: 2.5 }\n',
    'g.yaml:6:21: health.failures: must be a whole number, 1 or more, not 2.5',
  ],
  [
    'a share that is too large',
    SOUND + 'health: { jitter: 1 }\n',
    'g.yaml:6:19: health.jitter: must be a number, from 0 to 0.5, not 1',
  ],
  [
    'a switch that is a word',
    SOUND + 'log: { access: yes please }\n',
    "g.yaml:6:16: log.access: must be true or false, not 'yes please'",
  ],
  [
    'a choice that does not exist',
    SOUND + 'log: { level: warning }\n',
    "g.yaml:6:15: log.level: must be one of debug, info, warn, error, not 'warning'",
  ],
  [
    'a variable that is not set',
    SOUND + 'store: { postgres: { url: "${DATABASE_URL}" } }\n',
    'g.yaml:6:27: store.postgres.url: the environment variable DATABASE_URL is not set (${DATABASE_URL:-default} gives a default)',
  ],
  [
    'a reference that is none',
    SOUND + 'via: "${a b}"\n',
    "g.yaml:6:6: via: '${' begins no reference: write ${NAME} or ${NAME:-default}, or $${ for a plain ${",
  ],
  [
    'a database URL of another kind',
    SOUND + 'store: { postgres: { url: "mysql://u:secret@h/d" } }\n',
    'g.yaml:6:27: store.postgres.url: must be a URL such as postgres://user:password@host:5432/database',
  ],
  [
    'PostgreSQL without a URL',
    SOUND + 'store: { postgres: { poolSize: 5 } }\n',
    'g.yaml:6:20: store.postgres.url: is missing: such as postgres://user:password@host:5432/database',
  ],
  [
    'a URL that came out empty',
    SOUND + 'store: { redis: { url: "${NOTHING:-}" } }\n',
    'g.yaml:6:24: store.redis.url: is empty: nothing is in the value of ${NOTHING}',
  ],
  [
    'a Redis with two kinds of address',
    SOUND + 'store: { redis: { url: "redis://h", cluster: ["redis://h"] } }\n',
    'g.yaml:6:17: store.redis: has url and cluster: choose one',
  ],
  [
    'sentinels without a name',
    SOUND + 'store: { redis: { sentinels: ["redis://h:26379"] } }\n',
    'g.yaml:6:17: store.redis.name: is missing: the name of the master that the sentinels watch',
  ],
  [
    'a resolver of two kinds',
    SOUND + 'identity: { resolvers: [{ jwt: { secret: s }, redis: { key: "{token}" } }] }\n',
    'g.yaml:6:25: identity.resolvers[0]: must be one of saToken: {…}, jwt: {…}, redis: {…}',
  ],
  [
    'a resolver without a Redis',
    SOUND + 'identity:\n  resolvers:\n    - redis: { key: "sess:{token}" }\n',
    'g.yaml:8:14: identity.resolvers[0].redis: needs a redis of its own, since store.redis is not set',
  ],
  [
    'a session key without its token',
    SOUND + 'identity:\n  resolvers:\n    - redis: { redis: { url: "redis://h" }, key: sess }\n',
    'g.yaml:8:50: identity.resolvers[0].redis.key: must have {token} in it, such as sess:{token}',
  ],
  [
    'a JWT without a key',
    SOUND + 'identity:\n  resolvers:\n    - jwt: { claim: sub }\n',
    'g.yaml:8:12: identity.resolvers[0].jwt: needs secret, publicKey or jwksFile',
  ],
  [
    'a JWT with two keys',
    SOUND + 'identity:\n  resolvers:\n    - jwt: { secret: s, publicKey: p.pem }\n',
    'g.yaml:8:12: identity.resolvers[0].jwt: has secret and publicKey: choose one',
  ],
  [
    'the algorithm none',
    SOUND + 'identity:\n  resolvers:\n    - jwt: { secret: s, algorithms: [none] }\n',
    "g.yaml:8:38: identity.resolvers[0].jwt.algorithms[0]: 'none' is no signature and is never accepted",
  ],
  [
    'an HMAC algorithm with a public key',
    SOUND + 'identity:\n  resolvers:\n    - jwt: { publicKey: p.pem, algorithms: [HS256] }\n',
    "g.yaml:8:45: identity.resolvers[0].jwt.algorithms[0]: must be one of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA with a public key, not 'HS256'",
  ],
  [
    'a header name with a blank',
    SOUND + 'identity: { token: { header: "x token" } }\n',
    "g.yaml:6:30: identity.token.header: is not the name of a header field: 'x token'",
  ],
  [
    'CORS without an origin',
    SOUND + 'cors: { enabled: true }\n',
    'g.yaml:6:7: cors: is enabled but allowedOriginPatterns names no origin',
  ],
  [
    'a short admin token',
    SOUND + 'admin: { tokens: [{ name: ops, role: admin, token: hunter2 }] }\n',
    'g.yaml:6:52: admin.tokens[0].token: must have at least 16 characters',
  ],
  [
    'an admin role that does not exist',
    SOUND + 'admin: { tokens: [{ name: ops, role: root, token: 0123456789abcdefg }] }\n',
    "g.yaml:6:38: admin.tokens[0].role: must be one of viewer, operator, admin, not 'root'",
  ],
  [
    'two admin tokens of one name',
    SOUND +
      'admin: { tokens: [{ name: a, role: admin, token: 0123456789abcdefg }, { name: a, role: viewer, token: 0123456789abcdefh }] }\n',
    "g.yaml:6:79: admin.tokens[1].name: is used twice: 'a'",
  ],
  [
    'a service id that is a number',
    'services:\n  - id: 7\n    pathPrefix: /a\n',
    'g.yaml:2:9: services[0].id: must be text, not 7 (quote it: "7")',
  ],
  [
    'a service id with a colon',
    'services:\n  - id: "a:b"\n    pathPrefix: /a\n',
    "g.yaml:2:9: services[0].id: must be 1 to 64 letters, digits, '.', '_' or '-', not 'a:b'",
  ],
  ['a service without an id', 'services:\n  - pathPrefix: /a\n', 'g.yaml:2:5: services[0].id: is missing'],
  [
    'two services of one id',
    'services:\n  - { id: a, pathPrefix: /a }\n  - { id: a, pathPrefix: /b }\n',
    "g.yaml:3:11: services[1].id: 'a' is the id of services[0] already",
  ],
  [
    'two equal prefixes',
    'services:\n  - { id: a, pathPrefix: /x }\n  - { id: b, pathPrefix: /x }\n',
    "g.yaml:3:26: services[1].pathPrefix: '/x' is the prefix of services[0] already",
  ],
  [
    'prefixes that differ by a trailing slash',
    'services:\n  - { id: a, pathPrefix: /x }\n  - { id: b, pathPrefix: /x/ }\n',
    "g.yaml:3:26: services[1].pathPrefix: must not end in '/': write '/x'",
  ],
  [
    'an empty prefix',
    'services:\n  - { id: a, pathPrefix: "" }\n',
    "g.yaml:2:26: services[0].pathPrefix: must not be empty: write '/' for everything",
  ],
  [
    'a prefix without a slash',
    'services:\n  - { id: a, pathPrefix: js/a }\n',
    "g.yaml:2:26: services[0].pathPrefix: must start with '/': write '/js/a'",
  ],
  [
    'a prefix with a query',
    'services:\n  - { id: a, pathPrefix: /a?b }\n',
    "g.yaml:2:26: services[0].pathPrefix: must be a path without '?' or '#'",
  ],
  [
    'a prefix with dot segments',
    'services:\n  - { id: a, pathPrefix: /a/../b }\n',
    "g.yaml:2:26: services[0].pathPrefix: must not hold '.' or '..' segments",
  ],
  [
    'a prefix with a blank',
    'services:\n  - { id: a, pathPrefix: "/a b" }\n',
    'g.yaml:2:26: services[0].pathPrefix: must hold no blanks, backslashes or characters outside ASCII',
  ],
  [
    'a prefix with an encoded slash',
    'services:\n  - { id: a, pathPrefix: /a%2Fb }\n',
    "g.yaml:2:26: services[0].pathPrefix: must not hold encoded '/', '\\', '.' or NUL",
  ],
  [
    'a service that nothing reaches',
    'services:\n  - { id: a }\n',
    'g.yaml:2:5: services[0]: has no pathPrefix and no route names it, so nothing can reach it',
  ],
  [
    'a login path without a slash',
    'services:\n  - id: a\n    pathPrefix: /a\n    loginPath: auth/login\n    nodes:\n      - { id: n1, baseUrl: "http://h:1" }\n',
    "g.yaml:4:16: services[0].loginPath: must start with '/': write '/auth/login'",
  ],
  [
    'a login on a stateless service',
    'services:\n  - id: a\n    pathPrefix: /a\n    affinity: none\n    loginPath: /login\n    nodes:\n      - { id: n1, baseUrl: "http://h:1" }\n',
    'g.yaml:5:16: services[0].loginPath: means nothing with affinity: none; remove it, or use affinity: user',
  ],
  [
    'a default node that is not there',
    'services:\n  - id: a\n    pathPrefix: /a\n    defaultNodeId: n9\n    nodes:\n      - { id: n1, baseUrl: "http://h:1" }\n',
    "g.yaml:4:20: services[0].defaultNodeId: names no node of this service: 'n9'",
  ],
  [
    'a placement that does not exist',
    'services:\n  - id: a\n    pathPrefix: /a\n    placement: least-user\n    nodes:\n      - { id: n1, baseUrl: "http://h:1" }\n',
    "g.yaml:4:16: services[0].placement: must be one of round-robin, least-users, weighted, not 'least-user' (did you mean least-users?)",
  ],
  [
    'a dotted path with a gap',
    'services:\n  - id: a\n    pathPrefix: /a\n    login: { response: { userId: data..id } }\n    nodes:\n      - { id: n1, baseUrl: "http://h:1" }\n',
    "g.yaml:4:34: services[0].login.response.userId: must be a dotted path such as data.userId, not 'data..id'",
  ],
  [
    'a success value that is a list',
    'services:\n  - id: a\n    pathPrefix: /a\n    login: { response: { success: { code: [200] } } }\n    nodes:\n      - { id: n1, baseUrl: "http://h:1" }\n',
    'g.yaml:4:43: services[0].login.response.success.code: must be text, a number, true, false or null',
  ],
  [
    'a token cookie without a name',
    'services:\n  - id: a\n    pathPrefix: /a\n    login: { response: { token: "cookie:" } }\n    nodes:\n      - { id: n1, baseUrl: "http://h:1" }\n',
    'g.yaml:4:33: services[0].login.response.token: must name a cookie, as in cookie:token',
  ],
  [
    'an unknown key of a login',
    'services:\n  - id: a\n    pathPrefix: /a\n    login: { response: { sucess: { code: 0 } } }\n    nodes:\n      - { id: n1, baseUrl: "http://h:1" }\n',
    'g.yaml:4:26: services[0].login.response.sucess: unknown key (did you mean success?)',
  ],
  [
    'a negative weight',
    'services:\n  - id: a\n    pathPrefix: /a\n    nodes:\n      - { id: n1, baseUrl: "http://h:1", weight: -1 }\n',
    'g.yaml:5:50: services[0].nodes[0].weight: must be a number, 0 or more, not -1',
  ],
  [
    'a node for no users',
    'services:\n  - id: a\n    pathPrefix: /a\n    nodes:\n      - { id: n1, baseUrl: "http://h:1", maxUsers: 0 }\n',
    'g.yaml:5:52: services[0].nodes[0].maxUsers: must be a whole number, from 1 to 2147483647, not 0',
  ],
  [
    'a node without a base URL',
    'services:\n  - id: a\n    pathPrefix: /a\n    nodes:\n      - { id: n1 }\n',
    'g.yaml:5:9: services[0].nodes[0].baseUrl: is missing: write scheme, host and port, such as http://127.0.0.1:9001',
  ],
  [
    'a base URL with a path',
    'services:\n  - id: a\n    pathPrefix: /a\n    nodes:\n      - { id: n1, baseUrl: "http://h:1/app" }\n',
    'g.yaml:5:28: services[0].nodes[0].baseUrl: must be http:// or https:// with host and port only, such as http://127.0.0.1:9001',
  ],
  [
    'a base URL with a password',
    'services:\n  - id: a\n    pathPrefix: /a\n    nodes:\n      - { id: n1, baseUrl: "http://u:secret@h:1" }\n',
    'g.yaml:5:28: services[0].nodes[0].baseUrl: must be http:// or https:// with host and port only, such as http://127.0.0.1:9001',
  ],
  [
    'a base URL of another scheme',
    'services:\n  - id: a\n    pathPrefix: /a\n    nodes:\n      - { id: n1, baseUrl: "tcp://h:1" }\n',
    'g.yaml:5:28: services[0].nodes[0].baseUrl: must be http:// or https:// with host and port only, such as http://127.0.0.1:9001',
  ],
  [
    'two nodes of one id',
    'services:\n  - { id: a, pathPrefix: /a, nodes: [{ id: n1, baseUrl: "http://h:1" }] }\n  - { id: b, pathPrefix: /b, nodes: [{ id: n1, baseUrl: "http://h:2" }] }\n',
    "g.yaml:3:44: services[1].nodes[0].id: 'n1' is the id of services[0].nodes[0] already: node ids are unique across services",
  ],
  [
    'two nodes of one address',
    'services:\n  - { id: a, pathPrefix: /a, nodes: [{ id: n1, baseUrl: "http://h:80" }, { id: n2, baseUrl: "http://h" }] }\n',
    'g.yaml:2:93: services[0].nodes[1].baseUrl: is the address of services[0].nodes[0] already',
  ],
  [
    'a route to a service that is not there',
    SOUND + 'routes:\n  - { id: r, pathPrefix: /r, versions: [{ version: v1, service: zz }] }\n',
    "g.yaml:7:65: routes[0].versions[0].service: names no service: 'zz'",
  ],
  [
    'a route without versions',
    SOUND + 'routes:\n  - { id: r, pathPrefix: /r }\n',
    'g.yaml:7:5: routes[0].versions: must name at least one version',
  ],
  [
    'a rule for a version that is not there',
    SOUND +
      'routes:\n  - id: r\n    pathPrefix: /r\n    versions: [{ version: v1, service: a }]\n    rules: [{ type: header, name: X, value: y, version: v2 }]\n',
    "g.yaml:10:57: routes[0].rules[0].version: names no version of this route: 'v2' (did you mean v1?)",
  ],
  [
    'a weight rule above 100',
    SOUND +
      'routes:\n  - id: r\n    pathPrefix: /r\n    versions: [{ version: v1, service: a }]\n    rules: [{ type: weight, value: 101, version: v1 }]\n',
    'g.yaml:10:36: routes[0].rules[0].value: must be a number, from 0 to 100, not 101',
  ],
  [
    'a route to a service whose name is nearly right',
    SOUND.replace('id: a', 'id: user-v1') +
      'routes:\n  - { id: r, pathPrefix: /r, versions: [{ version: v1, service: users-v1 }] }\n',
    "g.yaml:7:65: routes[0].versions[0].service: names no service: 'users-v1' (did you mean user-v1?)",
  ],
  [
    'a route with the prefix of a service',
    SOUND + 'routes:\n  - { id: r, pathPrefix: /a, versions: [{ version: v1, service: a }] }\n',
    "g.yaml:7:26: routes[0].pathPrefix: '/a' is the prefix of services[0] already",
  ],
  [
    'a version that stands twice',
    SOUND +
      'routes:\n  - id: r\n    pathPrefix: /r\n    versions: [{ version: v1, service: a, weight: 1 }, { version: v1, service: a }]\n',
    "g.yaml:9:67: routes[0].versions[1].version: is used twice: 'v1'",
  ],
  [
    'versions without any weight',
    SOUND +
      'routes:\n  - id: r\n    pathPrefix: /r\n    versions: [{ version: v1, service: a }, { version: v2, service: a, weight: 0 }]\n',
    'g.yaml:9:15: routes[0].versions: must give a weight to at least one version: weight 0 gets nothing',
  ],
  [
    'a negative weight, which is not reported as none',
    SOUND +
      'routes:\n  - id: r\n    pathPrefix: /r\n    versions: [{ version: v1, service: a, weight: -1 }, { version: v2, service: a }]\n',
    'g.yaml:9:51: routes[0].versions[0].weight: must be a number, 0 or more, not -1',
  ],
  [
    'two weight rules for one version',
    SOUND +
      'routes:\n  - id: r\n    pathPrefix: /r\n    versions: [{ version: v1, service: a }]\n    rules: [{ type: weight, value: 1, version: v1 }, { type: weight, value: 2, version: v1 }]\n',
    'g.yaml:10:54: routes[0].rules[1]: is for the same version as rules[0]: write one percentage',
  ],
  [
    'two rules that look for the same, the header spelled differently',
    SOUND +
      'routes:\n  - id: r\n    pathPrefix: /r\n    versions: [{ version: v1, service: a }]\n    rules: [{ type: header, name: X-V, value: y, version: v1 }, { type: header, name: x-v, value: y, version: v1 }]\n',
    'g.yaml:10:65: routes[0].rules[1]: looks for the same as rules[0], which comes first',
  ],
  [
    'a header value that no client can send',
    SOUND +
      'routes:\n  - id: r\n    pathPrefix: /r\n    versions: [{ version: v1, service: a }]\n    rules: [{ type: header, name: X-V, value: " v2", version: v1 }]\n',
    'g.yaml:10:47: routes[0].rules[0].value: can never be the value of a header: it begins or ends with a blank, or holds a control',
  ],
  [
    'versions of both affinities that share users by weight',
    'services:\n  - { id: a, nodes: [] }\n  - { id: b, affinity: none, nodes: [] }\nroutes:\n  - id: r\n    pathPrefix: /r\n    versions: [{ version: v1, service: a, weight: 90 }, { version: v2, service: b, weight: 10 }]\n',
    'g.yaml:7:57: routes[0].versions[1]: has a share by weight and affinity: none, unlike version v1: give one of them weight 0, and a rule with header, cookie or query',
  ],
  [
    'the same with a weight rule instead of a weight',
    'services:\n  - { id: a, nodes: [] }\n  - { id: b, affinity: none, nodes: [] }\nroutes:\n  - id: r\n    pathPrefix: /r\n    versions: [{ version: v1, service: a, weight: 90 }, { version: v2, service: b }]\n    rules: [{ type: weight, value: 5, version: v2 }]\n',
    'g.yaml:7:57: routes[0].versions[1]: has a share by weight and affinity: none, unlike version v1: give one of them weight 0, and a rule with header, cookie or query',
  ],
  [
    'a route with the id of a service',
    SOUND + 'routes:\n  - { id: a, pathPrefix: /r, versions: [{ version: v1, service: a }] }\n',
    "g.yaml:7:11: routes[0].id: 'a' is the id of services[0] already",
  ],
  [
    'an alias without an anchor',
    SOUND + 'via: *x\n',
    "g.yaml:6:6: via: begins with '*', and there is no anchor of this name: quote it if it is text",
  ],
  [
    'an alias of what it is part of',
    SOUND + 'routes: &r [*r]\n',
    'g.yaml:6:13: routes[0]: stands for the mapping or list that it is part of',
  ],
  [
    'a tag',
    SOUND + 'via: !foo bar\n',
    "g.yaml:6:6: begins with '!', which makes it a tag that is not known: quote it if it is text",
  ],
  ['a key that is a list', SOUND + '? [a]\n: b\n', 'g.yaml:6:3: has a key that is no text'],
  ['a second document', SOUND + '---\nworkers: 1\n', 'g.yaml:6:1: a second document begins here: there must be one'],
  [
    'a reference that does not end',
    SOUND + 'via: "${VIA"\n',
    "g.yaml:6:6: via: '${' begins no reference: write ${NAME} or ${NAME:-default}, or $${ for a plain ${",
  ],
  [
    'two variables that are not set, in one text',
    SOUND + 'store: { redis: { url: "redis://${A}:${B}" } }\n',
    'g.yaml:6:24: store.redis.url: the environment variable A is not set (${A:-default} gives a default); the environment variable B is not set (${B:-default} gives a default)',
  ],
  [
    'a word for a switch',
    SOUND + 'log: { access: yes }\n',
    "g.yaml:6:16: log.access: must be true or false, not 'yes' (did you mean true?)",
  ],
  [
    'an interval longer than a timer',
    SOUND + 'health: { interval: 9999h }\n',
    'g.yaml:6:21: health.interval: must not be longer than 596h',
  ],
  [
    'a cache larger than a map',
    SOUND + 'cache: { maxEntries: 100000000 }\n',
    'g.yaml:6:22: cache.maxEntries: must be a whole number, from 1 to 16000000, not 100000000',
  ],
  [
    'a listen host with a blank',
    SOUND + 'listen: { host: "a b", port: 1 }\n',
    "g.yaml:6:17: listen.host: must be a host name or an address, not 'a b'",
  ],
  [
    'a bad address next to the default one',
    SOUND + 'listen: [nonsense, ":8080"]\n',
    "g.yaml:6:10: listen[0]: must be host:port, such as 0.0.0.0:8080 or [::]:8080, not 'nonsense'",
  ],
  [
    'the admin listener on a public address',
    SOUND + 'listen: "127.0.0.1:9090"\n',
    'g.yaml:6:9: listen: 127.0.0.1:9090 is the address of the admin listener and of a public one',
  ],
  [
    'an admin token with a blank',
    SOUND + 'admin: { tokens: [{ name: a, role: admin, token: "0123456789 abcdefg" }] }\n',
    'g.yaml:6:50: admin.tokens[0].token: must hold no blanks or characters outside ASCII: no request could carry it',
  ],
  [
    'two names with one admin token',
    SOUND +
      'admin: { tokens: [{ name: a, role: admin, token: 0123456789abcdefg }, { name: b, role: viewer, token: 0123456789abcdefg }] }\n',
    'g.yaml:6:103: admin.tokens[1].token: is the token of another name already',
  ],
  [
    'a name for a Redis without sentinels',
    SOUND + 'store: { redis: { url: "redis://h", name: m } }\n',
    'g.yaml:6:43: store.redis.name: means nothing without sentinels',
  ],
  [
    'a resolver that does not exist',
    SOUND + 'identity: { resolvers: [{ satoken: {} }] }\n',
    'g.yaml:6:27: identity.resolvers[0].satoken: unknown key (did you mean saToken?)',
  ],
  [
    'no place for a token',
    SOUND + 'identity: { token: { header: null } }\n',
    'g.yaml:6:20: identity.token: names no header, cookie or query parameter, so nobody would ever be known',
  ],
  [
    'a cookie name with a blank',
    SOUND + 'identity: { token: { cookie: "a b" } }\n',
    "g.yaml:6:30: identity.token.cookie: is not the name of a cookie: 'a b'",
  ],
  [
    'a service that is text',
    'services: [foo]\n',
    'g.yaml:1:12: services[0]: must be a mapping with keys such as id, name, pathPrefix, not text',
  ],
  [
    'a prefix that is a number, next to /',
    'services:\n  - { id: a, pathPrefix: 5 }\n  - { id: b, pathPrefix: / }\n',
    'g.yaml:2:26: services[0].pathPrefix: must be text, not 5 (quote it: "5")',
  ],
  [
    'a name longer than its column',
    'services:\n  - id: a\n    pathPrefix: /a\n    name: ' +
      'x'.repeat(257) +
      '\n    nodes:\n      - { id: n1, baseUrl: "http://h:1" }\n',
    'g.yaml:4:11: services[0].name: must not be longer than 256 characters',
  ],
  [
    'a name with a NUL',
    'services:\n  - id: a\n    pathPrefix: /a\n    name: "a\\0b"\n    nodes:\n      - { id: n1, baseUrl: "http://h:1" }\n',
    'g.yaml:4:11: services[0].name: must hold no control characters',
  ],
  [
    'a login path with a stray percent sign',
    'services:\n  - id: a\n    pathPrefix: /a\n    loginPath: /a%zz\n    nodes:\n      - { id: n1, baseUrl: "http://h:1" }\n',
    "g.yaml:4:16: services[0].loginPath: must not hold a '%' without two hexadecimal digits",
  ],
  [
    'a health path with a fragment',
    'services:\n  - id: a\n    pathPrefix: /a\n    healthPath: "/a#b"\n    nodes:\n      - { id: n1, baseUrl: "http://h:1" }\n',
    "g.yaml:4:17: services[0].healthPath: must hold no blanks, '#' or characters outside ASCII",
  ],
  [
    'further logins without a first',
    'services:\n  - id: a\n    pathPrefix: /a\n    login: { also: [/sms] }\n    nodes:\n      - { id: n1, baseUrl: "http://h:1" }\n',
    'g.yaml:4:20: services[0].login.also: means nothing without loginPath: move one of them there',
  ],
  [
    'a success value beyond exact numbers',
    'services:\n  - id: a\n    pathPrefix: /a\n    login: { response: { success: { code: 9007199254740993 } } }\n    nodes:\n      - { id: n1, baseUrl: "http://h:1" }\n',
    'g.yaml:4:43: services[0].login.response.success.code: is no number that can be compared exactly',
  ],
  [
    'a node on port 0',
    'services:\n  - { id: a, pathPrefix: /a, nodes: [{ id: n, baseUrl: "http://h:0" }] }\n',
    'g.yaml:2:56: services[0].nodes[0].baseUrl: must be http:// or https:// with host and port only, such as http://127.0.0.1:9001',
  ],
  [
    'more users than the column holds',
    'services:\n  - { id: a, pathPrefix: /a, nodes: [{ id: n, baseUrl: "http://h", maxUsers: 3000000000 }] }\n',
    'g.yaml:2:78: services[0].nodes[0].maxUsers: must be a whole number, from 1 to 2147483647, not 3000000000',
  ],
  [
    'a default node next to one whose id is a number',
    'services:\n  - { id: a, pathPrefix: /a, defaultNodeId: n1, nodes: [{ id: 1, baseUrl: "http://h:1" }] }\n',
    'g.yaml:2:63: services[0].nodes[0].id: must be text, not 1 (quote it: "1")',
  ],
  [
    'a route whose prefix is null',
    SOUND + 'routes:\n  - { id: r, pathPrefix: null, versions: [{ version: v1, service: a }] }\n',
    'g.yaml:7:26: routes[0].pathPrefix: must be text, not null',
  ],
  [
    'a version that is a number, and a rule for it',
    SOUND +
      'routes:\n  - { id: r, pathPrefix: /r, versions: [{ version: 2, service: a }], rules: [{ type: header, name: X, value: y, version: "2" }] }\n',
    'g.yaml:7:52: routes[0].versions[0].version: must be text, not 2 (quote it: "2")',
  ],
  [
    'a rule for a header name with a blank',
    SOUND +
      'routes:\n  - { id: r, pathPrefix: /r, versions: [{ version: v, service: a }], rules: [{ type: header, name: "X Y", value: y, version: v }] }\n',
    "g.yaml:7:100: routes[0].rules[0].name: is not the name of a header: 'X Y'",
  ],
];

function problemsOf(text: string, environment: Record<string, string> = {}): string[] {
  const loaded = loadConfig(text, 'g.yaml', environment);
  return 'problems' in loaded ? loaded.problems.map(formatProblem) : [];
}

describe('a mistake in the configuration', () => {
  for (const [title, text, problem] of MISTAKES) {
    it(`is reported at its place: ${title}`, () => {
      assert.deepEqual(problemsOf(text), [problem]);
    });
  }

  it('does not hide the others: all are reported, from top to bottom', () => {
    const text = `listn: 1
cache: { ttl: 10 }
services:
  - id: a
    pathPrefix: a
    nodes:
      - { id: n1, baseUrl: "http://h:1", weight: -1 }
      - { id: n1, baseUrl: "http://h:2", wieght: 2 }
`;
    assert.deepEqual(
      problemsOf(text).map((problem) => problem.split(': ').slice(0, 2).join(' ')),
      [
        'g.yaml:1:1 listn',
        'g.yaml:2:15 cache.ttl',
        'g.yaml:5:17 services[0].pathPrefix',
        'g.yaml:7:50 services[0].nodes[0].weight',
        'g.yaml:8:15 services[0].nodes[1].id',
        'g.yaml:8:42 services[0].nodes[1].wieght',
      ],
    );
  });

  it('never repeats a secret', () => {
    const secrets = `${SOUND}store: { postgres: { url: "mysql://u:hunter2@h/d" }, redis: { url: "http://:hunter2@h" } }
admin: { tokens: [{ name: a, role: admin, token: hunter2 }, { name: b, role: admin, token: 42424242424242424242 }] }
identity: { resolvers: [{ jwt: { secret: 4242 } }] }
`;
    const problems = problemsOf(secrets);
    assert.equal(problems.length, 5);
    assert.doesNotMatch(problems.join('\n'), /hunter2|4242/);
  });

  it('never repeats a text that stands where something else belongs, nor one that does not parse', () => {
    for (const text of [
      'store: { postgres: "postgres://u:hunter2@h/d", redis: "redis://:hunter2@h" }',
      'admin: { tokens: [hunter2hunter2hunter2] }',
      'admin: { tokens: hunter2 }',
      'identity: { resolvers: [{ jwt: hunter2 }, { jwt: { publicKey: 4242 } }] }',
      'via: "${hunter2 x}"',
      'via: "${hunter2"',
      'via: |hunter2\n  x',
      'via: *hunter2',
      'via: !hunter2 x',
      'via: "\\hunter2"',
    ]) {
      const problems = problemsOf(`${SOUND}${text}\n`);
      assert.notEqual(problems.length, 0, text);
      assert.doesNotMatch(problems.join('\n'), /hunter2|4242/, text);
    }
  });

  it('never shows what an environment variable holds, but names it', () => {
    const text = `${SOUND}log: { level: "\${SECRET}", access: "\${SECRET}" }
workers: "\${SECRET}"
allow: ["\${SECRET}"]
cache: { ttl: "\${SECRET}" }
listen: "\${SECRET}"
health: { path: "\${SECRET}" }
`;
    const problems = problemsOf(text, { SECRET: 'hunter2' });
    assert.equal(problems.length, 7);
    assert.doesNotMatch(problems.join('\n'), /hunter2/);
    assert.equal(
      problems[0],
      'g.yaml:6:15: log.level: must be one of debug, info, warn, error, not the value of ${SECRET}',
    );
  });

  it('in a key that stands twice hides no other, and the last one counts', () => {
    assert.deepEqual(problemsOf(`${SOUND}workers: 1\nworkers: 0\nlistn: 1\n`), [
      'g.yaml:7:1: workers: this key stands here twice',
      'g.yaml:7:10: workers: must be a whole number, 1 or more, not 0',
      'g.yaml:8:1: listn: unknown key (did you mean listen?)',
    ]);
  });

  it('is found in aliases that would fill the memory', () => {
    const layers = Array.from(
      { length: 9 },
      (_, index) => `  - &l${index + 1} [${Array(9).fill(`*l${index}`).join(', ')}]`,
    );
    assert.deepEqual(problemsOf(`services:\n  - &l0 [x]\n${layers.join('\n')}\n`), [
      'g.yaml:1:1: its aliases unfold to far too much',
    ]);
  });

  it('in a file is thrown with every line, and names the file when it cannot be read', async () => {
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'sticky-config-'));
    const file = path.join(folder, 'gateway.yaml');
    fs.writeFileSync(file, 'services: []\nlistn: 1\n');
    await assert.rejects(readConfigFile(file, {}), (error: unknown) => {
      assert.ok(error instanceof ConfigError, 'it is a ConfigError');
      assert.equal(error.problems.length, 2);
      assert.equal(error.message.split('\n')[0], `${file}:1:11: services: must name at least one service`);
      return true;
    });
    await assert.rejects(
      readConfigFile(path.join(folder, 'none.yaml'), {}),
      /none\.yaml: cannot be read: there is no such file/,
    );
    await assert.rejects(readConfigFile(folder, {}), /cannot be read: this is a folder/);
    const latin = path.join(folder, 'latin1.yaml');
    fs.writeFileSync(latin, Buffer.from('via: \xe9\n', 'latin1'));
    await assert.rejects(readConfigFile(latin, {}), (error: unknown) => {
      assert.ok(error instanceof ConfigError, 'one error type for every file that cannot be used');
      assert.equal(error.message, `${latin}: cannot be read: it is not UTF-8`);
      return true;
    });
    fs.rmSync(folder, { recursive: true });
  });
});
