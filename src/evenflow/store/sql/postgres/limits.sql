-- name: add_holds
-- returns: job_id
-- The keys of jobs that were inserted in this transaction. Plain inserts: no limiter row is touched, so nobody can wait
-- for a caller who keeps his transaction open.
insert into evenflow.hold (job_id, ordinal, limiter, most, keep_us, window_us, priority, turn)
select j.id, h.ordinal, h.limiter, h.most, h.keep_us, h.window_us, j.priority, 0
from jsonb_to_recordset(cast(:holds as jsonb)) as h (
  job_id bigint, ordinal smallint, limiter text, most integer, keep_us bigint, window_us bigint)
join evenflow.job j on j.id = h.job_id
returning job_id;

-- name: promote
-- returns: kind, name
-- Gives the free places of these keys to the next jobs that wait: by priority, then turn. The limiter rows are locked
-- first, in name order, and counted in a statement of its own: a count in the statement that waits for a lock would see
-- the state before the wait. The limit that counts is the one that the next job in line was enqueued with. Under a rate
-- the starts of the last window count like holders.
-- kinds: queue (a job of it is ready now), bounded (one waits before a bounded queue), limiter (one moved on to its next key).
insert into evenflow.limiter as l (name, most)
select n.name, w.most from (select distinct value as name from jsonb_array_elements_text(cast(:limiters as jsonb))) n
cross join lateral (
  select h.most from evenflow.hold h where h.limiter = n.name and h.phase = 1 order by h.priority, h.turn, h.job_id limit 1) w
order by n.name
on conflict (name) do update set most = excluded.most where l.most <> excluded.most;

select 'locked' as kind, l.name from evenflow.limiter l
where l.name in (select value from jsonb_array_elements_text(cast(:limiters as jsonb)))
order by l.name for no key update;

with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
room as materialized (
  select l.name, l.most - (select count(*) from evenflow.hold h where h.limiter = l.name and h.phase = 2)
    - (select coalesce(sum(s.starts), 0) from evenflow.spent s where s.limiter = l.name and s.free_at > now) as free
  from clock, evenflow.limiter l where l.name in (select value from jsonb_array_elements_text(cast(:limiters as jsonb)))
),
picked as materialized (
  select p.job_id, p.ordinal from room r
  cross join lateral (
    select h.job_id, h.ordinal from evenflow.hold h
    where h.limiter = r.name and h.phase = 1 order by h.priority, h.turn, h.job_id limit greatest(least(r.free, cast(:top as bigint)), 0)) p
),
granted as (
  update evenflow.hold h set phase = 2, held_at = now from picked p, clock
  where h.job_id = p.job_id and h.ordinal = p.ordinal
  returning h.job_id, h.ordinal
),
onward as (
  update evenflow.hold h set phase = 1 from picked p where h.job_id = p.job_id and h.ordinal = p.ordinal + 1
  returning h.job_id, h.limiter
),
readied as (
  update evenflow.job j set
    state = case when exists (select from evenflow.queue q where q.name = j.queue and q.max_ready is not null) then 'overflow' else 'ready' end,
    turn = case when exists (select from evenflow.queue q where q.name = j.queue and q.fair = 'fifo') then now
                else 1 + coalesce((select r.v from evenflow.round r where r.queue = j.queue and r.priority = j.priority), 0) end
  from granted g, clock
  where j.id = g.job_id and j.state = 'blocked'
    and not exists (select from evenflow.hold h where h.job_id = g.job_id and h.ordinal = g.ordinal + 1)
  returning j.queue, j.state
)
select case state when 'ready' then 'queue' else 'bounded' end as kind, queue as name from readied union all select 'limiter', limiter from onward;

-- name: release_holds
-- returns: limiter
-- Jobs that ended outside of a worker let go of their keys.
delete from evenflow.hold h
where h.job_id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))))
returning h.limiter;

-- name: park_holds
-- returns: limiter
-- Jobs that are put off let go of their keys, and line up anew when they are due.
update evenflow.hold h set phase = 0, held_at = null
where h.job_id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb)))) and h.phase <> 0
returning h.limiter;

-- name: take_locks
-- returns: id
-- Claimed jobs take their locks (ordinal 0) before their bodies start: those that get, or have, theirs. Only for a run that
-- is in flight at this worker with this epoch. Limiter rows are locked first, in name order, and counted in a statement of
-- its own, as in promote; of several jobs that want one lock, the first one gets it.
insert into evenflow.limiter (name, most)
select distinct h.limiter, h.most from jsonb_to_recordset(cast(:runs as jsonb)) as r (id bigint, epoch integer)
join evenflow.hold h on h.job_id = r.id and h.ordinal = 0
order by h.limiter
on conflict do nothing;

