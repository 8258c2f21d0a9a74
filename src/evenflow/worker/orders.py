"""What a supervisor tells its children: plain data that travels through a pipe, never through arguments or environment."""

import msgspec


class Orders(msgspec.Struct, frozen=True):
    """The first line on a child's standard input. The pipe then stays open: its end means that the parent is gone."""

    locator: str
    path: list[str]
    queues: list[str]
    parent: int
    concurrency: int
    max_claim_batch: int
    max_claim: int
    prefetch: int
    shutdown_timeout_s: float
    coalesce_notifies: int
    max_jobs: int
    max_memory_mb: int
    max_age_s: float
    loglevel: str
    log_format: str = ""


EXIT_OK = 0
EXIT_FAILED = 1
EXIT_REFUSED = 64  # the app cannot be loaded, or its configuration is wrong: starting again cannot help
EXIT_REPLACE = 75  # this process should be replaced: lost lease, stuck thread, recycling
EXIT_GONE = 76  # the supervisor has died
EXIT_GAVE_UP = 77  # the database was away for longer than the settings allow
