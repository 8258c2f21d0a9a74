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
-- kinds: queue (a job of it is ready now), limiter (a job moved on to its next key).
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
  update evenflow.job j set state = 'ready',
    turn = case when exists (select from evenflow.queue q where q.name = j.queue and q.fair = 'fifo') then now
                else 1 + coalesce((select r.v from evenflow.round r where r.queue = j.queue and r.priority = j.priority), 0) end
  from granted g, clock
  where j.id = g.job_id and j.state = 'blocked'
    and not exists (select from evenflow.hold h where h.job_id = g.job_id and h.ordinal = g.ordinal + 1)
  returning j.queue
)
select 'queue' as kind, queue as name from readied union all select 'limiter', limiter from onward;

-- name: release_holds
-- returns: limiter
-- Jobs that ended outside of a worker let go of their keys.
delete from evenflow.hold h
where h.job_id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))))
returning h.limiter;

-- name: sweep_holds
-- returns: limiter
-- The net below every road: holds of jobs that are gone, places kept for longer than their time by jobs that did not
-- start, and then every key that has both room and somebody waiting. Nothing can stay blocked for ever.
delete from evenflow.hold h using (
  select h.job_id, h.ordinal from evenflow.hold h where not exists (select from evenflow.job j where j.id = h.job_id)
  limit cast(:top as integer) for update skip locked) gone
where h.job_id = gone.job_id and h.ordinal = gone.ordinal
returning h.limiter;

with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
idle as materialized (
  select j.id from evenflow.hold h join evenflow.job j on j.id = h.job_id
  where h.phase = 2 and h.held_at + h.keep_us <= (select now from clock) and j.state = 'ready'
  limit cast(:top as integer) for update of j skip locked
),
blocked as (update evenflow.job j set state = 'blocked' from idle i where j.id = i.id and j.state = 'ready' returning j.id)
update evenflow.hold h set phase = case when h.ordinal = 1 then 1 else 0 end, held_at = null, turn = now
from blocked b, clock where h.job_id = b.id
returning h.limiter;

select l.name as limiter from evenflow.limiter l
where exists (select from evenflow.hold h where h.limiter = l.name and h.phase = 1)
  and (select count(*) from evenflow.hold h where h.limiter = l.name and h.phase = 2) < l.most
  and not exists (select from evenflow.spent s where s.limiter = l.name)
limit cast(:top as integer);

select distinct h.limiter from (select limiter from evenflow.hold where phase = 1 limit cast(:top as integer)) h
where not exists (select from evenflow.limiter l where l.name = h.limiter);

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
from evenflow.hold h where h.job_id = cast(:id as bigint) order by h.ordinal;

-- name: holders_of
-- mode: read
-- returns: job_id
select h.job_id from evenflow.hold h where h.limiter = cast(:limiter as text) and h.phase = 2
order by h.priority, h.turn, h.job_id limit cast(:top as integer);
