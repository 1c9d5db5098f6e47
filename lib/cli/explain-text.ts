/** An explanation in words: the answer in one line, what can be done, and the trail that led there. */
import type { Json } from './admin-client.ts';
import type { Invocation } from './command.ts';
import { healthNote, isUsable, nodeState, stateStyle } from './health-text.ts';
import type { Style } from './style.ts';
import { printable, type Row, Table } from './table.ts';
import { shellWord, userIdOption } from './user.ts';

export interface Question {
  readonly method: string;
  readonly path: string;
  readonly headers?: Readonly<Record<string, readonly string[]>>;
  readonly userId?: string;
  readonly username?: string;
  readonly clientAddress?: string;
  /** True = a token stands for the user. */
  readonly hasToken: boolean;
}

type Shown = Pick<Invocation, 'style' | 'clock'>;

export function explanationLines(body: Json, question: Question, { style, clock }: Shown): string[] {
  const nowMs = clock.now();
  const error = body['error'] as Json | null;
  const answer = printable(`${whoOf(body, question)} ${error ? refusalText(body, error, nowMs) : forwardText(body)}`);
  const todo = error ? adviceFor(body, error, question) : null;
  return [
    style.bold(error ? style.red(answer) : style.green(answer)),
    ...(todo === null ? [] : [`  what helps: ${printable(todo)}`]),
    ...new Table().lines(trailOf(body, question, style, nowMs)),
  ];
}

function whoOf(body: Json, { userId, username, hasToken }: Question): string {
  const login = body['login'] as Json | null;
  if (login) return `a login of ${username ?? (login['username'] as string | null) ?? 'somebody unknown'}`;
  if (username !== undefined) return `user ${username}`;
  const found = userId ?? (body['userId'] as string | null);
  if (found !== null) return `user ${found}`;
  return hasToken ? 'a request with this token' : 'a request without a token';
}

function forwardText(body: Json): string {
  if (body['outcome'] === 'answered') return 'is answered by the gateway itself: a CORS preflight';
  const node = String((body['node'] as Json | null)?.['id']);
  const binding = body['binding'] as Json | null;
  switch (body['decision']) {
    case 'bound':
      return `goes to ${node}: bound there${binding ? `, epoch ${String(binding['epoch'])}` : ''}`;
    case 'candidate':
      return `goes to ${node}, picked for a new user; a login that succeeds binds them there`;
    case 'default':
      return `goes to ${node}, the default node: not bound yet, and bound there by the request itself`;
    case 'anonymous':
      return `goes to any usable node, ${node} as it stands: it belongs to nobody`;
    default:
      return `goes to ${node}${body['drawnAtRandom'] === true ? ' for example: drawn at random' : ', balanced'}`;
  }
}

function refusalText(body: Json, error: Json, nowMs: number): string {
  const code = String(error['error']);
  const head = `gets ${String(error['code'])} ${code}`;
  const nodeId = (error['nodeId'] ?? (body['binding'] as Json | null)?.['nodeId']) as string | undefined;
  const node = body['node'] as Json | null;
  switch (code) {
    case 'node_down':
      return `${head}: bound to ${nodeId}, which is DOWN ${node ? healthNote(node, nowMs) : ''}`.trimEnd();
    case 'node_disabled':
      return `${head}: bound to ${nodeId}, which is disabled`;
    case 'node_unknown':
      return `${head}: bound to ${nodeId}, which is no node of the service any more`;
    case 'user_frozen':
      return `${head}: frozen on ${nodeId} by an operator`;
    case 'user_not_bound':
      return `${head}: bound to no node, and the service has no default node`;
    default:
      return `${head}: ${String(error['message'])}`;
  }
}

