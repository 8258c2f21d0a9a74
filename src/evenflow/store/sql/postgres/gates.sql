-- name: pause_task
-- returns: name
-- Jobs of the task are set aside by the claims that meet them, and what was prefetched does not start.
insert into evenflow.gate as g (kind, name, cause, shut_at, shut_by, shut_why)
select 'task', cast(:name as text), 'pause', coalesce(cast(:now as bigint), evenflow.now_us()), cast(:who as text), cast(:why as text)
on conflict (kind, name, cause) do update
  set shut_at = excluded.shut_at, shut_by = excluded.shut_by, shut_why = excluded.shut_why
returning name;

-- name: resume_task
-- returns: name
delete from evenflow.gate where kind = 'task' and name = cast(:name as text) and cause = 'pause' returning name;

-- name: set_aside
-- returns: kind, name
-- After a claim met a shut task: of the next ready jobs of these queues, `top` of each priority, those of shut tasks are
-- blocked, so that no other claim meets them. They let go of their keys, and their groups get their turns back: on
-- release they are admitted like new ones, and nobody pays twice. Group rows are locked in name order, as everywhere.
-- kinds: job (the id of one that was set aside), limiter (a key has room).
with shut as materialized (select g.name, g.probe_job, g.probe_epoch from evenflow.gate g where g.kind = 'task'),
seen as materialized (
  select l.at, l.id, l.epoch, l.task
  from evenflow.band b cross join lateral (
    select j.ctid as at, j.id, j.epoch, j.task from evenflow.job j
    where j.queue = b.queue and j.priority = b.priority and j.stage = 'open' and j.state = 'ready'
    order by j.turn, j.id limit cast(:top as integer)
    for no key update skip locked) l
  where b.queue in (select value from jsonb_array_elements_text(cast(:queues as jsonb))) and exists (select from shut)
),
aside as (
  update evenflow.job j set state = 'blocked', gated = 1
  from seen c where j.ctid = c.at and exists (
    select from shut s where s.name = c.task and (s.probe_job, s.probe_epoch) is distinct from (c.id, c.epoch + 1))
  returning j.id, j.epoch, j.queue, j.priority, j.group_key, j.limits
),
parked as (
  update evenflow.hold h set phase = 0, held_at = null from aside a where a.limits is not null and h.job_id = a.id
  returning h.limiter
),
tails as materialized (
  select g.ctid as at, a.jobs * coalesce(g.step, case when q.fair = 'time' then coalesce(c.cost_us / q.unit_us, 1) else 1 end / coalesce(w.weight, 1)) as span
  from (select queue, priority, group_key, count(*) as jobs from aside where group_key is not null and epoch = 0
        group by queue, priority, group_key) a
  join evenflow.group_tail g on g.queue = a.queue and g.priority = a.priority and g.group_key = a.group_key
  left join evenflow.queue q on q.name = a.queue
  left join evenflow.group_weight w on w.queue = a.queue and w.group_key = a.group_key
  left join evenflow.group_cost c on c.queue = a.queue and c.group_key = a.group_key
  order by g.queue, g.priority, g.group_key for no key update of g
),
refunded as (update evenflow.group_tail g set tail = g.tail - t.span from tails t where g.ctid = t.at)
select 'job' as kind, cast(a.id as text) as name from aside a union all select 'limiter', p.limiter from parked p;

-- name: release_gated
-- returns: id
-- Jobs that were set aside and whose task is open again, at most `top`: they are due, and admitted like any other, in the
-- order of their enqueueing. Tasks are found by leaping along the index: the cost is their number, not that of the jobs.
with recursive tasks as (
  (select j.task from evenflow.job j where j.gated = 1 order by j.task limit 1)
  union all
  select (select j.task from evenflow.job j where j.gated = 1 and j.task > t.task order by j.task limit 1)
  from tasks t where t.task is not null
),
batch as materialized (
  select l.id from tasks t cross join lateral (
    select j.id from evenflow.job j where j.gated = 1 and j.task = t.task
    order by j.queue, j.priority, j.turn, j.id limit cast(:top as integer)
    for no key update skip locked) l
  where not exists (select from evenflow.gate g where g.kind = 'task' and g.name = t.task)
  limit cast(:top as integer)
)
update evenflow.job j set state = 'scheduled', gated = 0
where j.id = any (array(select id from batch)) and j.gated = 1
returning j.id;