select cast(null as bigint) as id from evenflow.limiter l
where l.name in (
  select h.limiter from jsonb_to_recordset(cast(:runs as jsonb)) as r (id bigint, epoch integer)
  join evenflow.hold h on h.job_id = r.id and h.ordinal = 0)
order by l.name for no key update;

with wishes as materialized (
  select h.job_id, h.limiter, h.most, h.phase = 2 as has_it, row_number() over (partition by h.limiter, h.phase = 2 order by h.job_id) as number
  from jsonb_to_recordset(cast(:runs as jsonb)) as r (id bigint, epoch integer)
  join evenflow.hold h on h.job_id = r.id and h.ordinal = 0
  join evenflow.job j on j.id = r.id and j.epoch = r.epoch and j.worker = cast(:worker as bigint)
),
granted as materialized (
  select w.job_id from wishes w
  where w.has_it or w.number <= w.most - (select count(*) from evenflow.hold o where o.limiter = w.limiter and o.phase = 2)
)
update evenflow.hold h set phase = 2, held_at = coalesce(cast(:now as bigint), evenflow.now_us())
from granted g where h.job_id = g.job_id and h.ordinal = 0
returning h.job_id as id;

-- name: locks_of
-- mode: read
-- returns: id, limiter, holder
-- The locks of these jobs, and who has them.
select h.job_id as id, h.limiter,
  (select o.job_id from evenflow.hold o where o.limiter = h.limiter and o.phase = 2 order by o.priority, o.turn, o.job_id limit 1) as holder
from evenflow.hold h
where h.job_id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb)))) and h.ordinal = 0;

-- name: refund_starts
-- returns: limiter
-- Claimed jobs under rates whose bodies were not entered have their places back as if they had not been claimed: what they
-- were charged (free_at is held_at and the window, to the microsecond) is taken back. One whose charge has run out meanwhile
-- has lost its place to somebody else, and lines up anew. Only for a run that is in flight at this worker with this epoch.
-- Under the locks of the limiters, as in promote.
select cast(null as text) as limiter from evenflow.limiter l
where l.name in (
  select h.limiter from jsonb_to_recordset(cast(:runs as jsonb)) as r (id bigint, epoch integer)
  join evenflow.hold h on h.job_id = r.id and h.phase = 3)
order by l.name for no key update;

with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
charges as materialized (
  select h.job_id, h.ordinal, h.limiter, h.held_at + h.window_us as free_at
  from jsonb_to_recordset(cast(:runs as jsonb)) as r (id bigint, epoch integer)
  join evenflow.job j on j.id = r.id and j.epoch = r.epoch and j.worker = cast(:worker as bigint)
  join evenflow.hold h on h.job_id = j.id and h.phase = 3
),
kept as materialized (
  select c.* from charges c where not exists (select from charges o, clock where o.job_id = c.job_id and o.free_at <= now)
),
refunded as (
  update evenflow.spent s set starts = s.starts - k.starts
  from (
    select k.starts, (select o.ctid from evenflow.spent o where o.limiter = k.limiter and o.free_at = k.free_at limit 1) as at
    from (select limiter, free_at, count(*) as starts from kept group by 1, 2) k) k
  where s.ctid = k.at
)
update evenflow.hold h set phase = 2, held_at = now from kept k, clock
where h.job_id = k.job_id and h.ordinal = k.ordinal
returning h.limiter;

-- name: recharge_starts
-- returns: id
-- Prefetched jobs under rates are about to start: the charge of their claim is moved to now. One whose charge has run out has
-- lost its place to somebody else, and is left out. Under the locks of the limiters, as in promote.
select cast(null as bigint) as id from evenflow.limiter l
where l.name in (
  select h.limiter from jsonb_to_recordset(cast(:runs as jsonb)) as r (id bigint, epoch integer)
  join evenflow.hold h on h.job_id = r.id and h.phase = 3)
order by l.name for no key update;

