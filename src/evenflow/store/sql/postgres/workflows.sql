-- name: add_run
-- returns: id
-- No row where a run with this key exists: a start is idempotent by its key.
insert into evenflow.run (id, created_at, state, on_error, name, run_key, policy)
select cast(:id as bigint), coalesce(cast(:now as bigint), evenflow.now_us()), 'running',
  cast(:on_error as text), cast(:name as text), cast(:run_key as text), cast(:policy as text)
on conflict do nothing
returning id;

-- name: forget_run
-- returns: id
-- A run that could not be stored as a whole, in a transaction that its caller may still commit.
delete from evenflow.run where id = cast(:run as bigint) returning id;

-- name: find_run_key
-- mode: read
-- returns: id, name
select id, name from evenflow.run where run_key = cast(:run_key as text);

-- name: add_steps
-- returns: added
with added as (
  insert into evenflow.step (id, run_id, container, delay_us, not_before, ordinal, needs, allow_failed, kind, name,
    task, run_when, skip_when, policy)
  select s.id, s.run_id, s.container, s.delay_us, s.not_before, s.ordinal, s.needs, s.allow_failed, s.kind, s.name,
    s.task, s.run_when, s.skip_when, s.policy
  from jsonb_to_recordset(cast(:steps as jsonb)) as s (id bigint, run_id bigint, container bigint, delay_us bigint,
    not_before bigint, ordinal integer, needs integer, allow_failed boolean, kind text, name text, task text, run_when text,
    skip_when text, policy text)
  order by s.id
  returning id
)
select count(*) as added from added;

-- name: add_edges
-- returns: added
-- A parent that has ended already counts as it ended. A lone child waits for this parent alone, and can go on at once then.
with added as (
  insert into evenflow.edge (parent, child, outcome)
  select e.parent, e.child, case when s.state is null then case when e.lone then -1 else 0 end when s.state = 'succeeded' then 1 else 2 end
  from jsonb_to_recordset(cast(:edges as jsonb)) as e (parent bigint, child bigint, lone boolean)
  left join lateral (select p.state from evenflow.step p where p.id = e.parent limit 1) s on true
  order by e.parent, e.child
  on conflict do nothing
  returning child
)
select count(*) as added from added;

-- name: paused_steps
-- returns: id
-- Which of these steps belong to paused runs. Their runs stay so until the transaction ends: a resume waits for it, and finds
-- them waiting.
select s.id from evenflow.step s
cross join lateral (select r.id from evenflow.run r where r.id = s.run_id and r.state = 'paused' limit 1 for share) r
where s.id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))));

-- name: share_children
-- returns: child
-- These children are about to wait for more than one parent.
update evenflow.edge e set outcome = 0
where e.child = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb)))) and e.outcome = -1
returning e.child;

-- name: lock_runs
-- returns: id, state, on_error, policy
-- Everything that changes a run holds its row, taken first and in id order: then jobs, then steps.
select id, state, on_error, policy from evenflow.run
where id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:runs as jsonb))))
order by id for no key update;