-- name: declare_guards
-- returns: name
-- What the code says about breakers, and which tasks and queues they guard. `free` are those that declare none (any more):
-- nothing may stay shut behind a breaker that nobody tells about successes. Then the gates are made to agree.
with given as (
  select * from jsonb_to_recordset(cast(:breakers as jsonb)) as b (
    name text, failure_threshold integer, cooldown_us bigint, probe_lease_us bigint, on_open text)
)
insert into evenflow.breaker as b (name, failure_threshold, cooldown_us, probe_lease_us, on_open)
select name, failure_threshold, cooldown_us, probe_lease_us, on_open from given order by name
on conflict (name) do update set failure_threshold = excluded.failure_threshold, cooldown_us = excluded.cooldown_us,
    probe_lease_us = excluded.probe_lease_us, on_open = excluded.on_open
  where (b.failure_threshold, b.cooldown_us, b.probe_lease_us, b.on_open)
    <> (excluded.failure_threshold, excluded.cooldown_us, excluded.probe_lease_us, excluded.on_open);

insert into evenflow.guard as g (kind, name, breaker)
select kind, name, breaker from jsonb_to_recordset(cast(:guards as jsonb)) as d (kind text, name text, breaker text) order by kind, name
on conflict (kind, name) do update set breaker = excluded.breaker where g.breaker <> excluded.breaker;

delete from evenflow.guard g using jsonb_to_recordset(cast(:free as jsonb)) as d (kind text, name text)
where g.kind = d.kind and g.name = d.name;

insert into evenflow.gate (kind, name, cause, shut_at, shut_by, shut_why, probe_job, probe_epoch)
select g.kind, g.name, 'breaker', b.opened_at, b.opened_by, b.opened_why, b.probe_job, b.probe_epoch
from evenflow.guard g join evenflow.breaker b on b.name = g.breaker where b.opened_at is not null
order by g.kind, g.name
on conflict do nothing;

delete from evenflow.gate s where s.cause = 'breaker' and not exists (
  select from evenflow.guard g join evenflow.breaker b on b.name = g.breaker
  where g.kind = s.kind and g.name = s.name and b.opened_at is not null)
returning s.name;

-- name: record_verdicts
-- returns: kind, name, opened_at, failures
-- What ended runs say to their breakers, in their order. Runs in the transaction that writes the ends, before it does:
-- a verdict counts if its end is about to be accepted, (id, epoch, worker), and so exactly once, whatever is repeated.
-- A success that finds a closed breaker without failures takes no lock.
-- Closed: failures in a row are counted; the one that reaches the threshold opens. Open: only the probe is heard.
-- kinds: before (as it was, of those that are locked), after (of those that changed).
select 'before' as kind, b.name, b.opened_at, b.failures
from evenflow.breaker b
where b.name = any (array(select v.breaker from jsonb_to_recordset(cast(:verdicts as jsonb)) as v (breaker text)))
  and (b.failures > 0 or b.opened_at is not null or b.name in (
    select v.breaker from jsonb_to_recordset(cast(:verdicts as jsonb)) as v (breaker text, outcome text) where v.outcome = 'failure'))
order by b.name for no key update;

