-- What bodies say with ctx.log, kept with the job for as long as a failed one is kept.

create table evenflow.log_line (
  job_id      bigint not null,
  at          bigint not null,
  expires_at  bigint not null,
  attempt     integer not null,
  number      integer not null,
  level       text not null,
  line        text not null
);
create index log_line_job on evenflow.log_line (job_id, attempt, number);
create index log_line_expiry on evenflow.log_line (expires_at);
