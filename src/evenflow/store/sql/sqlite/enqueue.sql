-- name: reserve_ids
-- mode: read
-- returns: block
-- One host, one clock: ids need no reservation here (evenflow/ids.py draws them), so nothing is written.
with recursive blocks (n) as (select 1 union all select n + 1 from blocks where n < :blocks)
select abs(random() % 131072) as block from blocks order by block;

-- name: enqueue
-- returns: added
-- guarded: yes
-- The twin of the PostgreSQL statement. All statements of a unit run in one write transaction.
-- Where an id is taken nothing is inserted: ids are drawn by chance here, and the caller draws again (enqueue.py). They
-- lie close together, so one look at their range, which each line tells, answers for all of them as a rule. This is asked
-- first, and apart: an insert that reads its own table goes through a temporary one.
with ids as materialized (select value ->> 'first_id' as first, value ->> 'last_id' as last from json_each(:lines) limit 1)
select 0 as added where exists (
  select 1 from ids cross join evenflow_job j on j.id between first and last
  where +j.id in (select value ->> 0 from json_each(:batch))
  union all
  select 1 from ids cross join evenflow_history h on h.id between first and last
  where +h.id in (select value ->> 0 from json_each(:batch)));

insert into evenflow_band (queue, priority)
select distinct value ->> 'queue', value ->> 'priority' from json_each(:lines) where true
on conflict do nothing;

with lines as materialized (
  select value ->> 'queue' as queue, value ->> 'priority' as priority, value ->> 'group_key' as group_key, value ->> 'jobs' as jobs
  from json_each(:lines) where value ->> 'group_key' is not null and value ->> 'jobs' > 0
),
shares as materialized (
  select l.queue, l.priority, l.group_key, l.jobs, coalesce(r.v, 0) + 1 as entry, q.fair = 'time' as is_timed,
    case when q.fair = 'time' then coalesce((
        select g.step from evenflow_group_tail g
        where g.queue = l.queue and g.priority = l.priority and g.group_key = l.group_key and g.tail > coalesce(r.v, 0)),
      coalesce(c.cost_us / q.unit_us, 1.0) / coalesce(w.weight, 1.0)) else 1.0 / coalesce(w.weight, 1.0) end as step
  from lines l
  left join evenflow_queue q on q.name = l.queue
  left join evenflow_round r on r.queue = l.queue and r.priority = l.priority
  left join evenflow_group_weight w on w.queue = l.queue and w.group_key = l.group_key
  left join evenflow_group_cost c on c.queue = l.queue and c.group_key = l.group_key
  where coalesce(q.fair, '') <> 'fifo'
)
insert into evenflow_group_tail as g (queue, priority, group_key, tail, span, step)
select queue, priority, group_key, entry + (jobs - 1) * step, jobs * step, case when is_timed then step end
from shares
where true
on conflict (queue, priority, group_key) do update
  set tail = max(g.tail + excluded.span, excluded.tail), span = excluded.span, step = excluded.step;

with lines as materialized (
  select value ->> 'line' as line, value ->> 'queue' as queue, value ->> 'priority' as priority, value ->> 'group_key' as group_key,
    value ->> 'jobs' as jobs from json_each(:lines)
),
kinds as materialized (
  select value ->> 'kind' as kind, value ->> 'has_more' as has_more, value ->> 'line' as line, value ->> 'task' as task,
    value ->> 'max_attempts' as max_attempts, value ->> 'fails_on_crash' as fails_on_crash, value ->> 'run_id' as run_id,
    value ->> 'headers' as headers, value ->> 'options' as options from json_each(:kinds)
),
places as materialized (
  select kind, has_more, task, max_attempts, fails_on_crash, run_id, headers, options, queue, priority, group_key, is_bounded, is_timed, case when takes_turns then tail - jobs * step else entry end as base,
    case when takes_turns then step else 0.0 end as step
  from (
    select k.*, l.queue, l.priority, l.group_key, l.jobs, g.tail, q.max_ready is not null as is_bounded,
      g.tail is not null and l.jobs > 0 and coalesce(q.fair, '') <> 'fifo' as takes_turns,
      coalesce(q.fair = 'time', 0) and l.group_key is not null as is_timed,
      case when q.fair = 'fifo' then :now else coalesce(r.v, 0) + 1 end as entry,
      case when q.fair = 'time' then coalesce(case when g.tail > coalesce(r.v, 0) then g.step end,
        coalesce(c.cost_us / q.unit_us, 1.0) / coalesce(w.weight, 1.0)) else 1.0 / coalesce(w.weight, 1.0) end as step
    from kinds k cross join lines l on l.line = k.line
    left join evenflow_queue q on q.name = l.queue
    left join evenflow_round r on r.queue = l.queue and r.priority = l.priority
    left join evenflow_group_tail g on g.queue = l.queue and g.priority = l.priority and g.group_key = l.group_key
    left join evenflow_group_weight w on w.queue = l.queue and w.group_key = l.group_key
    left join evenflow_group_cost c on c.queue = l.queue and c.group_key = l.group_key)
)
insert into evenflow_job (id, queue, task, priority, group_key, max_attempts, created_at, run_at, good_until,
  run_id, unique_key, fails_on_crash, signature, headers, options, payload, state, turn, is_timed)
