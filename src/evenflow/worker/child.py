"""A worker process: `python -m evenflow.worker.child`, started by the supervisor, which tells it on standard input what to do."""

import gc
import logging
import os
import random
import resource
import sys
import threading
import time
from pathlib import Path

import msgspec

from evenflow.client.app import Client
from evenflow.errors import EvenflowError
from evenflow.store.open import open_engine
from evenflow.worker.loading import load_object
from evenflow.worker.local import LocalWorker
from evenflow.worker.logs import configure_logging, name_worker
from evenflow.worker.options import PumpOptions
from evenflow.worker.orders import (
    EXIT_FAILED,
    EXIT_GAVE_UP,
    EXIT_GONE,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_REPLACE,
    Orders,
)
from evenflow.worker.outage import WorkerGaveUp
from evenflow.worker.patience import when_available
from evenflow.worker.serving import QueueList
from evenflow.worker.stopping import Stop
from evenflow.worker.turns import take_short_turns

log = logging.getLogger("evenflow.worker")

GONE_WITHIN_S = 5.0
HUNG_S = 60.0
HUNG_POLLS = 20
_WATCH_S = 1.0
USUAL_GARBAGE = gc.get_threshold()
MOST_GARBAGE = 10_000
_STATM = Path("/proc/self/statm")


def main() -> int:
    """Read the orders, load the app, serve until told to stop; the exit code says why it ended."""
    lifeline = _lifeline()
    orders = msgspec.json.decode(_line(lifeline), type=Orders)
    configure_logging(orders.loglevel, orders.log_format)
    ending = _Ending()
    watching = threading.Thread(
        target=ending.watch_parent, args=(lifeline,), name="evenflow-lifeline", daemon=True
    )
    watching.start()
    try:
        app = load_object(orders.locator, Client, paths=orders.path)
        when_available(app.prepare, app.settings.resilience)
        worker = _worker(app, orders)
        name_worker(worker.id)
    except WorkerGaveUp as gave_up:
        log.error("%s", gave_up)
        return EXIT_GAVE_UP
    except EvenflowError as error:
        log.error("%s", error)
        return EXIT_REFUSED
    _spare_the_collector()
    take_short_turns()
    ending.begin(worker, orders, app.settings.resilience.notify_poll_interval_ms / 1000)
    try:
        worker.run()
    except WorkerGaveUp as gave_up:
        log.error("%s", gave_up)
        return EXIT_GAVE_UP
    except Exception:
        log.exception("the worker ended with an error")
        return EXIT_FAILED
    if worker.has_lost_lease or worker.pump.needs_replacing:
        return EXIT_REPLACE
    return ending.code


def _spare_the_collector() -> None:
    """What was loaded stays: the garbage collector need not look through it again and again. And it comes less often: with
    every job a few objects come and go, and a fifth of a busy worker's time went into looking for circles among them."""
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == USUAL_GARBAGE:  # else the app has said what it wants
        gc.set_threshold(MOST_GARBAGE, *USUAL_GARBAGE[1:])


def _lifeline() -> int:
    """The pipe to the supervisor, moved away from standard input. Bodies, and programs that they start, find an empty one
    there: they would wait for ever for what the supervisor says next."""
    lifeline = os.dup(sys.stdin.fileno())
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    return lifeline


def _line(descriptor: int) -> bytes:
    with open(descriptor, "rb", buffering=0, closefd=False) as stream:
        return stream.readline()


def _worker(app: Client, orders: Orders) -> LocalWorker:
    options = PumpOptions(
        concurrency=orders.concurrency,
        max_claim_batch=orders.max_claim_batch,
        max_claim=orders.max_claim,
        prefetch=orders.prefetch,
        shutdown_timeout_s=orders.shutdown_timeout_s,
        coalesce_notifies=orders.coalesce_notifies,
        max_jobs=orders.max_jobs,
        is_supervised=True,
    )
    engine = open_engine(app.settings.database, app.settings.schema, pool_size=2)
    queues = QueueList.parse(orders.queues)
    return LocalWorker(
        app.tasks,
        app.settings,
        engine,
        queues,
        options,
        parent=orders.parent,
        hooks=app.hooks,
        locator=orders.locator,
        conditions=app.conditions,
        journal=app.journal,
    )


class _Ending:
    """Why this process ends, other than by a signal."""

    def __init__(self) -> None:
        self._worker: LocalWorker | None = None
        self.code = EXIT_OK

    def begin(self, worker: LocalWorker, orders: Orders, poll_s: float) -> None:
        """From now on there is a worker to stop, and to watch."""
        self._worker = worker
        hung_s = max(HUNG_S, HUNG_POLLS * poll_s)
        watch = threading.Thread(
            target=self._watch_worker, args=(worker, orders, hung_s), name="evenflow-watch", daemon=True
        )
        watch.start()
        if self.code == EXIT_GONE:
            worker.stop(Stop.AT_ONCE)

    def watch_parent(self, lifeline: int) -> None:
        """The pipe to the supervisor ends when the supervisor does. Then nobody would restart or stop us: leave."""
        while os.read(lifeline, 4096):
            pass
        self.code = EXIT_GONE
        log.error("the supervisor is gone: running jobs go back to the queue")
        if self._worker is not None:
            self._worker.stop(Stop.AT_ONCE)
        time.sleep(GONE_WITHIN_S)
        os._exit(EXIT_GONE)

    def _watch_worker(self, worker: LocalWorker, orders: Orders, hung_s: float) -> None:
        """Recycling, and a watchdog: a process that has grown too old or too large, or whose pump hangs, is replaced."""
        started = time.monotonic()
        # Processes that were started together must not be replaced together.
        max_age_s = orders.max_age_s * random.uniform(1.0, 1.1)
        while self.code == EXIT_OK:
            time.sleep(_WATCH_S)
            progressed_at = worker.pump.progressed_at
            hangs_s = 0.0 if progressed_at is None else time.monotonic() - progressed_at
            if hangs_s > hung_s and not worker.pump.is_done.is_set():
                log.critical("the pump has made no progress for %.0f s: this process is replaced", hangs_s)
                logging.shutdown()
                os._exit(EXIT_REPLACE)
            if max_age_s and time.monotonic() - started > max_age_s:
                self._recycle(worker, "its age")
            elif orders.max_memory_mb and (memory_mb := _memory_mb()) > orders.max_memory_mb:
                self._recycle(worker, f"its memory, {memory_mb} MB")

    def _recycle(self, worker: LocalWorker, why: str) -> None:
        if not worker.pump.needs_replacing:
            log.info("this process is replaced for %s", why)
            worker.pump.needs_replacing = True
            worker.stop(Stop.DRAIN)


def _memory_mb() -> int:
    """Resident now; the peak, where the system tells nothing else (and that may be inherited from the parent)."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return pages * resource.getpagesize() // 1024**2


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    # Threads of bodies that never end must not keep the process: everything is written or given back.
    os._exit(code)