-- name: end_steps
-- returns: kind, id, run_id, text
-- The ends of steps, before `advance` takes their jobs away in the same transaction: fenced like there, by (id, epoch,
-- worker), and the jobs stay locked, in id order as everywhere, so what is told here is true when that commits.
-- A lone child is decided by the success of its parent. It needs no lock, whatever else happens in its run, and it enters
-- its queue here as by release_steps; nobody has to read from the edge what the step says. For other children whoever
-- decides must hold the run, and look anew after that. A run that somebody else holds is not waited for: its ends are
-- noted, and told after the commit. So are those of paused runs, and of runs that an error may pause.
-- kinds: lone (a child that was released; `text` is its queue if it is ready), child (to be weighed here, of a run that is
-- held; `text` is the run's policy), noted (a run to be told later).
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
ends as materialized (
  select e.* from jsonb_to_recordset(cast(:steps as jsonb)) as e (id bigint, epoch integer, state text, result text)
),
ours as materialized (
  select e.id, e.state, e.result, s.at, s.run_id, coalesce(r.goes_on, false) as goes_on from ends e
  cross join lateral (
    select o.id from evenflow.job o where o.id = e.id and o.epoch = e.epoch and o.worker = cast(:worker as bigint)
    limit 1 for no key update) j
  cross join lateral (select o.ctid as at, o.run_id from evenflow.step o where o.id = e.id limit 1) s
  left join lateral (
    select o.state = 'running' and o.on_error = 'fail' as goes_on from evenflow.run o where o.id = s.run_id limit 1) r on true
),
stepped as (
  update evenflow.step s set state = o.state, result = o.result, ended_at = now from ours o, clock where s.ctid = o.at
),
edges as materialized (
  select o.id as parent, o.run_id, o.state, o.goes_on, e.at, e.child, j.id is not null as is_lone, j.queue, j.priority,
    j.is_plain and q.max_ready is null as is_ready
  from ours o
  cross join lateral (select x.ctid as at, x.child, x.outcome from evenflow.edge x where x.parent = o.id offset 0) e
  left join lateral (
    select x.id, x.queue, x.priority, x.group_key is null and x.limits is null as is_plain from evenflow.job x
    where x.id = e.child and coalesce(x.state, '') = 'waiting' limit 1 for no key update) j
    on e.outcome = -1 and o.goes_on and o.state = 'succeeded'
  left join lateral (select x.max_ready from evenflow.queue x where x.name = j.queue limit 1) q on true
),
home as materialized (
  select d.queue, d.priority, case when q.fair = 'fifo' then now else coalesce(r.v, 0) + 1 end as entry
  from clock, (select distinct queue, priority from edges where is_ready) d
  left join lateral (select o.fair from evenflow.queue o where o.name = d.queue limit 1) q on true
  left join lateral (select o.v from evenflow.round o where o.queue = d.queue and o.priority = d.priority limit 1) r on true
),
bands as (
  insert into evenflow.band (queue, priority)
  select h.queue, h.priority from home h
  where not exists (select from evenflow.band x where x.queue = h.queue and x.priority = h.priority)
  order by h.queue, h.priority
  on conflict do nothing
),
released as (
  update evenflow.job j set (run_at, state, turn) = (
    select now, case when h.entry is null then 'arriving' else 'ready' end, coalesce(h.entry, j.turn)
    from clock left join home h on h.queue = j.queue and h.priority = j.priority and j.group_key is null and j.limits is null)
  where j.id = any (array(select child from edges where is_lone)) and coalesce(j.state, '') = 'waiting'
  returning j.id, case when j.state = 'ready' then j.queue end as queue
),
passed as (
  update evenflow.edge e set outcome = case when d.state = 'succeeded' then 1 else 2 end from edges d
  where not d.is_lone and e.ctid = d.at
),
locked as materialized (
  select r.id, r.state, r.policy from evenflow.run r
  where r.id = any (array(select distinct run_id from edges where goes_on and not is_lone))
  order by r.id for no key update skip locked
),
held as materialized (select array(select id from locked where state = 'running') as runs),
noted as (
  insert into evenflow.step_end (run_id, step_id)
  select distinct e.run_id, e.parent from edges e, held where not e.is_lone and e.run_id <> all (held.runs)
  order by e.run_id, e.parent
  on conflict do nothing
)
select 'lone' as kind, r.id, cast(null as bigint) as run_id, r.queue as text from released r
union all
select 'child', e.child, e.run_id, l.policy
from (select distinct child, run_id from edges, held where not is_lone and run_id = any (runs)) e join locked l on l.id = e.run_id
union all
select distinct 'noted', e.run_id, e.run_id, null from edges e, held where not e.is_lone and e.run_id <> all (held.runs);

-- name: finish_steps
-- only here: SQLite has no round trip to save
-- returns: kind, id, run_id, text
-- end_steps and the ends of the jobs in one statement, for steps that succeeded: what most steps do. Nobody has to hear its answer
-- before the claim that follows in the same transaction, so both go out together, and rounds of steps go ahead like plain ones.
-- What a lone child needs is done here, as there; one that is the first of its band arrives, and admission makes the band.
-- A child that is changed by somebody meanwhile is not found at its address, and is decided like those that wait for more:
-- decide_held looks anew where the run is held. It is told by a setting of this transaction which parents to begin with, one for
-- each child.
-- kinds: lone and noted as in end_steps; awaited, freed (`text` is a key that has room) as in advance; ended (`text` lists what was
--   written, where some ends were refused); held (there are runs to be decided about).
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
ended as (
  delete from evenflow.job j using unnest(cast(:ids as bigint[]), cast(:epochs as integer[]), cast(:keeps as bigint[]),
    cast(:results as text[])) as e (id, epoch, keep_us, result)
  where j.id = e.id and j.epoch = e.epoch and j.worker = cast(:worker as bigint)
  returning j.id, j.created_at, j.run_at, j.started_at, j.good_until, j.worker, j.run_id, j.epoch, j.attempt, j.max_attempts, j.crashes,
    j.priority, j.fails_on_crash, j.queue, j.task, j.group_key, j.unique_key, j.signature, j.headers, j.options, j.errors,
    j.progress, j.payload, j.limits, j.awaited, e.keep_us, e.result
),
archived as (
  insert into evenflow.history (id, expires_at, created_at, run_at, started_at, finished_at, good_until, worker, run_id,
    epoch, attempt, max_attempts, crashes, priority, fails_on_crash, state, queue, task, group_key, unique_key, signature, headers,
    options, errors, progress, payload, limits)
  select id, (select now from clock) + keep_us, created_at, run_at, started_at, (select now from clock), good_until, worker, run_id,
    epoch, attempt, max_attempts, crashes, priority, fails_on_crash, 'succeeded', queue, task, group_key, unique_key, signature, headers,
    options, errors, progress, payload, limits
  from ended where keep_us > 0
),
freed as (
  delete from evenflow.hold h where h.job_id = any (array(select id from ended where limits is not null))
  returning h.limiter
),
stepped as (
  update evenflow.step s set state = 'succeeded', result = d.result, ended_at = (select now from clock) from ended d where s.id = d.id
),
edges as materialized (
  select d.id as parent, d.run_id, r.goes_on, e.at, e.child, j.at as job_at, j.queue, j.priority, j.is_plain
  from ended d
  left join lateral (
    select o.state = 'running' and o.on_error = 'fail' as goes_on from evenflow.run o where o.id = d.run_id limit 1) r on true
  cross join lateral (select x.ctid as at, x.child, x.outcome from evenflow.edge x where x.parent = d.id offset 0) e
  left join lateral (
    select x.ctid as at, x.queue, x.priority, x.group_key is null and x.limits is null as is_plain from evenflow.job x
    where x.id = e.child and e.outcome = -1 and r.goes_on and coalesce(x.state, '') = 'waiting' limit 1) j on true
),
home as materialized (
  select b.queue, b.priority, case when q.fair = 'fifo' then now else coalesce(r.v, 0) + 1 end as entry
  from clock, (select distinct queue, priority from edges where is_plain) d
  cross join lateral (select o.queue, o.priority from evenflow.band o where o.queue = d.queue and o.priority = d.priority limit 1) b
  left join lateral (select o.fair, o.max_ready from evenflow.queue o where o.name = d.queue limit 1) q on true
  left join lateral (select o.v from evenflow.round o where o.queue = d.queue and o.priority = d.priority limit 1) r on true
  where q.max_ready is null
),
released as (
  update evenflow.job j set run_at = (select now from clock), state = case when h.entry is null then 'arriving' else 'ready' end,
    turn = coalesce(h.entry, j.turn)
  from edges e left join home h on e.is_plain and h.queue = e.queue and h.priority = e.priority
  where j.ctid = e.job_at and j.id = e.child and j.queue = e.queue and j.priority = e.priority and coalesce(j.state, '') = 'waiting'
  returning j.id, case when j.state = 'ready' then j.queue end as queue
),
others as materialized (select e.* from edges e where e.child not in (select id from released)),
-- [joins
passed as (update evenflow.edge e set outcome = 1 from others o where e.ctid = o.at),
locked as materialized (
  select r.id, r.state from evenflow.run r where r.id = any (array(select run_id from others where goes_on))
  order by r.id for no key update skip locked
),
held as materialized (
  select o.run_id, min(o.parent) as parent from others o where (o.run_id in (select id from locked where state = 'running')) is true
  group by o.run_id, o.child
),
-- joins]
noted as (
  insert into evenflow.step_end (run_id, step_id)
  select distinct o.run_id, o.parent from others o
  -- [joins
  where o.run_id not in (select run_id from held)
  -- joins]
  order by o.run_id, o.parent
  on conflict (run_id, step_id) do update set step_id = excluded.step_id
  returning run_id
)
select 'lone' as kind, r.id, cast(null as bigint) as run_id, r.queue as text from released r
union all
select 'noted', n.run_id, n.run_id, null from noted n
-- [joins
union all
select 'held', 0, 0, set_config('evenflow.held', cast(array_agg(distinct h.parent) as text), true) from held h having count(*) > 0
-- joins]
union all
select 'freed', 0, 0, f.limiter from freed f
union all
select 'awaited', d.id, 0, null from ended d where d.awaited
union all
select 'ended', count(*), 0, cast(array_to_json(array_agg(d.id)) as text) from ended d having count(*) < cardinality(cast(:ids as bigint[]));

-- name: finish_lone_steps
-- leaves out: joins of finish_steps
-- Where of late every child waited for one parent alone: ends with other children are noted. A round of steps without decide_held
-- takes a tenth less.

-- name: decide_held
-- only here: SQLite has no round trip to save
-- returns: kind, id, run_id, text
-- Behind finish_steps, in its transaction: what came of the runs that it holds, by a look that is younger than their locks. A run
-- that has ended well ends here, and steps whose parents have all ended as they should are left to release_steps, by another setting.
-- Whatever else can be decided now is noted, and told by `settle` after the commit; a step that waits for more, which is what most
-- parents of a wide join leave behind, costs one look.
-- kinds: over (a run that has ended), noted, joined (there are steps to be released).
with parents as materialized (
  select cast(p as bigint) as id from unnest(cast(nullif(current_setting('evenflow.held', true), '') as bigint[])) p
),
due as materialized (
  select distinct e.child, s.run_id, p.id as parent, e.child = s.run_id or c.state is not null as is_last,
    coalesce(c.state is null and c.needs is null and c.kind not in ('sub', 'map') and (
      c.allow_failed or not exists (select from evenflow.edge x where x.child = e.child and x.outcome = 2)), false) as goes_on
  from parents p
  cross join lateral (select o.run_id from evenflow.step o where o.id = p.id limit 1) s
  cross join lateral (select x.child from evenflow.edge x where x.parent = p.id and x.outcome > 0 offset 0) e
  left join lateral (select o.needs, o.allow_failed, o.kind, o.state from evenflow.step o where o.id = e.child limit 1) c on true
  where (select x.parent from evenflow.edge x where x.child = e.child and x.outcome <= 0 order by x.outcome desc, x.parent desc limit 1) is null
    or case when c.needs is not null then c.state is not null
      or exists (select from evenflow.edge x where x.child = e.child and x.outcome = 2)
      or (select count(*) from evenflow.edge x where x.child = e.child and x.outcome > 0) >= c.needs end
),
last as materialized (
  select r.at, r.id, r.has_cases or exists (
    select from evenflow.step o where o.run_id = r.id and o.container is null and o.state not in ('succeeded', 'skipped')) as is_doubtful
  from (select distinct run_id from due where is_last) d
  cross join lateral (
    select o.ctid as at, o.id, coalesce(o.policy, '') like '%"cases"%' as has_cases from evenflow.run o where o.id = d.run_id limit 1) r
  where case when (select x.parent from evenflow.edge x where x.child = d.run_id and x.outcome = 0 order by x.parent desc limit 1) is null
    then (select o.id from evenflow.step o where o.run_id = d.run_id and o.state is null order by o.id desc limit 1) is null end
),
over as (
  update evenflow.run r set state = 'succeeded', error = null, finished_at = now, expires_at = now + cast(:keep_us as bigint)
  from last l, (select coalesce(cast(:now as bigint), evenflow.now_us()) as now) clock
  where r.ctid = l.at and not l.is_doubtful
  returning r.id
),
noted as (
  insert into evenflow.step_end (run_id, step_id)
  select run_id, min(parent) from due d
  where not d.goes_on and (not d.is_last or d.run_id in (select id from last where is_doubtful))
  group by run_id, child
  on conflict do nothing
  returning run_id
)
select 'over' as kind, o.id, o.id as run_id, cast(null as text) as text from over o
union all
select 'joined', 0, 0, set_config('evenflow.joined', cast(json_agg(distinct d.child) as text), true) from due d where d.goes_on having count(*) > 0
union all
select distinct 'noted', n.run_id, n.run_id, null from noted n;

-- name: note_open_steps
-- returns: step_id
-- Steps that get a new child while they run: their ends may be told by somebody who does not see it yet. So they are noted
-- now, and told once more when they have ended.
insert into evenflow.step_end (run_id, step_id)
select s.run_id, s.id from evenflow.step s
where s.id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb)))) and s.state is null
order by s.id
on conflict do nothing
returning step_id;

