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
-- the state before the wait. Only keys that this transaction has locked are counted (xmax): one whose row somebody has just
-- made is left to the next promotion. A key that nobody waits for is not touched. The limit that counts is the one that the
-- next job in line was enqueued with. Under a rate the starts of the last window count like holders.
-- Not flushed: whatever builds on it flushes it as well, and what a crash of the server undoes the sweep does again.
-- kinds: queue (a job of it is ready now), bounded (one waits before a bounded queue), limiter (one moved on to its next key,
--   or there are more to be promoted here), missing (a key without its row: see add_limiters), locked (so many keys),
--   crowded (its starts take long to be counted: see fold_spent).
with named as materialized (select distinct value as name from jsonb_array_elements_text(cast(:limiters as jsonb))),
locked as materialized (
  select l.name from evenflow.limiter l
  where l.name = any (array(select name from named))
    and (select true from evenflow.hold h where h.limiter = l.name and h.phase = 1 limit 1)
  order by l.name for no key update
)
select 'locked' as kind, cast(count(*) as text) as name from locked where set_config('synchronous_commit', 'off', true) = 'off'
union all
select 'missing', n.name from named n
where case when (select true from evenflow.limiter l where l.name = n.name) is null
  then (select true from evenflow.hold h where h.limiter = n.name and h.phase = 1 limit 1) end;

with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
line as materialized (
  select l.name, l.most, l.most - (select count(*) from evenflow.hold h where h.limiter = l.name and h.phase = 2)
    - (select coalesce(sum(s.starts), 0) from evenflow.spent s where s.limiter = l.name and s.free_at + 0 > now) as free
  from clock, evenflow.limiter l
  where l.name = any (array(select value from jsonb_array_elements_text(cast(:limiters as jsonb))))
    and l.xmax = cast(pg_current_xact_id_if_assigned() as xid)
),
next as materialized (
  select r.name, r.most, r.free, p.*, bool_and(p.wanted = r.most) over (partition by r.name order by p.number) as is_alike
  from line r cross join lateral (
    select h.ctid as at, h.job_id, h.ordinal, h.most as wanted, row_number() over (order by h.priority, h.turn, h.job_id) as number
    from evenflow.hold h where h.limiter = r.name and h.phase = 1
    order by h.priority, h.turn, h.job_id limit greatest(least(r.free, cast(:top as bigint)), 0) + 1) p
),
resized as (
  update evenflow.limiter l set most = n.wanted from next n where n.number = 1 and n.wanted <> n.most and l.name = n.name
),
picked as materialized (
  select n.name, n.at, n.job_id, f.at as next_at from next n
  left join lateral (
    select h.ctid as at from evenflow.hold h where h.job_id = n.job_id and h.ordinal = n.ordinal + 1 limit 1) f on true
  where n.number <= least(n.free, cast(:top as bigint)) and n.is_alike
),
granted as (
  update evenflow.hold h set phase = 2, held_at = now from picked p, clock where h.ctid = p.at and h.phase = 1
  returning p.job_id, p.next_at
),
onward as (
  update evenflow.hold h set phase = 1 from granted g where g.next_at is not null and h.ctid = g.next_at
  returning h.limiter
),
readied as (
  update evenflow.job j set
    state = case when exists (select from evenflow.queue q where q.name = j.queue and q.max_ready is not null) then 'overflow' else 'ready' end,
    turn = case when exists (select from evenflow.queue q where q.name = j.queue and q.fair = 'fifo') then now
                else 1 + coalesce((select r.v from evenflow.round r where r.queue = j.queue and r.priority = j.priority), 0) end
  from granted g, clock where g.next_at is null and j.id = g.job_id and j.state = 'blocked'
  returning j.queue, j.state
)
select distinct case state when 'ready' then 'queue' else 'bounded' end as kind, queue as name from readied
union all
select distinct 'limiter', limiter from onward
union all
select distinct 'limiter', name from next where not is_alike or (number > cast(:top as bigint) and free >= number)
union all
select 'crowded', r.name from line r where exists (select from evenflow.spent s where s.limiter = r.name offset 1000);

-- name: add_limiters
-- returns: name
-- The rows of keys that are used for the first time, or for the first time since they were forgotten.
insert into evenflow.limiter (name, most)
select n.name, w.most from (select distinct value as name from jsonb_array_elements_text(cast(:limiters as jsonb))) n
cross join lateral (
  select h.most from evenflow.hold h where h.limiter = n.name and h.phase = 1 order by h.priority, h.turn, h.job_id limit 1) w
