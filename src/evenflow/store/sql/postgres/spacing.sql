-- name: any_respacing
-- mode: read
-- returns: queue
select queue from evenflow.respacing limit 1;

-- name: take_respacing
-- returns: queue, priority, group_key, step, ratio, anchor, turn, job_id
-- One group whose waiting jobs have to move, and how far that has come. Those that others move are skipped.
select queue, priority, group_key, step, ratio, anchor, turn, job_id from evenflow.respacing
order by queue, priority, group_key limit 1 for no key update skip locked;

-- name: lock_spacing
-- returns: tail, step, v, wanted
-- Where the group's last job stands, how far apart its jobs lie and should lie. The row is locked first, so that the next
-- statement sees every job that was placed by it, and no new one is placed meanwhile.
select g.tail, g.step, coalesce(r.v, 0) as v,
  case when q.fair = 'time' then coalesce(c.cost_us / q.unit_us, 1) / coalesce(w.weight, 1) end as wanted
from evenflow.group_tail g
left join evenflow.queue q on q.name = g.queue
left join evenflow.round r on r.queue = g.queue and r.priority = g.priority
left join evenflow.group_weight w on w.queue = g.queue and w.group_key = g.group_key
left join evenflow.group_cost c on c.queue = g.queue and c.group_key = g.group_key
where g.queue = cast(:queue as text) and g.priority = cast(:priority as smallint) and g.group_key = cast(:group_key as text)
for no key update of g;

-- name: stretch_jobs
-- returns: moved, turn, id, placed
-- Moves jobs of a group apart, away from the anchor, the last of those before (turn, id) first: so none ever passes another.
-- A job that somebody claims at this moment is left to them. The answer is the first of those that were moved.
with batch as materialized (
  select j.ctid as at, j.id, j.turn from evenflow.job j
  where j.queue = cast(:queue as text) and j.priority = cast(:priority as smallint) and j.group_key = cast(:group_key as text)
    and j.is_timed and j.stage in ('open', 'overflow') and j.epoch = 0 and j.state in ('ready', 'overflow')
    and (j.turn, j.id) < (cast(:turn as double precision), cast(:id as bigint)) and j.turn > cast(:anchor as double precision)
  order by j.turn desc, j.id desc limit cast(:top as integer) for no key update skip locked
),
moved as (
  update evenflow.job j
  set turn = cast(:anchor as double precision) + (b.turn - cast(:anchor as double precision)) * cast(:ratio as double precision)
  from batch b where j.ctid = b.at
)
select (select count(*) from batch) as moved, b.turn, b.id,
  cast(:anchor as double precision) + (b.turn - cast(:anchor as double precision)) * cast(:ratio as double precision) as placed
from batch b order by b.turn, b.id limit 1;

-- name: close_up_jobs
-- returns: moved, turn, id, placed
-- Moves jobs of a group closer together, behind `anchor` and a step apart, the first of those behind (turn, id) first. None
-- moves back in the line. The answer is the last of those that were moved.
with batch as materialized (
  select j.ctid as at, j.id, j.turn from evenflow.job j
  where j.queue = cast(:queue as text) and j.priority = cast(:priority as smallint) and j.group_key = cast(:group_key as text)
    and j.is_timed and j.stage in ('open', 'overflow') and j.epoch = 0 and j.state in ('ready', 'overflow')
    and (j.turn, j.id) > (cast(:turn as double precision), cast(:id as bigint))
  order by j.turn, j.id limit cast(:top as integer) for no key update skip locked
),
placed as materialized (
  select at, id, turn, least(turn, cast(:anchor as double precision)
    + cast(:step as double precision) * row_number() over (order by turn, id)) as place
  from batch
),
moved as (update evenflow.job j set turn = p.place from placed p where j.ctid = p.at and p.place < p.turn)
select (select count(*) from placed) as moved, p.turn, p.id, p.place as placed
from placed p order by p.turn desc, p.id desc limit 1;

-- name: set_spacing
-- returns: group_key
update evenflow.group_tail set tail = cast(:tail as double precision), step = cast(:step as double precision)
where queue = cast(:queue as text) and priority = cast(:priority as smallint) and group_key = cast(:group_key as text)
returning group_key;

-- name: note_respacing
-- returns: group_key
update evenflow.respacing set step = cast(:step as double precision), ratio = cast(:ratio as double precision),
  anchor = cast(:anchor as double precision), turn = cast(:turn as double precision), job_id = cast(:id as bigint)
where queue = cast(:queue as text) and priority = cast(:priority as smallint) and group_key = cast(:group_key as text)
returning group_key;

-- name: end_respacing
-- returns: group_key
delete from evenflow.respacing
where queue = cast(:queue as text) and priority = cast(:priority as smallint) and group_key = cast(:group_key as text)
returning group_key;