select b.value ->> 0, p.queue, p.task, p.priority, p.group_key, p.max_attempts, :now,
  case when p.has_more then coalesce(b.value ->> '$[4].run_at', :now) else :now end, case when p.has_more then b.value ->> '$[4].good_until' end,
  p.run_id, case when p.has_more then b.value ->> '$[4].unique_key' end, p.fails_on_crash,
  case when p.has_more then b.value ->> '$[4].signature' end, p.headers, p.options, b.value ->> 3,
  case when p.has_more and b.value ->> '$[4].run_at' is not null then 'scheduled' when p.is_bounded then 'overflow' else 'ready' end,
  p.base + p.step * (b.value ->> 2), p.is_timed
from json_each(:batch) b cross join places p on p.kind = b.value ->> 1
where true
on conflict do nothing;

select changes() as added where :wakes is not null;  -- nothing to send: a commit can be seen by itself

-- name: enqueue_lone
-- returns: added
-- counted: yes
-- No RETURNING: SQLite fills a table of its own with what it returns, which takes a sixth of the whole statement.
insert into evenflow_job (id, queue, task, priority, max_attempts, created_at, run_at, payload, state, turn
  -- [more
  , good_until, run_id, unique_key, fails_on_crash, signature, headers, options
  -- more]
)
select :id, b.queue, :task, b.priority, :max_attempts, :now, coalesce(
    -- [more
    :run_at,
    -- more]
    null, :now), :payload,
  case
    -- [more
    when :run_at is not null then 'scheduled'
    -- more]
    when q.max_ready is not null then 'overflow' else 'ready' end,
  case when q.fair = 'fifo' then :now else coalesce(r.v, 0) + 1 end
  -- [more
  , :good_until, :run_id, :unique_key, :fails_on_crash, :signature, :headers, :options
  -- more]
from evenflow_band b
left join evenflow_queue q on q.name = b.queue
left join evenflow_round r on r.queue = b.queue and r.priority = b.priority
where b.queue = :queue and b.priority = :priority and not exists (select 1 from evenflow_history h where h.id = :id)
  -- [more
  and coalesce(:channel, :wake, '') is not null  -- nothing to send: a commit can be seen by itself
  -- more]
on conflict do nothing;

select changes() as added;

-- name: enqueue_plainly
-- leaves out: more of enqueue_lone

-- name: enqueue_arriving
-- returns: added
-- Inside a caller's transaction, on the caller's connection. Begins with INSERT, because Python's sqlite3 looks at the
-- first word to see whether to open the transaction that the caller expects.
insert into evenflow_job (id, queue, task, priority, group_key, max_attempts, created_at, run_at, good_until,
  run_id, unique_key, fails_on_crash, signature, headers, options, limits, payload, state)
