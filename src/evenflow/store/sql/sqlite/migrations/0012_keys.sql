-- Two narrow lines of a key instead of one of all its jobs. The twin of the PostgreSQL file. `phase` is in them so that
-- SQLite reads nothing but the index.

drop index evenflow_hold_line;
drop index evenflow_hold_held;
create index evenflow_hold_line on evenflow_hold (limiter, priority, turn, job_id, phase) where phase = 1;
create index evenflow_hold_held on evenflow_hold (limiter, held_at, job_id, phase) where phase = 2;
