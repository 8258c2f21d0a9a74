"""Events of a worker, for metrics and alarms: small values that hooks receive; nothing is emitted where nobody listens."""

from collections.abc import Mapping

import msgspec


class Event(msgspec.Struct, frozen=True):
    """Something that happened in a worker process.

    Names and fields: `job.started` (job_id, task, queue, attempt, waited_s), `job.ended` (job_id, task, queue, attempt,
    state, ran_s; the state is `scheduled` or `ready` where the job goes back), `worker.started`, `worker.stopped` and
    `lease.lost` (worker), `breaker.opened` (breaker, failures), `breaker.half_open` (breaker, probe: the job that may run),
    `breaker.closed` (breaker), each in the process whose work has brought it about.

    >>> Event("worker.started", {"worker": "06w5"}).name
    'worker.started'
    """

    name: str
    fields: Mapping[str, object]