with batch as materialized (
  select value ->> 0 as id, value ->> 1 as kind, value ->> 3 as payload, value ->> 4 as more from json_each(:batch)
),
lines as materialized (
  select value ->> 'line' as line, value ->> 'queue' as queue, value ->> 'priority' as priority, value ->> 'group_key' as group_key
  from json_each(:lines)
),
kinds as materialized (
  select k.*, l.queue, l.priority, l.group_key
  from (select value ->> 'kind' as kind, value ->> 'line' as line, value ->> 'task' as task, value ->> 'max_attempts' as max_attempts,
          value ->> 'fails_on_crash' as fails_on_crash, value ->> 'run_id' as run_id, value ->> 'headers' as headers,
          value ->> 'options' as options from json_each(:kinds)) k
  cross join lines l on l.line = k.line
)
select b.id, k.queue, k.task, k.priority, k.group_key, k.max_attempts, :now,
  coalesce(b.more ->> 'run_at', :now), b.more ->> 'good_until', k.run_id, b.more ->> 'unique_key',
  k.fails_on_crash, b.more ->> 'signature', k.headers, k.options, b.more ->> 'limits', b.payload, coalesce(b.more ->> 'state', 'arriving')
from batch b cross join kinds k on k.kind = b.kind
where not exists (
  select 1 from evenflow_job j
  where j.id between (select min(id) from batch) and (select max(id) from batch) and j.id in (select id from batch))
and not exists (
  select 1 from evenflow_history h
  where h.id between (select min(id) from batch) and (select max(id) from batch) and h.id in (select id from batch))
on conflict do nothing;

select changes() as added;

-- name: retract_arriving
-- returns: id
delete from evenflow_job where state in ('arriving', 'waiting') and id in (select value from json_each(:ids))
returning id;

-- name: find_duplicates
-- mode: read
-- returns: id, existing
select b.id, coalesce(s.id, h.id, j.id) as existing
from (select value ->> 'id' as id, value ->> 'unique_key' as unique_key from json_each(:batch)) b
left join evenflow_job s on s.id = b.id
left join evenflow_job j on j.unique_key = b.unique_key
left join evenflow_history h on h.id = b.id
where s.id is not null or j.id is not null or h.id is not null;

-- name: replace_open
-- returns: id, outcome
-- What becomes of each is said first, by the same expressions that the change itself uses.
select j.id, case when j.state in ('claimed', 'running') then 'in_flight' when not (j.queue = c.queue and j.priority = c.priority and j.group_key is c.group_key and j.limits is c.limits) then 'moved'
  when j.state not in ('arriving', 'scheduled') and case when c.run_at is null and j.state = 'scheduled' then :now when c.run_at is null then j.run_at
    else min(c.run_at, coalesce(j.created_at + c.max_wait_us, c.run_at)) end > :now then 'put_off' else 'replaced' end as outcome
from (select value ->> 'id' as id, value ->> 'unique_key' as unique_key, value ->> 'queue' as queue, value ->> 'priority' as priority,
        value ->> 'group_key' as group_key, value ->> 'task' as task, value ->> 'max_attempts' as max_attempts, value ->> 'run_at' as run_at,
        value ->> 'good_until' as good_until, coalesce(value ->> 'fails_on_crash', 0) as fails_on_crash, value ->> 'max_wait_us' as max_wait_us,
        value ->> 'signature' as signature, value ->> 'headers' as headers, value ->> 'options' as options, value ->> 'limits' as limits,
        value ->> 'payload' as payload from json_each(:changes)) c
cross join evenflow_job j on j.id = c.id and j.unique_key = c.unique_key;

update evenflow_job as j set task = c.task, payload = c.payload, signature = c.signature, headers = c.headers, options = c.options,
  max_attempts = c.max_attempts, attempt = 0, good_until = c.good_until, fails_on_crash = c.fails_on_crash,
  queue = c.queue, priority = c.priority, group_key = c.group_key, limits = c.limits, run_at = case when c.run_at is null and j.state = 'scheduled' then :now when c.run_at is null then j.run_at
    else min(c.run_at, coalesce(j.created_at + c.max_wait_us, c.run_at)) end,
  turn = case when j.queue = c.queue and j.priority = c.priority and j.group_key is c.group_key and j.limits is c.limits then j.turn else 0.0 end,
  gated = case when j.queue = c.queue and j.priority = c.priority and j.group_key is c.group_key and j.limits is c.limits and case when c.run_at is null and j.state = 'scheduled' then :now when c.run_at is null then j.run_at
    else min(c.run_at, coalesce(j.created_at + c.max_wait_us, c.run_at)) end <= :now then j.gated else 0 end,
  state = case when not (j.queue = c.queue and j.priority = c.priority and j.group_key is c.group_key and j.limits is c.limits) then 'arriving' when j.state <> 'arriving' and case when c.run_at is null and j.state = 'scheduled' then :now when c.run_at is null then j.run_at
    else min(c.run_at, coalesce(j.created_at + c.max_wait_us, c.run_at)) end > :now then 'scheduled' else j.state end