-- name: take_step_ends
-- returns: id, run_id, name, state
-- Here and below LATERAL with LIMIT or OFFSET is a look by the key for each row: a plain join may be planned as a walk over
-- all steps there are.
with taken as (
  delete from evenflow.step_end e
  where e.run_id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:runs as jsonb))))
    and (select p.state from evenflow.step p where p.id = e.step_id) is not null
  returning e.run_id, e.step_id
)
select s.id, t.run_id, s.name, s.state from taken t
cross join lateral (select p.id, p.name, p.state from evenflow.step p where p.id = t.step_id limit 1) s;

-- name: bad_step_ends
-- mode: read
-- returns: run_id, name, state
-- Failures whose children have not been told yet.
select e.run_id, s.name, s.state from evenflow.step_end e
cross join lateral (select p.name, p.state from evenflow.step p where p.id = e.step_id limit 1) s
where e.run_id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:runs as jsonb))))
  and s.state not in ('succeeded', 'skipped');

-- name: pass_on
-- returns: child
-- Tells the children how their parents ended; each child once.
with ended as materialized (
  select s.id, s.state from evenflow.step s
  where s.id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ended as jsonb)))) and s.state is not null
),
told as materialized (
  select l.at, d.state from ended d
  cross join lateral (select e.ctid as at from evenflow.edge e where e.parent = d.id offset 0) l
),
passed as (
  update evenflow.edge e set outcome = case when t.state = 'succeeded' then 1 else 2 end from told t where e.ctid = t.at
  returning e.child
)
select distinct child from passed;

