-- name: add_holds
-- returns: job_id
insert into evenflow_hold (job_id, ordinal, limiter, most, keep_us, window_us, priority, turn)
select j.id, h.value ->> 'ordinal', h.value ->> 'limiter', h.value ->> 'most', h.value ->> 'keep_us', h.value ->> 'window_us', j.priority, 0
from json_each(:holds) h cross join evenflow_job j on j.id = h.value ->> 'job_id'
where true
returning job_id;

-- name: promote
-- returns: kind, name
-- The write lock is the lock of every key. Places are given one job at a time within a statement: see the twin.
insert into evenflow_limiter as l (name, most)
select name, most from (
  select n.value as name, (
    select h.most from evenflow_hold h where h.limiter = n.value and h.phase = 1 order by h.priority, h.turn, h.job_id limit 1) as most
  from json_each(:limiters) n)
where most is not null
on conflict (name) do update set most = excluded.most where l.most <> excluded.most;

-- held_at = -1 marks what this promotion grants, for the statements that follow.
update evenflow_hold set phase = 2, held_at = -1
where (job_id, ordinal) in (
  select w.value ->> 0, w.value ->> 1 from evenflow_limiter l
  cross join json_each((
    select json_group_array(json_array(job_id, ordinal)) from (
      select h.job_id, h.ordinal from evenflow_hold h
      where h.limiter = l.name and h.phase = 1 order by h.priority, h.turn, h.job_id limit :top))) w
  where l.name in (select value from json_each(:limiters))
    and w.key < l.most - (select count(*) from evenflow_hold o where o.limiter = l.name and o.phase = 2)
      - (select coalesce(sum(s.starts), 0) from evenflow_spent s where s.limiter = l.name and s.free_at > :now));

update evenflow_hold set phase = 1
where (job_id, ordinal) in (select h.job_id, h.ordinal + 1 from evenflow_hold h where h.limiter in (select value from json_each(:limiters)) and h.phase = 2 and h.held_at = -1)
returning 'limiter' as kind, limiter as name;

update evenflow_job set
  state = case when exists (select 1 from evenflow_queue q where q.name = evenflow_job.queue and q.max_ready is not null) then 'overflow' else 'ready' end,
  turn = case when exists (select 1 from evenflow_queue q where q.name = evenflow_job.queue and q.fair = 'fifo') then :now
              else 1 + coalesce((select r.v from evenflow_round r where r.queue = evenflow_job.queue and r.priority = evenflow_job.priority), 0) end
where state = 'blocked' and id in (
  select h.job_id from evenflow_hold h where h.limiter in (select value from json_each(:limiters)) and h.phase = 2 and h.held_at = -1
    and not exists (select 1 from evenflow_hold o where o.job_id = h.job_id and o.ordinal = h.ordinal + 1))
returning case state when 'ready' then 'queue' else 'bounded' end as kind, queue as name;

update evenflow_hold set held_at = :now where limiter in (select value from json_each(:limiters)) and phase = 2 and held_at = -1;

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
  (select o.job_id from evenflow_hold o where o.limiter = h.limiter and o.phase = 2 order by o.priority, o.turn, o.job_id limit 1) as holder
from evenflow_hold h where h.job_id in (select value from json_each(:ids)) and h.ordinal = 0;

-- name: refund_starts
-- returns: limiter
update evenflow_spent set starts = starts - l.count
from (
  select count(*) as count, (
    select o.rowid from evenflow_spent o where o.limiter = h.limiter and o.free_at = h.held_at + h.window_us limit 1) as at
  from json_each(:runs) r
  cross join evenflow_job j on j.id = r.value ->> 'id' and j.epoch = r.value ->> 'epoch' and j.worker = :worker
  cross join evenflow_hold h on h.job_id = j.id and h.phase = 3
  where not exists (select 1 from evenflow_hold o where o.job_id = j.id and o.phase = 3 and o.held_at + o.window_us <= :now)
  group by h.limiter, h.held_at + h.window_us) l
where evenflow_spent.rowid = l.at;

update evenflow_hold set phase = 2, held_at = :now where phase = 3 and job_id in (
  select j.id from json_each(:runs) r
  cross join evenflow_job j on j.id = r.value ->> 'id' and j.epoch = r.value ->> 'epoch' and j.worker = :worker
  where not exists (select 1 from evenflow_hold o where o.job_id = j.id and o.phase = 3 and o.held_at + o.window_us <= :now))
