/**
 * The composition root: makes every part from top to bottom, starts them in that order, and stops them in reverse.
 * There is no other place where parts meet.
 */
import type { AddressInfo } from 'node:net';
import type { AdminApi } from '../lib/admin/api.ts';
import { ApiSocket } from '../lib/admin/api-socket.ts';
import { FileAudit } from '../lib/admin/file-audit.ts';
import { FileEditor } from '../lib/admin/file-editor.ts';
import { PostgresAudit } from '../lib/admin/postgres-audit.ts';
import { PostgresEditor } from '../lib/admin/postgres-editor.ts';
import { AdminServer } from '../lib/admin/server.ts';
import { StatelessBalancer } from '../lib/balance/balancer.ts';
import { Placement } from '../lib/balance/placement.ts';
import { SmoothWeighted } from '../lib/balance/smooth-weighted.ts';
import { BINDINGS_CHANNEL, readBindingNotification } from '../lib/bindings/binding-notification.ts';
import { BindingService } from '../lib/bindings/binding-service.ts';
import { Journal } from '../lib/bindings/journal.ts';
import { JournalBindings } from '../lib/bindings/journal-bindings.ts';
import { JournalImport } from '../lib/bindings/journal-import.ts';
import { LoginCandidates } from '../lib/bindings/login-candidates.ts';
import { PostgresBindings } from '../lib/bindings/postgres-bindings.ts';
import { PostgresImport } from '../lib/bindings/postgres-import.ts';
import { RedisBindingCache } from '../lib/bindings/redis-cache.ts';
import { UnfinishedLogins } from '../lib/bindings/unfinished-logins.ts';
import { BoundVersions } from '../lib/canary/bound-versions.ts';
import { VersionChooser } from '../lib/canary/version-chooser.ts';
import type {
  GatewayOptions,
  ListenOptions,
  PostgresOptions,
  RedisOptions,
  ResolverOptions,
} from '../lib/config/options.ts';
import { storedChecks } from '../lib/config/stored-definitions.ts';
import type { Handler, RequestContext } from '../lib/context.ts';
import { OperatorError } from '../lib/errors.ts';
import { HealthChecker } from '../lib/health/health-checker.ts';
import { HealthRegistry } from '../lib/health/health-registry.ts';
import { type HealthChannel, type HealthMessage, SharedHealth } from '../lib/health/shared-health.ts';
import { accessLog, type Traffic } from '../lib/middleware/access-log.ts';
import { balance } from '../lib/middleware/balance.ts';
import { cors } from '../lib/middleware/cors.ts';
import { CorsPolicy } from '../lib/middleware/cors-policy.ts';
import { errorBoundary } from '../lib/middleware/error-boundary.ts';
import { ipAllow } from '../lib/middleware/ip-allow.ts';
import { loginRequest } from '../lib/middleware/login-request.ts';
import { loginResponse } from '../lib/middleware/login-response.ts';
import { match } from '../lib/middleware/match.ts';
import { requestId } from '../lib/middleware/request-id.ts';
import { stickyRoute } from '../lib/middleware/sticky-route.ts';
import { versionByRule } from '../lib/middleware/version-by-rule.ts';
import { versionByUser } from '../lib/middleware/version-by-user.ts';
import type { LeveledLogger, Logger, RenderedLogger } from '../lib/observe/log.ts';
import { Metrics } from '../lib/observe/metrics.ts';
import { describeProcess } from '../lib/observe/process-metrics.ts';
import { buildPipeline, type Stages } from '../lib/pipeline.ts';
import type { InheritedSocket, InheritedSockets } from '../lib/process/inherited-sockets.ts';
import { readVersion } from '../lib/process/package-file.ts';
import { PublicListener } from '../lib/process/public-listener.ts';
import type { Stoppable } from '../lib/process/shutdown.ts';
import { Connections } from '../lib/proxy/connections.ts';
import { Forwarder } from '../lib/proxy/forward.ts';
import { CLOSE_GOING_AWAY, Tunnels } from '../lib/proxy/tunnels.ts';
import { Upgrader } from '../lib/proxy/upgrade.ts';
import { definitionHash, FileRegistry } from '../lib/registry/file-registry.ts';
import { LastGoodFile } from '../lib/registry/last-good.ts';
import { PostgresRegistry, REGISTRY_CHANNEL } from '../lib/registry/postgres-registry.ts';
import { Registry } from '../lib/registry/registry.ts';
import { migrate, verifySchema } from '../lib/stores/migrate.ts';
import { PostgresStore } from '../lib/stores/postgres.ts';
import { PostgresListener } from '../lib/stores/postgres-listener.ts';
import { RedisStore } from '../lib/stores/redis.ts';
import type { Clock } from '../lib/support/clock.ts';
import { AddressList } from '../lib/support/ip.ts';
import { extractToken, maskQueryToken } from '../lib/tokens/extract-token.ts';
import { JournalTokenStore } from '../lib/tokens/journal-token-store.ts';
import { JwtResolver } from '../lib/tokens/jwt.ts';
import { PostgresTokenStore } from '../lib/tokens/postgres-token-store.ts';
import { RedisSessionResolver } from '../lib/tokens/redis-session.ts';
import { RedisTokenStore } from '../lib/tokens/redis-token-store.ts';
import { SaTokenResolver } from '../lib/tokens/sa-token.ts';
import { TokenService } from '../lib/tokens/token-service.ts';
import type { TokenResolver, TokenStore } from '../lib/tokens/token-store.ts';
import { type AdminParts, type AdminStores, composeAdmin } from './compose-admin.ts';