order by n.name
on conflict do nothing
returning name;

-- name: still_blocked
-- mode: read
-- returns: id
-- Which of these jobs wait for a key.
select j.id from evenflow.job j
where j.id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb)))) and j.state = 'blocked';

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
  (select o.job_id from evenflow.hold o where o.limiter = h.limiter and o.phase = 2 order by o.held_at, o.job_id limit 1) as holder
from evenflow.hold h
where h.job_id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb)))) and h.ordinal = 0;

-- name: refund_starts
-- returns: limiter
-- Claimed jobs under rates whose bodies were not entered have their places back as if they had not been claimed: what they
-- were charged (free_at is started_at and the window, to the microsecond) is taken back. One whose charge has run out
-- meanwhile has lost its place to somebody else, and lines up anew. Only for a run that is in flight at this worker with this
-- epoch. Under the locks of the limiters, as in promote.
select cast(null as text) as limiter from evenflow.limiter l
where l.name = any (array(
  select h.limiter from jsonb_to_recordset(cast(:runs as jsonb)) as r (id bigint, epoch integer)
  join evenflow.job j on j.id = r.id
  cross join lateral jsonb_to_recordset(cast(j.limits as jsonb)) as h (limiter text, window_us bigint)
  where h.window_us is not null))
order by l.name for no key update;

