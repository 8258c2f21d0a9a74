"""A worker's pump without bodies: claims and finishes in the same rounds, with the same moving bounds."""

import os
import time

from evenflow.job import Claimed, End
from evenflow.store import leases
from evenflow.store.advance import Claim, Flight, advance
from evenflow.store.open import AnyEngine
from evenflow.worker.claims import V_EVERY_S
from evenflow.worker.flights import Flights
from evenflow.worker.local import new_worker_id
from evenflow.worker.serving import Bounds, QueueList, Serving

DAY_US = 86_400_000_000


class Claimer:
    """Takes `top` jobs of one queue per round. `keeps_bounds=False` looks from the beginning each time."""

    def __init__(self, engine: AnyEngine, queue: str, top: int, *, keeps_bounds: bool = True) -> None:
        self._engine = engine
        self._serving = Serving(QueueList.parse([queue]))
        self._top = top
        self._bounds = Bounds()
        self._flights = Flights()
        self._keeps_bounds = keeps_bounds
        self._moved_v_at = 0.0
        self.worker = new_worker_id()
        leases.register(
            engine, self.worker, kind="worker", host="bench", pid=os.getpid(), lease_us=10_000_000
        )

    def request(self) -> Claim:
        """What the next round asks for."""
        bounds = self._bounds.current() if self._keeps_bounds else []
        moves_v = time.monotonic() - self._moved_v_at >= V_EVERY_S
        return Claim(self._serving.wants(self._top), self._top, bounds, moves_v=moves_v)

    def round(self, finished: list[Claimed]) -> list[Claimed]:
        """Finish these, claim more: one transaction, as in `evenflow.worker.pump`."""
        claim, asked_at = self.request(), time.monotonic()
        flight = Flight(self._flights.next(), self._flights.take_landed())
        answer = advance(
            self._engine, self.worker, [succeeded(job) for job in finished], claim, flight=flight
        )
        self._flights.forget([job.id for job in finished])
        self._flights.note(flight.number, [job.id for job in answer.claimed])
        if answer.lost:
            raise AssertionError(
                f"{len(answer.lost)} finished jobs were refused: the benchmark is not alone here"
            )
        self._bounds.note(answer.claimed, answer.rounds, time.monotonic() - asked_at)
        if claim.moves_v and answer.claimed:
            self._moved_v_at = time.monotonic()
        return answer.claimed


def succeeded(job: Claimed) -> End:
    """The end of a body that returned None."""
    return End(job.id, job.epoch, "succeeded", DAY_US, result="null")
