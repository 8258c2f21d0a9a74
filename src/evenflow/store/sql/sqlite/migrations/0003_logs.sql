-- What bodies say with ctx.log. The twin of the PostgreSQL file.

create table evenflow_log_line (
  job_id      integer not null,
  at          integer not null,
  expires_at  integer not null,
  attempt     integer not null,
  number      integer not null,
  level       text not null,
  line        text not null
) strict;
create index evenflow_log_line_job on evenflow_log_line (job_id, attempt, number);
create index evenflow_log_line_expiry on evenflow_log_line (expires_at);
