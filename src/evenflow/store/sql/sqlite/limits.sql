-- name: add_holds
-- returns: job_id
insert into evenflow_hold (job_id, ordinal, limiter, most, keep_us, window_us, priority, turn)
select j.id, h.value ->> 'ordinal', h.value ->> 'limiter', h.value ->> 'most', h.value ->> 'keep_us', h.value ->> 'window_us', j.priority, 0
from json_each(:holds) h cross join evenflow_job j on j.id = h.value ->> 'job_id'
where true
returning job_id;

-- name: promote
-- returns: kind, name
-- The write lock is the lock of every key. Places are given one job at a time within a statement: see the twin. As a rule
-- one place of a key is free, and goes to the first in line without a list being made.
select 'missing' as kind, n.value as name from json_each(:limiters) n
where not exists (select 1 from evenflow_limiter l where l.name = n.value)
  and exists (select 1 from evenflow_hold h where h.limiter = n.value and h.phase = 1);

with line as materialized (
  select h.limiter as name, h.job_id, h.ordinal, h.most,
    h.most - (select count(*) from evenflow_hold o where o.limiter = h.limiter and o.phase = 2)
      - case when h.window_us is null then 0
          else (select coalesce(sum(s.starts), 0) from evenflow_spent s where s.limiter = h.limiter and s.free_at > :now) end as free
  from json_each(:limiters) n
  cross join evenflow_limiter l on l.name = n.value
  cross join evenflow_hold h on (h.job_id, h.ordinal) = (
    select w.job_id, w.ordinal from evenflow_hold w where w.limiter = n.value and w.phase = 1 order by w.priority, w.turn, w.job_id limit 1)
),
granted as materialized (
  select job_id, ordinal from line where free > 0
  union all
  select w.value ->> 0, w.value ->> 1 from line r
  cross join json_each((
    select json_group_array(json_array(job_id, ordinal)) from (
      select h.job_id, h.ordinal, max(h.most <> r.most) over (order by h.priority, h.turn, h.job_id) as is_other from (
        select h.job_id, h.ordinal, h.most, h.priority, h.turn from evenflow_hold h
        where h.limiter = r.name and h.phase = 1 order by h.priority, h.turn, h.job_id
        limit min(:top, (select max(free) from line))) h)
    where not is_other)) w
  where r.free > 1 and w.key between 1 and r.free - 1
)
update evenflow_hold set phase = 2, held_at = :now where (job_id, ordinal) in (select job_id, ordinal from granted);

-- What was granted at this very microsecond is what was granted here, or by a promotion before it that has gone this way.
update evenflow_hold set phase = 1
where phase = 0 and (job_id, ordinal) in (
  select h.job_id, h.ordinal + 1 from evenflow_hold h indexed by evenflow_hold_held
  where h.phase = 2 and h.held_at = :now and h.limiter in (select value from json_each(:limiters)))
returning 'limiter' as kind, limiter as name;

update evenflow_job set (state, turn) = (
  select case when q.max_ready is null then 'ready' else 'overflow' end, case when q.fair = 'fifo' then :now else 1 + coalesce(r.v, 0) end
  from (select 1)
  left join evenflow_queue q on q.name = evenflow_job.queue
  left join evenflow_round r on r.queue = evenflow_job.queue and r.priority = evenflow_job.priority)
where state = 'blocked' and id in (
  select h.job_id from evenflow_hold h indexed by evenflow_hold_held
  where h.phase = 2 and h.held_at = :now and h.limiter in (select value from json_each(:limiters))
    and not exists (select 1 from evenflow_hold o where o.job_id = h.job_id and o.ordinal = h.ordinal + 1))
returning case state when 'ready' then 'queue' else 'bounded' end as kind, queue as name;

-- The limit is that of whoever is next. He may have room too: there were many, or his is another limit.
with line as materialized (
  select l.name, h.most, l.most <> h.most
    or h.most > (select count(*) from evenflow_hold o where o.limiter = h.limiter and o.phase = 2)
      + case when h.window_us is null then 0
          else (select coalesce(sum(s.starts), 0) from evenflow_spent s where s.limiter = h.limiter and s.free_at > :now) end as is_more
  from json_each(:limiters) n
  cross join evenflow_limiter l on l.name = n.value
  cross join evenflow_hold h on (h.job_id, h.ordinal) = (
    select w.job_id, w.ordinal from evenflow_hold w where w.limiter = n.value and w.phase = 1 order by w.priority, w.turn, w.job_id limit 1)
)
update evenflow_limiter set most = line.most from line where evenflow_limiter.name = line.name and line.is_more
returning 'limiter' as kind, name;