-- name: weigh_steps
-- mode: read
-- returns: id, run_id, kind, needs, allow_failed, policy, open, ok, bad, culprit
-- What is known of the parents of these steps, as far as they are open. Where all have to end, a look says whether one is
-- open and whether one ended badly: no count, so the last of ten thousand parents costs as much as the first.
-- The look for an open parent begins at the greatest: parents mostly end in their order, and dead entries lie before it.
select s.id, s.run_id, s.kind, s.needs, s.allow_failed, s.policy,
  case when s.needs is not null then (select count(*) from evenflow.edge e where e.child = s.id and e.outcome <= 0)
       when (select e.parent from evenflow.edge e where e.child = s.id and e.outcome <= 0 order by e.outcome desc, e.parent desc limit 1) is null then 0
       else 1 end as open,
  case when s.needs is null then 0 else (select count(*) from evenflow.edge e where e.child = s.id and e.outcome = 1) end as ok,
  case when s.needs is not null then (select count(*) from evenflow.edge e where e.child = s.id and e.outcome = 2)
       when exists (select from evenflow.edge e where e.child = s.id and e.outcome = 2) then 1 else 0 end as bad,
  (select p.name || ' ended ' || p.state from evenflow.step p where p.id = (
    select e.parent from evenflow.edge e where e.child = s.id and e.outcome = 2 order by e.parent limit 1)) as culprit
