-- What ran, per minute, queue and task; minute 0 is the total. The twin of the PostgreSQL file.

create table evenflow_statistic (
  minute       integer not null,
  queue        text not null,
  task         text not null,
  at           integer not null,
  started      integer not null,
  succeeded    integer not null,
  failed       integer not null,
  retried      integer not null,
  crashed      integer not null,
  expired      integer not null,
  cancelled    integer not null,
  skipped      integer not null,
  discarded    integer not null,
  quarantined  integer not null,
  wait_us      integer not null,
  run_us       integer not null,
  waits        text not null,
  runs         text not null,
  primary key (minute, queue, task)
) strict, without rowid;