from (select value ->> 'id' as id, value ->> 'unique_key' as unique_key, value ->> 'queue' as queue, value ->> 'priority' as priority,
        value ->> 'group_key' as group_key, value ->> 'task' as task, value ->> 'max_attempts' as max_attempts, value ->> 'run_at' as run_at,
        value ->> 'good_until' as good_until, coalesce(value ->> 'fails_on_crash', 0) as fails_on_crash, value ->> 'max_wait_us' as max_wait_us,
        value ->> 'signature' as signature, value ->> 'headers' as headers, value ->> 'options' as options, value ->> 'limits' as limits,
        value ->> 'payload' as payload from json_each(:changes)) c
where j.id = c.id and j.unique_key = c.unique_key and j.state not in ('claimed', 'running');

update evenflow_job set unique_key = null
where state in ('claimed', 'running') and id in (
  select c.value ->> 'id' from json_each(:changes) c cross join evenflow_job j on j.id = c.value ->> 'id' and j.unique_key = c.value ->> 'unique_key');

-- name: take_marks
-- returns: id, existing
insert into evenflow_unique_mark as m (unique_key, job_id, until)
select value ->> 'unique_key', value ->> 'id', :now + (value ->> 'keep_us') from json_each(:marks) where true
on conflict (unique_key) do update set job_id = excluded.job_id, until = excluded.until where m.until <= :now;

select t.value ->> 'id' as id, m.job_id as existing
from json_each(:marks) t cross join evenflow_unique_mark m on m.unique_key = t.value ->> 'unique_key' where m.job_id <> t.value ->> 'id';

-- name: forget_marks
-- returns: unique_key
delete from evenflow_unique_mark where unique_key in (
  select unique_key from evenflow_unique_mark where until <= :now order by until limit :top)
returning unique_key;

-- name: wake
-- mode: wake
-- returns: sent
-- Nothing to send: a commit changes PRAGMA data_version, which idle workers watch.
select :channel || :payload as sent;

-- name: wake_with_commit
-- mode: read
-- returns: sent
select :channel || :payload as sent;

-- name: admit
-- returns: kind, name, jobs
-- An arrival becomes `scheduled` first, so that one admission handles arrivals and due jobs alike. A job that was
-- claimed before (epoch > 0) enters at the current round, not behind its own group; of several, one per round.
insert into evenflow_band (queue, priority)
select queue, priority from (select queue, priority from evenflow_job where state = 'arriving' order by id limit :top)
union
select queue, priority from (
  select queue, priority from evenflow_job where state = 'scheduled' and run_at <= :now order by run_at, id limit :top)
where true
on conflict do nothing;

update evenflow_job set state = 'scheduled' where id in (
  select id from evenflow_job where state = 'arriving' order by id limit :top);

