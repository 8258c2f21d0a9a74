-- name: recall
-- mode: read
-- returns: name, value
-- What a job has remembered in its earlier attempts.
select m.name, m.value from evenflow.memo m where m.job_id = cast(:id as bigint);

-- name: remember
-- returns: name
-- Fenced like every write of a run: an attempt that was taken for dead leaves no memory. What is remembered stays.
insert into evenflow.memo (job_id, expires_at, name, value)
select j.id, coalesce(cast(:now as bigint), evenflow.now_us()) + cast(:keep_us as bigint), cast(:name as text), cast(:value as text)
from evenflow.job j where j.id = cast(:id as bigint) and j.epoch = cast(:epoch as integer) and coalesce(j.state, '') = 'running'
on conflict (job_id, name) do update set expires_at = excluded.expires_at
returning name;

-- name: add_event
-- returns: number
-- Events of one name are there in the order of their numbers: whoever has had one looks behind it, and would never find a
-- smaller one that is committed later. So each waits for the one before it.
with turn as materialized (select pg_advisory_xact_lock(hashtextextended('evenflow event ' || cast(:name as text), 0)))
insert into evenflow.event (at, expires_at, name, payload)
select now, now + cast(:keep_us as bigint), cast(:name as text), cast(:payload as text)
from turn, (select coalesce(cast(:now as bigint), evenflow.now_us()) as now) clock
returning number;

-- name: next_event
-- mode: read
-- returns: number, payload
-- The first event of a name since the job was made, behind those that it has had.
select e.number, e.payload from evenflow.event e
where e.name = cast(:name as text) and e.number > cast(:after as bigint) and e.at >= cast(:since as bigint)
order by e.number limit 1;

-- name: await_event
-- returns: job_id
insert into evenflow.event_wait (job_id, after, name)
select j.id, cast(:after as bigint), cast(:name as text) from evenflow.job j
where j.id = cast(:id as bigint) and j.epoch = cast(:epoch as integer) and coalesce(j.state, '') = 'running'
on conflict (job_id) do update set after = excluded.after, name = excluded.name
returning job_id;

-- name: leave_event
-- returns: job_id
-- The wait is over: what comes later is no reason to wake the job from a sleep, or from the pause before its next attempt.
delete from evenflow.event_wait w
where w.job_id = cast(:id as bigint) and exists (
  select from evenflow.job j where j.id = w.job_id and j.epoch = cast(:epoch as integer) and coalesce(j.state, '') = 'running')
returning w.job_id;

-- name: rouse
-- returns: id
-- Jobs that let go of their slot and whose event has come are due now. For events that are kept for `ahead_us` and
-- longer from now, with this name or any: a look along young events, not along all that wait.
with roused as materialized (
  select distinct w.job_id from evenflow.event e
  join evenflow.event_wait w on w.name = e.name and w.after < e.number
  join evenflow.job j on j.id = w.job_id and j.created_at <= e.at
  where e.expires_at >= coalesce(cast(:now as bigint), evenflow.now_us()) + cast(:ahead_us as bigint) and (cast(:name as text) is null or e.name = cast(:name as text))
    and coalesce(j.state, '') = 'scheduled' and j.run_at > coalesce(cast(:now as bigint), evenflow.now_us())
)
update evenflow.job j set run_at = coalesce(cast(:now as bigint), evenflow.now_us())
where j.id = any (array(select job_id from roused)) and coalesce(j.state, '') = 'scheduled'
returning j.id;

-- name: forget_waits
-- returns: job_id
-- Waits of jobs that have ended.
with gone as materialized (
  select w.job_id from evenflow.event_wait w where not exists (select from evenflow.job j where j.id = w.job_id)
  limit cast(:top as integer)
)
delete from evenflow.event_wait w using gone
where w.job_id = gone.job_id
returning w.job_id;

-- name: prune_memos
-- returns: job_id
-- What jobs remembered that can no longer be tried again.
with old as materialized (
  select m.job_id, m.name from evenflow.memo m
  where m.expires_at <= coalesce(cast(:now as bigint), evenflow.now_us())
    and not exists (select from evenflow.job j where j.id = m.job_id)
  order by m.expires_at limit cast(:top as integer)
)
delete from evenflow.memo m using old
where m.job_id = old.job_id and m.name = old.name
returning m.job_id;

-- name: prune_events
-- returns: number
with old as materialized (
  select number from evenflow.event where expires_at <= coalesce(cast(:now as bigint), evenflow.now_us())
  order by expires_at limit cast(:top as integer)
)
delete from evenflow.event e using old
where e.number = old.number
returning e.number;
