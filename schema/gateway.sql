-- The tables of sticky-gateway in PostgreSQL, version 12 or newer.
--
-- Safe to run again and again, and on a database that an older gateway created with fewer columns: it only adds.
-- What exists already is looked up before it is created, because even "ALTER TABLE ... IF NOT EXISTS" takes locks
-- that stop the traffic of other gateways. Run it in one transaction (`sticky-gateway migrate`, or
-- `psql --single-transaction -v ON_ERROR_STOP=1 -f gateway.sql`).

CREATE TABLE IF NOT EXISTS gateway_service (
  id              varchar(64)  PRIMARY KEY,
  name            varchar(256) NOT NULL DEFAULT '',
  path_prefix     varchar(256),                      -- NULL = reached only through routes
  login_path      varchar(256),                      -- NULL = no login stickiness
  health_path     varchar(256),                      -- NULL = a TCP connect
  default_node_id varchar(64),
  enabled         smallint     NOT NULL DEFAULT 1,
  options         jsonb,                             -- affinity, placement, balance, login, health, timeouts, upstream
  create_time     timestamptz  NOT NULL DEFAULT now(),
  update_time     timestamptz  NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS gateway_node (
  id          varchar(64)      PRIMARY KEY,
  service_id  varchar(64)      NOT NULL REFERENCES gateway_service (id) ON DELETE CASCADE,
  name        varchar(256)     NOT NULL DEFAULT '',
  base_url    varchar(512)     NOT NULL,
  enabled     smallint         NOT NULL DEFAULT 1,
  draining    smallint         NOT NULL DEFAULT 0,
  weight      double precision NOT NULL DEFAULT 1,
  max_users   integer,                               -- NULL = no bound
  remark      varchar(512)     NOT NULL DEFAULT '',
  create_time timestamptz      NOT NULL DEFAULT now(),
  update_time timestamptz      NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS gateway_route (
  id          varchar(64)  PRIMARY KEY,
  path_prefix varchar(256) NOT NULL,
  enabled     smallint     NOT NULL DEFAULT 1,
  config      jsonb        NOT NULL DEFAULT '{}',    -- fallback, versions, rules
  create_time timestamptz  NOT NULL DEFAULT now(),
  update_time timestamptz  NOT NULL DEFAULT now()
);

-- Bindings. No foreign keys: a binding outlives its node, so that its user gets 503 instead of another node.
CREATE TABLE IF NOT EXISTS gateway_user_route (
  id          bigserial    PRIMARY KEY,
  service_id  varchar(64)  NOT NULL,
  user_id     varchar(256),
  username    varchar(256),
  node_id     varchar(64)  NOT NULL,
  epoch       bigint       NOT NULL DEFAULT 1,
  frozen      smallint     NOT NULL DEFAULT 0,
  create_time timestamptz  NOT NULL DEFAULT now(),
  update_time timestamptz  NOT NULL DEFAULT now()
);

-- One row: no binding made from now on gets an epoch that one removed before may have had.
CREATE TABLE IF NOT EXISTS gateway_epoch (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  floor  bigint  NOT NULL DEFAULT 0
);
INSERT INTO gateway_epoch (single, floor) VALUES (true, 0) ON CONFLICT DO NOTHING;

-- Tokens, used when there is no Redis. Only the SHA-256 of a token is kept.
CREATE TABLE IF NOT EXISTS gateway_token (
  realm       varchar(64)  NOT NULL,
  token_hash  char(64)     NOT NULL,
  user_id     varchar(256) NOT NULL,
  expire_time timestamptz  NOT NULL,
  PRIMARY KEY (realm, token_hash)
);

CREATE TABLE IF NOT EXISTS gateway_audit (
  id         bigserial   PRIMARY KEY,
  time       timestamptz NOT NULL DEFAULT now(),
  actor      text        NOT NULL,                   -- who: the name of the admin token
  address    text,                                   -- from where
  action     text        NOT NULL,
  target     text,                                   -- what
  outcome    text,                                   -- done, or why it was refused
  before     jsonb,
  after      jsonb,
  reason     text,
  request_id text
);

-- Columns and rules that tables of an older gateway lack.
DO $migration$
DECLARE
  addition record;
BEGIN
  FOR addition IN
    SELECT * FROM (VALUES
      ('gateway_service', 'name', 'varchar(256) NOT NULL DEFAULT '''''),
      ('gateway_service', 'login_path', 'varchar(256)'),
      ('gateway_service', 'health_path', 'varchar(256)'),
      ('gateway_service', 'default_node_id', 'varchar(64)'),
      ('gateway_service', 'enabled', 'smallint NOT NULL DEFAULT 1'),
      ('gateway_service', 'options', 'jsonb'),
      ('gateway_service', 'create_time', 'timestamptz NOT NULL DEFAULT now()'),
      ('gateway_service', 'update_time', 'timestamptz NOT NULL DEFAULT now()'),
      ('gateway_node', 'name', 'varchar(256) NOT NULL DEFAULT '''''),
      ('gateway_node', 'enabled', 'smallint NOT NULL DEFAULT 1'),
      ('gateway_node', 'draining', 'smallint NOT NULL DEFAULT 0'),
      ('gateway_node', 'weight', 'double precision NOT NULL DEFAULT 1'),
      ('gateway_node', 'max_users', 'integer'),
      ('gateway_node', 'remark', 'varchar(512) NOT NULL DEFAULT '''''),
      ('gateway_node', 'create_time', 'timestamptz NOT NULL DEFAULT now()'),
      ('gateway_node', 'update_time', 'timestamptz NOT NULL DEFAULT now()'),
      ('gateway_user_route', 'username', 'varchar(256)'),
      ('gateway_user_route', 'epoch', 'bigint NOT NULL DEFAULT 1'),
      ('gateway_user_route', 'frozen', 'smallint NOT NULL DEFAULT 0'),
      ('gateway_user_route', 'create_time', 'timestamptz NOT NULL DEFAULT now()'),
      ('gateway_user_route', 'update_time', 'timestamptz NOT NULL DEFAULT now()')
    ) AS wanted (table_name, column_name, definition)
    WHERE NOT EXISTS (
      SELECT FROM pg_attribute
      WHERE attrelid = to_regclass(wanted.table_name) AND attname = wanted.column_name AND NOT attisdropped
    )
  LOOP
    EXECUTE format('ALTER TABLE %I ADD COLUMN IF NOT EXISTS %I %s',
      addition.table_name, addition.column_name, addition.definition);
  END LOOP;

  -- A service that is reached only through routes has no prefix; a row may lack one of user id and username.
  FOR addition IN
    SELECT * FROM (VALUES
      ('gateway_service', 'path_prefix'), ('gateway_user_route', 'user_id'), ('gateway_user_route', 'username')
    ) AS nullable (table_name, column_name)
    WHERE EXISTS (
      SELECT FROM pg_attribute
      WHERE attrelid = to_regclass(nullable.table_name) AND attname = nullable.column_name AND attnotnull
    )
  LOOP
    EXECUTE format('ALTER TABLE %I ALTER COLUMN %I DROP NOT NULL', addition.table_name, addition.column_name);
  END LOOP;

  IF NOT EXISTS (
    SELECT FROM pg_constraint
    WHERE conrelid = to_regclass('gateway_user_route') AND conname = 'gateway_user_route_identity'
  ) THEN
    ALTER TABLE gateway_user_route
      ADD CONSTRAINT gateway_user_route_identity CHECK (user_id IS NOT NULL OR username IS NOT NULL);
  END IF;

  FOR addition IN
    SELECT * FROM (VALUES
      ('gateway_service_path_prefix', 'UNIQUE INDEX', 'gateway_service (path_prefix)'),
      ('gateway_route_path_prefix', 'UNIQUE INDEX', 'gateway_route (path_prefix)'),
      ('gateway_node_base_url', 'UNIQUE INDEX', 'gateway_node (service_id, base_url)'),
      ('gateway_user_route_by_user_id', 'UNIQUE INDEX',
        'gateway_user_route (service_id, user_id) WHERE user_id IS NOT NULL'),
      ('gateway_user_route_by_username', 'UNIQUE INDEX',
        'gateway_user_route (service_id, lower(username)) WHERE username IS NOT NULL'),
      ('gateway_user_route_by_node', 'INDEX', 'gateway_user_route (service_id, node_id, id)'),
      ('gateway_token_by_expiry', 'INDEX', 'gateway_token (expire_time)'),
      ('gateway_audit_by_time', 'INDEX', 'gateway_audit (time)')
    ) AS wanted (index_name, kind, definition)
    WHERE to_regclass(wanted.index_name) IS NULL
  LOOP
    EXECUTE format('CREATE %s %I ON %s', addition.kind, addition.index_name, addition.definition);
  END LOOP;
END
$migration$;

CREATE OR REPLACE FUNCTION gateway_touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.update_time := now();
  RETURN NEW;
END
$$;

CREATE OR REPLACE FUNCTION gateway_registry_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('gateway_registry', TG_TABLE_NAME);
  RETURN NULL;
END
$$;

-- The advisory lock orders removals against insertions: an insertion that reads the floor while a removal of the same
-- user is not yet committed would otherwise make a row at or below the epoch removed. Insertions share it.
CREATE OR REPLACE FUNCTION gateway_binding_inserted() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  least_epoch bigint;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(7236124891003);
  SELECT floor + 1 INTO least_epoch FROM gateway_epoch;
  NEW.epoch := greatest(coalesce(NEW.epoch, 1), coalesce(least_epoch, 1));
  RETURN NEW;
END
$$;

CREATE OR REPLACE FUNCTION gateway_raise_epoch_floor(removed_epoch bigint) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
BEGIN
  IF EXISTS (SELECT FROM gateway_epoch WHERE floor >= removed_epoch) THEN
    RETURN;
  END IF;
  PERFORM pg_advisory_xact_lock(7236124891003);
  INSERT INTO gateway_epoch AS e (single, floor) VALUES (true, removed_epoch)
    ON CONFLICT (single) DO UPDATE SET floor = excluded.floor WHERE e.floor < excluded.floor;
END
$$;

-- Before the deletion, not after it: the lock has to be held when the row can no longer be seen.
CREATE OR REPLACE FUNCTION gateway_binding_removed() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM gateway_raise_epoch_floor(OLD.epoch);
  RETURN OLD;
END
$$;

CREATE OR REPLACE FUNCTION gateway_bindings_truncated() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM gateway_raise_epoch_floor((SELECT coalesce(max(epoch), 0) FROM gateway_user_route));
  PERFORM pg_notify('gateway_bindings', '*');
  RETURN NULL;
END
$$;

-- A move by plain SQL raises the epoch too, and a row that gets (another) user id is a new binding of that user.
CREATE OR REPLACE FUNCTION gateway_binding_updated() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  least_epoch bigint;
BEGIN
  NEW.update_time := now();
  IF NEW.node_id IS DISTINCT FROM OLD.node_id THEN
    NEW.epoch := greatest(NEW.epoch, OLD.epoch + 1);
  END IF;
  IF NEW.user_id IS DISTINCT FROM OLD.user_id AND NEW.user_id IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock_shared(7236124891003);
    SELECT floor + 1 INTO least_epoch FROM gateway_epoch;
    NEW.epoch := greatest(NEW.epoch, coalesce(least_epoch, 1));
  END IF;
  RETURN NEW;
END
$$;

-- Tells other gateways which cached bindings are void. New rows void nothing: what is absent is never cached.
-- s = service, u and n = user ids and usernames, old and new, e = the epoch now (of a removed row: its last, d = 1).
-- '*' = all of them: for a payload too long, and for bulk work (SET gateway.bulk = 'on'), where equal
-- notifications of one transaction become one.
CREATE OR REPLACE FUNCTION gateway_binding_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  users     text[] := ARRAY[OLD.user_id::text];
  usernames text[] := ARRAY[OLD.username::text];
  epoch     bigint := OLD.epoch;
  payload   text := '*';
BEGIN
  IF TG_OP = 'UPDATE' THEN
    epoch := NEW.epoch;
    IF NEW.user_id IS DISTINCT FROM OLD.user_id THEN users := users || NEW.user_id::text; END IF;
    IF NEW.username IS DISTINCT FROM OLD.username THEN usernames := usernames || NEW.username::text; END IF;
  END IF;
  IF coalesce(current_setting('gateway.bulk', true), '') <> 'on' THEN
    payload := json_build_object('s', OLD.service_id, 'u', array_remove(users, NULL), 'n', array_remove(usernames, NULL),
      'e', epoch, 'd', CASE TG_OP WHEN 'DELETE' THEN 1 ELSE 0 END)::text;
    IF octet_length(payload) >= 8000 THEN payload := '*'; END IF;
  END IF;
  PERFORM pg_notify('gateway_bindings', payload);
  RETURN NULL;
END
$$;

DO $migration$
DECLARE
  addition record;
BEGIN
  FOR addition IN
    SELECT * FROM (VALUES
      ('gateway_service', 'gateway_service_touch', 'BEFORE UPDATE', 'FOR EACH ROW', 'gateway_touch'),
      ('gateway_node', 'gateway_node_touch', 'BEFORE UPDATE', 'FOR EACH ROW', 'gateway_touch'),
      ('gateway_route', 'gateway_route_touch', 'BEFORE UPDATE', 'FOR EACH ROW', 'gateway_touch'),
      ('gateway_service', 'gateway_service_notify', 'AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE',
        'FOR EACH STATEMENT', 'gateway_registry_changed'),
      ('gateway_node', 'gateway_node_notify', 'AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE',
        'FOR EACH STATEMENT', 'gateway_registry_changed'),
      ('gateway_route', 'gateway_route_notify', 'AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE',
        'FOR EACH STATEMENT', 'gateway_registry_changed'),
      ('gateway_user_route', 'gateway_user_route_insert', 'BEFORE INSERT', 'FOR EACH ROW', 'gateway_binding_inserted'),
      ('gateway_user_route', 'gateway_user_route_update', 'BEFORE UPDATE', 'FOR EACH ROW', 'gateway_binding_updated'),
      ('gateway_user_route', 'gateway_user_route_delete', 'BEFORE DELETE', 'FOR EACH ROW', 'gateway_binding_removed'),
      ('gateway_user_route', 'gateway_user_route_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT',
        'gateway_bindings_truncated'),
      ('gateway_user_route', 'gateway_user_route_notify', 'AFTER UPDATE OR DELETE', 'FOR EACH ROW',
        'gateway_binding_changed')
    ) AS wanted (table_name, trigger_name, moment, extent, function_name)
    WHERE NOT EXISTS (
      SELECT FROM pg_trigger WHERE tgrelid = to_regclass(wanted.table_name) AND tgname = wanted.trigger_name
    )
  LOOP
    EXECUTE format('CREATE TRIGGER %I %s ON %I %s EXECUTE FUNCTION %I()',
      addition.trigger_name, addition.moment, addition.table_name, addition.extent, addition.function_name);
  END LOOP;
END
$migration$;
