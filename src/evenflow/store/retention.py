"""How long ended jobs are kept, as the store counts it."""

from evenflow.job import FOREVER_US
from evenflow.settings import Retention


def kept_us(retention: Retention, outcome: str) -> int:
    """Microseconds until a job that ended this way may be forgotten; 0 leaves no row."""
    kept = retention.kept_us(outcome)
    return FOREVER_US if kept is None else kept
