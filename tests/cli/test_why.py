"""`evenflow why`: the reasons that keep a job from running."""

import json

from tests.cli.running import evenflow
from tests.cli.stage import Stage


def test_a_job_of_a_paused_queue_says_by_whom_and_why(stage: Stage) -> None:
    job = stage.add.enqueue(1)
    stage.app.pause("default", who="ann", why="the card expired")
    said = evenflow("why", job.id, "--url", stage.url).stdout
    assert said.splitlines()[0].split() == ["RULE", "WHY", "UNTIL", "HELD", "BY"]
    assert "queue 'default' was paused by ann" in said
    assert "no worker that is alive serves queue 'default'" in said


def test_the_document_names_the_holders(stage: Stage) -> None:
    lock = stage.app.task(name="nightly", single_instance=True)(_nightly)
    first, second = lock.enqueue_many([(), ()])
    found = json.loads(evenflow("why", second.id, "--json", "--url", stage.url).stdout)
    assert found == {
        "id": second.id,
        "reasons": [
            {
                "rule": "single instance",
                "text": f"single instance 'nightly' is held by job {first.id}",
                "until": None,
                "holders": [first.id],
            }
        ],
    }


def test_an_id_that_nobody_has_is_told(stage: Stage) -> None:
    said = evenflow("why", "000000000000z", "--url", stage.url)
    assert said.exit_code == 1
    assert "no job 000000000000z" in said.stderr


def _nightly() -> None: ...
