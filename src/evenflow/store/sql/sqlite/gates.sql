-- name: pause_task
-- returns: name
insert into evenflow_gate (kind, name, cause, shut_at, shut_by, shut_why) values ('task', :name, 'pause', :now, :who, :why)
on conflict (kind, name, cause) do update
  set shut_at = excluded.shut_at, shut_by = excluded.shut_by, shut_why = excluded.shut_why
returning name;

-- name: resume_task
-- returns: name
delete from evenflow_gate where kind = 'task' and name = :name and cause = 'pause' returning name;

-- name: set_aside
-- returns: kind, name
-- `gated > 0` stands beside every `gated = …`: SQLite takes a partial index only where its condition is said in so many words.
-- gated = 2 marks what this unit sets aside, for the statements that follow.
update evenflow_job set state = 'blocked', gated = 2
where id in (
  select j.id from (select 1 from evenflow_gate where kind = 'task' limit 1) g
  cross join evenflow_band b
  cross join json_each((
    select json_group_array(id) from (
      select id from evenflow_job where queue = b.queue and priority = b.priority and state = 'ready' order by turn, id limit :top))) l
  cross join evenflow_job j on j.id = l.value
  where b.queue in (select value from json_each(:queues)) and exists (
    select 1 from evenflow_gate s where s.kind = 'task' and s.name = j.task
      and (s.probe_job is not j.id or s.probe_epoch is not j.epoch + 1)))
returning 'job' as kind, cast(id as text) as name;

update evenflow_hold set phase = 0, held_at = null where job_id in (
  select id from evenflow_job where gated > 0 and gated = 2 and limits is not null)
returning 'limiter' as kind, limiter as name;

update evenflow_group_tail set tail = tail - a.jobs * coalesce(step, a.fresh) from (
  select j.queue, j.priority, j.group_key,
    count(*) as jobs, case when q.fair = 'time' then coalesce(c.cost_us / q.unit_us, 1.0) else 1.0 end / coalesce(w.weight, 1.0) as fresh
  from evenflow_job j
  left join evenflow_queue q on q.name = j.queue
  left join evenflow_group_weight w on w.queue = j.queue and w.group_key = j.group_key
  left join evenflow_group_cost c on c.queue = j.queue and c.group_key = j.group_key
  where j.gated > 0 and j.gated = 2 and j.group_key is not null and j.epoch = 0 group by j.queue, j.priority, j.group_key) a
where evenflow_group_tail.queue = a.queue and evenflow_group_tail.priority = a.priority and evenflow_group_tail.group_key = a.group_key;

update evenflow_job set gated = 1 where gated > 0 and gated = 2;

-- name: release_gated
-- returns: id
with recursive tasks (task) as (
  select * from (select task from evenflow_job where gated > 0 and gated = 1 order by task limit 1)
  union all
  select (select j.task from evenflow_job j where j.gated > 0 and j.gated = 1 and j.task > t.task order by j.task limit 1)
  from tasks t where t.task is not null
)
update evenflow_job set state = 'scheduled', gated = 0
where id in (
  select l.value from tasks t
  cross join json_each((
    select json_group_array(id) from (
      select id from evenflow_job where gated > 0 and gated = 1 and task = t.task order by queue, priority, turn, id limit :top))) l
  where t.task is not null and not exists (select 1 from evenflow_gate g where g.kind = 'task' and g.name = t.task)
  limit :top)
returning id;

-- name: declare_guards
-- returns: name
insert into evenflow_breaker as b (name, failure_threshold, cooldown_us, probe_lease_us, on_open)
select value ->> 'name', value ->> 'failure_threshold', value ->> 'cooldown_us', value ->> 'probe_lease_us', value ->> 'on_open'
from json_each(:breakers) where true
on conflict (name) do update set failure_threshold = excluded.failure_threshold, cooldown_us = excluded.cooldown_us,
    probe_lease_us = excluded.probe_lease_us, on_open = excluded.on_open
  where (b.failure_threshold, b.cooldown_us, b.probe_lease_us, b.on_open)
    <> (excluded.failure_threshold, excluded.cooldown_us, excluded.probe_lease_us, excluded.on_open);

insert into evenflow_guard as g (kind, name, breaker)
select value ->> 'kind', value ->> 'name', value ->> 'breaker' from json_each(:guards) where true
on conflict (kind, name) do update set breaker = excluded.breaker where g.breaker <> excluded.breaker;

