-- name: reserve_ids
-- returns: block
-- Sequence values are handed out outside of transactions: nobody ever waits here, and a rollback only leaves a gap.
select nextval('evenflow.id_block') as block from generate_series(1, cast(:blocks as integer));

-- name: enqueue
-- returns: added
-- Inserts a batch and admits it in the same statement: a job without run_at is `ready` at its turn (or `overflow`, where
-- its queue has a bound: fill_queues lets it in), one with it is `scheduled`. The batch is one JSON parameter; payloads are JSON strings inside it, so the server never parses them.
-- `lines` are its distinct (queue, priority, group), each with the number of ready jobs; `kinds` what else many jobs have in
-- common, with their line; a job is [id, kind, rank in its line, payload, more]. So a group's row is touched once per batch, in name order, and no join runs over three columns, where
-- the planner expects one row and takes a nested loop (10x slower at 10,000 jobs in 1,000 groups).
-- `wakes` go out with the commit, without a round trip of their own: few of them, since notifying commits wait for each other.
-- In id order: of two jobs with one unique key the first goes in, and the indexes are filled from left to right (10 % faster).
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
home as materialized (
  select l.line, l.queue, l.priority, l.group_key, l.jobs, x.queue is null as is_new, coalesce(q.fair, '') <> 'fifo' as takes_turns,
    q.max_ready is not null as is_bounded, cast((l.queue, l.priority, l.group_key) as text) as label,
    case when q.fair = 'fifo' then now else coalesce(r.v, 0) + 1 end as entry,
    q.fair = 'time' and l.group_key is not null as is_timed,
    case when q.fair = 'time' then coalesce((
        select g.step from evenflow.group_tail g
        where g.queue = l.queue and g.priority = l.priority and g.group_key = l.group_key and g.tail > coalesce(r.v, 0)),
      coalesce(c.cost_us / q.unit_us, 1) / coalesce(w.weight, 1)) else 1 / coalesce(w.weight, 1) end as step
  from clock, jsonb_to_recordset(cast(:lines as jsonb)) as l (line integer, queue text, priority smallint, group_key text, jobs integer)
  left join evenflow.queue q on q.name = l.queue
  left join evenflow.round r on r.queue = l.queue and r.priority = l.priority
  left join evenflow.band x on x.queue = l.queue and x.priority = l.priority
  left join evenflow.group_weight w on w.queue = l.queue and w.group_key = l.group_key
  left join evenflow.group_cost c on c.queue = l.queue and c.group_key = l.group_key
),
bands as (
  insert into evenflow.band (queue, priority) select distinct queue, priority from home where is_new order by queue, priority
  on conflict do nothing
),
tails as (
  insert into evenflow.group_tail as g (queue, priority, group_key, tail, span, step)
  select queue, priority, group_key, entry + (jobs - 1) * step, jobs * step, case when is_timed then step end from home
  where takes_turns and group_key is not null and jobs > 0
  order by queue, priority, group_key
  on conflict (queue, priority, group_key) do update
    set tail = greatest(g.tail + excluded.span, excluded.tail), span = excluded.span,
      step = case when excluded.step is not null and g.tail > coalesce((
        select r.v from evenflow.round r where r.queue = g.queue and r.priority = g.priority), 0)
        then coalesce(g.step, excluded.step) else excluded.step end
  returning cast((queue, priority, group_key) as text) as label, tail
),
places as materialized (
  select k.*, h.queue, h.priority, h.group_key, h.is_bounded, h.is_timed, coalesce(t.tail - h.jobs * h.step, h.entry) as base,
    case when t.tail is null then 0 else h.step end as step
  from jsonb_to_recordset(cast(:kinds as jsonb)) as k (kind integer, line integer, task text, max_attempts integer,
    fails_on_crash boolean, run_id bigint, headers text, options text)
  join home h on h.line = k.line left join tails t on t.label = h.label
),
added as (
  insert into evenflow.job (id, queue, task, priority, group_key, max_attempts, created_at, run_at, good_until,
    run_id, unique_key, fails_on_crash, signature, headers, options, payload, state, turn, is_timed)
  select b.id, p.queue, p.task, p.priority, p.group_key, p.max_attempts, now, coalesce(cast(b.more ->> 'run_at' as bigint), now),
    cast(b.more ->> 'good_until' as bigint), p.run_id, b.more ->> 'unique_key', p.fails_on_crash, b.more ->> 'signature', p.headers,
    p.options, b.payload,
    case when b.more ->> 'run_at' is not null then 'scheduled' when p.is_bounded then 'overflow' else 'ready' end, p.base + p.step * b.rank,
    coalesce(p.is_timed, false)
  from clock, (
    select cast(v ->> 0 as bigint) as id, cast(v ->> 1 as integer) as kind, cast(v ->> 2 as integer) as rank, v ->> 3 as payload, v -> 4 as more
    from jsonb_array_elements(cast(:batch as jsonb)) v) b
  join places p on p.kind = b.kind
  order by b.id
  on conflict do nothing
  returning id
),
woken as materialized (
  select pg_notify(w.channel, w.payload) from jsonb_to_recordset(cast(:wakes as jsonb)) as w (channel text, payload text)
)
select count(*) as added from added where (select count(*) from woken) >= 0;  -- or nobody would be woken

