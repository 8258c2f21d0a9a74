"""`evenflow pause` and `evenflow resume`."""

from tests.cli.conftest import WriteApp
from tests.cli.running import evenflow
from tests.cli.stage import Stage


def test_a_paused_queue_waits_and_a_resumed_one_runs(stage: Stage) -> None:
    job = stage.add.enqueue(1)
    done = evenflow("pause", "default", "--why", "the disk is full", "--url", stage.url)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "queue 'default' is paused\n", "")
    (row,) = stage.app.queues()
    assert row.paused_why == "the disk is full"
    assert "@" in (row.paused_by or "")
    assert evenflow("resume", "default", "--url", stage.url).stdout == "queue 'default' is served again\n"
    stage.run_all()
    assert job.result(timeout=10) == 3


def test_a_queue_that_was_not_paused_is_no_error(stage: Stage) -> None:
    stage.add.enqueue(1)
    done = evenflow("resume", "default", "--url", stage.url)
    assert (done.exit_code, done.stdout) == (0, "queue 'default' was not paused\n")


def test_a_name_that_looks_like_a_slip_is_worth_a_note(sqlite_stage: Stage) -> None:
    sqlite_stage.fail.enqueue("x")
    done = evenflow("pause", "mial", "--url", sqlite_stage.url)
    assert done.exit_code == 0
    assert done.stderr == "note: no queue 'mial' is known here yet; did you mean 'mail'?\n"


def test_a_task_that_looks_like_a_slip_is_worth_a_note(sqlite_stage: Stage) -> None:
    sqlite_stage.fail.enqueue("x")
    done = evenflow("pause", "--task", "shop.fial", "--url", sqlite_stage.url)
    assert (done.exit_code, done.stdout) == (0, "task 'shop.fial' is paused\n")
    assert done.stderr == "note: no task 'shop.fial' is known here yet; did you mean 'shop.fail'?\n"
    assert evenflow("resume", "--task", "shop.fial", "--url", sqlite_stage.url).stderr == ""
    again = evenflow("resume", "--task", "shop.fial", "--url", sqlite_stage.url)
    assert again.stderr == done.stderr


def test_an_app_refuses_a_queue_that_it_has_not_declared(write_app: WriteApp) -> None:
    module = write_app(
        "from evenflow import Evenflow, Queue\napp = Evenflow('sqlite:///a.db', queues=[Queue('mail')])\n"
    )
    evenflow("migrate", "--app", module)
    done = evenflow("pause", "post", "--app", module)
    assert done.exit_code == 1
    assert "Error: queue 'post' is not declared" in done.stderr
    assert evenflow("pause", "mail", "--app", module).exit_code == 0


def test_a_paused_task_waits_and_a_resumed_one_runs(stage: Stage) -> None:
    job = stage.add.enqueue(1)
    done = evenflow("pause", "--task", "shop.add", "--why", "stocktaking", "--url", stage.url)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "task 'shop.add' is paused\n", "")
    stage.run_all()
    assert stage.states(job) == ["blocked"]
    (reason,) = stage.app.why(job.id)
    assert (reason.rule, reason.text.endswith(": stocktaking")) == ("pause", True)
    done = evenflow("resume", "--task", "shop.add", "--url", stage.url)
    assert done.stdout == "task 'shop.add' is run again\n"
    stage.run_all()
    assert job.result(timeout=10) == 3
    done = evenflow("resume", "--task", "shop.add", "--url", stage.url)
    assert (done.exit_code, done.stdout) == (0, "task 'shop.add' was not paused\n")


def test_a_queue_or_a_task_is_named_and_not_both(sqlite_stage: Stage) -> None:
    for command in ("pause", "resume"):
        for named in ([], ["mail", "--task", "shop.add"]):
            done = evenflow(command, *named, "--url", sqlite_stage.url)
            assert done.exit_code == 2
            assert "give a queue, or --task NAME, and not both" in done.stderr