select 'crowded' as kind, n.value as name from (select 1 from evenflow_spent limit 1) any_rate
cross join json_each(:limiters) n
where exists (select 1 from evenflow_spent s where s.limiter = n.value limit 1 offset 1000);

-- name: add_limiters
-- returns: name
insert into evenflow_limiter (name, most)
select name, most from (
  select n.value as name, (
    select h.most from evenflow_hold h where h.limiter = n.value and h.phase = 1 order by h.priority, h.turn, h.job_id limit 1) as most
  from json_each(:limiters) n)
where most is not null
on conflict do nothing
returning name;

-- name: still_blocked
-- mode: read
-- returns: id
select id from evenflow_job where id in (select value from json_each(:ids)) and state = 'blocked';

-- name: release_holds
-- returns: limiter
delete from evenflow_hold where job_id in (select value from json_each(:ids)) returning limiter;

-- name: park_holds
-- returns: limiter
update evenflow_hold set phase = 0, held_at = null where job_id in (select value from json_each(:ids)) and phase <> 0 returning limiter;

-- name: take_locks
-- returns: id
insert into evenflow_limiter (name, most)
select h.limiter, h.most from json_each(:runs) r cross join evenflow_hold h on h.job_id = r.value ->> 'id' and h.ordinal = 0
where true
on conflict do nothing;

update evenflow_hold set phase = 2, held_at = :now
where (job_id, ordinal) in (
  select w.job_id, 0 from (
    select h.job_id, h.limiter, h.most, h.phase = 2 as has_it, row_number() over (partition by h.limiter, h.phase = 2 order by h.job_id) as number
    from json_each(:runs) r
    cross join evenflow_hold h on h.job_id = r.value ->> 'id' and h.ordinal = 0
    cross join evenflow_job j on j.id = h.job_id and j.epoch = r.value ->> 'epoch' and j.worker = :worker) w
  where w.has_it or w.number <= w.most - (select count(*) from evenflow_hold o where o.limiter = w.limiter and o.phase = 2))
returning job_id as id;

-- name: locks_of
-- mode: read
-- returns: id, limiter, holder
select h.job_id as id, h.limiter,
  (select o.job_id from evenflow_hold o where o.limiter = h.limiter and o.phase = 2 order by o.held_at, o.job_id limit 1) as holder
from evenflow_hold h where h.job_id in (select value from json_each(:ids)) and h.ordinal = 0;

-- name: refund_starts
-- returns: limiter
update evenflow_spent set starts = starts - l.count
from (
  select count(*) as count, (
    select o.rowid from evenflow_spent o where o.limiter = l.value ->> 'limiter' and o.free_at = j.started_at + (l.value ->> 'window_us') limit 1) as at
  from json_each(:runs) r
  cross join evenflow_job j on j.id = r.value ->> 'id' and j.epoch = r.value ->> 'epoch' and j.worker = :worker
  cross join json_each(j.limits) l
  where l.value ->> 'window_us' is not null
    and not exists (select 1 from json_each(j.limits) o where j.started_at + (o.value ->> 'window_us') <= :now)
  group by l.value ->> 'limiter', j.started_at + (l.value ->> 'window_us')) l
where evenflow_spent.rowid = l.at;

insert into evenflow_hold (job_id, ordinal, limiter, most, keep_us, window_us, priority, turn, phase, held_at)
select j.id, l.value ->> 'ordinal', l.value ->> 'limiter', l.value ->> 'most', l.value ->> 'keep_us', l.value ->> 'window_us',
  j.priority, j.turn, 2, :now
  from json_each(:runs) r
  cross join evenflow_job j on j.id = r.value ->> 'id' and j.epoch = r.value ->> 'epoch' and j.worker = :worker
  cross join json_each(j.limits) l
  where l.value ->> 'window_us' is not null
    and not exists (select 1 from json_each(j.limits) o where j.started_at + (o.value ->> 'window_us') <= :now)
