/**
 * One run: two gateway processes, three nodes, PostgreSQL and Redis, users at work, and a schedule of things going
 * wrong. Afterwards the judge (judge.ts) has the word; the schedule comes from schedule.ts.
 */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import * as http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Client } from 'pg';
import { BackendNode, userIdOf } from '../support/backend-node.ts';
import { FaultProxy } from '../support/fault-proxy.ts';
import { GatewayProcess } from '../support/gateway-process.ts';
import { type Answer, call } from '../support/http-client.ts';
import { createDatabase, type PostgresServer, startPostgres } from '../support/postgres-server.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { Seeded } from '../support/seeded.ts';
import { waitUntil } from '../support/wait-until.ts';
import {
  type Arrival,
  type Change,
  type ClientRequest,
  describe,
  judge,
  type LoginEvent,
  type Outage,
} from './judge.ts';
import { type Action, describeAction, type Event, makeSchedule } from './schedule.ts';

export interface ChaosOptions {
  readonly seed: number;
  readonly seconds: number;
  /** Told of what happens, line by line. */
  readonly log: (line: string) => void;
}

export interface ChaosResult {
  /** Empty = every promise was kept. */
  readonly faults: readonly string[];
  readonly counts: ReadonlyMap<string, number>;
}

const USERS = 200;
const LANES = 12;
const GATEWAYS = [0, 1] as const;
const TTL_MS = 2_000;
/** One request in so many is a login. */
const LOGIN_EVERY = 6;
/** Longest time for an answer, whatever fails. */
const HUNG_MS = 12_000;
/** Within so long everything is as it was once all is back. */
const HEALED_MS = 20_000;

/** For some seconds after an outage a gateway does not take it for certain that somebody has no binding. */
const SETTLED_MS = 10_000;

/** Every node and epoch that a binding ever had, written by the database in the same transaction. */
const RECORD_HISTORY = `
  CREATE TABLE chaos_history (user_id text, epoch bigint, node_id text);
  CREATE FUNCTION chaos_record() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO chaos_history VALUES (NEW.user_id::text, NEW.epoch, NEW.node_id); RETURN NULL; END $$;
  CREATE TRIGGER chaos_record AFTER INSERT OR UPDATE ON gateway_user_route
    FOR EACH ROW EXECUTE FUNCTION chaos_record();`;

/** Runs a schedule against a fresh set-up and judges it. Rejects when the set-up itself fails. */
export async function runChaos(options: ChaosOptions): Promise<ChaosResult> {
  const run = new ChaosRun(options);
  try {
    return await run.run();
  } finally {
    await run.stop();
  }
}

interface Member {
  readonly index: number;
  readonly proxies: { readonly postgres: FaultProxy; readonly redis: FaultProxy };
  readonly config: string;
  readonly agent: http.Agent;
  process: GatewayProcess | undefined;
  /** Every process it had. */
  readonly lives: GatewayProcess[];
  /** True = it is meant to end. */
  ending: boolean;
}

class ChaosRun {
  readonly #options: ChaosOptions;
  readonly #nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
  readonly #members: Member[] = [];
  readonly #requests = new Map<string, ClientRequest>();
  readonly #changes = new Map<string, Change[]>();
  readonly #outages: Outage[] = [];
  /** What is broken at the moment, and the repairs under way. */
  readonly #broken = new Map<string, Promise<void>>();
  readonly #faults: string[] = [];
  readonly #counts = new Map<string, number>();
  readonly #startedMs = performance.now();
  #postgres: PostgresServer | undefined;
  #redis: RedisServer | undefined;
  #databaseUrl = '';
  #sql: Client | undefined;
  #folder = '';
  #over = false;
  #sent = 0;

  constructor(options: ChaosOptions) {
    this.#options = options;
  }

