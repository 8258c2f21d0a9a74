"""Runs the harness of peers as its own process: without Redis where there is none, and leaving no server behind.

Started by `bench.peers` with the harness on the path; its arguments are the harness's own.
"""

import importlib
import os
import subprocess
import sys
from typing import Any

REDIS = ("redis-cli", "redis-server")
# Our claims are sized by free slots, half of them at a time where rounds go ahead; peers fetch some hundreds of jobs ahead of theirs.
OWN, OWN_SLOTS = "evenflow-pg", 800
SLOTS_VARIABLE = "BENCH_CONCURRENCY"


def main() -> None:
    """Measure; then stop the servers that were not there before."""
    run: Any = importlib.import_module("run")
    cluster = os.path.join(run.PG_DATA, "postmaster.pid")
    redis = os.path.join(run.TMP, "redis", "pid")
    had_cluster, had_redis = os.path.exists(cluster), os.path.exists(redis)
    start = run.start_servers
    run.start_servers = lambda: start_what_can_be(start)
    drop_peers_on_redis(run.PEERS)
    give_own_slots(run.PEERS)
    try:
        run.main()
    finally:
        if os.path.exists(cluster) and not had_cluster:
            run.as_pg([f"{run.PG_BIN}/pg_ctl", "-D", run.PG_DATA, "-m", "fast", "-w", "stop"])
        if os.path.exists(redis) and not had_redis:
            subprocess.run(["redis-cli", "-p", run.REDIS_PORT, "shutdown", "nosave"], check=False)


def start_what_can_be(start: Any) -> None:
    """PostgreSQL comes first; a machine without Redis goes on without it."""
    try:
        start()
    except FileNotFoundError as missing:
        if missing.filename not in REDIS:
            raise


def drop_peers_on_redis(peers: dict[str, dict[str, Any]]) -> None:
    """Only queues that live in a database are compared."""
    place = sys.argv.index("--peer") + 1
    asked = sys.argv[place].split(",")
    if unknown := [name for name in asked if name not in peers]:
        raise SystemExit(f"the harness knows no {', '.join(unknown)}; it knows {', '.join(peers)}")
    kept = [name for name in asked if peers[name]["backend"] in ("pg", "sqlite")]
    for name in sorted(set(asked) - set(kept)):
        print(f"{name} needs Redis: left out", file=sys.stderr)
    sys.argv[place] = ",".join(kept)


def give_own_slots(peers: dict[str, dict[str, Any]]) -> None:
    """Each queue is measured with settings for no-op jobs; ours are these, unless the caller says how many slots all shall have."""
    if SLOTS_VARIABLE in os.environ:
        return
    for name, peer in peers.items():
        if name.startswith(OWN):
            peer["env"] = {**peer.get("env", {}), SLOTS_VARIABLE: str(OWN_SLOTS)}


if __name__ == "__main__":
    main()