with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
verdicts as materialized (
  select v.* from jsonb_to_recordset(cast(:verdicts as jsonb)) as v (place integer, id bigint, epoch integer, breaker text, outcome text)
),
fenced as materialized (
  select j.id, j.epoch from evenflow.job j
  where j.id = any (array(select id from verdicts)) and j.worker = cast(:worker as bigint)
  order by j.id for no key update
),
live as materialized (select v.* from verdicts v join fenced f on f.id = v.id and f.epoch = v.epoch),
heard as materialized (
  select b.name, b.opened_at, b.failures, b.failure_threshold, b.cooldown_us, p.outcome as probe_outcome,
    case when b.opened_at is null then -1 when p.outcome = 'success' then p.place end as counts_after,
    case when b.opened_at is null then b.failures else 0 end as failures_before
  from evenflow.breaker b
  left join live p on p.breaker = b.name and p.id = b.probe_job and p.epoch = b.probe_epoch and b.opened_at is not null
  where b.name = any (array(select breaker from live))
),
runs as (
  select h.name, l.outcome, count(*) filter (where l.outcome = 'success') over (partition by h.name order by l.place) as run
  from heard h join live l on l.breaker = h.name and l.place > h.counts_after and l.outcome <> 'none'
),
counted as (
  select h.name, r.run, sum(case r.outcome when 'failure' then 1 else 0 end) + case r.run when 0 then min(h.failures_before) else 0 end as failures
  from runs r join heard h on h.name = r.name group by h.name, r.run
),
totals as (
  select c.name, max(c.failures) as longest, (array_agg(c.failures order by c.run desc))[1] as last from counted c group by c.name
),
next as materialized (
  select h.name, h.opened_at as was_opened_at,
    case when h.probe_outcome = 'failure' then 'open' when h.probe_outcome = 'none' then 'release'
         when h.counts_after is null then 'keep' when t.longest >= h.failure_threshold then 'open' else 'close' end as act,
    case when h.probe_outcome = 'failure' then h.failures + 1 when t.longest >= h.failure_threshold then h.failure_threshold
         else coalesce(t.last, h.failures_before) end as failures
  from heard h left join totals t on t.name = h.name
),
changed as (
  update evenflow.breaker b set probe_job = null, probe_epoch = null, probe_until = null,
    failures = case n.act when 'release' then b.failures else n.failures end,
    opened_at = case n.act when 'open' then now when 'release' then b.opened_at end,
    opens_at = case n.act when 'open' then now + b.cooldown_us when 'release' then b.opens_at end,
    opened_by = case n.act when 'release' then b.opened_by end,
    opened_why = case n.act when 'open' then n.failures || ' failures in a row' when 'release' then b.opened_why end
  from next n, clock
  where b.name = n.name and n.act <> 'keep' and b.opened_at is not distinct from n.was_opened_at
    and (n.act <> 'close' or b.opened_at is not null or b.failures <> n.failures)
  returning b.name, b.opened_at, b.failures, b.opened_why, n.act
),
shut as (
  insert into evenflow.gate as s (kind, name, cause, shut_at, shut_why)
  select g.kind, g.name, 'breaker', c.opened_at, c.opened_why
  from changed c join evenflow.guard g on g.breaker = c.name where c.act = 'open' order by g.kind, g.name
  on conflict (kind, name, cause) do update
    set shut_at = excluded.shut_at, shut_why = excluded.shut_why, shut_by = null, probe_job = null, probe_epoch = null
),
released as (
  update evenflow.gate s set probe_job = null, probe_epoch = null from changed c, evenflow.guard g
  where c.act = 'release' and g.breaker = c.name and s.kind = g.kind and s.name = g.name and s.cause = 'breaker'
),
opened as (
  delete from evenflow.gate s using changed c, evenflow.guard g
  where c.act = 'close' and g.breaker = c.name and s.kind = g.kind and s.name = g.name and s.cause = 'breaker'
)
select 'after' as kind, c.name, c.opened_at, c.failures from changed c;

-- name: elect_probe
-- returns: id, queue
-- The one run that may pass an open breaker whose cooldown is over. Whoever elects holds the breaker's row, so there is
-- one election at a time. A probe that is in flight is never replaced; one that is gone, or was rescued, is when its lease
-- has run out. One that nobody has claimed by then keeps its place if its queue is served here; else its epoch moves on,
-- so that it cannot pass any more, not even for a claim that has seen the gate of a moment ago.
-- A queue that is paused, held, or shut by another breaker that is not to be probed yet, is not served. Where a task and its
-- queue have breakers of their own, one job probes both: the task chooses it, and the queue takes the task's probe.
select cast(null as bigint) as id, b.name as queue from evenflow.breaker b where b.name = cast(:breaker as text) for no key update;

-- After a step back of the clock nothing lasts longer than its own length from now.
update evenflow.breaker b set opened_at = now, opens_at = case when b.opens_at is not null then now + b.cooldown_us end,
  probe_until = case when b.probe_until is not null then least(b.probe_until, now + b.probe_lease_us) end
from (select coalesce(cast(:now as bigint), evenflow.now_us()) as now) clock
where b.name = cast(:breaker as text) and b.opened_at > now;

