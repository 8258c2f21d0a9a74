-- name: forget_idle_groups
-- returns: group_key
-- A group whose next turn would be that of a new group has neither credit nor debt to keep: without its row it enters
-- at the same place. The step is that of enqueue: a heavy group's row stays until its last turn is paid for.
with idle as materialized (
  select g.queue, g.priority, g.group_key from evenflow.group_tail g
  join evenflow.round r on r.queue = g.queue and r.priority = g.priority
  left join evenflow.queue q on q.name = g.queue
  left join evenflow.group_weight w on w.queue = g.queue and w.group_key = g.group_key
  left join evenflow.group_cost c on c.queue = g.queue and c.group_key = g.group_key
  where g.tail + coalesce(case when g.tail > r.v then g.step end,
    case when q.fair = 'time' then coalesce(c.cost_us / q.unit_us, 1) else 1 end / coalesce(w.weight, 1)) <= r.v + 1
  limit cast(:top as integer) for update of g skip locked
)
delete from evenflow.group_tail g using idle
where g.queue = idle.queue and g.priority = idle.priority and g.group_key = idle.group_key
returning g.group_key;

-- name: forget_old_costs
-- returns: group_key
delete from evenflow.group_cost g where g.updated_at < cast(:before as bigint) returning g.group_key;

-- name: prune_history
-- returns: id
-- Only what lies outside of dropped partitions: rows of the default partition, kept longer than partitions reach.
delete from evenflow.history_default h
where h.ctid = any (array(
  select d.ctid from evenflow.history_default d
  where d.expires_at <= coalesce(cast(:now as bigint), evenflow.now_us()) limit cast(:top as integer)))
returning h.id;
