-- name: add_log
-- returns: job_id
insert into evenflow_log_line (job_id, at, expires_at, attempt, number, level, line)
select value ->> 'job_id', value ->> 'at', (value ->> 'at') + :keep_us, value ->> 'attempt', value ->> 'number', value ->> 'level', value ->> 'line'
from json_each(:lines) where true
returning job_id;

-- name: job_log
-- mode: read
-- returns: at, attempt, level, line
select at, attempt, level, line from evenflow_log_line where job_id = :id order by attempt, number limit :top;

-- name: prune_logs
-- returns: job_id
delete from evenflow_log_line where rowid in (
  select rowid from evenflow_log_line where expires_at <= :now order by expires_at limit :top)
returning job_id;
