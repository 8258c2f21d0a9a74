"""The ceilings of one worker process, as its command line or `run_worker` gives them."""

from dataclasses import dataclass

MOST_SLOTS = 100_000


@dataclass(frozen=True, slots=True)
class PumpOptions:
    """The ceilings of one worker process. 0 means: as many as there are slots."""

    concurrency: int = 10
    max_claim_batch: int = 0
    shutdown_timeout_s: float = 30.0
    until_empty: bool = False
    coalesce_notifies: int = 100
    prefetch: int = 0
    max_claim: int = 0
    max_jobs: int = 0
    is_supervised: bool = False
