-- A claim writes a new version of each row that it takes. Where no indexed column changes, and the page has room, PostgreSQL
-- enters that version into no index (a "heap-only tuple"). So `state` leaves the indexes: they know `stage`, which is what
-- of it a claim does not change, and what is in flight is found by the claims that took it.

-- `open` is what a claim may take or has taken; the other stages are the states of their names.
alter table evenflow.job add column stage text not null
  generated always as (case when state in ('ready', 'claimed', 'running') then 'open' else state end) stored;

drop index evenflow.job_ready;
create index job_ready on evenflow.job (queue, priority, turn, id) where stage = 'open';
drop index evenflow.job_due;
create index job_due on evenflow.job (run_at, id) where stage = 'scheduled';
drop index evenflow.job_arriving;
create index job_arriving on evenflow.job (id) where stage = 'arriving';
drop index evenflow.job_overflow;
create index job_overflow on evenflow.job (queue, priority, turn, id) where stage = 'overflow';
drop index evenflow.job_timed;
create index job_timed on evenflow.job (queue, priority, group_key, turn, id) where is_timed and stage in ('open', 'overflow');
drop index evenflow.job_in_flight;

-- Half of a page is for the versions that claims will write.
alter table evenflow.job set (fillfactor = 50);

-- Our own statements alone write states, and a list of them is compared for every version of a row.
alter table evenflow.job drop constraint job_state_check;
alter table evenflow.history drop constraint history_state_check;

-- The claims of each worker that have a job in flight, with all that they took: one row for many jobs. Whether a job is still in
-- flight is for its own row to say, by `worker` and `flight`.
create table evenflow.flight (
  worker  bigint not null,
  number  bigint not null,
  queue   text not null,
  ids     bigint[] not null,
  primary key (worker, number, queue)
) with (fillfactor = 100, toast_tuple_target = 8160, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
alter table evenflow.flight alter column ids set storage external;
create index flight_queue on evenflow.flight (queue);
alter table evenflow.job add column flight bigint;

-- What is in flight, one look by the key for each job that a flight names: OFFSET keeps the planner from walking all jobs instead.
create view evenflow.in_flight as
select f.worker, f.queue, j.id, j.epoch, j.state, j.group_key, j.lease_until, j.cancel_at, j.cancel_why
from evenflow.flight f cross join lateral unnest(f.ids) as member (id)
cross join lateral (
  select o.id, o.epoch, o.state, o.group_key, o.lease_until, o.cancel_at, o.cancel_why from evenflow.job o
  where o.id = member.id and o.flight = f.number and o.worker = f.worker and o.state in ('claimed', 'running') offset 0) j;

-- What runs while the tables change.
update evenflow.job set flight = 0 where state in ('claimed', 'running');
insert into evenflow.flight (worker, number, queue, ids)
select worker, 0, queue, array_agg(id) from evenflow.job where state in ('claimed', 'running') and worker is not null group by worker, queue;
