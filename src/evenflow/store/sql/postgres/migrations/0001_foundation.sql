-- The tables of a queue: live jobs, their order, their history, and who works on them.
-- Times are bigint microseconds since the Unix epoch: the same arithmetic as on SQLite, and no time zone to get wrong.

create schema if not exists evenflow;

-- The one clock of the database. Everything that compares times asks it, so a test can shift it in one place.
create function evenflow.now_us() returns bigint language sql volatile parallel safe
  as $$ select cast(extract(epoch from clock_timestamp()) * 1000000 as bigint) $$;

-- One value is a block of 32 job ids (evenflow/ids.py): clients know their ids before they insert, so an enqueue
-- whose commit got no answer can be repeated without a second job.
create sequence evenflow.id_block as bigint minvalue 0 start 0;

create table evenflow.queue (
  name             text primary key check (name ~ '^[A-Za-z][A-Za-z0-9_.-]{0,62}$'),
  priority         smallint not null default 50,
  fair             text not null default 'round-robin' check (fair in ('fifo', 'round-robin', 'time')),
  max_concurrency  integer check (max_concurrency >= 0),
  is_set           boolean not null default false,
  mean_cost_us     double precision,
  paused_at        bigint,
  paused_by        text,
  paused_why       text
);

-- The cap of the whole cluster, if there is one. One row, so that claims under the cap have something to lock.
create table evenflow.cluster (
  id   integer primary key check (id = 1),
  cap  integer check (cap > 0)
);

create table evenflow.group_weight (
  queue      text not null,
  group_key  text not null,
  weight     double precision not null check (weight > 0),
  primary key (queue, group_key)
);

-- What a group's jobs really take, learnt from finished runs; read by admission where the queue is fair by time.
create table evenflow.group_cost (
  queue       text not null,
  group_key   text not null,
  cost_us     double precision not null,
  updated_at  bigint not null,
  primary key (queue, group_key)
);

-- The (queue, priority) pairs that have ever held a job. A claim walks these few rows, so it sees a new band at once.
create table evenflow.band (
  queue     text not null,
  priority  smallint not null check (priority between -100 and 100),
  primary key (queue, priority)
);

-- V of each band: the greatest turn claimed so far. Apart from band, because its versions pile up under an old snapshot.
create table evenflow.round (
  queue     text not null,
  priority  smallint not null,
  v         double precision not null,
  primary key (queue, priority)
) with (fillfactor = 10, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);

-- The last turn given to each group that has jobs. `span` is scratch for the upsert: the virtual length of its batch.
create table evenflow.group_tail (
  queue       text not null,
  priority    smallint not null,
  group_key   text not null,
  tail        double precision not null,
  span        double precision not null,
  primary key (queue, priority, group_key)
) with (fillfactor = 70, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.01);

create table evenflow.job (
  id            bigint primary key,
  turn          double precision not null default 0,
  created_at    bigint not null,
  run_at        bigint not null,
  started_at    bigint,
  good_until    bigint,
  lease_until   bigint,
  cancel_at     bigint,
  worker        bigint,
  run_id        bigint,
  epoch         integer not null default 0,
  attempt       integer not null default 0,
  max_attempts  integer not null,
  crashes       smallint not null default 0,
  priority      smallint not null,
  awaited       boolean not null default false,
  fails_on_crash boolean not null default false,
  state         text not null check (state in
                  ('arriving', 'scheduled', 'waiting', 'blocked', 'overflow', 'ready', 'claimed', 'running')),
  queue         text not null,
  task          text not null,
  group_key     text,
  unique_key    text,
  cancel_why    text,
  signature     text,
  headers       text,
  options       text,
  errors        text,
  progress      text,
  payload       text not null
) with (fillfactor = 85, vacuum_truncate = off, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_cost_limit = 2000, autovacuum_vacuum_cost_delay = 1, autovacuum_analyze_scale_factor = 0.2);

-- The claim is a plain walk along this index: its columns are the order of the claim.
create index job_ready on evenflow.job (queue, priority, turn, id) where state = 'ready';
-- What is in flight: counted for caps, searched by rescue. Only live leases are in it.
create index job_in_flight on evenflow.job (queue, worker) where state in ('claimed', 'running');
create index job_due on evenflow.job (run_at, id) where state = 'scheduled';
create index job_arriving on evenflow.job (id) where state = 'arriving';
create index job_expiring on evenflow.job (good_until) where good_until is not null;
-- A live row is a job that has not ended, so uniqueness covers every open state and no user-chosen subset.
create unique index job_unique on evenflow.job (unique_key) where unique_key is not null;

-- Finished jobs, partitioned by the day on which they may be forgotten: pruning drops partitions, and
-- outcomes with different retention need no deletes. Rows kept longer than the partitions reach go to the default one.
create table evenflow.history (
  id            bigint not null,
  expires_at    bigint not null,
  created_at    bigint not null,
  run_at        bigint not null,
  started_at    bigint,
  finished_at   bigint not null,
  good_until    bigint,
  worker        bigint,
  run_id        bigint,
  epoch         integer not null,
  attempt       integer not null,
  max_attempts  integer not null,
  crashes       smallint not null,
  priority      smallint not null,
  fails_on_crash boolean not null,
  state         text not null check (state in
                  ('succeeded', 'failed', 'expired', 'cancelled', 'skipped', 'discarded', 'quarantined')),
  queue         text not null,
  task          text not null,
  group_key     text,
  unique_key    text,
  signature     text,
  headers       text,
  options       text,
  errors        text,
  progress      text,
  payload       text not null,
  result        text
) partition by range (expires_at);
create index history_id on evenflow.history (id);
-- Only what did not succeed: the list that people look at costs a success nothing.
create index history_trouble on evenflow.history (state, id) where state <> 'succeeded';
create table evenflow.history_default partition of evenflow.history default;

-- One row per worker process and incarnation. `beat` grows with each heartbeat; observers compare it, never a clock.
create table evenflow.worker (
  id          bigint primary key,
  parent      bigint,
  kind        text not null,
  host        text not null,
  pid         integer not null,
  started_at  bigint not null,
  beat        bigint not null default 0,
  beat_at     bigint not null,
  lease_us    bigint not null,
  about       text not null default '{}'
) with (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);