delete from evenflow_guard where (kind, name) in (select value ->> 'kind', value ->> 'name' from json_each(:free));

insert into evenflow_gate (kind, name, cause, shut_at, shut_by, shut_why, probe_job, probe_epoch)
select g.kind, g.name, 'breaker', b.opened_at, b.opened_by, b.opened_why, b.probe_job, b.probe_epoch
from evenflow_guard g join evenflow_breaker b on b.name = g.breaker where b.opened_at is not null
on conflict do nothing;

delete from evenflow_gate where cause = 'breaker' and not exists (
  select 1 from evenflow_guard g join evenflow_breaker b on b.name = g.breaker
  where g.kind = evenflow_gate.kind and g.name = evenflow_gate.name and b.opened_at is not null)
returning name;

-- name: record_verdicts
-- returns: kind, name, opened_at, failures
-- The twin of the PostgreSQL unit, as steps under the write lock: the gates are made to agree with the breakers.
select 'before' as kind, name, opened_at, failures from evenflow_breaker
where name in (select value ->> 'breaker' from json_each(:verdicts));

with live as materialized (
  select v.value ->> 'place' as place, j.id, j.epoch, v.value ->> 'breaker' as breaker, v.value ->> 'outcome' as outcome
  from json_each(:verdicts) v
  cross join evenflow_job j on j.id = v.value ->> 'id' and j.epoch = v.value ->> 'epoch' and j.worker = :worker
),
heard as materialized (
  select b.name, b.opened_at, b.failures, b.failure_threshold, p.outcome as probe_outcome,
    case when b.opened_at is null then -1 when p.outcome = 'success' then p.place end as counts_after,
    case when b.opened_at is null then b.failures else 0 end as failures_before
  from evenflow_breaker b
  left join live p on p.breaker = b.name and p.id = b.probe_job and p.epoch = b.probe_epoch and b.opened_at is not null
  where b.name in (select breaker from live)
),
runs as materialized (
  select k.name, k.failures_before, l.outcome, count(*) filter (where l.outcome = 'success') over (partition by k.name order by l.place) as run
  from heard k join live l on l.breaker = k.name and l.place > k.counts_after and l.outcome <> 'none'
),
counted as materialized (
  select name, run, sum(outcome = 'failure') + case run when 0 then min(failures_before) else 0 end as failures,
    max(run) over (partition by name) as last_run
  from runs group by name, run
),
totals as materialized (
  select name, max(failures) as longest, max(case when run = last_run then failures end) as last from counted group by name
),
next as materialized (
  select k.name,
    case when k.probe_outcome = 'failure' then 'open' when k.probe_outcome = 'none' then 'release'
         when k.counts_after is null then 'keep' when t.longest >= k.failure_threshold then 'open' else 'close' end as act,
    case when k.probe_outcome = 'failure' then k.failures + 1 when t.longest >= k.failure_threshold then k.failure_threshold
         else coalesce(t.last, k.failures_before) end as failures
  from heard k left join totals t on t.name = k.name
)
update evenflow_breaker set probe_job = null, probe_epoch = null, probe_until = null,
  failures = case n.act when 'release' then evenflow_breaker.failures else n.failures end,
  opened_at = case n.act when 'open' then :now when 'release' then opened_at end,
  opens_at = case n.act when 'open' then :now + cooldown_us when 'release' then opens_at end,
  opened_by = case n.act when 'release' then opened_by end,
  opened_why = case n.act when 'open' then n.failures || ' failures in a row' when 'release' then opened_why end
from next n
where evenflow_breaker.name = n.name and n.act <> 'keep'
  and (n.act <> 'close' or opened_at is not null or evenflow_breaker.failures <> n.failures)
returning 'after' as kind, evenflow_breaker.name, opened_at, evenflow_breaker.failures;

insert into evenflow_gate (kind, name, cause, shut_at, shut_by, shut_why, probe_job, probe_epoch)
select g.kind, g.name, 'breaker', b.opened_at, b.opened_by, b.opened_why, b.probe_job, b.probe_epoch
from evenflow_breaker b join evenflow_guard g on g.breaker = b.name
where b.opened_at is not null and b.name in (select value ->> 'breaker' from json_each(:verdicts))
on conflict (kind, name, cause) do update set shut_at = excluded.shut_at, shut_by = excluded.shut_by,
  shut_why = excluded.shut_why, probe_job = excluded.probe_job, probe_epoch = excluded.probe_epoch;