with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
charges as materialized (
  select h.job_id, h.ordinal, h.limiter, h.window_us, h.held_at + h.window_us as free_at
  from jsonb_to_recordset(cast(:runs as jsonb)) as r (id bigint, epoch integer)
  join evenflow.job j on j.id = r.id and j.epoch = r.epoch and j.worker = cast(:worker as bigint)
  join evenflow.hold h on h.job_id = j.id and h.phase = 3
),
moved as materialized (
  select c.* from charges c where not exists (select from charges o, clock where o.job_id = c.job_id and o.free_at <= now)
),
refunded as (
  update evenflow.spent s set starts = s.starts - m.starts
  from (
    select m.starts, (select o.ctid from evenflow.spent o where o.limiter = m.limiter and o.free_at = m.free_at limit 1) as at
    from (select limiter, free_at, count(*) as starts from moved group by 1, 2) m) m
  where s.ctid = m.at
),
spent as (
  insert into evenflow.spent (limiter, free_at, starts)
  select limiter, now + window_us, count(*) from moved, clock group by 1, 2
)
update evenflow.hold h set held_at = now from moved m, clock
where h.job_id = m.job_id and h.ordinal = m.ordinal
returning h.job_id as id;

-- name: sweep_held
-- returns: kind, name, at, job_id, walked
-- The net below every road, in three walks that each go on where the last one stopped, so that a pass costs the same
-- whatever is held, waits or was left behind. This one: the next `top` held places, oldest first. Those of jobs that are
-- gone are freed; those kept for longer than their time by jobs that did not start are taken back.
-- kinds: limiter (a key has room), walked (where to go on).
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
walk as materialized (
  select h.job_id, h.ordinal, h.held_at, h.held_at + h.keep_us <= (select now from clock) as is_late from evenflow.hold h
  where h.phase = 2 and (h.held_at, h.job_id) > (cast(:after_at as bigint), cast(:after_job as bigint))
  order by h.held_at, h.job_id limit cast(:top as integer)
),
fates as materialized (
  select w.job_id, w.ordinal, j.state from walk w left join lateral (select j.state from evenflow.job j where j.id = w.job_id) j on true
  where j.state is null or w.is_late and j.state not in ('claimed', 'running')
),
gone as (
  delete from evenflow.hold h using fates f where f.state is null and h.job_id = f.job_id and h.ordinal = f.ordinal
  returning h.limiter
),
dropped as (
  update evenflow.hold h set phase = 0, held_at = null from fates f
  where f.state is not null and f.ordinal = 0 and h.job_id = f.job_id and h.ordinal = 0
  returning h.limiter
),
idle as materialized (
  select j.id from evenflow.job j
  where j.id = any (array(select job_id from fates where ordinal > 0)) and j.state in ('ready', 'overflow')
  for update skip locked
),
blocked as (update evenflow.job j set state = 'blocked' from idle i where j.id = i.id returning j.id),
lined_up as (
  update evenflow.hold h set phase = case when h.ordinal = 1 then 1 else 0 end, held_at = null, turn = now
  from blocked b, clock where h.job_id = b.id
  returning h.limiter
)
select 'limiter' as kind, limiter as name, cast(0 as bigint) as at, cast(0 as bigint) as job_id, cast(0 as bigint) as walked
from (select limiter from gone union select limiter from dropped union select limiter from lined_up) l
union all
select 'walked', '', max(held_at), (array_agg(job_id order by held_at desc, job_id desc))[1], count(*) from walk;

-- name: sweep_gone
-- returns: kind, name, at, job_id, walked
-- The next `top` holds by job: those of jobs that are gone are removed, held or not.
with walk as materialized (
  select h.job_id, h.ordinal from evenflow.hold h where h.job_id > cast(:after_job as bigint)
  order by h.job_id, h.ordinal limit cast(:top as integer)
),
gone as (
  delete from evenflow.hold h using walk w
  where h.job_id = w.job_id and h.ordinal = w.ordinal and not exists (select from evenflow.job j where j.id = w.job_id)
  returning h.limiter
)
select 'limiter' as kind, limiter as name, cast(0 as bigint) as at, cast(0 as bigint) as job_id, cast(0 as bigint) as walked
from (select distinct limiter from gone) l
union all
select 'walked', '', cast(0 as bigint), max(job_id), count(*) from walk;

