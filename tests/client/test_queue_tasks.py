"""Tasks of a queue: what a queue does not take is refused, and never runs where somebody has stored it all the same."""

import pytest

from evenflow import ConfigError, EnqueueError, Evenflow, JobFailed, Queue, State
from tests.client.conftest import MakeApp
from tests.client.test_signed_jobs import Shop, change

BOUND = [Queue("shop", tasks=["pay"]), Queue("other")]


def test_a_task_that_the_queue_does_not_take_is_refused(make_app: MakeApp, sqlite_url: str) -> None:
    shop = Shop(make_app(sqlite_url, queues=BOUND))
    shop.pay.enqueue(1)
    with pytest.raises(EnqueueError, match="task 'refund' may not run in queue 'shop'"):
        shop.refund.enqueue(2)
    with pytest.raises(EnqueueError, match="add it to tasks= of that queue"):
        shop.refund.enqueue_many([(3,), (4,)])
    shop.refund.using(queue="other").enqueue(5)
    shop.run()
    assert sorted(shop.ran) == [("pay", 1), ("refund", 5)]


@pytest.mark.parametrize(("column", "value"), [("task", "refund"), ("queue", "shop")])
def test_a_stored_job_of_a_task_that_the_queue_does_not_take_never_runs(
    make_app: MakeApp, engine_url: str, column: str, value: str
) -> None:
    """S3-52: whether its task was changed, or its queue."""
    shop = Shop(make_app(engine_url, queues=BOUND))
    job = shop.pay.enqueue(5) if column == "task" else shop.refund.using(queue="other").enqueue(5)
    change(engine_url, column, value)
    good = shop.pay.enqueue(6)
    shop.run()
    assert shop.ran == [("pay", 6)]
    assert good.result(timeout=0) == 6
    with pytest.raises(JobFailed, match="may not run in queue 'shop'") as failed:
        job.result(timeout=0)
    assert failed.value.job.state is State.QUARANTINED
    assert failed.value.error.code == "WORKER_RESOLUTION_ERROR"


@pytest.mark.parametrize("tasks", ["pay", [], [1], [""], 5])
def test_what_is_no_list_of_names_is_a_mistake(tasks: object) -> None:
    with pytest.raises(ConfigError, match="queue 'shop': tasks: expected a list of names"):
        Evenflow("sqlite:///:memory:", queues=[Queue("shop", tasks=tasks)])  # type: ignore[arg-type]