-- name: enqueue_lone
-- returns: added
-- One job without a group, which is what most calls bring. The statement for batches inserts it too, but to set up a plan of
-- that size for a single row takes longer than to insert it. Nothing is added, and no row returned, where its queue has no
-- band of its priority yet, or its id or its unique key is taken: the statement for batches is asked then. `wake` goes out with the commit.
-- Most jobs ask for nothing `more`: they have a smaller statement, since to hand over ten parameters that are null takes
-- the driver a tenth of the call on SQLite.
insert into evenflow.job (id, queue, task, priority, max_attempts, created_at, run_at, payload, state, turn
  -- [more
  , good_until, run_id, unique_key, fails_on_crash, signature, headers, options
  -- more]
)
select cast(:id as bigint), b.queue, cast(:task as text), b.priority, cast(:max_attempts as integer), now, coalesce(
    -- [more
    cast(:run_at as bigint),
    -- more]
    null, now), cast(:payload as text),
  case
    -- [more
    when cast(:run_at as bigint) is not null then 'scheduled'
    -- more]
    when q.max_ready is not null then 'overflow' else 'ready' end,
  case when q.fair = 'fifo' then now else coalesce(r.v, 0) + 1 end
  -- [more
  , cast(:good_until as bigint), cast(:run_id as bigint), cast(:unique_key as text), cast(:fails_on_crash as boolean),
  cast(:signature as text), cast(:headers as text), cast(:options as text)
  -- more]
from (select coalesce(cast(:now as bigint), evenflow.now_us()) as now) clock, evenflow.band b
left join evenflow.queue q on q.name = b.queue
left join evenflow.round r on r.queue = b.queue and r.priority = b.priority
where b.queue = cast(:queue as text) and b.priority = cast(:priority as smallint)
on conflict do nothing
returning case
  -- [wake
  when cast(:wake as text) is not null and pg_notify(cast(:channel as text), cast(:wake as text)) is null then 0
  -- wake]
  when true then 1 end as added;

-- name: enqueue_aloud
-- only here: on SQLite nobody has to be told
-- leaves out: more of enqueue_lone
-- Somebody may be idle and wait for it: a smaller statement is a sooner start.

-- name: enqueue_plainly
-- leaves out: more, wake of enqueue_lone

-- name: enqueue_arriving
-- returns: added
-- Inside a caller's transaction: a plain insert that takes no lock anybody else could wait for (a unique key apart).
-- The next pump admits the jobs after the caller's commit; a workflow's step may have to wait for others first.
with added as (
  insert into evenflow.job (id, queue, task, priority, group_key, max_attempts, created_at, run_at, good_until,
    run_id, unique_key, fails_on_crash, signature, headers, options, limits, payload, state)
  select b.id, l.queue, k.task, l.priority, l.group_key, k.max_attempts, now, coalesce(cast(b.more ->> 'run_at' as bigint), now),
    cast(b.more ->> 'good_until' as bigint), k.run_id, b.more ->> 'unique_key', k.fails_on_crash, b.more ->> 'signature', k.headers,
    k.options, b.more ->> 'limits', b.payload, coalesce(b.more ->> 'state', 'arriving')
  from (select coalesce(cast(:now as bigint), evenflow.now_us()) as now) clock, (
    select cast(v ->> 0 as bigint) as id, cast(v ->> 1 as integer) as kind, v ->> 3 as payload, v -> 4 as more
    from jsonb_array_elements(cast(:batch as jsonb)) v) b
  join jsonb_to_recordset(cast(:kinds as jsonb)) as k (kind integer, line integer, task text, max_attempts integer,
    fails_on_crash boolean, run_id bigint, headers text, options text) on k.kind = b.kind
  join jsonb_to_recordset(cast(:lines as jsonb)) as l (line integer, queue text, priority smallint, group_key text) on l.line = k.line
  order by b.id
  on conflict do nothing
  returning id
)
select count(*) as added from added;