export interface GatewayEnvironment {
  readonly logger: Logger & RenderedLogger & LeveledLogger;
  readonly clock: Clock;
  /** Reads the configuration file again; absent = a reload keeps the one of the start. */
  readonly readOptions?: () => Promise<GatewayOptions>;
  /** Set in a worker process: what its health is shared through. The admin listener is the primary's then. */
  readonly healthChannel?: HealthChannel;
  /** Set there as well: where the calls of the admin API come in, null = there is no admin listener. */
  readonly adminSocket?: string | null;
  /** Set there as well: a reload, or its rehearsal, of all workers. */
  readonly reload?: (dryRun: boolean) => Promise<void>;
  readonly sockets?: InheritedSockets;
}

/** What finds out about nodes: by itself, or together with other processes. */
type Prober = Pick<HealthChecker, 'start' | 'stop' | 'update' | 'probeNow' | 'probeUnknown' | 'passive'>;

/** How a gateway keeps its data: the embedded journal, or PostgreSQL with or without Redis. */
interface Stores extends AdminStores {
  readonly tokens: readonly TokenStore[];
  readonly redis: RedisStore | null;
  /** For the line that says what the gateway stands on. */
  readonly description: string;
  /** Calls back when the store of bindings answers again after it failed. */
  onAvailable(listener: () => void): void;
  /** Resolves when the first load is done, or goes on in the background. */
  startRegistry(): Promise<void>;
  /** False = it could not be read. */
  reloadRegistry(options: GatewayOptions): Promise<boolean>;
}

interface Parts {
  readonly bindings: BindingService;
  readonly tokens: TokenService;
  readonly tunnels: Tunnels;
  readonly forwarder: Forwarder;
  readonly listeners: readonly PublicListener[];
}

export class Gateway implements Stoppable {
  readonly registry = new Registry();
  readonly metrics = new Metrics();
  readonly #traffic: Traffic = { inFlight: 0 };
  readonly #options: GatewayOptions;
  readonly #logger: Logger & RenderedLogger & LeveledLogger;
  readonly #clock: Clock;
  readonly #readOptions: () => Promise<GatewayOptions>;
  readonly #healthChannel: HealthChannel | null;
  readonly #adminSocket: string | null;
  readonly #reloadAll: ((dryRun: boolean) => Promise<void>) | null;
  readonly #sockets: InheritedSockets | null;
  #sharedHealth: SharedHealth | undefined;
  #probes = false;
  /** What reads files of its own. */
  readonly #reloadable: { prepareReload(): () => void }[] = [];
  /** What has been started, in order; stopped in reverse. */
  readonly #started: { stop(): void | Promise<void> }[] = [];
  #stores: Stores | undefined;
  #parts: Parts | undefined;
  #listener: PostgresListener | undefined;
  #admin: AddressInfo | undefined;
  #closing = false;