with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
served as materialized (
  select n.value as queue from clock, jsonb_array_elements_text(cast(:queues as jsonb)) n
  where not exists (select from evenflow.queue q where q.name = n.value and (q.paused_at is not null or q.max_concurrency = 0))
    and not exists (
      select from evenflow.guard g join evenflow.breaker o on o.name = g.breaker
      where g.kind = 'queue' and g.name = n.value and o.name <> cast(:breaker as text) and o.opened_at is not null
        and (o.opens_at is null or o.opens_at > now))
),
due as materialized (
  select b.name, b.probe_lease_us, p.id as waiting_id, p.queue as waiting_queue
  from clock, evenflow.breaker b
  left join evenflow.job p on p.id = b.probe_job and p.epoch + 1 = b.probe_epoch and p.gated = 0
  where b.name = cast(:breaker as text) and b.opened_at is not null and b.opens_at <= now
    and (b.probe_job is null or (b.probe_until <= now and not exists (
      select from evenflow.job j where j.id = b.probe_job and j.epoch = b.probe_epoch and coalesce(j.state, '') in ('claimed', 'running'))))
),
kept as (
  update evenflow.breaker b set probe_until = now + b.probe_lease_us from due d, clock
  where b.name = d.name and d.waiting_queue in (select queue from served)
),
picked as materialized (
  select x.id, x.epoch, x.queue from due d cross join lateral (
    select t.id, t.epoch, t.queue, t.priority, t.turn
    from evenflow.guard g cross join served s cross join lateral (
      select j.id, j.epoch, j.queue, j.priority, j.turn from evenflow.job j
      where j.gated = 1 and j.task = g.name and j.queue = s.queue and (j.good_until is null or j.good_until > (select now from clock))
      order by j.priority, j.turn, j.id limit 1 for no key update skip locked) t
    where g.breaker = d.name and g.kind = 'task'
      and not exists (select from evenflow.gate p where p.kind = 'task' and p.name = g.name and p.cause = 'pause')
    union all
    select r.id, r.epoch, r.queue, r.priority, r.turn
    from evenflow.guard g join served s on s.queue = g.name join evenflow.band b on b.queue = g.name cross join lateral (
      select j.id, j.epoch, j.queue, j.priority, j.turn from evenflow.job j
      where j.queue = b.queue and j.priority = b.priority and j.stage = 'open' and j.state = 'ready'
        and (j.good_until is null or j.good_until > (select now from clock))
        and not exists (
          select from evenflow.gate p where p.kind = 'task' and p.name = j.task
            and (p.probe_job, p.probe_epoch) is distinct from (j.id, j.epoch + 1) and not exists (select from evenflow.guard o where o.kind = 'task' and o.name = p.name and o.breaker = d.name and p.cause = 'breaker'))
      order by j.turn, j.id limit 1 for no key update skip locked) r
    where g.breaker = d.name and g.kind = 'queue'
    order by priority, turn, id limit 1) x
  where d.waiting_id is null or d.waiting_queue not in (select queue from served)
),
chosen as materialized (
  select d.waiting_id, p.id, p.epoch + 1 as epoch from due d left join picked p on true
  where d.waiting_id is null or d.waiting_queue not in (select queue from served)
),
passed_over as (update evenflow.job j set epoch = j.epoch + 1 from chosen c where j.id = c.waiting_id),
readied as (
  update evenflow.job j set gated = 0, state = case when j.limits is null then 'ready' else 'scheduled' end,
    turn = case when exists (select from evenflow.queue q where q.name = j.queue and q.fair = 'fifo') then now
                else 1 + coalesce((select r.v from evenflow.round r where r.queue = j.queue and r.priority = j.priority), 0) end
  from picked p, clock where j.id = p.id and j.gated = 1
),
elected as (
  update evenflow.breaker b set probe_job = c.id, probe_epoch = c.epoch,
    probe_until = case when c.id is not null then now + b.probe_lease_us end
  from chosen c, clock where b.name = cast(:breaker as text)
),
shown as (
  update evenflow.gate s set probe_job = c.id, probe_epoch = c.epoch from chosen c, evenflow.guard g
  where g.breaker = cast(:breaker as text) and s.kind = g.kind and s.name = g.name and s.cause = 'breaker'
)
select p.id, p.queue from picked p;

-- name: open_breaker
-- returns: name
-- By hand: open until it is closed by hand. A probe that runs is no longer heard.
update evenflow.breaker b set opened_at = now, opens_at = null, opened_by = cast(:who as text), opened_why = cast(:why as text),
  probe_job = null, probe_epoch = null, probe_until = null
from (select coalesce(cast(:now as bigint), evenflow.now_us()) as now) clock where b.name = cast(:name as text)
returning b.name;