from evenflow.step s
where s.id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb)))) and s.state is null
order by s.id;

-- name: release_steps
-- returns: id, queue
-- Steps whose parents are done enter their queues. Those with a group, a key, a delay or a bounded queue arrive, and the admission that all
-- jobs take does the rest; a plain one is ready here at the turn that admission would give it, for one write less.
-- The queue is returned for those that are ready. Without a list they are those that decide_held has found, in this transaction.
-- Jobs are written by their ids, here and in end_steps: at the address where this statement saw one there is nothing to be
-- found any more when somebody has changed it meanwhile (has begun to wait for its result, say).
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
due as materialized (
  select s.id, l.queue, l.priority,
    l.is_plain and s.delay_us is null and s.not_before is null and q.max_ready is null as is_ready
  from evenflow.step s
  cross join lateral (
    select j.queue, j.priority, j.group_key is null and j.limits is null as is_plain from evenflow.job j
    where j.id = s.id and coalesce(j.state, '') = 'waiting' limit 1 for no key update) l
  left join lateral (select o.max_ready from evenflow.queue o where o.name = l.queue limit 1) q on true
  where s.id = any (array(select cast(value as bigint) from jsonb_array_elements_text(
    cast(coalesce(cast(:ids as text), nullif(current_setting('evenflow.joined', true), '')) as jsonb))))
),
home as materialized (
  select d.queue, d.priority, case when q.fair = 'fifo' then now else coalesce(r.v, 0) + 1 end as entry
  from clock, (select distinct queue, priority from due where is_ready) d
  left join lateral (select o.fair from evenflow.queue o where o.name = d.queue limit 1) q on true
  left join lateral (select o.v from evenflow.round o where o.queue = d.queue and o.priority = d.priority limit 1) r on true
),
bands as (
  insert into evenflow.band (queue, priority)
  select h.queue, h.priority from home h
  where not exists (select from evenflow.band x where x.queue = h.queue and x.priority = h.priority)
  order by h.queue, h.priority
  on conflict do nothing
)
update evenflow.job j set (run_at, state, turn) = (
  select greatest(now + coalesce(s.delay_us, 0), coalesce(s.not_before, 0)), case when h.entry is null then 'arriving' else 'ready' end,
    coalesce(h.entry, j.turn)
  from clock, evenflow.step s left join home h on h.queue = j.queue and h.priority = j.priority
    and j.group_key is null and j.limits is null and s.delay_us is null and s.not_before is null
  where s.id = j.id)
