-- Tasks that may be enqueued by SQL, with what their declarations say. On SQLite nobody asks: there are no functions.
create table evenflow_published (
  task          text primary key,
  rules         text not null,
  published_at  integer not null
) strict, without rowid;