-- name: sweep_names
-- mode: read
-- returns: kind, name, at, job_id, walked
-- The next `top` keys, in steps along hold_line: those with both room and somebody waiting.
with recursive names (name, number) as (
  (select h.limiter, 1 from evenflow.hold h where h.limiter > cast(:after as text) order by h.limiter limit 1)
  union all
  select (select h.limiter from evenflow.hold h where h.limiter > n.name order by h.limiter limit 1), n.number + 1
  from names n where n.number < cast(:top as integer) and n.name is not null
)
select 'limiter' as kind, n.name, cast(0 as bigint) as at, cast(0 as bigint) as job_id, cast(0 as bigint) as walked from names n
cross join lateral (
  select h.most from evenflow.hold h where h.limiter = n.name and h.phase = 1 order by h.priority, h.turn, h.job_id limit 1) w
where (select count(*) from (select from evenflow.hold h where h.limiter = n.name and h.phase = 2 limit w.most) held) < w.most
  and not exists (select from evenflow.spent s where s.limiter = n.name)
union all
select 'walked', coalesce(max(n.name), ''), 0, 0, count(n.name) from names n;

-- name: free_spent
-- returns: limiter
-- Starts whose window has passed: their keys have room again.
delete from evenflow.spent s using (
  select ctid as at from evenflow.spent where free_at <= coalesce(cast(:now as bigint), evenflow.now_us())
  order by free_at limit cast(:top as integer) for update skip locked) past
where s.ctid = past.at
returning s.limiter;

-- name: next_free
-- mode: read
-- returns: free_at
-- When the next job that waits for a rate can go.
select s.free_at from evenflow.spent s
where exists (select from evenflow.hold h where h.limiter = s.limiter and h.phase = 1)
order by s.free_at limit 1;

-- name: take_token
-- returns: granted, free_at
-- A start under a rate by hand: granted where there is room, else the time of the next.
insert into evenflow.limiter as l (name, most) values (cast(:limiter as text), cast(:most as integer))
on conflict (name) do update set most = excluded.most;

with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
used as materialized (
  select coalesce(sum(s.starts), 0) + (select count(*) from evenflow.hold h where h.limiter = cast(:limiter as text) and h.phase = 2) as starts,
    min(s.free_at) as free_at
  from clock, evenflow.spent s where s.limiter = cast(:limiter as text) and s.free_at > now
),
taken as (
  insert into evenflow.spent (limiter, free_at, starts)
  select cast(:limiter as text), now + cast(:window_us as bigint), 1 from used, clock where used.starts < cast(:most as integer)
  returning free_at
)
select exists (select from taken) as granted, coalesce((select t.free_at from taken t), used.free_at) as free_at from used;

-- name: reset_rate
-- returns: limiter
delete from evenflow.spent s where s.limiter = cast(:limiter as text) returning s.limiter;

-- name: forget_limiters
-- returns: name
delete from evenflow.limiter l using (
  select l.name from evenflow.limiter l where not exists (select from evenflow.hold h where h.limiter = l.name)
    and not exists (select from evenflow.spent s where s.limiter = l.name)
  limit cast(:top as integer) for update skip locked) idle
where l.name = idle.name
returning l.name;

-- name: list_limiters
-- mode: read
-- returns: name, most, held, waiting, spent, free_at
select l.name, l.most, (select count(*) from evenflow.hold h where h.limiter = l.name and h.phase = 2) as held,
  (select count(*) from evenflow.hold h where h.limiter = l.name and h.phase = 1) as waiting,
  (select coalesce(sum(s.starts), 0) from evenflow.spent s where s.limiter = l.name and s.free_at > now) as spent,
  (select min(s.free_at) from evenflow.spent s where s.limiter = l.name and s.free_at > now) as free_at
from evenflow.limiter l, (select coalesce(cast(:now as bigint), evenflow.now_us()) as now) clock
where cast(:prefix as text) is null or starts_with(l.name, cast(:prefix as text))
order by l.name limit cast(:top as integer);

-- name: holds_of
-- mode: read
-- returns: limiter, phase, most, held
select h.limiter, h.phase, h.most, (select count(*) from evenflow.hold o where o.limiter = h.limiter and o.phase = 2) as held
from evenflow.hold h where h.job_id = cast(:id as bigint) and h.ordinal > 0 order by h.ordinal;

-- name: holders_of
-- mode: read
-- returns: limiter, job_id
-- Some holders of each of these keys, `top` at most.
select n.value as limiter, h.job_id from jsonb_array_elements_text(cast(:limiters as jsonb)) n
cross join lateral (
  select h.job_id, h.priority, h.turn from evenflow.hold h where h.limiter = n.value and h.phase = 2
  order by h.priority, h.turn, h.job_id limit cast(:top as integer)) h
order by n.value, h.priority, h.turn, h.job_id;
