"""Database URLs: which database is meant, and that no password is ever shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.database_url import mask_secrets, parse_url


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///jobs.db", "jobs.db"),
        ("sqlite:///data/jobs.db", "data/jobs.db"),
        ("sqlite:////var/lib/jobs.db", "/var/lib/jobs.db"),
        ("sqlite:///C:/jobs.db", "C:/jobs.db"),
        ("SQLITE:///jobs.db", "jobs.db"),
        ("sqlite:///my jobs.db", "my jobs.db"),
    ],
)
def test_three_slashes_are_relative_and_four_absolute(url: str, path: str) -> None:
    found = parse_url(url)
    assert (found.kind, found.path, found.memory) == ("sqlite", path, False)


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite://:memory:"])
def test_memory_has_no_path(url: str) -> None:
    found = parse_url(url)
    assert (found.kind, found.path, found.memory, found.masked()) == (
        "sqlite",
        None,
        True,
        "sqlite:///:memory:",
    )


@pytest.mark.parametrize(
    "rest",
    [
        "//",
        "//localhost/jobs",
        "//bob:secret@db.example:5433/jobs?sslmode=require",
        "///jobs?host=/run/postgresql",
        "//[::1]:5432/jobs",
        "//one:5432,two:5433/jobs?target_session_attrs=read-write",
    ],
)
@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_both_names_of_postgresql_give_the_same_address(scheme: str, rest: str) -> None:
    found = parse_url(f"{scheme}:{rest}")
    assert (found.kind, found.path, found.memory, found.conninfo) == (
        "postgres",
        None,
        False,
        f"postgresql:{rest}",
    )


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("mysql://root@db/jobs", "expected a sqlite or postgresql URL"),
        ("sqlite:jobs.db", "write sqlite:///jobs.db"),
        ("sqlite:/jobs.db", "write sqlite:///jobs.db"),
        ("sqlite://jobs.db", "write sqlite:///jobs.db"),
        ("sqlite://", "write sqlite:///jobs.db"),
        ("sqlite:///", "expected the path of a file"),
        ("sqlite:///data/", "expected the path of a file"),
        ("sqlite:///jobs.db?mode=ro", "take no options"),
        ("sqlite:///jobs\0.db", "without blanks or NUL"),
        ("postgresql://db/my jobs", "without blanks or NUL"),
        ("postgresql:jobs", "expected postgresql://"),
        ("postgresql://db:70000/jobs", "a port from 1 to 65535"),
        ("postgresql://bob:p@ss@db/jobs", "write %40"),
        ("postgresql+psycopg://db/jobs", "drop '+psycopg'"),
        ("jobs.db", "expected a database URL"),
        ("host=db user=bob", "expected a database URL"),
        ("", "expected a database URL"),
        (None, "expected a database URL"),
    ],
)
def test_other_addresses_are_refused_with_advice(url: str, advice: str) -> None:
    with pytest.raises(ValueError, match="expected") as refused:
        parse_url(url)
    assert advice in str(refused.value)


def test_passwords_are_masked_in_login_and_options() -> None:
    found = parse_url("postgresql://bob:hunter2@db/jobs?password=hunter2&sslmode=require&sslpassword=hunter2")
    assert found.masked() == "postgresql://bob:***@db/jobs?password=***&sslmode=require&sslpassword=***"
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://bob:hunter2@db/jobs",
        "postgresql://bob:hun@hunter2@db/jobs",
        "postgresql://bob:hunter2",
        "postgresql://bob:hunter2/jobs",
        "postgresql://bob:hunter2@db:port/jobs",
        "mysql://bob:hunter2@db/jobs",
        "postgresql+psycopg://bob:hunter2@db/jobs",
        "host=db password=hunter2",
        "host=db password='hunter2 x'",
        "host=db PASSWORD = hunter2",
    ],
)
def test_no_refusal_shows_a_password(text: str) -> None:
    try:
        shown = repr(parse_url(text))
    except ValueError as refused:
        shown = str(refused)
    assert "hunter2" not in shown


@given(
    st.text(
        alphabet=st.characters(blacklist_characters="/?#@ ", blacklist_categories=["Cs", "Z", "C"]),
        min_size=1,
    )
)
def test_no_password_survives_masking(password: str) -> None:
    hidden = f"<{password}>"
    assert hidden not in mask_secrets(f"postgresql://bob:{hidden}@db/jobs?password={hidden.replace('&', '')}")
