-- name: fill_queues
-- returns: kind, name, jobs
-- Lets jobs that wait before bounded queues in, in the order of the claim, as far as there is room: at most max_ready are
-- ready. The queues are locked first, in name order, and counted in a statement of its own: a count in the statement that
-- waits for a lock would see the state before the wait. A job whose turn has passed meanwhile
-- comes next: claims do not look before V any more.
-- A queue that has lost its bound lets everybody in. A look by LIMIT, not EXISTS: that may be planned as a join over all.
select 'locked' as kind, q.name, 0 as jobs from evenflow.queue q
where q.name in (select value from jsonb_array_elements_text(cast(:queues as jsonb)))
  and (select true from evenflow.job j where j.queue = q.name and j.stage = 'overflow' limit 1)
order by q.name for no key update;

with room as materialized (
  select q.name, case when q.max_ready is null then cast(:top as bigint) else least(cast(:top as bigint), q.max_ready
    - (select count(*) from (select from evenflow.job j where j.queue = q.name and j.stage = 'open' and j.state = 'ready' limit q.max_ready) r)) end as free
  from evenflow.queue q
  where q.name in (select value from jsonb_array_elements_text(cast(:queues as jsonb)))
    and (select true from evenflow.job j where j.queue = q.name and j.stage = 'overflow' limit 1)
),
picked as materialized (
  select p.at from room r cross join lateral (
    select j.ctid as at from evenflow.job j where j.queue = r.name and j.stage = 'overflow'
    order by j.priority, j.turn, j.id limit greatest(r.free, 0) for no key update skip locked) p
),
filled as (
  update evenflow.job j set state = 'ready',
    turn = greatest(j.turn, (
      select r.v + 0.001 from evenflow.round r where r.queue = j.queue and r.priority = j.priority and r.v > j.turn))
  from picked p where j.ctid = p.at
  returning j.queue
)
select 'filled' as kind, queue as name, count(*) as jobs from filled group by queue;

-- name: room_of
-- returns: name, most, ready, beyond
-- Queues that reject what they have no room for: their bound and what counts towards it, locked until this transaction
-- ends. Counted no further than it takes to know.
select q.name, 0 as most, 0 as ready, 0 as beyond from evenflow.queue q
where q.name in (select value from jsonb_array_elements_text(cast(:queues as jsonb))) and q.max_ready is not null and q.on_full = 'reject'
order by q.name for no key update;

select q.name, q.max_ready as most,
  (select count(*) from (select from evenflow.job j where j.queue = q.name and j.stage = 'open' and j.state = 'ready' limit q.max_ready) r) as ready,
  (select count(*) from (select from evenflow.job j where j.queue = q.name and j.stage = 'overflow' limit q.max_ready + 1) o) as beyond
from evenflow.queue q
where q.name in (select value from jsonb_array_elements_text(cast(:queues as jsonb))) and q.max_ready is not null and q.on_full = 'reject';

-- name: overflowing
-- mode: read
-- returns: name
-- Queues before which somebody waits: one look into job_overflow for each queue in the books.
select q.name from evenflow.queue q
where (select true from evenflow.job j where j.queue = q.name and j.stage = 'overflow' limit 1) order by q.name;

-- name: list_bounds
-- mode: read
-- returns: name, max_concurrency, max_ready, on_full, in_flight, ready, waiting
-- Queues with a cap or a bound, and what counts towards them; what is ready or waits outside is counted up to `top`.
select q.name, q.max_concurrency, q.max_ready, q.on_full,
  (select count(*) from evenflow.in_flight i where i.queue = q.name) as in_flight,
  (select count(*) from (select from evenflow.job j where j.queue = q.name and j.stage = 'open' and j.state = 'ready' limit cast(:top as bigint)) r) as ready,
  (select count(*) from (select from evenflow.job j where j.queue = q.name and j.stage = 'overflow' limit cast(:top as bigint)) o) as waiting
from evenflow.queue q where q.max_concurrency is not null or q.max_ready is not null order by q.name;

-- name: count_line
-- mode: read
-- returns: jobs
-- How many jobs wait before this one outside of its bounded queue, counted up to `top`.
select count(*) as jobs from (
  select from evenflow.job j, evenflow.job me
  where me.id = cast(:id as bigint) and j.queue = me.queue and j.stage = 'overflow'
    and (j.priority, j.turn, j.id) < (me.priority, me.turn, me.id)
  limit cast(:top as integer)) before;
