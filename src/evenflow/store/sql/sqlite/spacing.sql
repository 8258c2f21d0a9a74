-- name: any_respacing
-- mode: read
-- returns: queue
select queue from evenflow_respacing limit 1;

-- name: take_respacing
-- returns: queue, priority, group_key, step, ratio, anchor, turn, job_id
select queue, priority, group_key, step, ratio, anchor, turn, job_id from evenflow_respacing
order by queue, priority, group_key limit 1;

-- name: lock_spacing
-- returns: tail, step, v, wanted
select g.tail, g.step, coalesce(r.v, 0.0) as v,
  case when q.fair = 'time' then coalesce(c.cost_us / q.unit_us, 1.0) / coalesce(w.weight, 1.0) end as wanted
from evenflow_group_tail g
left join evenflow_queue q on q.name = g.queue
left join evenflow_round r on r.queue = g.queue and r.priority = g.priority
left join evenflow_group_weight w on w.queue = g.queue and w.group_key = g.group_key
left join evenflow_group_cost c on c.queue = g.queue and c.group_key = g.group_key
where g.queue = :queue and g.priority = :priority and g.group_key = :group_key;

-- name: stretch_jobs
-- returns: moved, turn, id, placed
-- Who moves is said first: afterwards they stand elsewhere.
with batch as materialized (
  select id, turn from evenflow_job
  where queue = :queue and priority = :priority and group_key = :group_key and is_timed and epoch = 0 and state in ('ready', 'overflow')
    and (turn, id) < (:turn, :id) and turn > :anchor
  order by turn desc, id desc limit :top
)
select (select count(*) from batch) as moved, turn, id, :anchor + (turn - :anchor) * :ratio as placed
from batch order by turn, id limit 1;

update evenflow_job set turn = :anchor + (turn - :anchor) * :ratio
where id in (
  select id from evenflow_job
  where queue = :queue and priority = :priority and group_key = :group_key and is_timed and epoch = 0 and state in ('ready', 'overflow')
    and (turn, id) < (:turn, :id) and turn > :anchor
  order by turn desc, id desc limit :top);

-- name: close_up_jobs
-- returns: moved, turn, id, placed
with batch as materialized (
  select id, turn, row_number() over (order by turn, id) as rank from (
    select id, turn from evenflow_job
    where queue = :queue and priority = :priority and group_key = :group_key and is_timed and epoch = 0 and state in ('ready', 'overflow')
      and (turn, id) > (:turn, :id)
    order by turn, id limit :top)
)
select (select count(*) from batch) as moved, turn, id, min(turn, :anchor + :step * rank) as placed
from batch order by turn desc, id desc limit 1;

update evenflow_job set turn = p.place
from (
  select id, turn, min(turn, :anchor + :step * row_number() over (order by turn, id)) as place from (
    select id, turn from evenflow_job
    where queue = :queue and priority = :priority and group_key = :group_key and is_timed and epoch = 0 and state in ('ready', 'overflow')
      and (turn, id) > (:turn, :id)
    order by turn, id limit :top)) p
where evenflow_job.id = p.id and p.place < p.turn;

-- name: set_spacing
-- returns: group_key
update evenflow_group_tail set tail = :tail, step = :step
where queue = :queue and priority = :priority and group_key = :group_key
returning group_key;

-- name: note_respacing
-- returns: group_key
update evenflow_respacing set step = :step, ratio = :ratio, anchor = :anchor, turn = :turn, job_id = :id
where queue = :queue and priority = :priority and group_key = :group_key
returning group_key;

-- name: end_respacing
-- returns: group_key
delete from evenflow_respacing where queue = :queue and priority = :priority and group_key = :group_key
returning group_key;
