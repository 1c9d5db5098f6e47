/** Two gateway processes on one PostgreSQL and one Redis, each with fault proxies of its own in front of them. */
import { createHash } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import * as http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { BackendNode } from './backend-node.ts';
import { FailingStores, type ProxiedStores } from './failing-stores.ts';
import { configText } from './gateway-fixture.ts';
import { GatewayProcess } from './gateway-process.ts';
import { type Answer, call } from './http-client.ts';

export class Member {
  readonly way: ProxiedStores;
  readonly config: string;
  readonly agent = new http.Agent({ keepAlive: true });
  #process: GatewayProcess | undefined;

  constructor(way: ProxiedStores, config: string) {
    this.way = way;
    this.config = config;
  }

  get process(): GatewayProcess {
    if (!this.#process) throw new Error('not started');
    return this.#process;
  }

  async start(): Promise<void> {
    this.#process = await GatewayProcess.serve(this.config);
  }

  /** SIGKILL. */
  async kill(): Promise<void> {
    const process = this.#process;
    this.#process = undefined;
    await process?.kill();
  }

  async get(path: string, token?: string): Promise<Answer> {
    const headers = token === undefined ? {} : { 'x-token': token };
    return call(this.process.port, path, { headers, agent: this.agent });
  }

  async login(username: string): Promise<Answer> {
    return call(this.process.port, '/js/a/auth/login', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ username }),
      agent: this.agent,
    });
  }

  async ready(): Promise<boolean> {
    return (await call(this.process.adminPort, '/readyz')).status === 200;
  }

  /** One series of the metrics, named as in the text; 0 when it is not there. */
  async metric(series: string): Promise<number> {
    const { text } = await call(this.process.adminPort, '/metrics');
    const line = text.split('\n').find((each) => each.startsWith(`${series} `));
    return line === undefined ? 0 : Number(line.slice(series.length));
  }
}

export class TwoGateways {
  readonly stores: FailingStores;
  readonly first: Member;
  readonly second: Member;
  readonly #folder: string;

  private constructor(stores: FailingStores, members: readonly [Member, Member], folder: string) {
    this.stores = stores;
    this.first = members[0];
    this.second = members[1];
    this.#folder = folder;
  }

  /** Both are started. `config`: further top-level YAML. */
  static async open(nodes: readonly BackendNode[], config = ''): Promise<TwoGateways> {
    const stores = await FailingStores.open();
    const folder = await mkdtemp(join(tmpdir(), 'sticky-two-'));
    const make = async (name: string): Promise<Member> => {
      const way = await stores.way();
      const file = join(folder, `${name}.yaml`);
      await writeFile(file, configText({ stores: way.setup, nodes, config }));
      return new Member(way, file);
    };
    const members = [await make('first'), await make('second')] as const;
    for (const member of members) await member.start();
    return new TwoGateways(stores, members, folder);
  }

  get members(): readonly [Member, Member] {
    return [this.first, this.second];
  }

  async close(): Promise<void> {
    for (const member of this.members) {
      member.agent.destroy();
      await member.kill();
    }
    await this.stores.close();
    await rm(this.#folder, { recursive: true, force: true });
  }

  /** Bound by hand, with a token that PostgreSQL knows: as if they had logged in long ago. */
  async insertUsers(users: readonly { userId: string; token: string; nodeId: string }[]): Promise<void> {
    const of = (pick: (user: (typeof users)[number]) => string) => users.map(pick);
    const values = [of(({ userId }) => userId), of(({ nodeId }) => nodeId), of(({ token }) => hashOf(token))];
    await this.stores.sql(
      `WITH given AS (SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) AS g (user_id, node_id, token_hash)),
       bound AS (INSERT INTO gateway_user_route (service_id, user_id, username, node_id)
         SELECT 'demo', user_id, user_id, node_id FROM given)
       INSERT INTO gateway_token (realm, token_hash, user_id, expire_time)
         SELECT 'demo', token_hash, user_id, now() + interval '1 hour' FROM given`,
      values,
    );
  }
}

function hashOf(token: string): string {
  return createHash('sha256').update(token).digest('hex');
}

/** The node that served, or the status and error. */
export function outcome(answer: Answer): string {
  return answer.status === 200
    ? String(answer.headers['x-gateway-node'])
    : `${answer.status} ${answer.json()['error']}`;
}

export function tokenIn(answer: Answer): string {
  const data = answer.json()['data'] as { token?: string } | undefined;
  if (answer.status !== 200 || data?.token === undefined) throw new Error(`${answer.status} ${answer.text}`);
  return data.token;
}
