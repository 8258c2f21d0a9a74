-- Fairness by time for a backlog that is already there: its jobs move when it is known what they take.

-- Jobs whose places follow what their group's runs take. Only these are in the index, so other queues do not pay for it.
alter table evenflow.job add column is_timed boolean not null default false;
create index job_timed on evenflow.job (queue, priority, group_key, turn, id)
  where is_timed and epoch = 0 and state in ('ready', 'overflow');

-- What a step of 1 stands for. Apart from the mean, which moves with every report: each move would misplace all groups.
alter table evenflow.queue add column unit_us double precision;
update evenflow.queue set unit_us = mean_cost_us;

-- How many runs a cost is the mean of, up to a bound: the first ones count fully, one of many moves it a little.
alter table evenflow.group_cost add column runs integer not null default 1;

-- How far apart the waiting jobs of a group lie, where its queue is fair by time.
alter table evenflow.group_tail add column step double precision;

-- Groups whose waiting jobs have to move, and how far that has come. Without `ratio` it has not begun.
create table evenflow.respacing (
  queue       text not null,
  priority    smallint not null,
  group_key   text not null,
  step        double precision,
  ratio       double precision,
  anchor      double precision,
  turn        double precision,
  job_id      bigint,
  primary key (queue, priority, group_key)
) with (autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);