where j.id = any (array(select id from due)) and coalesce(j.state, '') = 'waiting'
returning j.id, case when j.state = 'ready' then j.queue end as queue;

-- name: skip_steps
-- returns: id
-- Steps that will not run: their waiting jobs end `skipped`, with the reason. A step that is no longer waiting is left alone.
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
skips as materialized (select k.* from jsonb_to_recordset(cast(:skips as jsonb)) as k (id bigint, error text)),
gone as (
  delete from evenflow.job j where j.id = any (array(select id from skips)) and coalesce(j.state, '') = 'waiting'
  returning j.*
),
ended as (select g.*, k.error from gone g join skips k on k.id = g.id),
archived as (
  insert into evenflow.history (id, expires_at, created_at, run_at, started_at, finished_at, good_until, worker, run_id,
    epoch, attempt, max_attempts, crashes, priority, fails_on_crash, state, queue, task, group_key, unique_key, signature, headers,
    options, errors, progress, payload, limits)
  select id, now + cast(:keep_us as bigint), created_at, now, started_at, now, good_until, worker, run_id, epoch,
    attempt, max_attempts, crashes, priority, fails_on_crash, 'skipped', queue, task, group_key, unique_key, signature, headers,
    options, case when errors is null then '[' || error || ']' else left(errors, -1) || ',' || error || ']' end,
    progress, payload, limits
  from ended, clock where cast(:keep_us as bigint) > 0
)
update evenflow.step s set state = 'skipped', ended_at = now from clock
where s.id = any (array(select id from gone))
returning s.id;

-- name: members_of
-- mode: read
-- returns: container, ordinal, id, kind, name, state, result, policy
select s.container, s.ordinal, s.id, s.kind, s.name, s.state, s.result, s.policy from evenflow.step s
where s.container = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:containers as jsonb))))
order by s.container, s.ordinal;

-- name: end_containers
-- returns: id
with ends as materialized (
  select l.at, c.state, c.error from jsonb_to_recordset(cast(:ends as jsonb)) as c (id bigint, state text, error text)
  cross join lateral (select s.ctid as at from evenflow.step s where s.id = c.id and s.state is null limit 1) l
)
update evenflow.step s set state = e.state, error = e.error, ended_at = coalesce(cast(:now as bigint), evenflow.now_us())
from ends e where s.ctid = e.at
returning s.id;

-- name: runs_without_open
-- mode: read
-- returns: id
-- Which of these runs have no open step left. Almost always its last steps tell; where one of them ended before its
-- parents (it expired, or did not need them), the others are looked for.
select r.id from evenflow.run r
where r.id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:runs as jsonb))))
  and (select e.parent from evenflow.edge e where e.child = r.id and e.outcome = 0 order by e.parent desc limit 1) is null
  and (select s.id from evenflow.step s where s.run_id = r.id and s.state is null order by s.id desc limit 1) is null;

-- name: outer_steps
-- mode: read
-- returns: run_id, name, state
-- The steps of runs that decide about their ends: all but the members of containers, and those that ended well only where
-- a policy names them.
select s.run_id, s.name, s.state from evenflow.step s
where s.run_id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:runs as jsonb)))) and s.container is null
  and (s.state not in ('succeeded', 'skipped')
    or s.run_id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:particular as jsonb)))))
order by s.run_id, s.id;

-- name: end_runs
-- returns: id
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
ends as materialized (
  select l.at, e.state, e.error, e.keep_us
  from jsonb_to_recordset(cast(:ends as jsonb)) as e (id bigint, state text, error text, keep_us bigint)
  cross join lateral (select r.ctid as at from evenflow.run r where r.id = e.id and r.state in ('running', 'paused') limit 1) l
)
update evenflow.run r set state = e.state, error = e.error, finished_at = now, expires_at = now + e.keep_us
from ends e, clock where r.ctid = e.at
returning r.id;

-- name: set_run_state
-- returns: id
-- Between running and paused, and back to running from an end that is tried again.
update evenflow.run r set state = cast(:state as text), paused_why = cast(:why as text), finished_at = null, expires_at = null, error = null
where r.id = cast(:run as bigint)
returning r.id;

-- name: park_steps
-- returns: limiter
-- Steps of a paused run that are not running wait again, and let go of their keys. run_at stays, if it is a moment at all: it
-- tells them from steps whose parents are open.
with parked as (
  update evenflow.job j set state = 'waiting', run_at = least(j.run_at, cast(:never as bigint) - 1), worker = null, lease_until = null, gated = 0,
    attempt = case when j.state = 'claimed' then j.attempt - 1 else j.attempt end
  where j.id = any (array(select s.id from evenflow.step s where s.run_id = cast(:run as bigint) and s.state is null))
    and coalesce(j.state, '') in ('arriving', 'scheduled', 'blocked', 'overflow', 'ready', 'claimed')
  returning j.id, j.limits
)
update evenflow.hold h set phase = 0, held_at = null from parked p where p.limits is not null and h.job_id = p.id
returning h.limiter;

