-- Two narrow lines of a key instead of one of all its jobs: a job is in one of them at a time, and in none before its turn.

drop index evenflow.hold_line;
drop index evenflow.hold_held;

-- Who waits, in the order of release.
create index hold_line on evenflow.hold (limiter, priority, turn, job_id) where phase = 1;

-- Who holds, oldest first: counted by promotions, walked by the sweep.
create index hold_held on evenflow.hold (limiter, held_at, job_id) where phase = 2;
