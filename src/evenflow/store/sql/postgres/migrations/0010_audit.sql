-- The audit log: what people did through the dashboard and its API, who, from where, and what came of it.

-- One row when something is asked for, before it is done; one more (`answers` = its id) with the outcome. An act whose
-- process died in between has no second row, and that can be seen.
create table evenflow.audit (
  id       bigint generated always as identity primary key,
  at       bigint not null,
  answers  bigint,
  who      text not null,
  role     text not null,
  address  text not null,
  act      text not null,
  target   text not null,
  detail   text not null
);
create index audit_answers on evenflow.audit (answers) where answers is not null;

-- Append-only, also for those who have the password of the application's role.
create function evenflow.refuse_audit_change() returns trigger language plpgsql
  as $$ begin raise exception 'the audit log is append-only'; end $$;
create trigger audit_is_append_only before update or delete or truncate on evenflow.audit
  for each statement execute function evenflow.refuse_audit_change();
