"""Runs the harness of peers as its own process: without Redis where there is none, and leaving no server behind.

Started by `bench.peers` with the harness on the path; its arguments are the harness's own.
"""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

REDIS = ("redis-cli", "redis-server")
# Our claims are sized by free slots, half of them at a time where rounds go ahead; peers fetch some hundreds of jobs ahead of theirs.
OWN, OWN_SLOTS = "evenflow-pg", 800
SLOTS_VARIABLE = "BENCH_CONCURRENCY"
ENDINGS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """Measure what the arguments say."""
    with harness() as run:
        place = sys.argv.index("--peer") + 1
        sys.argv[place] = ",".join(on_databases(run.PEERS, sys.argv[place].split(",")))
        run.main()


@contextlib.contextmanager
def harness() -> Iterator[Any]:
    """The harness, with our own settings; servers that it starts are stopped at the end, also when we are told to end."""
    for number in ENDINGS:
        signal.signal(number, interrupt_once)
    run: Any = importlib.import_module("run")
    cluster = os.path.join(run.PG_DATA, "postmaster.pid")
    redis = os.path.join(run.TMP, "redis", "pid")
    had_cluster, had_redis = os.path.exists(cluster), os.path.exists(redis)
    start = run.start_servers
    run.start_servers = lambda: start_what_can_be(start)
    give_own_slots(run.PEERS)
    try:
        yield run
    finally:
        if os.path.exists(cluster) and not had_cluster:
            run.as_pg([f"{run.PG_BIN}/pg_ctl", "-D", run.PG_DATA, "-m", "fast", "-w", "stop"])
        if os.path.exists(redis) and not had_redis:
            subprocess.run(["redis-cli", "-p", run.REDIS_PORT, "shutdown", "nosave"], check=False)


def interrupt_once(*_: object) -> None:
    """Asked to end a second time, it is tidying up already."""
    for number in ENDINGS:
        signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def start_what_can_be(start: Any) -> None:
    """PostgreSQL comes first; a machine without Redis goes on without it."""
    try:
        start()
    except FileNotFoundError as missing:
        if missing.filename not in REDIS:
            raise


def on_databases(peers: dict[str, dict[str, Any]], asked: Sequence[str]) -> list[str]:
    """Those that live in a database: only they are compared."""
    if unknown := [name for name in asked if name not in peers]:
        raise SystemExit(f"the harness knows no {', '.join(unknown)}; it knows {', '.join(peers)}")
    kept = [name for name in asked if peers[name]["backend"] in ("pg", "sqlite")]
    for name in sorted(set(asked) - set(kept)):
        print(f"{name} needs Redis: left out", file=sys.stderr)
    return kept


def give_own_slots(peers: dict[str, dict[str, Any]]) -> None:
    """Each queue is measured with settings for no-op jobs; ours are these, unless the caller says how many slots all shall have."""
    if SLOTS_VARIABLE in os.environ:
        return
    for name, peer in peers.items():
        if name.startswith(OWN):
            peer["env"] = {**peer.get("env", {}), SLOTS_VARIABLE: str(OWN_SLOTS)}


if __name__ == "__main__":
    main()