-- name: unpark_steps
-- returns: id
-- Nobody wakes a parked step that waits for an event: it looks for itself whether one has come.
update evenflow.job j set state = 'arriving',
  run_at = case when exists (select from evenflow.event_wait w where w.job_id = j.id)
    then coalesce(cast(:now as bigint), evenflow.now_us()) else j.run_at end
where j.id = any (array(select s.id from evenflow.step s where s.run_id = cast(:run as bigint) and s.state is null))
  and coalesce(j.state, '') = 'waiting' and j.run_at < cast(:never as bigint)
returning j.id;

-- name: open_jobs_of
-- mode: read
-- returns: id
select j.id from evenflow.job j
where j.id = any (array(select s.id from evenflow.step s where s.run_id = cast(:run as bigint)))
order by j.id;

-- name: close_steps
-- returns: id
-- What is left open of a cancelled run: containers, which have no job to be withdrawn.
update evenflow.step s set state = 'cancelled', ended_at = coalesce(cast(:now as bigint), evenflow.now_us())
where s.run_id = cast(:run as bigint) and s.state is null and s.kind in ('sub', 'map')
returning s.id;

-- name: drop_step_ends
-- returns: step_id
delete from evenflow.step_end e
where e.run_id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:runs as jsonb))))
returning e.step_id;

-- name: forget_step_ends
-- returns: step_id
-- These steps are open again: nobody is to be told how they ended.
delete from evenflow.step_end e using evenflow.step s
where s.id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))))
  and e.run_id = s.run_id and e.step_id = s.id
returning e.step_id;

-- name: reopen_steps
-- returns: id
-- Ended steps of a run that is tried again: open, their jobs back from history, waiting; their children wait for them again.
-- What their parents say is written anew, since an end that released a lone child did not write it.
with named as materialized (select cast(value as bigint) as id from jsonb_array_elements_text(cast(:ids as jsonb))),
edges as (update evenflow.edge e set outcome = 0 where e.parent = any (array(select id from named))),
above as (
  update evenflow.edge e set outcome = case when p.state = 'succeeded' then 1 else 2 end from evenflow.step p
  where e.child = any (array(select id from named)) and e.parent <> all (array(select id from named))
    and p.id = e.parent and p.state is not null
),
back as (
  insert into evenflow.job (id, created_at, run_at, run_id, epoch, max_attempts, priority, fails_on_crash, state, queue, task, group_key,
    unique_key, signature, headers, options, errors, limits, payload)
  select h.id, h.created_at, cast(:never as bigint), h.run_id, h.epoch, h.max_attempts, h.priority, h.fails_on_crash, 'waiting', h.queue,
    h.task, h.group_key, h.unique_key, h.signature, h.headers, h.options, h.errors, h.limits, h.payload
  from evenflow.history h where h.id = any (array(select id from named))
  order by h.id
  on conflict do nothing
  returning id, priority, limits
),
held as (
  insert into evenflow.hold (job_id, ordinal, limiter, most, keep_us, window_us, priority, turn)
  select b.id, h.ordinal, h.limiter, h.most, h.keep_us, h.window_us, b.priority, 0
  from back b cross join lateral jsonb_to_recordset(cast(b.limits as jsonb)) as h (
    ordinal smallint, limiter text, most integer, keep_us bigint, window_us bigint)
  where b.limits is not null
),
gone as (delete from evenflow.history h where h.id = any (array(select id from back))),
opened as (
  update evenflow.step s set state = null, ended_at = null, result = null, error = null
  where s.id = any (array(select id from named)) and (s.kind in ('sub', 'map') or s.id = any (array(select id from back)))
  returning s.id
)
select id from opened;

-- name: step_inputs
-- mode: read
-- returns: id, workflow, step, run_when, skip_when, parent, parent_name, kind, state, result, policy
-- What steps need to start: their run, their conditions, and their parents with their results, each read where it is stored.
select s.id, r.name as workflow, s.name as step, s.run_when, s.skip_when,
  p.id as parent, p.name as parent_name, p.kind, p.state, p.result, p.policy