returning limiter;

-- name: recharge_starts
-- returns: id
-- held_at = -1 marks what is charged anew, for the statements that follow.
update evenflow_spent set starts = starts - l.count
from (
  select count(*) as count, (
    select o.rowid from evenflow_spent o where o.limiter = h.limiter and o.free_at = h.held_at + h.window_us limit 1) as at
  from json_each(:runs) r
  cross join evenflow_job j on j.id = r.value ->> 'id' and j.epoch = r.value ->> 'epoch' and j.worker = :worker
  cross join evenflow_hold h on h.job_id = j.id and h.phase = 3
  where not exists (select 1 from evenflow_hold o where o.job_id = j.id and o.phase = 3 and o.held_at + o.window_us <= :now)
  group by h.limiter, h.held_at + h.window_us) l
where evenflow_spent.rowid = l.at;

update evenflow_hold set held_at = -1 where phase = 3 and job_id in (
  select j.id from json_each(:runs) r
  cross join evenflow_job j on j.id = r.value ->> 'id' and j.epoch = r.value ->> 'epoch' and j.worker = :worker
  where not exists (select 1 from evenflow_hold o where o.job_id = j.id and o.phase = 3 and o.held_at + o.window_us <= :now));

insert into evenflow_spent (limiter, free_at, starts)
select h.limiter, :now + h.window_us, count(*) from json_each(:runs) r
cross join evenflow_hold h on h.job_id = r.value ->> 'id' and h.phase = 3 and h.held_at = -1
group by h.limiter, h.window_us;

update evenflow_hold set held_at = :now
where phase = 3 and held_at = -1 and job_id in (select value ->> 'id' from json_each(:runs))
returning job_id as id;

-- name: sweep_held
-- returns: kind, name, at, job_id, walked
-- Each step walks the same stretch again: what an earlier one has removed lets a later one see a little further.
select 'walked' as kind, '' as name, held_at as at, job_id, walked from (
  select held_at, job_id, count(*) over () as walked from (
    select held_at, job_id from evenflow_hold where phase = 2 and (held_at, job_id) > (:after_at, :after_job) order by held_at, job_id limit :top)
  order by held_at desc, job_id desc limit 1);

delete from evenflow_hold where (job_id, ordinal) in (
  select w.job_id, w.ordinal from (
    select h.job_id, h.ordinal from evenflow_hold h
    where h.phase = 2 and (h.held_at, h.job_id) > (:after_at, :after_job) order by h.held_at, h.job_id limit :top) w
  where not exists (select 1 from evenflow_job j where j.id = w.job_id))
returning 'limiter' as kind, limiter as name, 0 as at, 0 as job_id, 0 as walked;

update evenflow_hold set phase = 0, held_at = null where ordinal = 0 and job_id in (
  select w.job_id from (
    select h.job_id, h.ordinal, h.held_at + h.keep_us as until from evenflow_hold h
    where h.phase = 2 and (h.held_at, h.job_id) > (:after_at, :after_job) order by h.held_at, h.job_id limit :top) w
  cross join evenflow_job j on j.id = w.job_id
  where w.ordinal = 0 and w.until <= :now and j.state not in ('claimed', 'running'))
returning 'limiter' as kind, limiter as name, 0 as at, 0 as job_id, 0 as walked;

update evenflow_job set state = 'blocked' where state in ('ready', 'overflow') and id in (
  select w.job_id from (
    select h.job_id, h.ordinal, h.held_at + h.keep_us as until from evenflow_hold h
    where h.phase = 2 and (h.held_at, h.job_id) > (:after_at, :after_job) order by h.held_at, h.job_id limit :top) w
  where w.ordinal > 0 and w.until <= :now);