insert into evenflow.gate as s (kind, name, cause, shut_at, shut_by, shut_why)
select g.kind, g.name, 'breaker', b.opened_at, b.opened_by, b.opened_why
from evenflow.breaker b join evenflow.guard g on g.breaker = b.name where b.name = cast(:name as text) order by g.kind, g.name
on conflict (kind, name, cause) do update
  set shut_at = excluded.shut_at, shut_why = excluded.shut_why, shut_by = excluded.shut_by, probe_job = null, probe_epoch = null;

-- name: close_breaker
-- returns: name, opened_at
-- By hand: closed, and no failures are counted. The row is locked first, so that the answer is what was closed.
select b.name, b.opened_at from evenflow.breaker b where b.name = cast(:name as text) for no key update;

update evenflow.breaker b set opened_at = null, opens_at = null, opened_by = null, opened_why = null, failures = 0,
  probe_job = null, probe_epoch = null, probe_until = null
where b.name = cast(:name as text) and (b.opened_at is not null or cast(:forgets as boolean));

delete from evenflow.gate s using evenflow.guard g
where g.breaker = cast(:name as text) and s.kind = g.kind and s.name = g.name and s.cause = 'breaker';

-- name: open_breakers
-- mode: read
-- returns: name, on_open, opens_at, probe_job, probe_until, now
-- What has to be tended: few rows, along the index of those that are open.
select b.name, b.on_open, b.opens_at, b.probe_job, b.probe_until, coalesce(cast(:now as bigint), evenflow.now_us()) as now
from evenflow.breaker b where b.opened_at is not null order by b.name;

-- name: waiting_at
-- mode: read
-- returns: id
-- Jobs that wait behind a breaker, but for the probe.
select w.id from (
  select t.id from evenflow.guard g cross join lateral (
    select j.id from evenflow.job j where j.gated = 1 and j.task = g.name limit cast(:top as integer)) t
  where g.breaker = cast(:breaker as text) and g.kind = 'task'
  union all
  select r.id from evenflow.guard g join evenflow.band b on b.queue = g.name cross join lateral (
    select j.id from evenflow.job j where j.queue = b.queue and j.priority = b.priority and j.stage = 'open' and j.state = 'ready'
    order by j.turn, j.id limit cast(:top as integer)) r
  where g.breaker = cast(:breaker as text) and g.kind = 'queue') w
where w.id <> coalesce((select b.probe_job from evenflow.breaker b where b.name = cast(:breaker as text)), 0)
limit cast(:top as integer);

-- name: list_breakers
-- mode: read
-- returns: name, failure_threshold, failures, cooldown_us, on_open, opened_at, opens_at, opened_by, opened_why, probe_job, probe_until, waiting, guards, now
select b.name, b.failure_threshold, b.failures, b.cooldown_us, b.on_open, b.opened_at, b.opens_at, b.opened_by, b.opened_why,
  b.probe_job, b.probe_until,
  case when b.opened_at is null then 0 else
    (select count(*) from (
      select 1 from evenflow.guard g join evenflow.job j on j.gated = 1 and j.task = g.name
      where g.breaker = b.name and g.kind = 'task' limit cast(:counted as integer)) t)
    + (select count(*) from (
      select 1 from evenflow.guard g join evenflow.job j on j.stage = 'open' and j.state = 'ready' and j.queue = g.name
      where g.breaker = b.name and g.kind = 'queue' limit cast(:counted as integer)) q)
  end as waiting,
  coalesce((select cast(json_agg(g.kind || ':' || g.name order by g.kind, g.name) as text) from evenflow.guard g where g.breaker = b.name), '[]') as guards,
  coalesce(cast(:now as bigint), evenflow.now_us()) as now
from evenflow.breaker b where cast(:name as text) is null or b.name = cast(:name as text)
order by b.name;

-- name: list_guards
-- mode: read
-- returns: kind, name, breaker
select kind, name, breaker from evenflow.guard order by kind, name;

-- name: list_gates
-- mode: read
-- returns: kind, name, cause, shut_at, shut_by, shut_why, breaker
-- What is shut; all of it, or what stands before one task in one queue.
select s.kind, s.name, s.cause, s.shut_at, s.shut_by, s.shut_why, g.breaker
from evenflow.gate s left join evenflow.guard g on g.kind = s.kind and g.name = s.name and s.cause = 'breaker'
where (cast(:task as text) is null and cast(:queue as text) is null)
  or (s.kind = 'task' and s.name = cast(:task as text)) or (s.kind = 'queue' and s.name = cast(:queue as text))
order by s.kind desc, s.name, s.cause;