  constructor(options: GatewayOptions, environment: GatewayEnvironment) {
    this.#options = options;
    this.#logger = environment.logger;
    this.#clock = environment.clock;
    this.#readOptions = environment.readOptions ?? (async () => options);
    this.#healthChannel = environment.healthChannel ?? null;
    this.#adminSocket = environment.adminSocket ?? null;
    this.#reloadAll = environment.reload ?? null;
    this.#sockets = environment.sockets ?? null;
  }

  /** The parts that tests and the admin listener look into; throws before `start`. */
  get parts(): Parts {
    if (!this.#parts) throw new Error('the gateway is not started');
    return this.#parts;
  }

  get addresses(): readonly AddressInfo[] {
    return this.parts.listeners.map((listener) => listener.address);
  }

  get adminAddress(): AddressInfo | undefined {
    return this.#admin;
  }

  /** Rejects with OperatorError when something an operator can mend is missing; nothing is left running then. */
  async start(): Promise<void> {
    try {
      await this.#start();
    } catch (error) {
      await this.stop();
      throw error;
    }
  }

  /** For the line that says where it listens, and on what stores. */
  get summary(): { readonly on: readonly string[]; readonly stores: string; readonly services: number } {
    return {
      on: this.parts.listeners.map((listener) => `${listener.scheme}://${hostOf(listener.address)}`),
      stores: this.#stores?.description ?? '',
      services: this.registry.snapshot?.services.size ?? 0,
    };
  }

  /**
   * Takes over a configuration read anew: TLS files, and services where the file is what they come from. Resolves with
   * false if the store of the services could not be read.
   */
  async reload(options: GatewayOptions): Promise<boolean> {
    const takeEffect = this.prepareReload(options);
    logReload(this.#options, options, this.#logger);
    return takeEffect();
  }

  /** Reads all files again and returns what puts them in force. Throws OperatorError if one cannot be used. */
  prepareReload(options: GatewayOptions): () => Promise<boolean> {
    // All files are read before any takes effect.
    const takeEffect = this.#reloadable.map((part) => part.prepareReload());
    return async () => {
      for (const take of takeEffect) take();
      this.#logger.setLevel(options.log.level);
      return (await this.#stores?.reloadRegistry(options)) ?? false;
    };
  }

  /** In a worker process: another one has changed something for an operator. Nothing of before counts any more. */
  async refresh(): Promise<void> {
    this.parts.bindings.expireAll();
    this.parts.tunnels.recheckAll();
    await this.#stores?.reloadRegistry(this.#options);
  }

  /** In a worker process: whether it is the one that probes. */
  appoint(probes: boolean): void {
    this.#probes = probes;
    this.#sharedHealth?.appoint(probes);
  }

  receiveHealth(from: number, message: HealthMessage): void {
    this.#sharedHealth?.receive(from, message);
  }

  beginClosing(): void {
    this.#closing = true;
  }

  stopAccepting(): void {
    this.#closing = true;
    for (const listener of this.#parts?.listeners ?? []) listener.stopAccepting();
  }

  async drain(graceMs: number): Promise<number> {
    const untilMs = this.#clock.monotonic() + graceMs;
    const { listeners, tunnels } = this.parts;
    for (;;) {
      for (const listener of listeners) listener.closeIdle();
      const running = this.#traffic.inFlight - tunnels.size;
      if (running <= 0 || this.#clock.monotonic() >= untilMs) return Math.max(0, running);
      await new Promise<void>((resolve) => this.#clock.after(DRAIN_LOOK_MS, resolve));
    }
  }

  async stop(): Promise<void> {
    this.#closing = true;
    for (const part of this.#started.splice(0).reverse()) await part.stop();
  }

  async #start(): Promise<void> {
    const { options } = { options: this.#options };
    const stores = await this.#openStores();
    this.#stores = stores;

    const health = new HealthRegistry({
      suspicion: options.health.suspicion,
      clock: this.#clock,
      logger: this.#logger,
      metrics: this.metrics,
    });
    const checker = this.#makeProber(health);
    const shared =
      options.store.postgres && stores.redis
        ? new RedisBindingCache(stores.redis, options.cache.redisTtlMs, this.#logger, this.#clock)
        : null;
    const bindings = new BindingService({
      store: stores.bindings,
      shared,
      sharedTtlMs: options.cache.redisTtlMs,
      heardUntilMs: () => this.#listener?.heardUntilMs ?? Number.NEGATIVE_INFINITY,
      ttlMs: options.cache.ttlMs,
      staleIfErrorMs: options.cache.staleIfErrorMs,
      maxEntries: options.cache.maxEntries,
      clock: this.#clock,
      logger: this.#logger,
      metrics: this.metrics,
    });
    const unfinished = new UnfinishedLogins({
      clock: this.#clock,
      logger: this.#logger,
      keepMs: options.identity.tokenTtlMs,
    });
    const tokens = await this.#makeTokens(stores, unfinished);
    const placement = new Placement({
      health,
      counts: stores.bindings,
      clock: this.#clock,
      logger: this.#logger,
    });
    const balancer = new StatelessBalancer({
      version: () => health.version,
      stateOf: (healthKey) => health.stateOf(healthKey),
      wasChecked: (healthKey) => health.wasChecked(healthKey),
      probeUnknown: (nodes) => checker.probeUnknown(nodes),
    });
    const versions = new VersionChooser({
      turns: () => new SmoothWeighted(),
      isUsable: (healthKey) => health.isUsable(healthKey),
    });
    const boundVersions = new BoundVersions({ bindings, ...options.cache, clock: this.#clock });
    const tunnels = new Tunnels(bindings);
    const connections = new Connections({ connectMs: options.timeouts.connectMs, clock: this.#clock });
    const forwarder = this.#makeForwarder(connections, checker);
    const upgrader = this.#makeUpgrader(connections, checker, tunnels);
    const stages = this.#makeStages({
      bindings,
      tokens,
      health,
      checker,
      placement,
      balancer,
      versions,
      boundVersions,
      unfinished,
    });
    const plain = buildPipeline({ ...stages, forward: (context) => forwarder.forward(context) });
    const upgrade = buildPipeline({ ...stages, forward: (context) => upgrader.forward(context) });
    const listeners = options.listen.map((listen, index) =>
      this.#makeListener(listen, this.#sockets?.listen[index] ?? null, { plain, upgrade }),
    );
    this.#reloadable.push(...listeners);
    this.#parts = { bindings, tokens, tunnels, forwarder, listeners };

    bindings.onChange((change) => {
      boundVersions.changed(change);
      tunnels.changed(change);
    });
    this.registry.subscribe((snapshot) => {
      placement.update(snapshot);
      balancer.update(snapshot);
      versions.update(snapshot);
      connections.retain(snapshot);
      checker.update(snapshot);
    });
    this.#describeRegistry();
    describeProcess(this.metrics, readVersion());
    this.metrics.gauge('gateway_tunnels', 'Upgraded connections that are open', {}, () => tunnels.size);

    this.#run(connections);
    this.#started.push(unfinished, { stop: () => tunnels.closeAll(CLOSE_GOING_AWAY) });
    this.#run(forwarder);
    this.#run(checker);
    this.#listenForChanges(bindings, boundVersions, shared);
    stores.onAvailable(() => unfinished.storeIsBack());
    await stores.startRegistry();
    await this.#startAdmin({
      stores,
      bindings,
      tokens,
      unfinished,
      health,
      connections,
      placement,
      versions,
      boundVersions,
      balancer,
      stages,
    });
    for (const listener of listeners) {
      await listener.start();
      this.#started.push({ stop: () => stopListener(listener) });
    }
    // Of several processes the primary speaks.
    if (!this.#healthChannel) logListening(this.summary, this.#admin, this.#logger);
  }

  #makeProber(registry: HealthRegistry): Prober {
    const options = this.#options.health;
    const checker = new HealthChecker({ registry, clock: this.#clock, logger: this.#logger, options });
    if (!this.#healthChannel) return checker;
    this.#sharedHealth = new SharedHealth({
      registry,
      checker,
      channel: this.#healthChannel,
      clock: this.#clock,
      onDemandMs: options.onDemandMs,
      waitMs: options.timeoutMs + PROBE_SLACK_MS,
    });
    this.#sharedHealth.appoint(this.#probes);
    return this.#sharedHealth;
  }

  async #openStores(): Promise<Stores> {
    const { postgres, redis } = this.#options.store;
    return postgres ? this.#openPostgres(postgres, redis) : this.#openJournal(redis);
  }

  async #openJournal(redis: RedisOptions | null): Promise<Stores> {
    const { dataDir } = this.#options.store;
    const journal = await Journal.open(dataDir, { clock: this.#clock, logger: this.#logger });
    this.#started.push(journal);
    const bindings = new JournalBindings(journal);
    const tokens = new JournalTokenStore({ journal, clock: this.#clock });
    this.#run(tokens);
    const { registryDefinition } = this.#options;
    const registry = new FileRegistry({
      journal,
      bindings,
      target: this.registry,
      definition: registryDefinition,
      fileHash: definitionHash(registryDefinition),
      clock: this.#clock,
      logger: this.#logger,
    });
    const audit = new FileAudit(dataDir);
    // With the embedded store the journal is the truth for tokens; a Redis may still serve resolvers.
    return {
      bindings,
      tokens: [tokens],
      redis: redis ? await this.#openRedis(redis, 'gateway') : null,
      description: `embedded (${dataDir})${redis ? ' + Redis' : ''}`,
      // A disk that is full tells nobody when it no longer is.
      onAvailable: () => undefined,
      startRegistry: async () => {
        await registry.start();
        this.#started.push(registry);
      },
      reloadRegistry: async (options) => {
        await registry.apply(options.registryDefinition, definitionHash(options.registryDefinition));
        return true;
      },
      audit,
      editor: new FileEditor(registry, bindings, audit, this.#logger),
      importer: new JournalImport(bindings),
    };
  }

  async #openPostgres(options: PostgresOptions, redisOptions: RedisOptions | null): Promise<Stores> {
    const postgres = new PostgresStore(options, this.#logger, this.#clock, this.metrics);
    this.#run(postgres);
    const redis = redisOptions ? await this.#openRedis(redisOptions, 'gateway') : null;
    const inPostgres = new PostgresTokenStore({ postgres, logger: this.#logger, clock: this.#clock });
    this.#run(inPostgres);
    const registry = new PostgresRegistry({
      postgres,
      target: this.registry,
      seed: this.#options.registryDefinition,
      checks: storedChecks,
      lastGood: new LastGoodFile(this.#options.store.dataDir),
      pollIntervalMs: this.#options.registry.pollIntervalMs,
      clock: this.#clock,
      logger: this.#logger,
      metrics: this.metrics,
      prepare: () => (options.migrate ? migrate(postgres) : verifySchema(postgres)),
    });
    this.#onRegistryChange = () => void registry.reload();
    const audit = new PostgresAudit(postgres);
    return {
      bindings: new PostgresBindings(postgres, this.#clock),
      // Redis answers first; PostgreSQL has every token too, so that losing Redis does not lose logins.
      tokens: redis ? [new RedisTokenStore(redis, this.#logger), inPostgres] : [inPostgres],
      redis,
      description: redis ? 'PostgreSQL + Redis' : 'PostgreSQL',
      onAvailable: (listener) => postgres.onAvailable(listener),
      startRegistry: async () => {
        this.#started.push(registry);
        await registry.start();
      },
      // The database is the truth: the file has only seeded it.
      reloadRegistry: () => registry.reload(),
      audit,
      editor: new PostgresEditor({ postgres, checks: storedChecks, audit, reload: () => registry.reload() }),
      importer: new PostgresImport(postgres),
    };
  }

  #onRegistryChange: () => void = () => undefined;

  async #openRedis(options: RedisOptions, label: string): Promise<RedisStore> {
    const redis = new RedisStore(options, this.#logger, this.#clock, label, this.metrics);
    this.#started.push(redis);
    await redis.start();
    return redis;
  }

  async #makeTokens(stores: Stores, unfinished: UnfinishedLogins): Promise<TokenService> {
    const { identity, cache } = this.#options;
    const resolvers: TokenResolver[] = [];
    for (const resolver of identity.resolvers) resolvers.push(await this.#makeResolver(resolver, stores.redis));
    return new TokenService({
      stores: stores.tokens,
      resolvers,
      settling: () => unfinished.settling,
      tokenTtlMs: identity.tokenTtlMs,
      staleIfErrorMs: cache.staleIfErrorMs,
      maxEntries: cache.maxEntries,
      clock: this.#clock,
      logger: this.#logger,
      metrics: this.metrics,
    });
  }

  async #makeResolver(options: ResolverOptions, shared: RedisStore | null): Promise<TokenResolver> {
    if (options.type === 'jwt') {
      const jwt = new JwtResolver(options, this.#clock);
      this.#reloadable.push(jwt);
      return jwt;
    }
    const redis = options.redis ? await this.#openRedis(options.redis, options.type) : shared;
    if (!redis) throw new OperatorError(`identity.resolvers: ${options.type} has no Redis to ask`);
    return options.type === 'saToken'
      ? new SaTokenResolver(options, redis, this.#clock, this.#logger)
      : new RedisSessionResolver(options, redis, this.#clock, this.#logger);
  }

  #makeForwarder(connections: Connections, health: Prober): Forwarder {
    const { timeouts, limits, via } = this.#options;
    return new Forwarder({
      connections,
      health,
      via,
      closing: () => this.#closing,
      responseMs: timeouts.responseMs,
      idleMs: timeouts.idleMs,
      bodyBytes: limits.bodyBytes,
      connectionsPerNode: limits.connectionsPerNode,
      clock: this.#clock,
    });
  }

  #makeUpgrader(connections: Connections, health: Prober, tunnels: Tunnels): Upgrader {
    const { timeouts, limits, via } = this.#options;
    return new Upgrader({
      connections,
      health,
      tunnels,
      via,
      responseMs: timeouts.responseMs,
      idleMs: timeouts.idleMs,
      connectionsPerNode: limits.connectionsPerNode,
    });
  }

  #makeListener(
    listen: ListenOptions,
    socket: InheritedSocket | null,
    handlers: { plain: Handler; upgrade: Handler },
  ): PublicListener {
    const { timeouts, limits } = this.#options;
    return new PublicListener({
      listen,
      socket,
      ...handlers,
      headerBytes: limits.headerBytes,
      requestHeadMs: timeouts.requestHeadMs,
      keepAliveMs: timeouts.keepAliveMs,
      clock: this.#clock,
      metrics: this.metrics,
    });
  }

  #makeStages(parts: {
    bindings: BindingService;
    tokens: TokenService;
    health: HealthRegistry;
    checker: Prober;
    placement: Placement;
    balancer: StatelessBalancer;
    versions: VersionChooser;
    boundVersions: BoundVersions;
    unfinished: UnfinishedLogins;
  }): Omit<Stages, 'forward'> {
    const { identity, log, limits, allow, trustedProxies } = this.#options;
    const common = { clock: this.#clock, logger: this.#logger, metrics: this.metrics };
    const source = identity.token;
    const { bindings, tokens, placement, health, checker, versions, boundVersions } = parts;
    const tokenOf = (context: RequestContext) => extractToken(context.request, source);
    return {
      requestId: requestId(),
      accessLog: accessLog({
        ...common,
        traffic: this.#traffic,
        enabled: log.access,
        maskTarget: (target) => maskQueryToken(target, source),
      }),
      errorBoundary: errorBoundary({ ...common, extraHeaders: (context) => context.corsHeaders ?? [] }),
      ipAllow: ipAllow(new AddressList(allow), new AddressList(trustedProxies)),
      cors: cors(this.#options.cors.enabled ? new CorsPolicy(this.#options.cors) : null),
      match: match(this.registry),
      versionByRule: versionByRule(versions),
      loginRequest: loginRequest({
        ...limits,
        idleMs: this.#options.timeouts.idleMs,
        servicesOf: (route) => versions.planOf(route).versions.map(({ service }) => service),
        clock: this.#clock,
      }),
      versionByUser: versionByUser({ tokens, versions, boundVersions, extractToken: tokenOf }),
      stickyRoute: stickyRoute({
        tokens,
        bindings,
        health: {
          isUsable: (healthKey) => health.isUsable(healthKey),
          probeNow: (node) => checker.probeNow(node),
        },
        placement,
        candidates: new LoginCandidates((node) => placement.release(node)),
        loginPending: (serviceId, userId) => parts.unfinished.mayHave(serviceId, userId),
        extractToken: tokenOf,
        rejectUnknownTokens: identity.unknownToken === 'reject',
        clock: this.#clock,
      }),
      balance: balance(parts.balancer),
      loginResponse: loginResponse({
        ...common,
        ...limits,
        tokenPrefix: source.prefix,
        bindings,
        versions: {
          findOther: async (route, ...user) =>
            (await boundVersions.findOther(versions.planOf(route).bound, ...user))?.id,
        },
        tokens,
        unfinished: parts.unfinished,
      }),
    };
  }

  /** NOTIFY and the Redis channel say what to forget; a gap in either makes everything cached stale. */
  #listenForChanges(bindings: BindingService, boundVersions: BoundVersions, shared: RedisBindingCache | null): void {
    const lost = () => {
      bindings.expireAll();
      boundVersions.expireAll();
      this.parts.tunnels.recheckAll();
    };
    const { postgres } = this.#options.store;
    if (postgres) {
      this.#listener = new PostgresListener({
        postgres,
        channels: [REGISTRY_CHANNEL, BINDINGS_CHANNEL],
        onMessage: (channel, payload) => {
          if (channel === REGISTRY_CHANNEL) this.#onRegistryChange();
          else {
            const change = readBindingNotification(payload);
            if (change) bindings.changedElsewhere(change);
            else lost();
          }
        },
        onLost: () => bindings.distrustShared(),
        onReconnect: () => {
          lost();
          this.#onRegistryChange();
        },
        logger: this.#logger,
        clock: this.#clock,
        heartbeatMs: Math.min(MOST_HEARTBEAT_MS, Math.max(LEAST_HEARTBEAT_MS, this.#options.cache.ttlMs / 4)),
      });
      this.#run(this.#listener);
    }
    shared?.listen((change) => bindings.drop(change), lost);
  }

  async #startAdmin(
    parts: Omit<AdminParts, 'options' | 'registry' | 'reload' | 'check' | 'clock' | 'logger'>,
  ): Promise<void> {
    const { listen } = this.#options.admin;
    if (!listen) return;
    const read = this.#readOptions;
    const reloadAll = this.#reloadAll;
    const { api, events } = composeAdmin({
      ...parts,
      options: this.#options,
      registry: this.registry,
      reload: reloadAll ? () => reloadAll(false).then(() => true) : async () => this.reload(await read()),
      check: reloadAll ? () => reloadAll(true) : async () => void (await read()),
      clock: this.#clock,
      logger: this.#logger,
    });
    this.#run(events);
    if (this.#healthChannel) await this.#startAdminSocket(api);
    else await this.#startAdminServer(listen, api);
  }

  async #startAdminSocket(api: AdminApi): Promise<void> {
    if (this.#adminSocket === null) return;
    const socket = new ApiSocket(this.#adminSocket, api);
    await socket.start();
    this.#started.push(socket);
  }

  async #startAdminServer(listen: ListenOptions, api: AdminApi): Promise<void> {
    const admin = new AdminServer({
      listen,
      fd: this.#sockets?.admin?.fd,
      allow: this.#options.admin.allow,
      metrics: this.metrics,
      notReady: () => {
        if (this.#closing) return 'the gateway is shutting down';
        return this.registry.snapshot ? null : 'the services have not been loaded yet';
      },
      api: (request, response, address) => api.handle(request, response, address),
    });
    this.#reloadable.push(admin);
    this.#admin = await admin.start();
    this.#started.push(admin);
  }

  #describeRegistry(): void {
    this.metrics.gauge(
      'gateway_snapshot_age_seconds',
      'Since the registry was last read from its source',
      {},
      () => {
        const { snapshot } = this.registry;
        return snapshot ? (this.#clock.now() - snapshot.loadedAtMs) / 1000 : -1;
      },
      'max',
    );
    this.metrics.gauge(
      'gateway_snapshot_stale',
      '1 = the registry is the last good one, not read from its source',
      {},
      () => (this.registry.snapshot?.stale ? 1 : 0),
      'max',
    );
  }

  #run(part: { start(): void; stop(): void | Promise<void> }): void {
    part.start();
    this.#started.push(part);
  }
}

/**
 * What Redis holds is as good as the last proof that its changes are heard of, so within a `cache.ttl` there are several.
 */
const LEAST_HEARTBEAT_MS = 250;
const MOST_HEARTBEAT_MS = 10_000;

/** How often a gateway that is winding down looks whether it is done. */
const DRAIN_LOOK_MS = 50;
/** Beyond the timeout of a probe, for its outcome to come from another process. */
const PROBE_SLACK_MS = 1_000;

export function logListening(
  summary: Gateway['summary'],
  admin: AddressInfo | undefined,
  logger: Logger,
  more: { readonly workers?: number } = {},
): void {
  const { on, ...rest } = summary;
  logger.info('listening', { on, admin: admin ? `http://${hostOf(admin)}` : undefined, ...rest, ...more });
}

/** Says what a reload does not take over. */
export function logReload(before: GatewayOptions, after: GatewayOptions, logger: Logger): void {
  const settings = settingsThatDiffer(before, after);
  if (settings.length > 0) logger.warn('needs_a_restart', { settings });
  if (after.store.postgres) logger.info('services_come_from_the_database');
}

async function stopListener(listener: PublicListener): Promise<void> {
  listener.stopAccepting();
  listener.closeAll();
  // What is cut here is to be seen as the client's connection ending, before the nodes' connections end too.
  // Sockets tell of their end at the end of a turn, after what setImmediate runs in it: hence two.
  for (let turn = 0; turn < 2; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}

/** The top-level keys a reload does not take over although they have changed. */
function settingsThatDiffer(before: GatewayOptions, after: GatewayOptions): string[] {
  // The level is taken over.
  const now = { ...after, log: { ...after.log, level: before.log.level } };
  const keys = Object.keys(before) as (keyof GatewayOptions)[];
  return keys.filter((key) => key !== 'registryDefinition' && JSON.stringify(before[key]) !== JSON.stringify(now[key]));
}

function hostOf({ address, port, family }: AddressInfo): string {
  return `${family === 'IPv6' ? `[${address}]` : address}:${port}`;
}
