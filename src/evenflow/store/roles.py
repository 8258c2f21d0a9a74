"""PostgreSQL roles with the least rights that do: a producer calls one function, a worker writes rows, nobody but the
owner changes tables. Roles are groups without a login: `grant evenflow_worker to my_login`."""

import re
from collections.abc import Mapping, Sequence

from evenflow.errors import ConfigError
from evenflow.store.postgres import PostgresEngine, translated
from evenflow.store.statements import split_statements

ROLES = ("producer", "client", "worker", "viewer", "operator")
DEFAULT_PREFIX = "evenflow_"
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,40}")

# What each kind of program writes beside reading. A worker, and only a worker, has all of it.
_CLIENT = (
    "band", "group_tail", "limiter", "hold", "unique_mark", "spent",
    "run", "step", "edge", "breaker", "guard", "group_weight", "statistic",
)  # fmt: skip
# What a client's code says of its queues. A pause, and limits set at run time, are the operator's to write.
_DECLARED = "name, priority, fair, max_concurrency, max_ready, on_full"
# What a call says of its job, and where it stands in line. What a run leaves in the row (who has it, since when, its
# errors) is a worker's to write; a client that replaces an open job writes anew what the first call said.
_CALL = (
    "task", "payload", "signature", "headers", "options", "max_attempts", "good_until", "fails_on_crash", "queue", "priority",
    "group_key", "unique_key", "limits", "run_at", "state", "turn", "is_timed",
)  # fmt: skip
_CLIENT_JOB = {
    "insert": ("id", "created_at", "run_id", *_CALL),
    "update": (*_CALL, "attempt", "gated", "awaited"),
}
# Retries bring jobs back from history; cancellations are left for the worker; a paused run's claims are taken back.
_OPERATOR_JOB = {
    "insert": (*_CLIENT_JOB["insert"], "epoch", "errors"),
    "update": (*_CLIENT_JOB["update"], "cancel_at", "cancel_why", "worker", "lease_until"),
}
_OPERATOR = (
    *_CLIENT,
    "queue",
    "gate",
    "schedule",
    "fire",
    "step_end",
    "event",
    "respacing",
)
_READ_ONLY = ("migration", "published", "audit")


def role_script(schema: str = "evenflow", prefix: str = DEFAULT_PREFIX) -> str:
    """The roles and their rights as one SQL text. It may be run again: rights are taken away first, then given."""
    if not _PREFIX.fullmatch(prefix):
        raise ConfigError(
            f"prefix: expected small letters, digits and _ (as in {DEFAULT_PREFIX!r}), got {prefix!r}"
        )
    where, role = f'"{schema}"', {name: f'"{prefix}{name}"' for name in ROLES}
    everybody = ", ".join(role.values())
    parts = [
        *(_created(f"{prefix}{name}") for name in ROLES),
        f"revoke all on schema {where} from public",
        f"revoke all on all tables in schema {where} from public, {everybody}",
        f"revoke all on all sequences in schema {where} from public, {everybody}",
        f"revoke all on all functions in schema {where} from public, {everybody}",
        f"grant usage on schema {where} to {everybody}",
        f"grant execute on function {where}.enqueue to {role['producer']}",
        f"grant execute on function {where}.now_us to {role['client']}, {role['worker']}, {role['viewer']}, {role['operator']}",
        f"grant select on all tables in schema {where} to {role['client']}, {role['worker']}, {role['viewer']}, {role['operator']}",
        f"grant usage on all sequences in schema {where} to {role['client']}, {role['worker']}, {role['operator']}",
        *(_written(where, table, role["client"]) for table in _CLIENT),
        _written_in_part(where, _CLIENT_JOB, role["client"]),
        f"grant insert ({_DECLARED}), update ({_DECLARED}) on {where}.queue to {role['client']}",
        *(_written(where, table, role["operator"]) for table in _OPERATOR),
        _written_in_part(where, _OPERATOR_JOB, role["operator"]),
        f"grant insert, update (state), delete on {where}.history to {role['operator']}",
        f"grant insert on {where}.audit to {role['operator']}",  # to say what was done, never to change what is said
        f"grant insert, update, delete on all tables in schema {where} to {role['worker']}",
        *(f"revoke insert, update, delete on {where}.{table} from {role['worker']}" for table in _READ_ONLY),
    ]
    return "begin;\n\n" + "\n".join(f"{part};" for part in parts) + "\n\ncommit;\n"


def make_roles(engine: PostgresEngine, prefix: str = DEFAULT_PREFIX) -> list[str]:
    """Create the roles where they are missing, and set their rights; their names. Needs the right to create roles."""
    statements = split_statements(role_script(engine.schema, prefix))
    with translated(), engine.connect() as connection:
        for statement in statements[1:-1]:  # the connection's own block commits
            connection.execute(statement.encode())
    return [f"{prefix}{name}" for name in ROLES]


def _created(name: str) -> str:
    # Another session may create it at the same moment: then it is there, which is all we want.
    return f'do $$ begin create role "{name}" nologin; exception when duplicate_object or unique_violation then null; end $$'


def _written(schema: str, table: str, role: str) -> str:
    return f"grant insert, update, delete on {schema}.{table} to {role}"


def _written_in_part(schema: str, columns: Mapping[str, Sequence[str]], role: str) -> str:
    acts = ", ".join(f"{act} ({', '.join(names)})" for act, names in columns.items())
    return f"grant {acts}, delete on {schema}.job to {role}"