on conflict do nothing
returning limiter;

-- name: recharge_starts
-- returns: id
update evenflow_spent set starts = starts - l.count
from (
  select count(*) as count, (
    select o.rowid from evenflow_spent o where o.limiter = l.value ->> 'limiter' and o.free_at = j.started_at + (l.value ->> 'window_us') limit 1) as at
  from json_each(:runs) r
  cross join evenflow_job j on j.id = r.value ->> 'id' and j.epoch = r.value ->> 'epoch' and j.worker = :worker
  cross join json_each(j.limits) l
  where l.value ->> 'window_us' is not null
    and not exists (select 1 from json_each(j.limits) o where j.started_at + (o.value ->> 'window_us') <= :now)
  group by l.value ->> 'limiter', j.started_at + (l.value ->> 'window_us')) l
where evenflow_spent.rowid = l.at;

insert into evenflow_spent (limiter, free_at, starts)
select l.value ->> 'limiter', :now + (l.value ->> 'window_us'), count(*)
  from json_each(:runs) r
  cross join evenflow_job j on j.id = r.value ->> 'id' and j.epoch = r.value ->> 'epoch' and j.worker = :worker
  cross join json_each(j.limits) l
  where l.value ->> 'window_us' is not null
    and not exists (select 1 from json_each(j.limits) o where j.started_at + (o.value ->> 'window_us') <= :now)
group by l.value ->> 'limiter', l.value ->> 'window_us';

update evenflow_job set started_at = :now where id in (
  select j.id from json_each(:runs) r
  cross join evenflow_job j on j.id = r.value ->> 'id' and j.epoch = r.value ->> 'epoch' and j.worker = :worker
  where j.limits like '%"window_us"%'
    and not exists (select 1 from json_each(j.limits) o where j.started_at + (o.value ->> 'window_us') <= :now))
returning id;

-- name: sweep_held
-- returns: kind, name, at, job_id, walked
-- Each step walks the same stretch again: what an earlier one has removed lets a later one see a little further.
select 'walked' as kind, limiter as name, held_at as at, job_id, walked from (
  select limiter, held_at, job_id, count(*) over () as walked from (
    select limiter, held_at, job_id from evenflow_hold
    where phase = 2 and (limiter, held_at, job_id) > (:after, :after_at, :after_job) order by limiter, held_at, job_id limit :top)
  order by limiter desc, held_at desc, job_id desc limit 1);

delete from evenflow_hold where (job_id, ordinal) in (
  select w.job_id, w.ordinal from (
    select h.job_id, h.ordinal from evenflow_hold h
    where h.phase = 2 and (h.limiter, h.held_at, h.job_id) > (:after, :after_at, :after_job) order by h.limiter, h.held_at, h.job_id limit :top) w
  where not exists (select 1 from evenflow_job j where j.id = w.job_id))
returning 'limiter' as kind, limiter as name, 0 as at, 0 as job_id, 0 as walked;

update evenflow_hold set phase = 0, held_at = null where ordinal = 0 and job_id in (
  select w.job_id from (
    select h.job_id, h.ordinal, h.held_at + h.keep_us as until from evenflow_hold h
    where h.phase = 2 and (h.limiter, h.held_at, h.job_id) > (:after, :after_at, :after_job) order by h.limiter, h.held_at, h.job_id limit :top) w
  cross join evenflow_job j on j.id = w.job_id
  where w.ordinal = 0 and w.until <= :now and j.state not in ('claimed', 'running'))
returning 'limiter' as kind, limiter as name, 0 as at, 0 as job_id, 0 as walked;

update evenflow_job set state = 'blocked' where state in ('ready', 'overflow') and id in (
  select w.job_id from (
    select h.job_id, h.ordinal, h.held_at + h.keep_us as until from evenflow_hold h
    where h.phase = 2 and (h.limiter, h.held_at, h.job_id) > (:after, :after_at, :after_job) order by h.limiter, h.held_at, h.job_id limit :top) w
  where w.ordinal > 0 and w.until <= :now);

