/** PostgreSQL and Redis of a test's own, each behind a fault proxy, and a clock that can be set forward. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Client } from 'pg';
import { type Clock, systemClock, type Timer } from '../../lib/support/clock.ts';
import { FaultProxy } from './fault-proxy.ts';
import type { StoreSetup } from './gateway-fixture.ts';
import { createDatabase, type PostgresServer, startPostgres } from './postgres-server.ts';
import { type RedisServer, startRedis } from './redis-server.ts';

export interface ProxiedStores {
  readonly postgres: FaultProxy;
  readonly redis: FaultProxy;
  /** Of a gateway that reaches both through these proxies. */
  readonly setup: StoreSetup;
}

export class FailingStores {
  readonly server: PostgresServer;
  readonly redis: RedisServer;
  /** Past every proxy. */
  readonly databaseUrl: string;
  readonly #folder: string;
  readonly #proxies: FaultProxy[] = [];
  #ways = 0;

  private constructor(server: PostgresServer, redis: RedisServer, databaseUrl: string, folder: string) {
    this.server = server;
    this.redis = redis;
    this.databaseUrl = databaseUrl;
    this.#folder = folder;
  }

  static async open(): Promise<FailingStores> {
    const folder = await mkdtemp(join(tmpdir(), 'sticky-gateway-'));
    const server = await startPostgres();
    const redis = await startRedis();
    return new FailingStores(server, redis, (await createDatabase(server.url)).url, folder);
  }

  /** A way to both for one gateway, which fails without the others. */
  async way(): Promise<ProxiedStores> {
    const postgres = await FaultProxy.open(this.server.port);
    const redis = await FaultProxy.open(this.redis.port);
    this.#proxies.push(postgres, redis);
    this.#ways += 1;
    return {
      postgres,
      redis,
      setup: {
        kind: 'postgres+redis',
        dataDir: join(this.#folder, `data-${this.#ways}`),
        postgresUrl: postgres.urlFor(this.databaseUrl),
        redisUrl: `redis://127.0.0.1:${redis.port}`,
        redisTimeoutMs: 1_000,
        close: () => Promise.resolve(),
      },
    };
  }

  /** Past every proxy. */
  async sql<Row extends object = Record<string, unknown>>(
    text: string,
    values: readonly unknown[] = [],
  ): Promise<Row[]> {
    const client = new Client({ connectionString: this.databaseUrl });
    await client.connect();
    try {
      return (await client.query<Row>(text, [...values])).rows;
    } finally {
      await client.end();
    }
  }

  /** Node and epoch of a user's rows, one text each. */
  async rowsOf(userId: string): Promise<string[]> {
    const rows = await this.sql<{ row: string }>(
      `SELECT node_id || ' ' || epoch AS row FROM gateway_user_route WHERE user_id = $1`,
      [userId],
    );
    return rows.map(({ row }) => row);
  }

  /** Then the connections on which gateways hear of changes are the only ones that are open. */
  async endSessionsExceptListeners(): Promise<void> {
    await this.sql(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
       WHERE datname = current_database() AND pid <> pg_backend_pid() AND query !~ '^(LISTEN|SELECT 1$)'`,
    );
  }

  async close(): Promise<void> {
    for (const proxy of this.#proxies) await proxy.close();
    await this.redis.stop();
    await this.server.dispose();
    await rm(this.#folder, { recursive: true, force: true });
  }
}

/** The system's timers, with hands that stand still until the test turns them. */
export class StandingClock implements Clock {
  #nowMs = 1_700_000_000_000;

  now(): number {
    return this.#nowMs;
  }

  monotonic(): number {
    return this.#nowMs;
  }

  after(delayMs: number, callback: () => void): Timer {
    return systemClock.after(delayMs, callback);
  }

  turn(byMs: number): void {
    this.#nowMs += byMs;
  }
}
