"""Time travel: schedules, retries, delays, rates and expiry happen when the clock says so, and not before."""

from datetime import UTC, datetime, timedelta

import pytest

from evenflow import Context, Evenflow, Rate, Retry, State
from evenflow.clock import from_us
from evenflow.testing import Kit, manual

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def moments() -> list[datetime]:
    return []


def test_the_clock_stands_still_until_it_is_moved(app: Evenflow) -> None:
    with manual(app, now=NEW_YEAR) as kit:
        assert kit.clock.now == NEW_YEAR
        assert kit.clock.advance(90) == NEW_YEAR + timedelta(seconds=90)
        assert kit.clock.advance(hours=1, minutes=30) == NEW_YEAR + timedelta(seconds=90 + 5400)
        assert kit.clock.travel(NEW_YEAR) == kit.clock.now == NEW_YEAR


def test_wrong_times_are_refused(app: Evenflow) -> None:
    with pytest.raises(ValueError, match="naive"), manual(app, now=datetime(2030, 1, 1)):  # noqa: DTZ001
        pass
    with manual(app) as kit:
        with pytest.raises(TypeError, match="expected seconds or a timedelta"):
            kit.clock.advance()
        with pytest.raises(ValueError, match="naive"):
            kit.clock.travel(datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(TypeError, match="expected seconds or a timedelta"):
            kit.run_for()


def test_a_delayed_job_runs_when_its_time_has_come(kit: Kit, app: Evenflow) -> None:
    @app.task
    def later() -> None: ...

    job = later.using(run_after=timedelta(hours=1)).enqueue()
    assert kit.drain() == {}
    kit.clock.advance(minutes=59)
    assert kit.drain() == {}
    kit.clock.advance(minutes=1)
    assert kit.drain() == {"succeeded": 1}
    finished_at = job.refresh().finished_at
    assert finished_at is not None and finished_at - job.created_at >= timedelta(hours=1)


def test_retries_come_at_their_back_off(kit: Kit, app: Evenflow) -> None:
    at = []

    @app.task(retry=Retry(max_attempts=4, backoff=[60, 120, 300], jitter=False))
    def shaky() -> None:
        at.append(kit.clock.now)
        raise ValueError

    began = kit.clock.now
    shaky.enqueue()
    assert kit.run_for(hours=1) == {"scheduled": 3, "failed": 1}
    # A run's own time passes on the real clock, so each retry is a few milliseconds later.
    assert [round((each - began).total_seconds()) for each in at] == [0, 60, 180, 480]
    assert kit.clock.now == began + timedelta(hours=1)


def test_schedules_fire_at_their_instants_and_each_once(app: Evenflow, engine_url: str) -> None:
    at = []

    @app.recurring("0 6 * * *", timezone="Europe/Berlin")
    @app.task
    def report() -> None:
        at.append(kit.clock.now)

    with manual(app, url=engine_url, now=NEW_YEAR) as kit:
        assert kit.run_for(days=3) == {"succeeded": 3}
        assert kit.run_until(datetime(2030, 1, 5, tzinfo=UTC)) == {"succeeded": 1}
    assert at == [datetime(2030, 1, day, 5, tzinfo=UTC) for day in (1, 2, 3, 4)]


def test_a_jump_over_a_schedule_is_a_missed_slot(app: Evenflow) -> None:
    @app.recurring(every=3600, catch_up="all")
    @app.task
    def hourly() -> None: ...

    with manual(app, now=NEW_YEAR) as kit:
        kit.clock.advance(hours=3)
        assert kit.drain() == {"succeeded": 3}


def test_a_rate_lets_through_what_fits_into_its_window(kit: Kit, app: Evenflow) -> None:
    @app.task(rate=Rate("2/minute"))
    def call() -> None: ...

    call.enqueue_many([()] * 5)
    assert kit.drain() == {"succeeded": 2}
    assert kit.drain() == {}
    assert kit.run_for(minutes=5) == {"succeeded": 3}


def test_a_job_expires_by_the_clock(kit: Kit, app: Evenflow) -> None:
    @app.task
    def fresh() -> None: ...

    job = fresh.using(good_until=timedelta(minutes=5)).enqueue()
    kit.clock.advance(minutes=6)
    kit.drain()
    assert job.refresh().state is State.EXPIRED


def test_a_durable_sleep_passes_with_the_clock(kit: Kit, app: Evenflow) -> None:
    @app.task
    def nap(ctx: Context) -> str:
        ctx.sleep(timedelta(days=7))
        return "rested"

    job = nap.enqueue()
    assert kit.drain() == {"scheduled": 1}
    assert kit.run_for(days=8) == {"succeeded": 1}
    assert job.result(timeout=0) == "rested"


def test_what_bodies_log_has_the_time_of_the_clock(app: Evenflow) -> None:
    @app.task
    def chatty(ctx: Context) -> None:
        ctx.log.info("hello")

    with manual(app, now=NEW_YEAR) as kit:
        job = chatty.enqueue()
        kit.drain()
        assert [from_us(line.at).year for line in job.logs()] == [2030]