update evenflow_hold set phase = case when ordinal = 1 then 1 else 0 end, held_at = null, turn = :now
where job_id in (
  select w.job_id from (
    select h.limiter, h.job_id, h.ordinal, h.held_at + h.keep_us as until from evenflow_hold h
    where h.phase = 2 and (h.limiter, h.held_at, h.job_id) > (:after, :after_at, :after_job) order by h.limiter, h.held_at, h.job_id limit :top) w
  cross join evenflow_job j on j.id = w.job_id
  left join evenflow_hold mine on mine.job_id = w.job_id and mine.phase = 1
  where w.ordinal > 0 and w.until <= :now and j.state = 'blocked' and (mine.job_id is null or exists (
    select 1 from (
      select h.job_id from evenflow_hold h where h.limiter = w.limiter and h.phase = 1 order by h.priority, h.turn, h.job_id limit 50) next
    where not exists (select 1 from evenflow_hold h where h.job_id = next.job_id and h.limiter = mine.limiter))))
returning 'limiter' as kind, limiter as name, 0 as at, 0 as job_id, 0 as walked;

-- name: sweep_gone
-- returns: kind, name, at, job_id, walked
select 'walked' as kind, '' as name, 0 as at, max(job_id) as job_id, count(*) as walked from (
  select job_id from evenflow_hold where job_id > :after_job order by job_id, ordinal limit :top);

delete from evenflow_hold where (job_id, ordinal) in (
  select w.job_id, w.ordinal from (
    select job_id, ordinal from evenflow_hold where job_id > :after_job order by job_id, ordinal limit :top) w
  where not exists (select 1 from evenflow_job j where j.id = w.job_id))
returning 'limiter' as kind, limiter as name, 0 as at, 0 as job_id, 0 as walked;

-- name: sweep_names
-- mode: read
-- returns: kind, name, at, job_id, walked
with recursive names (name, number) as (
  select * from (select h.limiter, 1 from evenflow_hold h where h.phase = 1 and h.limiter > :after order by h.limiter limit 1)
  union all
  select (select h.limiter from evenflow_hold h where h.phase = 1 and h.limiter > n.name order by h.limiter limit 1), n.number + 1
  from names n where n.number < :top and n.name is not null
)
select 'limiter' as kind, name, 0 as at, 0 as job_id, 0 as walked from (
  select n.name, (
    select h.most from evenflow_hold h where h.limiter = n.name and h.phase = 1 order by h.priority, h.turn, h.job_id limit 1) as most
  from names n where n.name is not null) w
where w.most is not null
  and (select count(*) from evenflow_hold h where h.limiter = w.name and h.phase = 2)
    + (select coalesce(sum(s.starts), 0) from evenflow_spent s where s.limiter = w.name and s.free_at > :now) < w.most
union all
select 'walked', coalesce(max(n.name), ''), 0, 0, count(n.name) from names n;

-- name: free_spent
-- returns: limiter
delete from evenflow_spent where rowid in (select rowid from evenflow_spent where free_at <= :now order by free_at limit :top)
returning limiter;

-- name: fold_spent
-- returns: limiter
-- Of the rows that become one the first is kept, in the same share: so the second statement finds the others.
with crowded as materialized (
  select n.value as limiter,
    (select s.free_at from evenflow_spent s where s.limiter = n.value order by s.free_at desc limit 1 offset 200) as recent,
    (select max(s.free_at) from evenflow_spent s where s.limiter = n.value) as last
  from json_each(:limiters) n
),
old as materialized (
  select s.rowid as at, s.limiter, s.free_at, s.starts, (s.free_at - :now) / max((c.last - :now) / 500, 1) as share
  from crowded c cross join evenflow_spent s on s.limiter = c.limiter and s.free_at < c.recent and s.free_at > :now
)
update evenflow_spent set free_at = f.free_at, starts = f.starts
from (select min(at) as at, max(free_at) as free_at, sum(starts) as starts from old group by limiter, share) f
where evenflow_spent.rowid = f.at;

