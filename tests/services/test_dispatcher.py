"""The dispatcher: due and arrived jobs become ready, overdue ones end, forgotten claims are freed; and it looks first."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from evenflow.clock import wall_us
from evenflow.services import dispatcher as dispatcher_module
from evenflow.services.dispatcher import LOOK_EVERY_S, Dispatcher
from evenflow.settings import Retention
from evenflow.store import gates
from evenflow.store.engine import drive
from evenflow.store.enqueue import enqueue_steps
from evenflow.store.open import AnyEngine
from tests.store.scene import ALICE, SECOND, Scene, execute, new_job

HOUR = 3600 * SECOND


class Post:
    """A dispatcher over a store whose clock is the real one, and the units that it runs."""

    def __init__(self, engine: AnyEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scene = Scene(engine)
        self.scene.now = wall_us()
        self.units: Counter[str] = Counter()
        self.dispatcher = Dispatcher(engine, Retention())
        run = engine.run

        def counted(name: str, parameters: Any, **options: Any) -> Any:
            self.units[name] += 1
            return run(name, parameters, **options)

        monkeypatch.setattr(engine, "run", counted)

    def enqueue(self, *, arriving: bool = False, **fields: Any) -> int:
        steps = enqueue_steps([new_job(**fields)], self.scene.ids, arriving=arriving)
        return drive(self.scene.engine, steps)[0].id

    def state(self, job: int) -> str:
        return self.scene.states()[job]


@pytest.fixture
def post(store: AnyEngine, monkeypatch: pytest.MonkeyPatch) -> Post:
    return Post(store, monkeypatch)


def test_a_scheduled_job_is_ready_when_its_time_has_come_and_not_before(post: Post) -> None:
    job = post.enqueue(run_at=wall_us() + HOUR)
    post.dispatcher.step()
    assert post.state(job) == "scheduled"
    execute(post.scene.engine, f"update evenflow_job set run_at = {wall_us() - SECOND}")
    post.dispatcher.step()
    assert post.state(job) == "ready"


def test_jobs_of_a_task_that_is_open_again_are_released_batch_after_batch(post: Post) -> None:
    """The first batch by whoever opened it, so that nobody waits for all of them, and the rest without a rest between."""
    engine, many = post.scene.engine, 2 * gates.BATCH + 100
    post.dispatcher.step()  # the sweep that would find them as well is not due again for seconds
    post.scene.enqueue(*[new_job(task="charge") for _ in range(many)])
    gates.pause_task(engine, "charge")
    assert gates.set_aside(engine, ["default"], top=many)[0] == many
    gates.resume_task(engine, "charge")
    assert Counter(post.scene.states().values()) == {"scheduled": gates.BATCH, "blocked": many - gates.BATCH}
    for _ in range(4):
        post.dispatcher.step()
    assert Counter(post.scene.states().values()) == {"ready": many}


def test_an_arrival_is_admitted(post: Post) -> None:
    job = post.enqueue(arriving=True)
    assert post.state(job) == "arriving"
    post.dispatcher.step()
    assert post.state(job) == "ready"


def test_it_asks_to_be_called_when_the_next_job_is_due(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher_module, "LOOK_EVERY_S", 3600.0)
    monkeypatch.setattr(dispatcher_module, "TIDY_EVERY_S", 3600.0)
    post.dispatcher = Dispatcher(post.scene.engine, Retention(), maintenance_s=3600.0)
    post.dispatcher.step()
    post.enqueue(run_at=wall_us() + 600 * SECOND)
    assert 0.0 < post.dispatcher.step() <= 600.0


def test_it_looks_by_itself_after_a_while_at_the_latest(post: Post) -> None:
    post.enqueue(run_at=wall_us() + HOUR)
    assert 0.0 < post.dispatcher.step() <= LOOK_EVERY_S


def test_it_comes_back_at_once_while_there_is_more_to_admit(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher_module, "BATCH", 2)
    jobs = [post.enqueue(arriving=True) for _ in range(5)]
    steps = 1
    while post.dispatcher.step() == 0.0:
        steps += 1
        assert steps < 10
    assert {post.state(job) for job in jobs} == {"ready"}


def test_jobs_past_their_time_end_as_expired(post: Post) -> None:
    late, fine = post.enqueue(good_until=wall_us() - SECOND), post.enqueue(good_until=wall_us() + HOUR)
    post.dispatcher.step()
    assert (post.state(late), post.state(fine)) == ("expired", "ready")


def test_claims_whose_lease_ran_out_are_free_again(post: Post) -> None:
    job = post.enqueue()
    post.scene.claim(1, worker=ALICE, lease_us=1)
    assert post.state(job) == "claimed"
    post.dispatcher.step()
    assert post.state(job) == "ready"


def test_it_writes_nothing_while_there_is_nothing_to_do(post: Post) -> None:
    post.dispatcher.step()
    post.units.clear()
    for _ in range(50):  # as on SQLite, where every commit wakes it
        post.dispatcher.step()
    assert "admit" not in post.units
    assert post.units["expire"] <= 1


def test_two_dispatchers_admit_a_job_once(post: Post) -> None:
    other = Dispatcher(post.scene.engine, Retention())
    jobs = [post.enqueue(arriving=True) for _ in range(20)]
    post.dispatcher.step()
    other.step()
    assert len(post.scene.claim(100)) == len(jobs)


def test_limits_are_swept_as_often_as_the_settings_say(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1-39"""
    clock = [1000.0]
    monkeypatch.setattr(dispatcher_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    dispatcher = Dispatcher(post.scene.engine, Retention(), 30.0)
    for seconds, sweeps in [(0.0, 1), (29.0, 1), (2.0, 2), (20.0, 2), (10.0, 3)]:
        clock[0] += seconds
        dispatcher.step()
        assert post.units["sweep_held"] == sweeps
