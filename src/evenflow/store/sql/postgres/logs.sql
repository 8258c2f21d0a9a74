-- name: add_log
-- returns: job_id
-- Lines of running jobs, in one insert per second and worker. No fence: a line is an observation, not an outcome.
insert into evenflow.log_line (job_id, at, expires_at, attempt, number, level, line)
select l.job_id, l.at, l.at + cast(:keep_us as bigint), l.attempt, l.number, l.level, l.line
from jsonb_to_recordset(cast(:lines as jsonb)) as l (job_id bigint, at bigint, attempt integer, number integer, level text, line text)
returning job_id;

-- name: job_log
-- mode: read
-- returns: at, attempt, level, line
select at, attempt, level, line from evenflow.log_line where job_id = cast(:id as bigint)
order by attempt, number limit cast(:top as integer);

-- name: prune_logs
-- returns: job_id
with old as materialized (
  select ctid as line_at from evenflow.log_line where expires_at <= coalesce(cast(:now as bigint), evenflow.now_us())
  order by expires_at limit cast(:top as integer) for update skip locked
)
delete from evenflow.log_line l using old
where l.ctid = old.line_at
returning l.job_id;