with crowded as materialized (
  select n.value as limiter,
    (select s.free_at from evenflow_spent s where s.limiter = n.value order by s.free_at desc limit 1 offset 200) as recent,
    (select max(s.free_at) from evenflow_spent s where s.limiter = n.value) as last
  from json_each(:limiters) n
),
old as materialized (
  select s.rowid as at, s.limiter, s.free_at, s.starts, (s.free_at - :now) / max((c.last - :now) / 500, 1) as share
  from crowded c cross join evenflow_spent s on s.limiter = c.limiter and s.free_at < c.recent and s.free_at > :now
)
delete from evenflow_spent
where rowid in (select at from old) and rowid not in (select min(at) from old group by limiter, share)
returning limiter;

-- name: take_token
-- returns: granted, free_at, is_crowded
insert into evenflow_limiter as l (name, most) values (:limiter, :most) on conflict (name) do update set most = excluded.most;

insert into evenflow_spent (limiter, free_at, starts)
select :limiter, -1, 1 where :most > (select coalesce(sum(s.starts), 0) from evenflow_spent s where s.limiter = :limiter and s.free_at > :now)
  + (select count(*) from evenflow_hold h where h.limiter = :limiter and h.phase = 2);

select exists (select 1 from evenflow_spent s where s.limiter = :limiter and s.free_at = -1) as granted,
  case when exists (select 1 from evenflow_spent s where s.limiter = :limiter and s.free_at = -1) then :now + :window_us
    else (select min(s.free_at) from evenflow_spent s where s.limiter = :limiter and s.free_at > :now) end as free_at,
  exists (select 1 from evenflow_spent s where s.limiter = :limiter limit 1 offset 1000) as is_crowded;

update evenflow_spent set free_at = :now + :window_us where limiter = :limiter and free_at = -1;

-- name: reset_rate
-- returns: limiter
delete from evenflow_spent where limiter = :limiter returning limiter;

-- name: forget_limiters
-- returns: name
delete from evenflow_limiter where name in (
  select l.name from evenflow_limiter l where not exists (select 1 from evenflow_hold h where h.limiter = l.name and h.phase = 1)
    and not exists (select 1 from evenflow_hold h where h.limiter = l.name and h.phase = 2)
    and not exists (select 1 from evenflow_spent s where s.limiter = l.name) limit :top)
returning name;

-- name: list_limiters
-- mode: read
-- returns: name, most, held, waiting, spent, free_at
select l.name, l.most, (select count(*) from evenflow_hold h where h.limiter = l.name and h.phase = 2) as held,
  (select count(*) from (select 1 from evenflow_hold h where h.limiter = l.name and h.phase = 1 limit :counted)) as waiting,
  (select coalesce(sum(s.starts), 0) from evenflow_spent s where s.limiter = l.name and s.free_at > :now) as spent,
  (select min(s.free_at) from evenflow_spent s where s.limiter = l.name and s.free_at > :now) as free_at
from evenflow_limiter l where :prefix is null or substr(l.name, 1, length(:prefix)) = :prefix order by l.name limit :top;

-- name: holds_of
-- mode: read
-- returns: limiter, phase, most, held, spent, free_at, before
select h.limiter, h.phase,
  coalesce(case when h.phase = 1 then (
    select o.most from evenflow_hold o where o.limiter = h.limiter and o.phase = 1 order by o.priority, o.turn, o.job_id limit 1) end, h.most) as most,
  (select count(*) from evenflow_hold o where o.limiter = h.limiter and o.phase = 2) as held,
  (select coalesce(sum(s.starts), 0) from evenflow_spent s where s.limiter = h.limiter and s.free_at > :now) as spent,
  (select min(s.free_at) from evenflow_spent s where s.limiter = h.limiter and s.free_at > :now) as free_at,
  case when h.phase = 1 then (select count(*) from (
    select 1 from evenflow_hold o where o.limiter = h.limiter and o.phase = 1
      and (o.priority, o.turn, o.job_id) < (h.priority, h.turn, h.job_id) limit :top)) else 0 end as before
from evenflow_hold h where h.job_id = :id and h.ordinal > 0 order by h.ordinal;

-- name: holders_of
-- mode: read
-- returns: limiter, job_id
select n.value as limiter, h.value as job_id from json_each(:limiters) n
cross join json_each((
  select json_group_array(job_id) from (
    select o.job_id from evenflow_hold o where o.limiter = n.value and o.phase = 2 order by o.held_at, o.job_id limit :top))) h
order by n.value, h.key;