-- name: retract_arriving
-- returns: id
-- Takes back arrivals of the transaction that is still open: one of their batch had to be new and was not.
delete from evenflow.job
where state in ('arriving', 'waiting') and id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))))
returning id;

-- name: find_duplicates
-- mode: read
-- returns: id, existing
-- For each new id that was not inserted: the live job that holds its unique key, or the job itself where an earlier
-- try of the same enqueue had committed after all (then it may even have finished).
select id, existing from (
  select b.id, coalesce(
    (select s.id from evenflow.job s where s.id = b.id),
    (select h.id from evenflow.history h where h.id = b.id limit 1),
    (select j.id from evenflow.job j where j.unique_key = b.unique_key)) as existing
  from jsonb_to_recordset(cast(:batch as jsonb)) as b (id bigint, unique_key text)) found
where existing is not null;

-- name: replace_open
-- returns: id, outcome
-- Open jobs become what a newer call says, under their id and with all attempts anew. A place in line is kept where the
-- line is the same and the job is not put off; a job that is put off never waits longer than max_wait_us since its
-- creation. One in flight goes on as it is, but lets go of its unique key. Short transactions of our own only: a lock on a
-- running job's row would make its worker wait.
-- outcomes: replaced (in place), put_off (scheduled now), moved (arrives anew in another line), in_flight.
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
changes as materialized (
  select c.* from jsonb_to_recordset(cast(:changes as jsonb)) as c (
    id bigint, unique_key text, queue text, priority smallint, group_key text, task text, max_attempts integer, run_at bigint,
    good_until bigint, fails_on_crash boolean, max_wait_us bigint, signature text, headers text, options text, limits text, payload text)
),
found as materialized (
  select j.id, j.state in ('claimed', 'running') as in_flight, j.state as was,
    j.queue = c.queue and j.priority = c.priority and j.group_key is not distinct from c.group_key
      and j.limits is not distinct from c.limits as same_line,
    case when c.run_at is null and j.state = 'scheduled' then now when c.run_at is null then j.run_at
         else least(c.run_at, j.created_at + c.max_wait_us) end as due
  from clock, changes c join evenflow.job j on j.id = c.id and j.unique_key = c.unique_key
  where j.id = any (array(select id from changes))
  order by j.id for update of j
),
let_go as (
  update evenflow.job j set unique_key = null from found f where j.id = any (array(select id from found)) and j.id = f.id and f.in_flight
  returning j.id
),
replaced as (
  update evenflow.job j set task = c.task, payload = c.payload, signature = c.signature, headers = c.headers, options = c.options,
    max_attempts = c.max_attempts, attempt = 0, good_until = c.good_until, fails_on_crash = coalesce(c.fails_on_crash, false),
    queue = c.queue, priority = c.priority, group_key = c.group_key, limits = c.limits, run_at = f.due,
    turn = case when f.same_line then j.turn else 0 end, gated = case when f.same_line and f.due <= now then j.gated else 0 end,
    state = case when not f.same_line then 'arriving' when f.due > now then case when f.was = 'arriving' then f.was else 'scheduled' end else j.state end
  from found f join changes c on c.id = f.id, clock
  where j.id = any (array(select id from found)) and j.id = f.id and not f.in_flight
  returning j.id, j.state, f.was, f.same_line
)
select id, 'in_flight' as outcome from let_go
union all
select id, case when not same_line then 'moved' when state <> was then 'put_off' else 'replaced' end from replaced;

