"""The tally: what this process has run, counted in memory per queue and task until the pump reports it.

The hot path appends to lists; sorting them into histograms is done a few times a second by the pump's thread, alone.
"""

from typing import TypeVar

from evenflow.job import Claimed, End
from evenflow.rules import histogram
from evenflow.store.statistics import OTHER, Statistic

# So many pairs of queue and task are told apart by one process; those that come later are counted together.
MOST_CELLS = 200
T = TypeVar("T")
_MEASURED = frozenset({"failed", "retried", "crashed"})


class Cell:
    """One task in one queue. Any thread may append; only the pump's takes away."""

    __slots__ = ("counted", "ends", "runs", "waits")

    def __init__(self, queue: str, task: str) -> None:
        self.counted = Statistic(queue, task)
        self.waits: list[int] = []
        """Microseconds from when a job was due to its start; one per start."""
        self.runs: list[float] = []
        """Seconds that a body took; one per success."""
        self.ends: list[tuple[End, float]] = []
        """All other ends, with the seconds that the body took."""

    def fold(self) -> None:
        """Turn what has gathered into counts."""
        if self.waits:
            waits = _taken(self.waits)
            self.counted.started += len(waits)
            self.counted.wait_us += sum(waits)
            waits.sort()
            counts = histogram.count_sorted(waits, histogram.BOUNDS_US)
            self.counted.waits = histogram.added(self.counted.waits, counts)
        if self.runs:
            runs = _taken(self.runs)
            self.counted.succeeded += len(runs)
            self._fold_runs(runs)
        if self.ends:
            self._fold_ends(_taken(self.ends))

    def _fold_ends(self, ends: list[tuple[End, float]]) -> None:
        for end, _ in ends:
            for kind in kinds(end):
                setattr(self.counted, kind, getattr(self.counted, kind) + 1)
        self._fold_runs([ran_s for end, ran_s in ends if not _MEASURED.isdisjoint(kinds(end))])

    def _fold_runs(self, runs: list[float]) -> None:
        self.counted.run_us += round(sum(runs) * 1_000_000)
        runs.sort()
        counts = histogram.count_sorted(runs, histogram.BOUNDS_S)
        self.counted.runs = histogram.added(self.counted.runs, counts)


class Tally:
    """The cells of one process."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, str], Cell] = {}

    def cell(self, job: Claimed) -> Cell:
        """The cell that counts this job. Makes one: for the pump's thread, which starts every job first."""
        own = (job.queue, job.task)
        return self._cells.get(own) or self._made(own)

    def _made(self, own: tuple[str, str]) -> Cell:
        of_queue, last = (own[0], OTHER), (OTHER, OTHER)
        for key in (own, of_queue):
            if key in self._cells:
                return self._cells[key]
            if len(self._cells) < MOST_CELLS:
                return self._cells.setdefault(key, Cell(*key))
        return self._cells.setdefault(last, Cell(*last))

    def fold(self) -> None:
        """Turn what has gathered into counts. For the pump's thread."""
        for cell in list(self._cells.values()):
            cell.fold()

    def counted(self) -> list[Statistic]:
        """What was counted and not yet reported."""
        self.fold()
        found = [cell.counted for cell in self._cells.values()]
        return [counted for counted in found if counted != Statistic(counted.queue, counted.task)]

    def forget_reported(self) -> None:
        """What `counted` gave was stored."""
        for cell in self._cells.values():
            cell.counted = Statistic(cell.counted.queue, cell.counted.task)


def kinds(end: End) -> tuple[str, ...]:
    """What an end counts as: nothing where the job goes back as if it had not run, two things where a crash is its last."""
    if end.state not in ("ready", "scheduled", "waiting"):
        return ("crashed", end.state) if end.crashed else (end.state,)
    if end.crashed:
        return ("crashed",)
    return () if end.error is None else ("retried",)


def _taken(gathered: list[T]) -> list[T]:
    """What a list holds now, taken out of it: others may append meanwhile, and nothing is lost."""
    count = len(gathered)
    taken = gathered[:count]
    del gathered[:count]
    return taken
