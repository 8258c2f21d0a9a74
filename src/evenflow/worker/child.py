"""A worker process: `python -m evenflow.worker.child`, started by the supervisor, which tells it on standard input what to do."""

import logging
import os
import resource
import sys
import threading
import time

import msgspec

from evenflow.client.app import Client
from evenflow.errors import EvenflowError
from evenflow.store.open import open_engine
from evenflow.worker.loading import load_object
from evenflow.worker.local import LocalWorker
from evenflow.worker.logs import configure_logging
from evenflow.worker.orders import EXIT_FAILED, EXIT_GONE, EXIT_OK, EXIT_REFUSED, EXIT_REPLACE, Orders
from evenflow.worker.pump import PumpOptions, Stop
from evenflow.worker.serving import QueueList

log = logging.getLogger("evenflow.worker")

_WATCH_S = 1.0


def main() -> int:
    """Read the orders, load the app, serve until told to stop; the exit code says why it ended."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    configure_logging(orders.loglevel)
    try:
        app = load_object(orders.locator, Client, paths=orders.path)
        app.prepare()
        worker = _worker(app, orders)
    except EvenflowError as error:
        log.error("%s", error)
        return EXIT_REFUSED
    ending = _Ending(worker)
    threading.Thread(target=ending.watch_parent, name="evenflow-lifeline", daemon=True).start()
    threading.Thread(target=ending.watch_age, args=(orders,), name="evenflow-recycling", daemon=True).start()
    try:
        app.hooks.worker_start()
        worker.run()
        app.hooks.worker_stop()
    except Exception:
        log.exception("the worker ended with an error")
        return EXIT_FAILED
    if worker.has_lost_lease or worker.pump.needs_replacing:
        return EXIT_REPLACE
    return ending.code


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
    engine = open_engine(app.settings.database, app.settings.schema, pool_size=1)
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
    )


class _Ending:
    """Why this process ends, other than by a signal."""

    def __init__(self, worker: LocalWorker) -> None:
        self._worker = worker
        self.code = EXIT_OK

    def watch_parent(self) -> None:
        """The pipe to the supervisor ends when the supervisor does. Then nobody would restart or stop us: leave."""
        while os.read(sys.stdin.fileno(), 4096):
            pass
        self.code = EXIT_GONE
        log.error("the supervisor is gone: running jobs go back to the queue")
        self._worker.stop(Stop.AT_ONCE)

    def watch_age(self, orders: Orders) -> None:
        """Recycling: a process that has grown too old or too large stops gracefully and is replaced."""
        started = time.monotonic()
        while orders.max_memory_mb or orders.max_age_s:
            time.sleep(_WATCH_S)
            memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            is_old = orders.max_age_s and time.monotonic() - started > orders.max_age_s
            if is_old or (orders.max_memory_mb and memory_mb > orders.max_memory_mb):
                log.info(
                    "this process is replaced: %s", "its age" if is_old else f"its memory, {memory_mb} MB"
                )
                self.code = EXIT_REPLACE
                self._worker.stop(Stop.GRACEFUL)
                return


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    # Threads of bodies that never end must not keep the process: everything is written or given back.
    os._exit(code)