delete from evenflow_gate where cause = 'breaker' and (kind, name) in (
  select g.kind, g.name from evenflow_breaker b join evenflow_guard g on g.breaker = b.name
  where b.opened_at is null and b.name in (select value ->> 'breaker' from json_each(:verdicts)));

-- name: elect_probe
-- returns: id, queue
update evenflow_breaker set opened_at = :now, opens_at = case when opens_at is not null then :now + cooldown_us end,
  probe_until = case when probe_until is not null then min(probe_until, :now + probe_lease_us) end
where name = :breaker and opened_at > :now;

-- A probe that nobody has claimed by the end of its lease keeps its place where its queue is served.
with served as (
  select n.value as queue from json_each(:queues) n
  where not exists (select 1 from evenflow_queue q where q.name = n.value and (q.paused_at is not null or q.max_concurrency = 0))
    and not exists (
      select 1 from evenflow_guard g join evenflow_breaker o on o.name = g.breaker
      where g.kind = 'queue' and g.name = n.value and o.name <> :breaker and o.opened_at is not null
        and (o.opens_at is null or o.opens_at > :now))
)
update evenflow_breaker set probe_until = :now + probe_lease_us
where name = :breaker and opens_at <= :now and probe_until <= :now and exists (
  select 1 from evenflow_job j
  where j.id = evenflow_breaker.probe_job and j.epoch + 1 = evenflow_breaker.probe_epoch and j.gated = 0
    and j.queue in (select queue from served));

-- probe_until = -1 marks what this election chooses, for the statements that follow.
with served as (
  select n.value as queue from json_each(:queues) n
  where not exists (select 1 from evenflow_queue q where q.name = n.value and (q.paused_at is not null or q.max_concurrency = 0))
    and not exists (
      select 1 from evenflow_guard g join evenflow_breaker o on o.name = g.breaker
      where g.kind = 'queue' and g.name = n.value and o.name <> :breaker and o.opened_at is not null
        and (o.opens_at is null or o.opens_at > :now))
)
update evenflow_breaker set probe_until = -1, (probe_job, probe_epoch) = (
  select x.id, x.epoch + 1 from (
    select j.id, j.epoch, j.priority, j.turn
    from served s
    cross join evenflow_guard g on g.breaker = evenflow_breaker.name and g.kind = 'task'
    cross join evenflow_job j on j.id = (
      select w.id from evenflow_job w
      where w.gated > 0 and w.gated = 1 and w.task = g.name and w.queue = s.queue and (w.good_until is null or w.good_until > :now)
      order by w.priority, w.turn, w.id limit 1)
    where not exists (select 1 from evenflow_gate p where p.kind = 'task' and p.name = g.name and p.cause = 'pause')
    union all
    select j.id, j.epoch, j.priority, j.turn
    from served s
    cross join evenflow_guard g on g.breaker = evenflow_breaker.name and g.kind = 'queue' and g.name = s.queue
    cross join evenflow_band b on b.queue = g.name
    cross join evenflow_job j on j.id = (
      select w.id from evenflow_job w
      where w.queue = b.queue and w.priority = b.priority and w.state = 'ready' and (w.good_until is null or w.good_until > :now)
        and not exists (
          select 1 from evenflow_gate p
          where p.kind = 'task' and p.name = w.task and (p.probe_job, p.probe_epoch) is not (w.id, w.epoch + 1) and not exists (
            select 1 from evenflow_guard o
            where o.kind = 'task' and o.name = p.name and o.breaker = g.breaker and p.cause = 'breaker'))
      order by w.turn, w.id limit 1)
    order by 3, 4, 1 limit 1) x)
where name = :breaker and opened_at is not null and opens_at <= :now
  and (probe_job is null or (probe_until <= :now and not exists (
    select 1 from evenflow_job j where j.id = evenflow_breaker.probe_job and j.epoch = evenflow_breaker.probe_epoch
      and j.state in ('claimed', 'running'))));

update evenflow_job set gated = 0, state = case when limits is null then 'ready' else 'scheduled' end,
  turn = case when exists (select 1 from evenflow_queue q where q.name = evenflow_job.queue and q.fair = 'fifo') then :now
              else 1 + coalesce((select r.v from evenflow_round r where r.queue = evenflow_job.queue and r.priority = evenflow_job.priority), 0) end
where gated > 0 and gated = 1 and id = (select probe_job from evenflow_breaker where name = :breaker and probe_until = -1);

