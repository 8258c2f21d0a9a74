-- Fairness by time for a backlog that is already there. The twin of the PostgreSQL file.

alter table evenflow_job add column is_timed integer not null default 0;
create index evenflow_job_timed on evenflow_job (queue, priority, group_key, turn, id)
  where is_timed and epoch = 0 and state in ('ready', 'overflow');

alter table evenflow_queue add column unit_us real;
update evenflow_queue set unit_us = mean_cost_us;

alter table evenflow_group_cost add column runs integer not null default 1;
alter table evenflow_group_tail add column step real;

create table evenflow_respacing (
  queue       text not null,
  priority    integer not null,
  group_key   text not null,
  step        real,
  ratio       real,
  anchor      real,
  turn        real,
  job_id      integer,
  primary key (queue, priority, group_key)
) strict, without rowid;