insert into evenflow_group_tail as g (queue, priority, group_key, tail, span, step)
select queue, priority, group_key, entry + (jobs - 1) * step, jobs * step, case when is_timed then step end
from (
  select l.queue, l.priority, l.group_key, l.jobs, coalesce(r.v, 0) + 1 as entry, q.fair = 'time' as is_timed,
    case when q.fair = 'time' then coalesce((
        select g.step from evenflow_group_tail g
        where g.queue = l.queue and g.priority = l.priority and g.group_key = l.group_key and g.tail > coalesce(r.v, 0)),
      coalesce(c.cost_us / q.unit_us, 1.0) / coalesce(w.weight, 1.0)) else 1.0 / coalesce(w.weight, 1.0) end as step
  from (select queue, priority, group_key, count(*) as jobs from (
          select queue, priority, group_key, epoch from evenflow_job
          where state = 'scheduled' and run_at <= :now order by run_at, id limit :top)
        where group_key is not null and epoch = 0 group by queue, priority, group_key) l
  left join evenflow_queue q on q.name = l.queue
  left join evenflow_round r on r.queue = l.queue and r.priority = l.priority
  left join evenflow_group_weight w on w.queue = l.queue and w.group_key = l.group_key
  left join evenflow_group_cost c on c.queue = l.queue and c.group_key = l.group_key
  where coalesce(q.fair, '') <> 'fifo'
)
where true
on conflict (queue, priority, group_key) do update
  set tail = max(g.tail + excluded.span, excluded.tail), span = excluded.span, step = excluded.step;

with due as materialized (
  select id, queue, priority, group_key, epoch = 0 as is_new from evenflow_job
  where state = 'scheduled' and run_at <= :now order by run_at, id limit :top
),
ranked as materialized (
  select id, queue, priority, group_key, is_new,
    row_number() over (partition by queue, priority, group_key, is_new order by id) as rank,
    count(*) over (partition by queue, priority, group_key, is_new) as jobs
  from due
),
placed as materialized (
  select id, is_bounded, coalesce(fair = 'time', 0) and group_key is not null and is_new as is_timed,
    case when fair = 'fifo' then :now when group_key is null then entry when not is_new then entry + rank - 1
         else tail - jobs * step + step * rank end as turn
  from (
    select d.id, d.group_key, d.is_new, d.rank, d.jobs, g.tail, q.fair, q.max_ready is not null as is_bounded, coalesce(r.v, 0) + 1 as entry,
      case when q.fair = 'time' then coalesce(case when g.tail > coalesce(r.v, 0) then g.step end,
        coalesce(c.cost_us / q.unit_us, 1.0) / coalesce(w.weight, 1.0)) else 1.0 / coalesce(w.weight, 1.0) end as step
    from ranked d
    left join evenflow_queue q on q.name = d.queue
    left join evenflow_round r on r.queue = d.queue and r.priority = d.priority
    left join evenflow_group_tail g on g.queue = d.queue and g.priority = d.priority and g.group_key = d.group_key
    left join evenflow_group_weight w on w.queue = d.queue and w.group_key = d.group_key
    left join evenflow_group_cost c on c.queue = d.queue and c.group_key = d.group_key)
)
update evenflow_job set turn = p.turn, is_timed = p.is_timed and limits is null, state = case when limits like '%{"ordinal":1,%' then 'arriving' when p.is_bounded then 'overflow' else 'ready' end
from placed p where evenflow_job.id = p.id
returning case state when 'ready' then 'queue' when 'overflow' then 'bounded' else 'blocked' end as kind, queue as name, 1 as jobs;

-- Jobs with keys line up at their first one. For a moment they are `arriving` with a turn, which an index finds.
update evenflow_hold set phase = 1, turn = (select j.turn from evenflow_job j where j.id = evenflow_hold.job_id)
where ordinal = 1 and job_id in (select id from evenflow_job where state = 'arriving' and turn > 0)
returning 'limiter' as kind, limiter as name, 1 as jobs;

select 'impatient' as kind, cast(id as text) as name, 1 as jobs from evenflow_job
where state = 'arriving' and turn > 0 and epoch = 0 and limits like '%"discards"%';

update evenflow_job set state = 'blocked' where id in (select id from evenflow_job where state = 'arriving' and turn > 0);

-- name: ahead
-- mode: read
-- returns: now, due, free, has_untold
select :now as now,
  (select min(run_at) from (
    select 0 as run_at from (select 1 from evenflow_job where state = 'arriving' limit 1)
    union all
    select run_at from (select run_at from evenflow_job where state = 'scheduled' order by run_at limit 1)
  )) as due,
  (select s.free_at from evenflow_spent s
   where exists (select 1 from evenflow_hold h where h.limiter = s.limiter and h.phase = 1)
   order by s.free_at limit 1) as free,
  exists (select 1 from evenflow_step_end) as has_untold;
