"""Benchmark of the claim: what a hundred jobs cost in an almost empty store, and in one with a past and a backlog."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.claimer import Claimer
from bench.plans import Walk, postgres_walk, sqlite_walk
from bench.report import Cell, Report
from bench.seed import QUEUE, Seeder
from bench.sizes import Sizes
from bench.stores import ENGINES, Stores, settle
from bench.timing import Samples
from evenflow.store.open import AnyEngine
from evenflow.store.sqlite import SqliteEngine

BATCH = 100
WARM_UP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """How full a store is."""

    groups: int
    ready: int
    blocked: int = 0
    finished: int = 0


@dataclass(slots=True)
class Scale:
    """One store, its name in the report, and its measurements."""

    name: str
    engine: AnyEngine
    seeder: Seeder
    claimer: Claimer
    samples: Samples = field(default_factory=Samples)

    def claim(self, samples: Samples) -> None:
        """Claim a batch, then put as many new jobs behind the backlog: the store stays as full as it was."""
        claimed = []
        samples.add(lambda: claimed.extend(self.claimer.round([])))
        if len(claimed) != BATCH:
            raise AssertionError(f"{self.name}: expected {BATCH} jobs per claim, got {len(claimed)}")
        self.seeder.remove([job.id for job in claimed])
        self.seeder.add(BATCH)


def claim(stores: Stores, sizes: Sizes) -> Report:
    """The same claim in a small and in a large store, in turns. Commits do not wait for the disk: only the work counts."""
    rows: list[tuple[Cell, ...]] = []
    plans: dict[str, None] = {}  # each plan once: the same line for both stores is what one hopes for
    notes = [
        f"small store: {sizes.few_ready:,} ready jobs; large store: {sizes.many_ready:,} ready jobs in {sizes.groups:,} groups",
        f"in the large store also {sizes.blocked:,} blocked and {sizes.finished:,} finished jobs",
        f"{BATCH} jobs per claim, median of {sizes.claim_rounds}",
    ]
    for kind, engine in ENGINES.items():
        with small(stores, kind, sizes) as few, large(stores, kind, sizes) as many:
            claim_in_turns([few, many], sizes.claim_rounds)
            for scale in (few, many):
                walk = walk_of(scale)
                rows.append(
                    (engine, scale.name, scale.samples.median_s / few.samples.median_s, walk.rows, walk.buffers,
                     walk.all_buffers, scale.samples.median_s * 1000)
                )  # fmt: skip
                plans |= dict.fromkeys(f"{engine}: {line}" for line in walk.plan)
    columns = {
        "engine": "", "store": "", "time ÷ small": ".2f", "index entries read": ",.0f", "pages of the walk": ",.0f",
        "pages in all": ",.0f", "ms per claim": ".2f",
    }  # fmt: skip
    return Report("claim", "Claim of 100 jobs", columns, rows, [*notes, *plans])


def claim_in_turns(scales: Sequence[Scale], rounds: int) -> None:
    """Measure a claim in each store so many times, after some that do not count. What disturbs one disturbs all."""
    for number in range(WARM_UP + rounds):
        for scale in scales:
            scale.claim(Samples() if number < WARM_UP else scale.samples)


def small(stores: Stores, kind: str, sizes: Sizes) -> contextlib.AbstractContextManager[Scale]:
    """A few ready jobs and nothing else."""
    return filled(stores, kind, "small", Fill(groups=sizes.groups, ready=sizes.few_ready))


def large(stores: Stores, kind: str, sizes: Sizes) -> contextlib.AbstractContextManager[Scale]:
    """A long backlog, many blocked jobs, and a history."""
    fill = Fill(groups=sizes.groups, ready=sizes.many_ready, blocked=sizes.blocked, finished=sizes.finished)
    return filled(stores, kind, "large", fill)


@contextlib.contextmanager
def filled(stores: Stores, kind: str, name: str, fill: Fill) -> Iterator[Scale]:
    """A new store with so much in it. What is blocked came before what is ready."""
    with stores.engine(kind, flushes=False) as engine:
        seeder = Seeder(engine, fill.groups)
        seeder.add_finished(fill.finished)
        if fill.blocked:  # keys would come with them
            seeder.add_blocked(fill.blocked)
        seeder.add(fill.ready)
        settle(engine)
        yield Scale(name, engine, seeder, Claimer(engine, QUEUE, BATCH))


def walk_of(scale: Scale) -> Walk:
    """How the database finds the next batch, by its own account."""
    if isinstance(scale.engine, SqliteEngine):
        return sqlite_walk(scale.engine)
    return postgres_walk(scale.engine, scale.claimer)