update evenflow_gate set (probe_job, probe_epoch) = (select probe_job, probe_epoch from evenflow_breaker where name = :breaker)
where cause = 'breaker' and (kind, name) in (select kind, name from evenflow_guard where breaker = :breaker)
  and exists (select 1 from evenflow_breaker where name = :breaker and probe_until = -1);

select j.id, j.queue from evenflow_breaker b cross join evenflow_job j on j.id = b.probe_job
where b.name = :breaker and b.probe_until = -1;

update evenflow_breaker set probe_until = case when probe_job is not null then :now + probe_lease_us end
where name = :breaker and probe_until = -1;

-- name: open_breaker
-- returns: name
update evenflow_breaker set opened_at = :now, opens_at = null, opened_by = :who, opened_why = :why,
  probe_job = null, probe_epoch = null, probe_until = null
where name = :name
returning name;

insert into evenflow_gate (kind, name, cause, shut_at, shut_by, shut_why)
select g.kind, g.name, 'breaker', b.opened_at, b.opened_by, b.opened_why
from evenflow_breaker b join evenflow_guard g on g.breaker = b.name where b.name = :name
on conflict (kind, name, cause) do update
  set shut_at = excluded.shut_at, shut_why = excluded.shut_why, shut_by = excluded.shut_by, probe_job = null, probe_epoch = null;

-- name: close_breaker
-- returns: name, opened_at
select name, opened_at from evenflow_breaker where name = :name;

update evenflow_breaker set opened_at = null, opens_at = null, opened_by = null, opened_why = null, failures = 0,
  probe_job = null, probe_epoch = null, probe_until = null
where name = :name and (opened_at is not null or :forgets);

delete from evenflow_gate where cause = 'breaker' and (kind, name) in (select kind, name from evenflow_guard where breaker = :name);

-- name: open_breakers
-- mode: read
-- returns: name, on_open, opens_at, probe_job, probe_until, now
select name, on_open, opens_at, probe_job, probe_until, :now as now from evenflow_breaker where opened_at is not null order by name;

-- name: waiting_at
-- mode: read
-- returns: id
select id from (
  select j.id from evenflow_guard g cross join evenflow_job j on j.gated > 0 and j.gated = 1 and j.task = g.name
  where g.breaker = :breaker and g.kind = 'task'
  union all
  select j.id from evenflow_guard g cross join evenflow_job j on j.state = 'ready' and j.queue = g.name
  where g.breaker = :breaker and g.kind = 'queue')
where id <> coalesce((select probe_job from evenflow_breaker where name = :breaker), 0)
limit :top;

-- name: list_breakers
-- mode: read
-- returns: name, failure_threshold, failures, cooldown_us, on_open, opened_at, opens_at, opened_by, opened_why, probe_job, probe_until, waiting, guards, now
select b.name, b.failure_threshold, b.failures, b.cooldown_us, b.on_open, b.opened_at, b.opens_at, b.opened_by, b.opened_why,
  b.probe_job, b.probe_until,
  case when b.opened_at is null then 0 else
    (select count(*) from (
      select 1 from evenflow_guard g cross join evenflow_job j on j.gated > 0 and j.gated = 1 and j.task = g.name
      where g.breaker = b.name and g.kind = 'task' limit :counted))
    + (select count(*) from (
      select 1 from evenflow_guard g cross join evenflow_job j on j.state = 'ready' and j.queue = g.name
      where g.breaker = b.name and g.kind = 'queue' limit :counted))
  end as waiting,
  (select json_group_array(target) from (
    select g.kind || ':' || g.name as target from evenflow_guard g where g.breaker = b.name order by g.kind, g.name)) as guards,
  :now as now
from evenflow_breaker b where :name is null or b.name = :name
order by b.name;

-- name: list_guards
-- mode: read
-- returns: kind, name, breaker
select kind, name, breaker from evenflow_guard order by kind, name;

-- name: list_gates
-- mode: read
-- returns: kind, name, cause, shut_at, shut_by, shut_why, breaker
select s.kind, s.name, s.cause, s.shut_at, s.shut_by, s.shut_why, g.breaker
from evenflow_gate s left join evenflow_guard g on g.kind = s.kind and g.name = s.name and s.cause = 'breaker'
where (:task is null and :queue is null) or (s.kind = 'task' and s.name = :task) or (s.kind = 'queue' and s.name = :queue)
order by s.kind desc, s.name, s.cause;