-- name: take_marks
-- returns: id, existing
-- Unique keys that stay taken for a while, for jobs that were inserted in this transaction; where the time of an earlier
-- job is not over yet, the new job and the earlier one. The array says once more which keys: a plan that was made when the
-- table was empty would read all of it.
insert into evenflow.unique_mark as m (unique_key, job_id, until)
select t.unique_key, t.id, coalesce(cast(:now as bigint), evenflow.now_us()) + t.keep_us
from jsonb_to_recordset(cast(:marks as jsonb)) as t (id bigint, unique_key text, keep_us bigint)
order by t.unique_key
on conflict (unique_key) do update set job_id = excluded.job_id, until = excluded.until
  where m.until <= coalesce(cast(:now as bigint), evenflow.now_us());

select t.id, m.job_id as existing
from jsonb_to_recordset(cast(:marks as jsonb)) as t (id bigint, unique_key text, keep_us bigint)
join evenflow.unique_mark m on m.unique_key = t.unique_key
where m.unique_key = any (array(select k.unique_key from jsonb_to_recordset(cast(:marks as jsonb)) as k (unique_key text)))
  and m.job_id <> t.id;

-- name: forget_marks
-- returns: unique_key
with past as materialized (
  select unique_key from evenflow.unique_mark where until <= coalesce(cast(:now as bigint), evenflow.now_us())
  order by until limit cast(:top as integer) for update skip locked
)
delete from evenflow.unique_mark m using past
where m.unique_key = past.unique_key
returning m.unique_key;

-- name: wake
-- mode: wake
-- returns: sent
-- Its own statement after the enqueue's commit: NOTIFY holds one lock for the whole server until its commit is flushed,
-- so it must not carry the job's flush. A lost wake-up costs latency, never work; hence no flush here either.
select set_config('synchronous_commit', 'off', true) as sent from pg_notify(cast(:channel as text), cast(:payload as text));

-- name: wake_with_commit
-- returns: sent
-- Inside a caller's transaction the notification leaves with the caller's own commit.
select pg_notify(cast(:channel as text), cast(:payload as text)) as sent;

