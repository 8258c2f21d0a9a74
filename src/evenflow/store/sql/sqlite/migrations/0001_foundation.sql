-- The tables of a queue: live jobs, their order, their history, and who works on them.
-- The twin of the PostgreSQL file: same names behind the prefix, same columns, same meaning. Times are integer
-- microseconds since the Unix epoch.

create table evenflow_queue (
  name             text primary key check (name glob '[A-Za-z]*' and length(name) <= 63),
  priority         integer not null default 50,
  fair             text not null default 'round-robin' check (fair in ('fifo', 'round-robin', 'time')),
  max_concurrency  integer check (max_concurrency >= 0),
  is_set           integer not null default 0,
  mean_cost_us     real,
  paused_at        integer,
  paused_by        text,
  paused_why       text
) strict, without rowid;

create table evenflow_cluster (
  id   integer primary key check (id = 1),
  cap  integer check (cap > 0)
) strict;

create table evenflow_group_weight (
  queue      text not null,
  group_key  text not null,
  weight     real not null check (weight > 0),
  primary key (queue, group_key)
) strict, without rowid;

create table evenflow_group_cost (
  queue       text not null,
  group_key   text not null,
  cost_us     real not null,
  updated_at  integer not null,
  primary key (queue, group_key)
) strict, without rowid;

create table evenflow_band (
  queue     text not null,
  priority  integer not null check (priority between -100 and 100),
  primary key (queue, priority)
) strict, without rowid;

create table evenflow_round (
  queue     text not null,
  priority  integer not null,
  v         real not null,
  primary key (queue, priority)
) strict, without rowid;

create table evenflow_group_tail (
  queue       text not null,
  priority    integer not null,
  group_key   text not null,
  tail        real not null,
  span        real not null,
  primary key (queue, priority, group_key)
) strict, without rowid;

create table evenflow_job (
  id             integer primary key,
  turn           real not null default 0,
  created_at     integer not null,
  run_at         integer not null,
  started_at     integer,
  good_until     integer,
  lease_until    integer,
  cancel_at      integer,
  worker         integer,
  run_id         integer,
  epoch          integer not null default 0,
  attempt        integer not null default 0,
  max_attempts   integer not null,
  crashes        integer not null default 0,
  priority       integer not null,
  awaited        integer not null default 0,
  fails_on_crash integer not null default 0,
  -- One by one, the most frequent first: for a list SQLite fills a table of its own in every statement that writes here,
  -- which took a sixth of the insert of one job.
  state          text not null check (state = 'ready' or state = 'claimed' or state = 'running' or state = 'scheduled'
                   or state = 'arriving' or state = 'blocked' or state = 'waiting' or state = 'overflow'),
  queue          text not null,
  task           text not null,
  group_key      text,
  unique_key     text,
  cancel_why     text,
  signature      text,
  headers        text,
  options        text,
  errors         text,
  progress       text,
  payload        text not null
) strict;

create index evenflow_job_ready on evenflow_job (queue, priority, turn, id) where state = 'ready';
create index evenflow_job_in_flight on evenflow_job (queue, worker) where state in ('claimed', 'running');
create index evenflow_job_due on evenflow_job (run_at, id) where state = 'scheduled';
create index evenflow_job_arriving on evenflow_job (id) where state = 'arriving';
create index evenflow_job_expiring on evenflow_job (good_until) where good_until is not null;
create unique index evenflow_job_unique on evenflow_job (unique_key) where unique_key is not null;

create table evenflow_history (
  id             integer primary key,
  expires_at     integer not null,
  created_at     integer not null,
  run_at         integer not null,
  started_at     integer,
  finished_at    integer not null,
  good_until     integer,
  worker         integer,
  run_id         integer,
  epoch          integer not null,
  attempt        integer not null,
  max_attempts   integer not null,
  crashes        integer not null,
  priority       integer not null,
  fails_on_crash integer not null,
  state          text not null check (state in
                   ('succeeded', 'failed', 'expired', 'cancelled', 'skipped', 'discarded', 'quarantined')),
  queue          text not null,
  task           text not null,
  group_key      text,
  unique_key     text,
  signature      text,
  headers        text,
  options        text,
  errors         text,
  progress       text,
  payload        text not null,
  result         text
) strict;
create index evenflow_history_trouble on evenflow_history (state, id) where state <> 'succeeded';
-- SQLite has no partitions: pruning deletes in small batches along this index.
create index evenflow_history_expiry on evenflow_history (expires_at);

create table evenflow_worker (
  id          integer primary key,
  parent      integer,
  kind        text not null,
  host        text not null,
  pid         integer not null,
  started_at  integer not null,
  beat        integer not null default 0,
  beat_at     integer not null,
  lease_us    integer not null,
  about       text not null default '{}'
) strict;
