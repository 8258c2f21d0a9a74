"""The pooler in front of the tests: it must be as hostile to session state as it claims."""

import psycopg


def test_a_database_is_reached_through_the_pooler(pgbouncer_url: str) -> None:
    with psycopg.connect(pgbouncer_url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_ten_clients_share_four_server_connections(pgbouncer_url: str) -> None:
    clients = [psycopg.connect(pgbouncer_url, autocommit=True, prepare_threshold=None) for _ in range(10)]
    try:
        backends = {client.execute("select pg_backend_pid()").fetchone() for client in clients}
    finally:
        for client in clients:
            client.close()
    assert 1 <= len(backends) <= 4


def test_session_state_leaks_to_the_next_client(pgbouncer_url: str) -> None:
    # No reset query: code that relies on session state is found out here, not in production.
    with psycopg.connect(pgbouncer_url, autocommit=True, prepare_threshold=None) as first:
        first.execute("set statement_timeout = '4321ms'")
    with psycopg.connect(pgbouncer_url, autocommit=True, prepare_threshold=None) as second:
        assert second.execute("show statement_timeout").fetchone() == ("4321ms",)
