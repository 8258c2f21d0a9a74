"""Events, logs and hooks of isolated processes, through a worker in this process."""

from datetime import UTC, datetime

from evenflow import Context, Evenflow, Event, Fail
from tests.processes import wait_until


def test_listeners_hear_of_starts_and_ends(engine_url: str) -> None:
    heard: list[Event] = []
    with Evenflow(engine_url) as app:
        app.hooks.on_event(heard.append)

        @app.task(name="good")
        def good() -> int:
            return 1

        @app.task(name="bad")
        async def bad() -> None:
            raise Fail("NO", "not today")

        good.enqueue()
        bad.enqueue()
        app.run_worker(until_empty=True)
    names = [event.name for event in heard]
    assert names[0] == "worker.started"
    assert names[-1] == "worker.stopped"
    ended = {event.fields["task"]: event.fields["state"] for event in heard if event.name == "job.ended"}
    assert ended == {"good": "succeeded", "bad": "failed"}
    started = [event for event in heard if event.name == "job.started"]
    assert all(
        isinstance(event.fields["waited_s"], float) and event.fields["waited_s"] >= 0 for event in started
    )


def test_a_listener_that_fails_changes_nothing(engine_url: str) -> None:
    with Evenflow(engine_url) as app:

        @app.hooks.on_event
        def broken(event: Event) -> None:
            raise RuntimeError(event.name)

        @app.task(name="good")
        def good() -> int:
            return 1

        job = good.enqueue()
        app.run_worker(until_empty=True)
        assert job.result(timeout=0) == 1


def test_what_a_body_logs_is_kept_with_its_job(engine_url: str) -> None:
    with Evenflow(engine_url) as app:

        @app.task(name="talk")
        def talk(ctx: Context) -> None:
            ctx.log.info("read %d rows", 3)
            ctx.log.debug("not kept")
            ctx.log.warning("a NUL \0 is no reason to lose a line")

        job = talk.enqueue()
        app.run_worker(until_empty=True)
        lines = [(each.attempt, each.level, each.line) for each in job.logs()]
    assert lines == [(1, "INFO", "read 3 rows"), (1, "WARNING", "a NUL \\0 is no reason to lose a line")]


def test_the_last_report_before_the_end_is_kept(engine_url: str) -> None:
    with Evenflow(engine_url) as app:

        @app.task(name="count")
        def count(ctx: Context) -> None:
            for done in range(1, 6):
                ctx.progress(done, 5)

        jobs = [count.enqueue() for _ in range(3)]
        app.run_worker(until_empty=True, concurrency=1)
        assert [job.refresh().progress for job in jobs] == [{"done": 5, "total": 5, "note": None}] * 3


def test_a_worker_of_all_queues_does_not_leave_before_a_queue_that_came_late(engine_url: str) -> None:
    with Evenflow(engine_url) as app:

        @app.task(name="late")
        def late() -> None: ...

        for number in range(8):
            job = late.using(queue=f"late-{number}", run_after=0.001).enqueue()
            wait_until(lambda: app.job(job.id).run_at < datetime.now(UTC), "the job is due")  # noqa: B023
            app.run_worker(until_empty=True)
            assert app.job(job.id).state == "succeeded"
