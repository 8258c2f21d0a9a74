-- name: fill_queues
-- returns: kind, name, jobs
-- The write lock is the lock of every queue. LIMIT takes no column here: places are numbered instead.
update evenflow_job set state = 'ready',
  turn = coalesce((
    select r.v + 0.001 from evenflow_round r
    where r.queue = evenflow_job.queue and r.priority = evenflow_job.priority and r.v > evenflow_job.turn), turn)
where id in (
  select w.value from evenflow_queue q
  cross join json_each((
    select json_group_array(id) from (
      select j.id from evenflow_job j where j.queue = q.name and j.state = 'overflow' order by j.priority, j.turn, j.id limit :top))) w
  where q.name in (select value from json_each(:queues))
    and w.key < coalesce(q.max_ready - (select count(*) from evenflow_job r where r.queue = q.name and r.state = 'ready'), :top))
returning 'filled' as kind, queue as name, 1 as jobs;

-- name: room_of
-- returns: name, most, ready, beyond
select q.name, q.max_ready as most,
  (select count(*) from evenflow_job j where j.queue = q.name and j.state = 'ready') as ready,
  (select count(*) from evenflow_job j where j.queue = q.name and j.state = 'overflow') as beyond
from evenflow_queue q
where q.name in (select value from json_each(:queues)) and q.max_ready is not null and q.on_full = 'reject';

-- name: overflowing
-- mode: read
-- returns: name
select q.name from evenflow_queue q
where exists (select 1 from evenflow_job j where j.queue = q.name and j.state = 'overflow') order by q.name;

-- name: list_bounds
-- mode: read
-- returns: name, max_concurrency, max_ready, on_full, in_flight, ready, waiting
select q.name, q.max_concurrency, q.max_ready, q.on_full,
  (select count(*) from evenflow_job j where j.queue = q.name and j.state in ('claimed', 'running')) as in_flight,
  (select count(*) from (select 1 from evenflow_job j where j.queue = q.name and j.state = 'ready' limit :top)) as ready,
  (select count(*) from (select 1 from evenflow_job j where j.queue = q.name and j.state = 'overflow' limit :top)) as waiting
from evenflow_queue q where q.max_concurrency is not null or q.max_ready is not null order by q.name;

-- name: count_line
-- mode: read
-- returns: jobs
select count(*) as jobs from (
  select 1 from evenflow_job me cross join evenflow_job j on j.queue = me.queue and j.state = 'overflow'
    and (j.priority, j.turn, j.id) < (me.priority, me.turn, me.id)
  where me.id = :id limit :top);
