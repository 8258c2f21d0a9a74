"""The limits of a call: whoever waits for what few share stands in nobody else's way."""

from evenflow import Concurrency, Evenflow, Queue, Rate
from tests.client.conftest import MakeApp


def states(*jobs: object) -> list[str]:
    return [str(job.refresh().state) for job in jobs]  # type: ignore[attr-defined]


def test_a_rate_of_one_key_does_not_use_up_the_rate_of_the_task(app: Evenflow) -> None:
    @app.task(name="call", rate=[Rate("3/hour"), Rate("1/hour", key="account")])
    def call(account: str) -> None: ...

    call.enqueue_many([("bob",)] * 5)
    ann = call.enqueue("ann")
    assert states(ann) == ["ready"]


def test_a_key_does_not_use_up_the_places_of_its_scope(app: Evenflow) -> None:
    @app.task(name="sync", concurrency=[Concurrency(to=3), Concurrency(to=1, key="tenant")])
    def sync(tenant: str) -> None: ...

    sync.enqueue_many([("bob",)] * 5)
    assert states(sync.enqueue("ann"), sync.enqueue("eve"), sync.enqueue("tom")) == [
        "ready",
        "ready",
        "blocked",
    ]


def test_the_rate_of_a_task_does_not_use_up_that_of_its_queue_or_a_key_of_others(
    engine_url: str, make_app: MakeApp
) -> None:
    app = make_app(engine_url, queues=[Queue("mail", rate=Rate("3/hour"))])

    @app.task(name="rare", queue="mail", rate=Rate("1/hour"), concurrency=Concurrency(to=2, scope="smtp"))
    def rare() -> None: ...

    @app.task(name="often", queue="mail", concurrency=Concurrency(to=2, scope="smtp"))
    def often() -> None: ...

    rare.enqueue_many([()] * 5)
    assert states(often.enqueue()) == ["ready"]
