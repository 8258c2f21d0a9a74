-- name: forget_idle_groups
-- returns: group_key
delete from evenflow_group_tail where (queue, priority, group_key) in (
  select g.queue, g.priority, g.group_key from evenflow_group_tail g
  join evenflow_round r on r.queue = g.queue and r.priority = g.priority
  left join evenflow_queue q on q.name = g.queue
  left join evenflow_group_weight w on w.queue = g.queue and w.group_key = g.group_key
  left join evenflow_group_cost c on c.queue = g.queue and c.group_key = g.group_key
  where g.tail + coalesce(case when g.tail > r.v then g.step end,
    case when q.fair = 'time' then coalesce(c.cost_us / q.unit_us, 1.0) else 1.0 end / coalesce(w.weight, 1.0)) <= r.v + 1
  limit :top)
returning group_key;

-- name: forget_old_costs
-- returns: group_key
delete from evenflow_group_cost where updated_at < :before returning group_key;

-- name: prune_history
-- returns: id
delete from evenflow_history where id in (
  select id from evenflow_history where expires_at <= :now order by expires_at limit :top)
returning id;