update evenflow_hold set phase = case when ordinal = 1 then 1 else 0 end, held_at = null, turn = :now
where job_id in (
  select w.job_id from (
    select h.job_id, h.ordinal, h.held_at + h.keep_us as until from evenflow_hold h
    where h.phase = 2 and (h.held_at, h.job_id) > (:after_at, :after_job) order by h.held_at, h.job_id limit :top) w
  cross join evenflow_job j on j.id = w.job_id
  where w.ordinal > 0 and w.until <= :now and j.state = 'blocked')
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
  select * from (select h.limiter, 1 from evenflow_hold h where h.limiter > :after order by h.limiter limit 1)
  union all
  select (select h.limiter from evenflow_hold h where h.limiter > n.name order by h.limiter limit 1), n.number + 1
  from names n where n.number < :top and n.name is not null
)
select 'limiter' as kind, name, 0 as at, 0 as job_id, 0 as walked from (
  select n.name, (
    select h.most from evenflow_hold h where h.limiter = n.name and h.phase = 1 order by h.priority, h.turn, h.job_id limit 1) as most
  from names n where n.name is not null) w
where w.most is not null
  and (select count(*) from evenflow_hold h where h.limiter = w.name and h.phase = 2) < w.most
  and not exists (select 1 from evenflow_spent s where s.limiter = w.name)
union all
select 'walked', coalesce(max(n.name), ''), 0, 0, count(n.name) from names n;

-- name: free_spent
-- returns: limiter
delete from evenflow_spent where rowid in (select rowid from evenflow_spent where free_at <= :now order by free_at limit :top)
returning limiter;

-- name: next_free
-- mode: read
-- returns: free_at
select s.free_at from evenflow_spent s
where exists (select 1 from evenflow_hold h where h.limiter = s.limiter and h.phase = 1)
order by s.free_at limit 1;

-- name: take_token
-- returns: granted, free_at
insert into evenflow_limiter as l (name, most) values (:limiter, :most) on conflict (name) do update set most = excluded.most;

insert into evenflow_spent (limiter, free_at, starts)
select :limiter, -1, 1 where :most > (select coalesce(sum(s.starts), 0) from evenflow_spent s where s.limiter = :limiter and s.free_at > :now)
  + (select count(*) from evenflow_hold h where h.limiter = :limiter and h.phase = 2);

select exists (select 1 from evenflow_spent s where s.limiter = :limiter and s.free_at = -1) as granted,
  case when exists (select 1 from evenflow_spent s where s.limiter = :limiter and s.free_at = -1) then :now + :window_us
    else (select min(s.free_at) from evenflow_spent s where s.limiter = :limiter and s.free_at > :now) end as free_at;

update evenflow_spent set free_at = :now + :window_us where limiter = :limiter and free_at = -1;

-- name: reset_rate
-- returns: limiter
delete from evenflow_spent where limiter = :limiter returning limiter;

-- name: forget_limiters
-- returns: name
delete from evenflow_limiter where name in (
  select l.name from evenflow_limiter l where not exists (select 1 from evenflow_hold h where h.limiter = l.name)
    and not exists (select 1 from evenflow_spent s where s.limiter = l.name) limit :top)
returning name;

-- name: list_limiters
-- mode: read
-- returns: name, most, held, waiting, spent, free_at
select l.name, l.most, (select count(*) from evenflow_hold h where h.limiter = l.name and h.phase = 2) as held,
  (select count(*) from evenflow_hold h where h.limiter = l.name and h.phase = 1) as waiting,
  (select coalesce(sum(s.starts), 0) from evenflow_spent s where s.limiter = l.name and s.free_at > :now) as spent,
  (select min(s.free_at) from evenflow_spent s where s.limiter = l.name and s.free_at > :now) as free_at
from evenflow_limiter l where :prefix is null or substr(l.name, 1, length(:prefix)) = :prefix order by l.name limit :top;

-- name: holds_of
-- mode: read
-- returns: limiter, phase, most, held
select h.limiter, h.phase, h.most, (select count(*) from evenflow_hold o where o.limiter = h.limiter and o.phase = 2) as held
from evenflow_hold h where h.job_id = :id and h.ordinal > 0 order by h.ordinal;

-- name: holders_of
-- mode: read
-- returns: limiter, job_id
select n.value as limiter, h.value as job_id from json_each(:limiters) n
cross join json_each((
  select json_group_array(job_id) from (
    select o.job_id from evenflow_hold o where o.limiter = n.value and o.phase = 2 order by o.priority, o.turn, o.job_id limit :top))) h
order by n.value, h.key;