/** Null = nothing but what the answer says already. */
function adviceFor(body: Json, error: Json, { userId, username }: Question): string | null {
  const nodeId = String(error['nodeId'] ?? (body['binding'] as Json | null)?.['nodeId'] ?? 'the node');
  const found = userId ?? (body['userId'] as string | null) ?? undefined;
  const named =
    username !== undefined
      ? `--username ${shellWord(username)}`
      : found === undefined
        ? '--user-id ID'
        : userIdOption(found);
  const service = body['serviceId'] === null ? '' : ` --service ${String(body['serviceId'])}`;
  const move = `if their data is on another node: sticky-gateway bindings move ${named} --node NODE${service}`;
  switch (String(error['error'])) {
    case 'node_down':
      return `bring ${nodeId} back: its users wait for it; ${move}`;
    case 'node_disabled':
      return `enable ${nodeId} again; ${move}`;
    case 'node_unknown':
      return `add ${nodeId} again; ${move}`;
    case 'user_frozen':
      return `when their data is where it belongs: sticky-gateway bindings unfreeze ${named}${service}`;
    case 'user_not_bound':
      return `a login; or, if their data is on a node already: sticky-gateway bindings set ${found === undefined || username !== undefined ? '--user-id ID' : userIdOption(found)} --node NODE${service}`;
    case 'no_node_available':
    case 'no_capacity':
      return 'sticky-gateway status shows which nodes are down, disabled, draining or full';
    case 'identity_unavailable':
    case 'directory_unavailable':
      return 'a store does not answer: sticky-gateway status names them, the log has the error';
    case 'service_disabled':
      return `enable service ${String(body['serviceId'])} again`;
    case 'no_route':
      return 'sticky-gateway status shows the prefixes there are';
    default:
      return null;
  }
}

function trailOf(body: Json, question: Question, style: Style, nowMs: number): Row[] {
  const { realm, route, version, serviceId, userId, binding, answeredBy, node, snapshot, stage, requestId } =
    body as Record<string, unknown>;
  const found = snapshot as Json | null;
  const bound = binding as Json | null;
  const shown = node as Json | null;
  const from = typeof answeredBy === 'string' ? `, says ${SOURCES[answeredBy] ?? answeredBy}` : '';
  const rows: (readonly [string, string | { text: string; paint: (text: string) => string }] | null)[] = [
    ['request', `${question.method} ${pathShown(question)}`],
    found
      ? [
          'services',
          `version ${String(found['version'])}${found['stale'] === true ? ', STALE: from the last good copy' : ''}`,
        ]
      : null,
    [
      'service',
      serviceId === null
        ? 'none'
        : `${String(serviceId)}${route === null ? '' : `, through route ${String(route)}, version ${String(version)}`}${realm === serviceId || realm === null || realm === route ? '' : `, realm ${String(realm)}`}`,
    ],
    ['user', userText(question, userId)],
    [
      'binding',
      bound
        ? `${String(bound['nodeId'])}, epoch ${String(bound['epoch'])}${bound['frozen'] === true ? ', frozen' : ''}${from}`
        : `none${from}${body['wouldBind'] === true ? '; one would be made' : ''}`,
    ],
    shown
      ? [
          'node',
          {
            text: `${String(shown['id'])}: ${nodeState(shown)} ${healthNote(shown, nowMs)}`.trimEnd(),
            paint: isUsable(shown) ? (text) => text : stateStyle(shown, style),
          },
        ]
      : null,
    body['wouldProbe'] === true
      ? ['probe', 'a real request would have the node probed first, at most once a second']
      : null,
    ['decided', `by stage ${String(stage)}${typeof body['decision'] === 'string' ? `: ${body['decision']}` : ''}`],
    typeof requestId === 'string' ? ['request id', requestId] : null,
  ];
  return rows.filter((row) => row !== null).map(([name, value]) => [`  ${name}`, value]);
}

const SOURCES: Readonly<Record<string, string>> = {
  local: "this gateway's cache",
  redis: 'Redis',
  store: 'the store',
  stale: 'an old entry of the cache, as the store does not answer',
};

function userText({ userId, username, hasToken }: Question, found: unknown): string {
  if (userId !== undefined) return `${userId} (as given)`;
  if (username !== undefined) return `${username} (as given)`;
  if (typeof found === 'string') return `${found}${hasToken ? ', whose token it is' : ''}`;
  return hasToken ? 'the token belongs to nobody' : 'no token: anonymous';
}

/** Values of a query may be tokens. */
function pathShown({ path, hasToken }: Question): string {
  return hasToken ? (path.split('?')[0] ?? '') : path;
}
