-- name: plain_advance
-- returns: kind, id, epoch, queue, task, group_key, priority, turn, attempt, max_attempts, crashes, created_at, run_at, started_at, good_until, payload, signature, headers, options, run_id, run_state, is_plain
-- `advance` for what most rounds are: runs that succeeded, of jobs without keys and outside of workflows, and a claim from
-- queues about which there is nothing to say. Setting up the parts of `advance` that have nothing to do costs half a millisecond,
-- and reading ends from JSON 2 µs each; arrays cost a quarter of that.
-- Where there is more to say (a gate is shut, a queue or the cluster has a cap, or one of the jobs that come first has keys or rates)
-- the ends are written, nothing is claimed, and the answer is `rich`: `advance` is asked then. It is decided here, by the snapshot of
-- the claim: what a worker remembers may be old.
-- kinds: ended (`id` runs ended; `payload` lists those that somebody waits for, `options` all of them where some were refused), rich,
--   round and claimed as in advance. V goes also to what claims before this one have `reached` that left it where it was.
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
-- [ends
ended as (
  delete from evenflow.job j using unnest(cast(:ids as bigint[]), cast(:epochs as integer[]), cast(:keeps as bigint[]),
    cast(:results as text[])) as e (id, epoch, keep_us, result)
  where j.id = e.id and j.epoch = e.epoch and j.worker = cast(:worker as bigint)
  returning j.id, j.created_at, j.run_at, j.started_at, j.good_until, j.worker, j.epoch, j.attempt, j.max_attempts, j.crashes,
    j.priority, j.fails_on_crash, j.queue, j.task, j.group_key, j.unique_key, j.signature, j.headers, j.options, j.errors,
    j.progress, j.payload, j.awaited, e.keep_us, e.result
),
archived as (
  insert into evenflow.history (id, expires_at, created_at, run_at, started_at, finished_at, good_until, worker,
    epoch, attempt, max_attempts, crashes, priority, fails_on_crash, state, queue, task, group_key, unique_key, signature, headers,
    options, errors, progress, payload, result)
  select id, (select now from clock) + keep_us, created_at, run_at, started_at, (select now from clock), good_until, worker,
    epoch, attempt, max_attempts, crashes, priority, fails_on_crash, 'succeeded', queue, task, group_key, unique_key, signature, headers,
    options, errors, progress, payload, result
  from ended where keep_us > 0
),
-- ends]
wanted as materialized (
  select w.queue, w.place, w.top, q.max_concurrency is not null as is_capped
  from unnest(cast(:want_queues as text[]), cast(:want_tops as integer[])) with ordinality as w (queue, top, place)
  left join evenflow.queue q on q.name = w.queue
  where q.paused_at is null
),
rules as materialized (
  select exists (select from wanted where is_capped) or exists (select from evenflow.gate)
    or exists (select from evenflow.cluster where cap is not null) as are_many
),
candidates as materialized (
  select c.at, c.has_limits from (
    select w.queue, w.top from wanted w where not (select are_many from rules) order by w.place) w,
  lateral (
    select l.at, l.has_limits from (
      select b.queue, b.priority, coalesce(s.turn, '-infinity') as turn, coalesce(s.id, 0) as id
      from evenflow.band b left join unnest(cast(:bound_queues as text[]), cast(:bound_priorities as smallint[]),
        cast(:bound_turns as double precision[]), cast(:bound_ids as bigint[])) as s (queue, priority, turn, id)
        on s.queue = b.queue and s.priority = b.priority
      where b.queue = w.queue order by b.priority) b,
    lateral (
      select j.ctid as at, j.limits is not null as has_limits from evenflow.job j
      where j.queue = b.queue and j.priority = b.priority and j.stage = 'open' and j.state = 'ready' and (j.turn, j.id) >= (b.turn, b.id)
        and (j.good_until is null or j.good_until > (select now from clock))
      order by j.turn, j.id limit w.top
      for no key update skip locked) l
    limit w.top) c
  limit cast(:top as bigint)
),
claimed as (
  update evenflow.job j set state = 'running', epoch = epoch + 1, attempt = attempt + 1,
    worker = cast(:worker as bigint), flight = cast(:flight as bigint), started_at = (select now from clock)
  where j.ctid = any (array(select at from candidates)) and not exists (select from candidates where has_limits)
  returning j.id, j.epoch, j.queue, j.task, j.group_key, j.priority, j.turn, j.attempt, j.max_attempts, j.crashes,
    j.created_at, j.run_at, j.started_at, j.good_until, j.payload, j.signature, j.headers, j.options, j.run_id
),
flown as (
  insert into evenflow.flight (worker, number, queue, ids)
  select cast(:worker as bigint), cast(:flight as bigint), queue, array_agg(id) from claimed group by queue
),
landed as (
  delete from evenflow.flight f where f.worker = cast(:worker as bigint) and f.number = any (cast(:landed as bigint[]))
)
-- [rounds
, front as (
  select queue, priority, max(turn) as turn from (
    select queue, priority, turn from claimed union all
    select queue, priority, turn from unnest(cast(:reached_queues as text[]), cast(:reached_priorities as smallint[]),
      cast(:reached_turns as double precision[])) as r (queue, priority, turn)) f
  group by queue, priority
),
first_round as (
  insert into evenflow.round (queue, priority, v) select queue, priority, turn from front
  where not exists (select from evenflow.round r where r.queue = front.queue and r.priority = front.priority)
  on conflict do nothing
  returning queue, priority, v
),
free_round as materialized (
  select r.ctid as at, f.turn from evenflow.round r join front f on f.queue = r.queue and f.priority = r.priority
  where r.v < f.turn for no key update of r skip locked
),
next_round as (
  update evenflow.round r set v = f.turn from free_round f where r.ctid = f.at
  returning r.queue, r.priority, r.v
),
reached_round as (
  select r.queue, r.priority, r.v from evenflow.round r join front f on f.queue = r.queue and f.priority = r.priority
  where r.v >= f.turn
)
-- rounds]
select 'claimed' as kind, c.id, c.epoch, c.queue, c.task, c.group_key, c.priority, c.turn, c.attempt, c.max_attempts, c.crashes,
  c.created_at, c.run_at, c.started_at, c.good_until, c.payload, c.signature, c.headers, c.options, c.run_id,
  case when c.run_id is not null then (select r.state from evenflow.run r where r.id = c.run_id) end as run_state,
  c.run_id is null as is_plain from claimed c
-- [rounds
union all
select 'round', 0, 0, m.queue, null, null, m.priority, m.v, null, null, null, null, null, null, null, null, null, null, null, null, null, null
from (select * from first_round union all select * from next_round union all select * from reached_round) m
-- rounds]
union all
select 'rich', 0, 0, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
where (select are_many from rules) or exists (select from candidates where has_limits)
-- [ends
union all
select 'ended', count(*), 0, null, null, null, null, null, null, null, null, null, null, null, null,
  cast(array_to_json(array_agg(d.id) filter (where d.awaited)) as text), null, null,
  case when count(*) < cardinality(cast(:ids as bigint[])) then coalesce(cast(array_to_json(array_agg(d.id)) as text), '[]') end, null, null, null
from ended d having count(*) < cardinality(cast(:ids as bigint[])) or bool_or(d.awaited)
-- ends]
;

-- name: plain_advance_still
-- leaves out: rounds of plain_advance
-- As a rule: V was moved a moment ago.

-- name: plain_claim
-- leaves out: ends of plain_advance
-- Where nothing has ended.

-- name: plain_claim_still
-- leaves out: ends, rounds of plain_advance
-- Where nothing has ended, and V was moved a moment ago.