-- name: admit
-- returns: kind, name, jobs
-- The admission of jobs that are already rows: arrivals whose caller has committed, and scheduled jobs that are due
-- (retries too). The same rule as in enqueue; a job that was claimed before (epoch > 0) has had its turn, so it does not
-- queue up behind its own group again but enters at the current round. Of several such jobs of a group, one per round:
-- a tenant whose thousands fail and come back together must not fill the round. A job with keys lines up at its first one.
-- Bounded by `top`; skips locked rows. Rows are found again by their address: joined by id and a list of ids, the batch
-- was multiplied by itself (47 ms for 200 jobs). kinds: queue (jobs are ready), bounded (jobs wait before a bounded queue), limiter,
-- impatient (a job that is new and must not wait for its keys).
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
arrived as materialized (
  select j.ctid as at from evenflow.job j where j.stage = 'arriving' order by j.id
  limit cast(:top as integer) for no key update skip locked
),
due as materialized (
  select j.ctid as at from evenflow.job j where j.stage = 'scheduled' and j.run_at <= (select now from clock)
  order by j.run_at, j.id limit cast(:top as integer) for no key update skip locked
),
batch as materialized (
  select a.at, j.id, j.queue, j.priority, j.group_key, now, j.run_at <= now as is_due,
    case when j.run_at <= now and j.epoch = 0 then cast((j.queue, j.priority, j.group_key) as text) end as line,
    j.epoch > 0 and j.group_key is not null as comes_back
  from clock, (select at from arrived union all select at from due) a, evenflow.job j where j.ctid = a.at
),
home as materialized (
  select d.queue, d.priority, x.queue is null as is_new, coalesce(q.fair, 'round-robin') as fair, q.unit_us,
    q.max_ready is not null as is_bounded, coalesce(r.v, 0) as v, case when q.fair = 'fifo' then now else coalesce(r.v, 0) + 1 end as entry
  from clock, (select distinct queue, priority from batch) d
  left join evenflow.queue q on q.name = d.queue
  left join evenflow.round r on r.queue = d.queue and r.priority = d.priority
  left join evenflow.band x on x.queue = d.queue and x.priority = d.priority
),
bands as (
  insert into evenflow.band (queue, priority) select queue, priority from home where is_new order by queue, priority
  on conflict do nothing
),
share as materialized (
  select s.line, s.queue, s.priority, s.group_key, s.jobs, h.entry, h.fair = 'time' as is_timed,
    case when h.fair = 'time' then coalesce((
        select g.step from evenflow.group_tail g
        where g.queue = s.queue and g.priority = s.priority and g.group_key = s.group_key and g.tail > h.v),
      coalesce(c.cost_us / h.unit_us, 1) / coalesce(w.weight, 1)) else 1 / coalesce(w.weight, 1) end as step
  from (select b.line, min(b.queue) as queue, min(b.priority) as priority, min(b.group_key) as group_key, count(*) as jobs
        from batch b where b.line is not null and b.group_key is not null group by b.line) s
  cross join lateral (select * from home h where h.queue = s.queue and h.priority = s.priority) h
  left join evenflow.group_weight w on w.queue = s.queue and w.group_key = s.group_key
  left join evenflow.group_cost c on c.queue = s.queue and c.group_key = s.group_key
  where h.fair <> 'fifo'
),
tails as (
  insert into evenflow.group_tail as g (queue, priority, group_key, tail, span, step)
  select queue, priority, group_key, entry + (jobs - 1) * step, jobs * step, case when is_timed then step end from share
  order by queue, priority, group_key
  on conflict (queue, priority, group_key) do update
    set tail = greatest(g.tail + excluded.span, excluded.tail), span = excluded.span,
      step = case when excluded.step is not null and g.tail > coalesce((
        select r.v from evenflow.round r where r.queue = g.queue and r.priority = g.priority), 0)
        then coalesce(g.step, excluded.step) else excluded.step end
  returning cast((queue, priority, group_key) as text) as line, tail
),
lines as materialized (
  select s.line, s.step, s.is_timed, t.tail - s.jobs * s.step as base from share s join tails t on t.line = s.line
),
placed as materialized (
  select b.at, b.is_due, h.is_bounded, coalesce(l.is_timed, false) as is_timed,
    case when l.base is not null then l.base + l.step * row_number() over (partition by b.line order by b.id)
         when b.comes_back and h.fair <> 'fifo'
           then h.entry + row_number() over (partition by b.queue, b.priority, b.group_key, b.comes_back order by b.id) - 1
         else h.entry end as turn
  from batch b
  cross join lateral (select * from home h where h.queue = b.queue and h.priority = b.priority) h
  left join lines l on l.line = b.line
),
admitted as (
  update evenflow.job j set turn = p.turn, is_timed = p.is_timed and j.limits is null,
    state = case when not p.is_due then 'scheduled' when j.limits like '%{"ordinal":1,%' then 'blocked'
                 when p.is_bounded then 'overflow' else 'ready' end
  from placed p where j.ctid = p.at
  returning j.id, j.queue, j.state, j.turn, j.epoch, j.limits
),
lined_up as (
  update evenflow.hold h set phase = 1, turn = a.turn from admitted a
  where a.state = 'blocked' and h.job_id = a.id and h.ordinal = 1
  returning h.limiter
)
select case state when 'ready' then 'queue' else 'bounded' end as kind, queue as name, count(*) as jobs
from admitted where state in ('ready', 'overflow') group by queue, state
union all
select 'limiter', limiter, count(*) from lined_up group by limiter
union all
select 'impatient', cast(id as text), 1 from admitted where state = 'blocked' and epoch = 0 and limits like '%"discards"%';

-- name: ahead
-- mode: read
-- returns: now, due, free, has_untold
-- When the dispatcher has to look again: the earliest scheduled job (an arrival counts as due now), the next job that
-- waits for a rate, and whether steps have ended without their children being told.
select coalesce(cast(:now as bigint), evenflow.now_us()) as now,
  (select min(run_at) from (
    (select 0 as run_at from evenflow.job where stage = 'arriving' limit 1)
    union all
    (select run_at from evenflow.job where stage = 'scheduled' order by run_at limit 1)
  ) soonest) as due,
  (select s.free_at from evenflow.spent s
   where exists (select from evenflow.hold h where h.limiter = s.limiter and h.phase = 1)
   order by s.free_at limit 1) as free,
  exists (select from evenflow.step_end) as has_untold;