with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
charges as materialized (
  select j.id as job_id, j.priority, j.turn, h.ordinal, h.limiter, h.most, h.keep_us, h.window_us, j.started_at + h.window_us as free_at
  from jsonb_to_recordset(cast(:runs as jsonb)) as r (id bigint, epoch integer)
  join evenflow.job j on j.id = r.id and j.epoch = r.epoch and j.worker = cast(:worker as bigint)
  cross join lateral jsonb_to_recordset(cast(j.limits as jsonb)) as h (
    ordinal smallint, limiter text, most integer, keep_us bigint, window_us bigint)
  where h.window_us is not null
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
insert into evenflow.hold (job_id, ordinal, limiter, most, keep_us, window_us, priority, turn, phase, held_at)
select job_id, ordinal, limiter, most, keep_us, window_us, priority, turn, 2, now from kept, clock
on conflict do nothing
returning limiter;

-- name: recharge_starts
-- returns: id
-- Prefetched jobs under rates are about to start: the charge of their claim is moved to now. One whose charge has run out has
-- lost its place to somebody else, and is left out. Under the locks of the limiters, as in promote.
select cast(null as bigint) as id from evenflow.limiter l
where l.name = any (array(
  select h.limiter from jsonb_to_recordset(cast(:runs as jsonb)) as r (id bigint, epoch integer)
  join evenflow.job j on j.id = r.id
  cross join lateral jsonb_to_recordset(cast(j.limits as jsonb)) as h (limiter text, window_us bigint)
  where h.window_us is not null))
order by l.name for no key update;

with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
charges as materialized (
  select j.id as job_id, h.limiter, h.window_us, j.started_at + h.window_us as free_at
  from jsonb_to_recordset(cast(:runs as jsonb)) as r (id bigint, epoch integer)
  join evenflow.job j on j.id = r.id and j.epoch = r.epoch and j.worker = cast(:worker as bigint)
  cross join lateral jsonb_to_recordset(cast(j.limits as jsonb)) as h (limiter text, window_us bigint)
  where h.window_us is not null
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
update evenflow.job j set started_at = now from clock
where j.id = any (array(select job_id from moved)) and j.worker = cast(:worker as bigint)
returning j.id;

-- name: sweep_held
-- returns: kind, name, at, job_id, walked
-- The net below every road, in three walks that each go on where the last one stopped, so that a pass costs the same
-- whatever is held, waits or was left behind. This one: the next `top` held places, key by key. Those of jobs that are
-- gone are freed; those kept for longer than their time by jobs that did not start are taken back. From a job that waits for
-- another key only where one of the next in line does not need that key: else the order would change and nothing be gained.
-- kinds: limiter (a key has room), walked (where to go on).
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
walk as materialized (
  select h.limiter, h.job_id, h.ordinal, h.held_at, h.held_at + h.keep_us <= (select now from clock) as is_late from evenflow.hold h
  where h.phase = 2 and (h.limiter, h.held_at, h.job_id) > (cast(:after as text), cast(:after_at as bigint), cast(:after_job as bigint))
  order by h.limiter, h.held_at, h.job_id limit cast(:top as integer)
),
fates as materialized (
  select w.limiter, w.job_id, w.ordinal, j.state from walk w left join lateral (select j.state from evenflow.job j where j.id = w.job_id) j on true
  where j.state is null or w.is_late and j.state not in ('claimed', 'running')
),
gone as (
  delete from evenflow.hold h using fates f
  where h.job_id = any (array(select job_id from fates where state is null)) and f.state is null and h.job_id = f.job_id and h.ordinal = f.ordinal
  returning h.limiter
),
dropped as (
  update evenflow.hold h set phase = 0, held_at = null from fates f
  where f.state is not null and f.ordinal = 0 and h.job_id = f.job_id and h.ordinal = 0
  returning h.limiter
),
idle as materialized (
  select j.id from evenflow.job j
  where j.id = any (array(select job_id from fates where ordinal > 0)) and (j.state in ('ready', 'overflow') or j.state = 'blocked' and exists (
    select from fates f join evenflow.hold mine on mine.job_id = f.job_id and mine.phase = 1
    cross join lateral (
      select h.job_id from evenflow.hold h where h.limiter = f.limiter and h.phase = 1 order by h.priority, h.turn, h.job_id limit 50) next
    where f.job_id = j.id and f.ordinal > 0
      and not exists (select from evenflow.hold h where h.job_id = next.job_id and h.limiter = mine.limiter)))
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
(select 'walked', w.limiter, w.held_at, w.job_id, (select count(*) from walk) from walk w
 order by w.limiter desc, w.held_at desc, w.job_id desc limit 1);

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
-- The next `top` keys that somebody waits for, in steps along hold_line: those with room.
with recursive clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
names (name, number) as (
  (select h.limiter, 1 from evenflow.hold h where h.phase = 1 and h.limiter > cast(:after as text) order by h.limiter limit 1)
  union all
  select (select h.limiter from evenflow.hold h where h.phase = 1 and h.limiter > n.name order by h.limiter limit 1), n.number + 1
  from names n where n.number < cast(:top as integer) and n.name is not null
)
select 'limiter' as kind, n.name, cast(0 as bigint) as at, cast(0 as bigint) as job_id, cast(0 as bigint) as walked from names n
cross join lateral (
  select h.most from evenflow.hold h where h.limiter = n.name and h.phase = 1 order by h.priority, h.turn, h.job_id limit 1) w
where (select count(*) from (select from evenflow.hold h where h.limiter = n.name and h.phase = 2 limit w.most) held)
  + (select coalesce(sum(s.starts), 0) from evenflow.spent s where s.limiter = n.name and s.free_at > (select now from clock)) < w.most
union all
select 'walked', coalesce(max(n.name), ''), 0, 0, count(n.name) from names n;

-- name: free_spent
-- returns: limiter
-- Starts whose window has passed: their keys have room again.
with past as materialized (
  select ctid as at from evenflow.spent where free_at <= coalesce(cast(:now as bigint), evenflow.now_us())
  order by free_at limit cast(:top as integer) for update skip locked
)
delete from evenflow.spent s using past
where s.ctid = past.at
returning s.limiter;

-- name: fold_spent
-- returns: limiter
-- A long window, or many starts, leave a row for each round that started some, and whoever counts them reads them all. Beyond
-- the newest two hundred, rows within a five-hundredth of the window become one, which is free when the last of them is: so
-- nothing starts too early, and a place comes back at most that much late. What went back unstarted is refunded by the time of its
-- start, so the newest rows stay as they are. Under the lock of the limiter's row, like every count.
select l.name as limiter from evenflow.limiter l
where l.name = any (array(select value from jsonb_array_elements_text(cast(:limiters as jsonb)))) order by l.name for no key update;

with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
crowded as materialized (
  select n.value as limiter,
    (select s.free_at from evenflow.spent s where s.limiter = n.value order by s.free_at desc offset 200 limit 1) as recent,
    (select max(s.free_at) from evenflow.spent s where s.limiter = n.value) as last
  from jsonb_array_elements_text(cast(:limiters as jsonb)) n
),
old as materialized (
  select s.at, (s.free_at - now) / greatest((c.last - now) / 500, 1) as share
  from clock, crowded c cross join lateral (
    select s.ctid as at, s.free_at from evenflow.spent s where s.limiter = c.limiter and s.free_at < c.recent and s.free_at > now) s
),
gone as (
  delete from evenflow.spent s using old o where s.ctid = o.at
  returning s.limiter, s.free_at, s.starts, o.share
)
insert into evenflow.spent (limiter, free_at, starts)
select limiter, max(free_at), sum(starts) from gone group by limiter, share
returning limiter;

-- name: take_token
-- returns: granted, free_at, is_crowded
-- A start under a rate by hand: granted where there is room, else the time of the next.
insert into evenflow.limiter as l (name, most) values (cast(:limiter as text), cast(:most as integer))
on conflict (name) do update set most = excluded.most;

with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
used as materialized (
  select coalesce(sum(s.starts), 0) + (select count(*) from evenflow.hold h where h.limiter = cast(:limiter as text) and h.phase = 2) as starts,
    min(s.free_at) as free_at, count(*) > 1000 as is_crowded
  from clock, evenflow.spent s where s.limiter = cast(:limiter as text) and s.free_at > now
),
taken as (
  insert into evenflow.spent (limiter, free_at, starts)
  select cast(:limiter as text), now + cast(:window_us as bigint), 1 from used, clock where used.starts < cast(:most as integer)
  returning free_at
)
select exists (select from taken) as granted, coalesce((select t.free_at from taken t), used.free_at) as free_at, used.is_crowded from used;

-- name: reset_rate
-- returns: limiter
delete from evenflow.spent s where s.limiter = cast(:limiter as text) returning s.limiter;

-- name: forget_limiters
-- returns: name
with idle as materialized (
  select l.name from evenflow.limiter l where not exists (select from evenflow.hold h where h.limiter = l.name and h.phase = 1)
    and not exists (select from evenflow.hold h where h.limiter = l.name and h.phase = 2)
    and not exists (select from evenflow.spent s where s.limiter = l.name)
  limit cast(:top as integer) for update skip locked
)
delete from evenflow.limiter l using idle
where l.name = idle.name
returning l.name;

-- name: list_limiters
-- mode: read
-- returns: name, most, held, waiting, spent, free_at
select l.name, l.most, (select count(*) from evenflow.hold h where h.limiter = l.name and h.phase = 2) as held,
  (select count(*) from (
    select 1 from evenflow.hold h where h.limiter = l.name and h.phase = 1 limit cast(:counted as integer)) w) as waiting,
  (select coalesce(sum(s.starts), 0) from evenflow.spent s where s.limiter = l.name and s.free_at > now) as spent,
  (select min(s.free_at) from evenflow.spent s where s.limiter = l.name and s.free_at > now) as free_at
from evenflow.limiter l, (select coalesce(cast(:now as bigint), evenflow.now_us()) as now) clock
where cast(:prefix as text) is null or starts_with(l.name, cast(:prefix as text))
order by l.name limit cast(:top as integer);

-- name: holds_of
-- mode: read
-- returns: limiter, phase, most, held, spent, free_at, before
-- The keys of one job, with the numbers by which a promotion decides: the limit that counts is that of the next job in line.
-- Those who wait before this one are counted up to `top`.
select h.limiter, h.phase,
  coalesce(case when h.phase = 1 then (
    select o.most from evenflow.hold o where o.limiter = h.limiter and o.phase = 1 order by o.priority, o.turn, o.job_id limit 1) end, h.most) as most,
  (select count(*) from evenflow.hold o where o.limiter = h.limiter and o.phase = 2) as held,
  (select coalesce(sum(s.starts), 0) from evenflow.spent s where s.limiter = h.limiter and s.free_at > now) as spent,
  (select min(s.free_at) from evenflow.spent s where s.limiter = h.limiter and s.free_at > now) as free_at,
  case when h.phase = 1 then (select count(*) from (
    select from evenflow.hold o where o.limiter = h.limiter and o.phase = 1
      and (o.priority, o.turn, o.job_id) < (h.priority, h.turn, h.job_id) limit cast(:top as integer)) b) else 0 end as before
from evenflow.hold h, (select coalesce(cast(:now as bigint), evenflow.now_us()) as now) clock
where h.job_id = cast(:id as bigint) and h.ordinal > 0 order by h.ordinal;

-- name: holders_of
-- mode: read
-- returns: limiter, job_id
-- The oldest holders of each of these keys, `top` at most.
select n.value as limiter, h.job_id from jsonb_array_elements_text(cast(:limiters as jsonb)) n
cross join lateral (
  select h.job_id, h.held_at from evenflow.hold h where h.limiter = n.value and h.phase = 2
  order by h.held_at, h.job_id limit cast(:top as integer)) h
order by n.value, h.held_at, h.job_id;