from evenflow.step s
cross join lateral (select o.name from evenflow.run o where o.id = s.run_id limit 1) r
left join lateral (
  select o.id, o.name, o.kind, o.state, o.result, o.policy from evenflow.edge e
  cross join lateral (select * from evenflow.step o where o.id = e.parent limit 1) o
  where e.child = s.id offset 0) p on true
where s.id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))))
order by s.id, p.id;

-- name: steps_by_id
-- mode: read
-- returns: id, kind, name, state, result, policy
select s.id, s.kind, s.name, s.state, s.result, s.policy from evenflow.step s
where s.id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))));

-- name: unsettled
-- mode: read
-- returns: run_id
-- Runs whose steps have ended without their children being told. Ends of paused runs wait for the resume.
select distinct e.run_id from evenflow.step_end e
cross join lateral (select r.state from evenflow.run r where r.id = e.run_id limit 1) r
cross join lateral (select from evenflow.step s where s.id = e.step_id and s.state is not null limit 1) s
where r.state <> 'paused' limit cast(:top as integer);

-- name: runs_by_id
-- mode: read
-- returns: id, created_at, finished_at, state, on_error, name, run_key, policy, error, paused_why
select id, created_at, finished_at, state, on_error, name, run_key, policy, error, paused_why from evenflow.run
where id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))));

-- name: list_runs
-- mode: read
-- returns: id, created_at, finished_at, state, on_error, name, run_key, policy, error, paused_why
select id, created_at, finished_at, state, on_error, name, run_key, policy, error, paused_why from evenflow.run
where id < cast(:before as bigint) and (cast(:state as text) is null or state = cast(:state as text))
  and (cast(:name as text) is null or name = cast(:name as text))
order by id desc limit cast(:top as integer);

-- name: list_steps
-- mode: read
-- returns: id, container, ordinal, needs, allow_failed, kind, state, name, task, ended_at, errors, result, policy
-- A step whose job is open shows the state of the job.
select s.id, s.container, s.ordinal, s.needs, s.allow_failed, s.kind, coalesce(j.state, s.state, 'waiting') as state, s.name, s.task,
  s.ended_at, coalesce(j.errors, s.error, (select h.errors from evenflow.history h where h.id = s.id and s.state <> 'succeeded' limit 1)) as errors,
  s.result, s.policy
from evenflow.step s left join evenflow.job j on j.id = s.id
where s.run_id = cast(:run as bigint) order by s.id;

-- name: list_edges
-- mode: read
-- returns: parent, child
select e.parent, e.child from evenflow.step s join evenflow.edge e on e.parent = s.id
where s.run_id = cast(:run as bigint) order by e.parent, e.child;

-- name: open_children
-- mode: read
-- returns: child
select e.child from evenflow.edge e where e.parent = cast(:id as bigint) order by e.child;

-- name: run_of_step
-- mode: read
-- returns: run_id, name, container
select s.run_id, s.name, s.container from evenflow.step s where s.id = cast(:id as bigint);

-- name: steps_named
-- mode: read
-- returns: name, id
select s.name, s.id from evenflow.step s where s.run_id = cast(:run as bigint)
  and s.name in (select value from jsonb_array_elements_text(cast(:names as jsonb)));

-- name: prune_runs
-- returns: id
-- Runs that may be forgotten, with their steps: the steps first, in bounded batches; a run goes when none is left.
with old as materialized (
  select r.id from evenflow.run r where r.expires_at <= coalesce(cast(:now as bigint), evenflow.now_us())
  order by r.expires_at limit cast(:top as integer) for update skip locked
),
gone as materialized (
  select s.id, s.run_id from evenflow.step s where s.run_id = any (array(select id from old)) limit cast(:top as integer)
),
steps as (delete from evenflow.step s where s.id = any (array(select id from gone)) returning s.id),
edges as (delete from evenflow.edge e where e.parent = any (array(select id from gone))),
ends as (delete from evenflow.step_end e where e.run_id = any (array(select id from old))),
runs as (
  delete from evenflow.run r where r.id = any (array(select id from old))
    and not exists (select from evenflow.step s where s.run_id = r.id and s.id <> all (array(select id from gone)))
  returning r.id
)
select id from steps union all select id from runs;

-- name: adopt_steps
-- returns: id
-- Members that were added to a container while it ran, behind those it has.
update evenflow.step s set container = cast(:container as bigint)
where s.id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))))
returning s.id;

-- name: open_parents
-- mode: read
-- returns: id, name
select p.id, p.name from evenflow.edge e join evenflow.step p on p.id = e.parent
where e.child = cast(:id as bigint) and e.outcome <= 0 and p.state is null order by e.parent limit cast(:top as integer);
