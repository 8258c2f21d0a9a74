-- The audit log: what people did through the dashboard and its API. The twin of the PostgreSQL file.

create table evenflow_audit (
  id       integer primary key autoincrement,
  at       integer not null,
  answers  integer,
  who      text not null,
  role     text not null,
  address  text not null,
  act      text not null,
  target   text not null,
  detail   text not null
) strict;
create index evenflow_audit_answers on evenflow_audit (answers) where answers is not null;

create trigger evenflow_audit_is_never_changed before update on evenflow_audit
  begin select raise(abort, 'the audit log is append-only'); end;
create trigger evenflow_audit_is_never_deleted before delete on evenflow_audit
  begin select raise(abort, 'the audit log is append-only'); end;
