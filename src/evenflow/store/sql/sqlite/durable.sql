-- name: recall
-- mode: read
-- returns: name, value
select name, value from evenflow_memo where job_id = :id;

-- name: remember
-- returns: name
insert into evenflow_memo (job_id, expires_at, name, value)
select j.id, :now + :keep_us, :name, :value from evenflow_job j where j.id = :id and j.epoch = :epoch and j.state = 'running'
on conflict (job_id, name) do update set expires_at = excluded.expires_at
returning name;

-- name: add_event
-- returns: number
insert into evenflow_event (at, expires_at, name, payload) values (:now, :now + :keep_us, :name, :payload)
returning number;

-- name: next_event
-- mode: read
-- returns: number, payload
select number, payload from evenflow_event where name = :name and number > :after and at >= :since order by number limit 1;

-- name: await_event
-- returns: job_id
insert into evenflow_event_wait (job_id, after, name)
select j.id, :after, :name from evenflow_job j where j.id = :id and j.epoch = :epoch and j.state = 'running'
on conflict (job_id) do update set after = excluded.after, name = excluded.name
returning job_id;

-- name: leave_event
-- returns: job_id
delete from evenflow_event_wait where job_id = :id and exists (
  select 1 from evenflow_job j where j.id = :id and j.epoch = :epoch and j.state = 'running')
returning job_id;

-- name: rouse
-- returns: id
update evenflow_job set run_at = :now where state = 'scheduled' and id in (
  select w.job_id from evenflow_event e
  cross join evenflow_event_wait w on w.name = e.name and w.after < e.number
  cross join evenflow_job j on j.id = w.job_id and j.created_at <= e.at
  where e.expires_at >= :now + :ahead_us and (:name is null or e.name = :name) and j.run_at > :now)
returning id;

-- name: forget_waits
-- returns: job_id
delete from evenflow_event_wait where job_id in (
  select w.job_id from evenflow_event_wait w where not exists (select 1 from evenflow_job j where j.id = w.job_id) limit :top)
returning job_id;

-- name: prune_memos
-- returns: job_id
delete from evenflow_memo where (job_id, name) in (
  select m.job_id, m.name from evenflow_memo m
  where m.expires_at <= :now and not exists (select 1 from evenflow_job j where j.id = m.job_id)
  order by m.expires_at limit :top)
returning job_id;

-- name: prune_events
-- returns: number
delete from evenflow_event where number in (select number from evenflow_event where expires_at <= :now order by expires_at limit :top)
returning number;
