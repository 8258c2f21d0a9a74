"""PostgreSQL databases with our tables and nothing in them. One that a test has left with rows alone is used again.

A copy of a template is some 400 files for the kernel to make and to delete, which took a third of the suite's time.
"""

import time
from typing import LiteralString

import psycopg

from tests.postgres_server import DatabaseHost

LARGEST_GROWTH = 4_000_000  # bytes: beyond it dead rows would be a load of their own
PATIENCE_S = 0.2

_FIRST_OF_USERS = 16384
# Whatever DDL touches has another xmin; statistics and settings would change the next test's plans.
_STRUCTURE: LiteralString = f"""
select md5(string_agg(mark, ',' order by mark)), (
  select sum(pg_relation_size(c.oid)) from pg_class c where c.oid >= {_FIRST_OF_USERS} and c.relkind in ('r', 'i', 't'))
from (
  select 'class' || oid || ':' || xmin from pg_class where oid >= {_FIRST_OF_USERS} union all
  select 'attribute' || attrelid || '.' || attnum || ':' || a.xmin
  from pg_attribute a join pg_class c on c.oid = a.attrelid and c.relkind = 'r' where attrelid >= {_FIRST_OF_USERS} union all
  select 'proc' || oid || ':' || xmin from pg_proc where oid >= {_FIRST_OF_USERS} union all
  select 'constraint' || oid || ':' || xmin from pg_constraint where oid >= {_FIRST_OF_USERS} union all
  select 'trigger' || oid || ':' || xmin from pg_trigger where oid >= {_FIRST_OF_USERS} union all
  select 'namespace' || oid || ':' || xmin from pg_namespace union all
  select 'type' || oid || ':' || xmin from pg_type where oid >= {_FIRST_OF_USERS} union all
  select 'statistics' || starelid || ':' || staattnum from pg_statistic where starelid >= {_FIRST_OF_USERS} union all
  select 'setting' || setrole from pg_db_role_setting where setdatabase = (
    select oid from pg_database where datname = current_database())
) marks (mark)"""
_OTHERS = """
select count(*) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
  and not (%s and state = 'idle')"""
_TABLES = """
select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and n.nspname not like 'pg\\_%' and n.nspname <> 'information_schema' order by 1"""
_SEQUENCES = "select format('select setval(%L, %s, false)', seqrelid::regclass, seqstart) from pg_sequence"


Session = psycopg.Connection[tuple[object, ...]]


class FreshDatabases:
    """Gives out databases like the template, each to one test at a time.

    Sessions that are idle are no hindrance where `bears_idle`: a pooler keeps its own, and so does an engine that goes
    from test to test with its database.
    """

    def __init__(self, server: DatabaseHost, template: str, *, bears_idle: bool = False) -> None:
        self._server = server
        self._template = template
        self._bears_idle = bears_idle
        self._clean: list[str] = []
        self._sessions: dict[str, Session] = {}  # kept, because a new one has to read the catalogue first
        self._read_template()

    def take(self) -> str:
        """The name of a database that nobody else uses."""
        return self._clean.pop() if self._clean else self._server.create_database(template=self._template)

    def give_back(self, name: str) -> bool:
        """Keep it for the next test if deleting rows makes it like new, else drop it; whether it is kept."""
        is_kept = self._is_like_new(name)
        if is_kept:
            self._clean.append(name)
        else:
            self._drop(name)
        return is_kept

    def close(self) -> None:
        """Drop what is left."""
        while self._clean:
            self._drop(self._clean.pop())

    def _drop(self, name: str) -> None:
        if session := self._sessions.pop(name, None):
            session.close()
        self._server.drop_database(name)

    def _read_template(self) -> None:
        with psycopg.connect(self._server.url(self._template), autocommit=True) as session:
            self._structure, self._size = _structure(session)
            tables = [str(table) for (table,) in session.execute(_TABLES)]
            contents = {table: _contents(session, table) for table in tables}
            self._seeded = {table: rows for table, rows in contents.items() if rows}
            emptied = [f"delete from {table}" for table in tables if table not in self._seeded]
            rewound = [str(statement) for (statement,) in session.execute(_SEQUENCES)]
            self._emptying = ";".join([*emptied, *rewound])

    def _is_like_new(self, name: str) -> bool:
        try:
            session = self._session(name)
            if not self._is_alone(session):
                return False
            structure, size = _structure(session)
            if structure != self._structure or size > self._size + LARGEST_GROWTH:
                return False
            if any(_contents(session, table) != rows for table, rows in self._seeded.items()):
                return False
            session.execute(self._emptying.encode(), prepare=False)
        except psycopg.OperationalError:  # the test has ended every session, or the server
            return False
        return True

    def _session(self, name: str) -> Session:
        if name not in self._sessions:
            # As a replica, or triggers would object: the audit log may not be changed.
            self._sessions[name] = psycopg.connect(
                self._server.url(name),
                autocommit=True,
                prepare_threshold=0,
                options="-c session_replication_role=replica",
            )
        return self._sessions[name]

    def _is_alone(self, session: Session) -> bool:
        """Whether the test's sessions are gone. They may take a moment to end."""
        asked_until = time.monotonic() + PATIENCE_S
        while session.execute(_OTHERS, [self._bears_idle]).fetchone() != (0,):
            if time.monotonic() > asked_until:
                return False
            time.sleep(0.002)
        return True


def _structure(session: Session) -> tuple[str, int]:
    found = session.execute(_STRUCTURE).fetchone()
    assert found is not None
    return str(found[0]), int(str(found[1]))


def _contents(session: Session, table: str) -> list[tuple[object, ...]]:
    return session.execute(f"select t::text from {table} t order by 1".encode()).fetchall()
