-- What ran, per minute, queue and task; minute 0 is the total since the beginning. Workers add to it every few seconds.

-- `at` is when the row was last added to. `waits` and `runs` are histograms over the buckets of rules/histogram.py.
create table evenflow.statistic (
  minute       bigint not null,
  queue        text not null,
  task         text not null,
  at           bigint not null,
  started      bigint not null,
  succeeded    bigint not null,
  failed       bigint not null,
  retried      bigint not null,
  crashed      bigint not null,
  expired      bigint not null,
  cancelled    bigint not null,
  skipped      bigint not null,
  discarded    bigint not null,
  quarantined  bigint not null,
  wait_us      bigint not null,
  run_us       bigint not null,
  waits        bigint[] not null,
  runs         bigint[] not null,
  primary key (minute, queue, task)
) with (fillfactor = 70, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
