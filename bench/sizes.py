"""How much each benchmark does: in full, quickly, or just enough to see that it works. Values only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of one run."""

    bulk_jobs: int
    bulk_rounds: int
    single_jobs: int
    single_rounds: int
    claim_rounds: int
    few_ready: int
    many_ready: int
    groups: int
    blocked: int
    finished: int
    upkeep_rounds: int
    snapshot_jobs: int
    drain_jobs: int
    drain_processes: tuple[int, ...]
    flow_jobs: int
    flow_rounds: int
    pickup_jobs: int
    workflow_steps: int
    fan_in: int
    workflow_rounds: int
    delay_jobs: int
    burst_jobs: int
    peer_seconds: float
    peer_jobs: int | None
    """Jobs of a peer's bulk enqueue and drain; None leaves it to the harness."""
    peer_pickups: int
    """Jobs of each queue when their pickup is measured side by side."""


FULL = Sizes(
    bulk_jobs=10_000, bulk_rounds=9, single_jobs=200, single_rounds=10,
    claim_rounds=100, few_ready=1_000, many_ready=1_000_000, groups=1_000, blocked=100_000, finished=1_000_000,
    upkeep_rounds=15, snapshot_jobs=200_000,
    drain_jobs=100_000, drain_processes=(1, 2), flow_jobs=40_000, flow_rounds=5, pickup_jobs=200,
    delay_jobs=200, burst_jobs=5_000,
    workflow_steps=20_000, fan_in=10_000, workflow_rounds=5, peer_seconds=4.0, peer_jobs=None, peer_pickups=400,
)  # fmt: skip
QUICK = Sizes(
    bulk_jobs=10_000, bulk_rounds=3, single_jobs=100, single_rounds=4,
    claim_rounds=30, few_ready=1_000, many_ready=100_000, groups=1_000, blocked=10_000, finished=100_000,
    upkeep_rounds=9, snapshot_jobs=40_000,
    drain_jobs=10_000, drain_processes=(1, 2), flow_jobs=10_000, flow_rounds=3, pickup_jobs=40,
    delay_jobs=100, burst_jobs=5_000,
    workflow_steps=5_000, fan_in=5_000, workflow_rounds=3, peer_seconds=1.0, peer_jobs=5_000, peer_pickups=60,
)  # fmt: skip
SMOKE = Sizes(
    bulk_jobs=200, bulk_rounds=1, single_jobs=5, single_rounds=1,
    claim_rounds=2, few_ready=500, many_ready=2_000, groups=10, blocked=100, finished=100,
    upkeep_rounds=1, snapshot_jobs=1_000,
    drain_jobs=200, drain_processes=(1,), flow_jobs=200, flow_rounds=1, pickup_jobs=3, delay_jobs=3, burst_jobs=20,
    workflow_steps=50, fan_in=50, workflow_rounds=1, peer_seconds=0.2, peer_jobs=100, peer_pickups=3,
)  # fmt: skip