  async run(): Promise<ChaosResult> {
    await this.#start();
    const { seed, seconds } = this.#options;
    const schedule = makeSchedule(seed, { seconds, users: USERS, nodes: 3, gateways: GATEWAYS.length });
    const lanes = Array.from({ length: LANES }, (_, lane) => this.#work(new Seeded(seed * 1_000 + lane)));
    await this.#play(schedule, seconds * 1_000);
    this.#over = true;
    await Promise.all(lanes);
    await this.#heal();
    await this.#judge();
    return { faults: this.#faults, counts: this.#counts };
  }

  async stop(): Promise<void> {
    this.#over = true;
    await Promise.allSettled(this.#broken.values());
    for (const member of this.#members) {
      member.ending = true;
      member.agent.destroy();
      await member.process?.kill();
      await member.proxies.postgres.close();
      await member.proxies.redis.close();
    }
    await this.#sql?.end().catch(() => undefined);
    await this.#redis?.stop();
    await this.#postgres?.dispose();
    for (const node of this.#nodes) await node.stop();
    if (this.#folder !== '') await rm(this.#folder, { recursive: true, force: true });
  }

  async #start(): Promise<void> {
    this.#folder = await mkdtemp(join(tmpdir(), 'sticky-chaos-'));
    for (const node of this.#nodes) await node.start();
    this.#postgres = await startPostgres();
    this.#redis = await startRedis();
    const database = await createDatabase(this.#postgres.url);
    this.#databaseUrl = database.url;
    await this.#connect();
    // The test server does not wait for its log to be written, but what a gateway acknowledges must survive a kill.
    await this.#sql?.query(`ALTER DATABASE ${database.name} SET synchronous_commit = on`);
    // It holds for sessions from now on.
    await this.#sql?.end();
    await this.#connect();
    for (const index of GATEWAYS) this.#members.push(await this.#makeMember(index));
    for (const member of this.#members) await this.#serve(member);
    await this.#sql?.query(RECORD_HISTORY);
  }

  async #connect(): Promise<void> {
    const client = new Client({ connectionString: this.#databaseUrl, statement_timeout: HUNG_MS });
    client.on('error', () => undefined);
    await client.connect();
    this.#sql = client;
  }

  async #makeMember(index: number): Promise<Member> {
    const proxies = {
      postgres: await FaultProxy.open(this.#postgres?.port ?? 0),
      redis: await FaultProxy.open(this.#redis?.port ?? 0),
    };
    const postgres = proxies.postgres.urlFor(this.#databaseUrl);
    const config = join(this.#folder, `gateway-${index}.yaml`);
    const nodes = this.#nodes.map((node) => `      - { id: ${node.id}, baseUrl: "${node.baseUrl}" }`);
    await writeFile(
      config,
      `listen: 127.0.0.1:0
admin: { listen: "127.0.0.1:0" }
store:
  dataDir: ${JSON.stringify(join(this.#folder, `data-${index}`))}
  postgres: { url: "${postgres}", poolSize: 5, connectTimeout: 1s, queryTimeout: 1s }
  redis: { url: "redis://127.0.0.1:${proxies.redis.port}", timeout: 200ms }
cache: { ttl: ${TTL_MS}ms, staleIfError: 20s, redisTtl: 60s }
health: { interval: 500ms, timeout: 500ms, failures: 2 }
registry: { pollInterval: 2s }
shutdown: { grace: 3s }
services:
  - id: demo
    pathPrefix: /js/a
    loginPath: /auth/login
    healthPath: /health
    nodes:
${nodes.join('\n')}
`,
    );
    const agent = new http.Agent({ keepAlive: true });
    return { index, proxies, config, agent, process: undefined, lives: [], ending: false };
  }

  async #serve(member: Member): Promise<void> {
    member.ending = false;
    const process = await GatewayProcess.serve(member.config);
    member.process = process;
    member.lives.push(process);
    void process.ended.then(({ code, signal, stderr }) => {
      if (!member.ending) this.#fault(`gateway ${member.index} ended by itself: ${code} ${signal} ${stderr}`);
    });
  }

  async #play(schedule: readonly Event[], lengthMs: number): Promise<void> {
    const beganMs = performance.now();
    for (const { atMs, action } of schedule) {
      const waitMs = beganMs + atMs - performance.now();
      if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs));
      await this.#perform(action);
    }
    const leftMs = beganMs + lengthMs - performance.now();
    if (leftMs > 0) await new Promise((resolve) => setTimeout(resolve, leftMs));
  }

  async #perform(action: Action): Promise<void> {
    switch (action.kind) {
      case 'move': {
        const node = this.#nodes[action.node]?.id ?? '';
        return this.#change(action.user, false, 'UPDATE gateway_user_route SET node_id = $2', [node]);
      }
      case 'unbind':
        return this.#change(action.user, true, 'DELETE FROM gateway_user_route', []);
      case 'kill-gateway':
      case 'end-gateway': {
        const member = this.#member(action.gateway);
        return this.#breakFor(
          `gateway ${member.index}`,
          action,
          () => this.#end(member, action.kind),
          () => this.#serve(member),
        );
      }
      case 'kill-postgres': {
        const outage = this.#outage('postgres', undefined);
        return this.#breakFor(
          'postgres',
          action,
          async () => {
            this.#outages.push(outage);
            const sql = this.#sql;
            this.#sql = undefined;
            await this.#postgres?.kill();
            await sql?.end().catch(() => undefined);
          },
          async () => {
            await this.#postgres?.start();
            await this.#connect();
            outage.untilMs = this.#now();
          },
        );
      }
      case 'kill-redis': {
        const outage = this.#outage('redis', undefined);
        return this.#breakFor(
          'redis',
          action,
          async () => {
            this.#outages.push(outage);
            await this.#redis?.kill();
          },
          async () => {
            await this.#redis?.start();
            outage.untilMs = this.#now();
          },
        );
      }
      case 'kill-node': {
        const node = this.#nodes[action.node];
        return this.#breakFor(
          `node ${action.node}`,
          action,
          async () => node?.stop(),
          async () => void (await node?.start()),
        );
      }
      case 'fault': {
        const member = this.#member(action.gateway);
        const proxy = member.proxies[action.store];
        const outage = this.#outage(action.store, member.index);
        return this.#breakFor(
          `${action.store} of ${member.index}`,
          action,
          () => {
            this.#outages.push(outage);
            return proxy.set(action.fault);
          },
          async () => {
            await proxy.set('pass');
            outage.untilMs = this.#now();
          },
        );
      }
    }
  }

  /** Breaks now and repairs in the background; what is broken already is left alone. */
  async #breakFor(
    what: string,
    action: Action & { readonly forMs: number },
    breakIt: () => Promise<unknown>,
    repair: () => Promise<unknown>,
  ): Promise<void> {
    if (this.#broken.has(what)) return;
    this.#options.log(`${Math.round(this.#now())} ms: ${describeAction(action)}`);
    const repaired = (async () => {
      await breakIt();
      await new Promise((resolve) => setTimeout(resolve, action.forMs));
      await repair();
    })();
    const watched = repaired
      .catch((error: unknown) => this.#fault(`${what} could not be repaired: ${error}`))
      .finally(() => this.#broken.delete(what));
    this.#broken.set(what, watched);
    // The break itself is done before the next action, the repair is not.
    await new Promise((resolve) => setImmediate(resolve));
  }

  async #end(member: Member, how: 'kill-gateway' | 'end-gateway'): Promise<void> {
    const ending = member.process;
    member.ending = true;
    member.process = undefined;
    if (how === 'kill-gateway') await ending?.kill();
    else {
      ending?.signal('SIGTERM');
      const { code, signal } = (await ending?.ended) ?? {};
      this.#count(`gateway ended with ${code ?? signal}`);
    }
  }

  async #change(user: number, removed: boolean, statement: string, values: readonly string[]): Promise<void> {
    const sql = this.#sql;
    const userId = userIdOf(nameOf(user));
    const startedMs = this.#now();
    if (!sql) return;
    try {
      const { rows } = await sql.query(
        `${statement} WHERE service_id = 'demo' AND user_id = $1 RETURNING epoch::int AS epoch`,
        [userId, ...values],
      );
      if (rows[0] === undefined) return;
      const leastEpoch = removed ? rows[0].epoch + 1 : rows[0].epoch;
      const changes = this.#changes.get(userId) ?? [];
      this.#changes.set(userId, changes);
      changes.push({ startedMs, committedMs: this.#now(), leastEpoch, removed });
      this.#count(removed ? 'removed' : 'moved');
    } catch (error) {
      this.#fault(`a change by SQL failed: ${error}`);
    }
  }

  /** One client after the other logs in and works, until the run is over. */
  async #work(random: Seeded): Promise<void> {
    const logins = new Map<number, ClientRequest[]>();
    while (!this.#over) {
      const user = random.below(USERS);
      const drawn = random.below(GATEWAYS.length);
      const gateway = this.#member(drawn).process ? drawn : (drawn + 1) % GATEWAYS.length;
      const known = logins.get(user);
      if (!known || random.oneIn(LOGIN_EVERY)) {
        const login = await this.#logIn(user, gateway);
        if (login.token !== undefined) logins.set(user, [...(known ?? []), login]);
      } else {
        await this.#request(random.pick(known), gateway);
      }
      await new Promise((resolve) => setTimeout(resolve, random.below(20)));
    }
  }

  async #logIn(user: number, gateway: number): Promise<ClientRequest> {
    const login = this.#newRequest(userIdOf(nameOf(user)), gateway, undefined);
    const answer = await this.#send(login, '/js/a/auth/login', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ username: nameOf(user) }),
    });
    if (answer?.status === 200) login.token = (answer.json()['data'] as { token: string }).token;
    return login;
  }

  async #request(
    login: ClientRequest,
    gateway: number,
  ): Promise<{ request: ClientRequest; answer: Answer | undefined }> {
    const request = this.#newRequest(login.user, gateway, login);
    const answer = await this.#send(request, '/js/a/notes', { headers: { 'x-token': login.token ?? '' } });
    return { request, answer };
  }

  #newRequest(user: string, gateway: number, tokenOf: ClientRequest | undefined): ClientRequest {
    this.#sent += 1;
    const request = { id: `c-${this.#sent}`, user, gateway, sentMs: this.#now(), tokenOf };
    this.#requests.set(request.id, request);
    return request;
  }

  async #send(
    request: ClientRequest,
    path: string,
    sketch: { method?: string; headers: Record<string, string>; body?: string },
  ): Promise<Answer | undefined> {
    const { process, agent } = this.#member(request.gateway);
    if (!process) {
      request.error = 'gateway away';
      return undefined;
    }
    const signal = AbortSignal.timeout(HUNG_MS);
    const headers = { ...sketch.headers, 'x-request-id': request.id };
    try {
      const answer = await call(process.port, path, { ...sketch, headers, agent, signal });
      request.answeredMs = this.#now();
      request.status = answer.status;
      if (answer.status !== 200) request.error = `${answer.status} ${answer.json()['error']}`;
      return answer;
    } catch {
      if (signal.aborted) this.#fault(`hung: ${describe(request)}`);
      return undefined;
    }
  }

  /** Everything is let go and started; the gateways have to find back by themselves. */
  async #heal(): Promise<void> {
    await Promise.all(this.#broken.values());
    this.#options.log(`${Math.round(this.#now())} ms: everything is back`);
    for (const { index } of this.#members) {
      await this.#serveAgain(index).catch((error: unknown) => this.#fault(String(error)));
    }
    // What was cached before is not believed any more.
    await new Promise((resolve) => setTimeout(resolve, TTL_MS));
  }

  async #serveAgain(index: number): Promise<void> {
    const witness = await waitUntil(`gateway ${index} to let users in`, async () => {
      const login = await this.#logIn(USERS + index, index);
      return login.token !== undefined && login;
    });
    await waitUntil(
      `gateway ${index} to serve`,
      async () => (await this.#request(witness, index)).answer?.status === 200,
      HEALED_MS,
    );
  }

  async #judge(): Promise<void> {
    const loginEvents = this.#readLogs();
    const { faults, counts, kept, passed } = judge({
      requests: new Map(this.#requests),
      arrivals: this.#arrivals(),
      history: await this.#readHistory(),
      changes: this.#changes,
      outages: this.#outages,
      loginEvents,
      ttlMs: TTL_MS,
    });
    this.#faults.push(...faults);
    for (const [what, number] of counts) this.#counts.set(what, number);
    const rows = await this.#readRows();
    await inLanes(kept, (login) => this.#checkKept(login, rows));
    await inLanes(passed, async (login) => {
      const { request, answer } = await this.#request(login, 0);
      const epoch = this.#epochOf(request, answer);
      this.#count(
        `passed login afterwards: ${answer?.status === 200 ? (epoch ? 'bound' : 'anonymous') : request.error}`,
      );
    });
    this.#counts.set('kept logins', kept.length);
    this.#counts.set('passed logins', passed.length);
  }

  async #checkKept(login: ClientRequest, rows: ReadonlyMap<string, { node: string; epoch: number }>): Promise<void> {
    const row = rows.get(login.user);
    const removedLater = (this.#changes.get(login.user) ?? []).some(
      ({ removed, committedMs }) => removed && committedMs >= login.sentMs,
    );
    if (!row && !removedLater) this.#fault(`lost binding: ${describe(login)}`);
    for (const { index } of this.#members) {
      const wanted = row ? `${row.node} ${row.epoch}` : '503 user_not_bound';
      let got: string | undefined;
      for (const untilMs = this.#now() + SETTLED_MS; ; ) {
        const { request, answer } = await this.#request(login, index);
        got =
          answer?.status === 200
            ? `${answer.headers['x-gateway-node']} ${this.#epochOf(request, answer)}`
            : request.error;
        if (got === wanted || answer?.status !== 503 || this.#now() > untilMs) break;
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
      if (got !== wanted) this.#fault(`not kept: ${describe(login)}: gateway ${index} says ${got}, wanted ${wanted}`);
    }
  }

  #epochOf(request: ClientRequest, answer: Answer | undefined): string | undefined {
    const node = this.#nodes.find(({ id }) => id === answer?.headers['x-gateway-node']);
    const entry = node?.journal.findLast(({ headers }) => headers['x-request-id'] === request.id);
    return entry?.headers['x-gateway-epoch'] as string | undefined;
  }

  #arrivals(): Arrival[] {
    return this.#nodes.flatMap((node) =>
      node.journal.map(({ headers }) => ({
        node: node.id,
        requestId: String(headers['x-request-id']),
        epoch: headers['x-gateway-epoch'] === undefined ? undefined : Number(headers['x-gateway-epoch']),
      })),
    );
  }

  async #readHistory(): Promise<Map<string, Map<number, string[]>>> {
    const { rows } = await this.#query('SELECT user_id, epoch::int AS epoch, node_id FROM chaos_history');
    const history = new Map<string, Map<number, string[]>>();
    for (const { user_id: user, epoch, node_id: node } of rows) {
      const epochs = history.get(user) ?? new Map<number, string[]>();
      history.set(user, epochs);
      epochs.set(epoch, [...(epochs.get(epoch) ?? []), node]);
    }
    return history;
  }

  async #readRows(): Promise<Map<string, { node: string; epoch: number }>> {
    const { rows } = await this.#query('SELECT user_id, node_id AS node, epoch::int AS epoch FROM gateway_user_route');
    const byUser = new Map<string, { node: string; epoch: number }>();
    for (const { user_id: user, node, epoch } of rows) {
      if (byUser.has(user)) this.#fault(`two rows of ${user}`);
      byUser.set(user, { node, epoch });
    }
    return byUser;
  }

  #query(text: string) {
    if (!this.#sql) throw new Error('PostgreSQL is away');
    return this.#sql.query(text);
  }

  #readLogs(): Map<string, Set<LoginEvent>> {
    const events = new Map<string, Set<LoginEvent>>();
    for (const { lives, index } of this.#members) {
      for (const life of lives) {
        for (const line of life.stdout.split('\n')) {
          if (!line.startsWith('{') || !line.endsWith('}')) continue;
          if (line.includes('"level":"error"') && !/"event":"login/.test(line)) {
            this.#fault(`gateway ${index} logged an error: ${line}`);
          }
          if (!/"event":"login_/.test(line)) continue;
          const { requestId, event } = JSON.parse(line) as { requestId: string; event: LoginEvent };
          events.set(requestId, (events.get(requestId) ?? new Set()).add(event));
        }
      }
    }
    return events;
  }

  #member(index: number): Member {
    const member = this.#members[index];
    if (!member) throw new Error(`there is no gateway ${index}`);
    return member;
  }

  #outage(store: Outage['store'], gateway: number | undefined): Outage {
    return { store, gateway, fromMs: this.#now(), untilMs: Number.POSITIVE_INFINITY };
  }

  #fault(text: string): void {
    this.#faults.push(text);
  }

  #count(what: string): void {
    this.#counts.set(what, (this.#counts.get(what) ?? 0) + 1);
  }

  #now(): number {
    return performance.now() - this.#startedMs;
  }
}

/** As many at a time as the clients of a run are. */
async function inLanes<T>(items: readonly T[], work: (item: T) => Promise<void>): Promise<void> {
  const left = [...items];
  await Promise.all(
    Array.from({ length: LANES }, async () => {
      for (let item = left.pop(); item !== undefined; item = left.pop()) await work(item);
    }),
  );
}

function nameOf(user: number): string {
  return `user-${user}`;
}
