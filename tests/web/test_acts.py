"""Acts: each does what it says, on both engines, through the API; and each is in the audit log, with who and from where."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from evenflow.store import dashboard
from evenflow.web import acts, pages
from evenflow.web.acts import ACTS
from tests.web.shop import AUTH, Shop, bearer


@pytest.fixture
def operator(shop: Shop) -> TestClient:
    """A program that may act."""
    return shop.client(auth=AUTH, headers=bearer("operator"))


@pytest.fixture
def spare(shop: Shop) -> Iterator[str]:
    """A job that waits in a queue which nobody serves."""
    job = shop.quick.using(queue="free").enqueue(1)
    yield job.id
    shop.app.cancel(job.id)


def state(shop: Shop, id: str) -> str:
    return shop.app.job(id).state.value


def do(client: TestClient, name: str, **body: object) -> dict[str, object]:
    """An act that has to succeed."""
    answer = client.post(f"/api/acts/{name}", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


def fields(text: str) -> dict[str, str]:
    """What the form of a bulk act sends."""
    form = text.partition('action="/acts/')[2].partition("</form>")[0]
    return {
        name: unescape(value)
        for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form)
    }


def refused(client: TestClient, name: str, **body: object) -> tuple[int, str]:
    answer = client.post(f"/api/acts/{name}", json=body)
    return answer.status_code, answer.json()["message"]


def test_a_job_is_cancelled_and_retried_by_its_id(operator: TestClient, shop: Shop, spare: str) -> None:
    done = do(operator, "cancel-jobs", ids=[spare], why="not wanted")
    assert (done["changed"], done["before"], done["after"]) == (1, {"ready": 1}, {"cancelled": 1})
    assert shop.app.job(spare).error.message == "not wanted"  # type: ignore[union-attr]
    assert do(operator, "retry-jobs", ids=[spare])["changed"] == 1
    assert state(shop, spare) in ("arriving", "ready")
    assert do(operator, "discard-jobs", ids=[spare])["changed"] == 1
    assert state(shop, spare) == "discarded"


def test_a_filter_acts_on_as_many_as_were_expected(operator: TestClient, shop: Shop) -> None:
    jobs = [shop.quick.using(queue="free").enqueue(number) for number in range(3)]
    code, message = refused(operator, "cancel-jobs", queue="free", state="ready", expect=2)
    assert code == 409
    assert "3 match now: nothing was changed" in message
    assert {state(shop, job.id) for job in jobs} == {"ready"}
    assert do(operator, "cancel-jobs", queue="free", state="ready", expect=3)["changed"] == 3
    assert {state(shop, job.id) for job in jobs} == {"cancelled"}
    shop.app.discard([job.id for job in jobs])


def test_a_look_before_a_bulk_act_stops_for_its_time_and_goes_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done then is about the jobs that the look has seen, and about no others."""
    task = shop.app.task(name="shop.rare", queue="free")(shop.quick.function)
    old = task.enqueue(1)
    others = shop.quick.using(queue="free").enqueue_many([(number,) for number in range(20)])
    new = task.enqueue(2)
    monkeypatch.setattr(dashboard, "DEPTH", 5)
    monkeypatch.setattr(pages, "SEARCH_S", -1.0)
    client = shop.client()
    client.follow_redirects = True
    first = client.get("/bulk?act=cancel&task=shop.rare")
    assert "Cancel 1 job?" in first.text
    assert "there may be more" in first.text
    assert "1 job cancelled." in client.post("/acts/cancel-jobs", data=fields(first.text)).text
    assert [state(shop, job.id) for job in (old, new)] == ["ready", "cancelled"]
    address = unescape(re.findall(r'rel="next" href="([^"]+)"', first.text)[0])
    while "Cancel 0 jobs?" in (page := client.get(address)).text:
        address = unescape(re.findall(r'rel="next" href="([^"]+)"', page.text)[0])
    assert "Cancel 1 job?" in page.text
    assert "1 job cancelled." in client.post("/acts/cancel-jobs", data=fields(page.text)).text
    assert state(shop, old.id) == "cancelled"
    shop.app.cancel([job.id for job in others])


def test_an_act_that_cannot_see_all_that_match_in_its_time_is_refused(
    operator: TestClient, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = shop.quick.using(queue="free").enqueue_many([(number,) for number in range(7)])
    monkeypatch.setattr(dashboard, "DEPTH", 5)
    monkeypatch.setattr(acts, "BULK_SEARCH_S", -1.0)
    code, message = refused(operator, "cancel-jobs", queue="free", expect=5)
    assert (code, "nothing was changed" in message) == (409, True)
    assert {state(shop, job.id) for job in jobs} == {"ready"}
    shop.app.cancel([job.id for job in jobs])


@pytest.mark.parametrize(
    "body",
    [{}, {"expect": 1}, {"state": "failed"}, {"ids": ["0000000000001"], "queue": "mail"}],
    ids=["nothing", "no filter", "no number", "both"],
)
def test_a_bulk_act_without_filter_or_number_is_refused(
    operator: TestClient, body: dict[str, object]
) -> None:
    assert refused(operator, "retry-jobs", **body)[0] == 409


def test_a_queue_is_paused_limited_and_given_back_to_the_code(operator: TestClient, shop: Shop) -> None:
    def row() -> tuple[object, ...]:
        found = next(row for row in shop.app.queues() if row.name == "free")
        return found.paused_by, found.max_concurrency, found.max_ready

    do(operator, "pause-queue", queue="free", why="holiday")
    do(operator, "set-limit", queue="free", max_concurrency=7)
    assert row() == ("operator-bot", 7, None)
    do(operator, "set-limit", queue="free", max_ready=100, max_concurrency=None)
    assert row() == ("operator-bot", None, 100)
    assert do(operator, "resume-queue", queue="free")["said"] == "Queue free is served again."
    assert do(operator, "resume-queue", queue="free")["said"] == "Queue free was not paused."
    do(operator, "reset-limit", queue="free")
    assert row() == (None, None, None)


def test_a_task_is_paused_and_resumed(operator: TestClient, shop: Shop) -> None:
    do(operator, "pause-task", task="shop.later", why="later")
    assert [gate.name for gate in shop.app.paused_tasks()] == ["shop.later"]
    do(operator, "resume-task", task="shop.later")
    assert shop.app.paused_tasks() == []


def test_a_breaker_is_opened_closed_and_reset(operator: TestClient, shop: Shop) -> None:
    do(operator, "open-breaker", breaker="bank", why="they move")
    opened = shop.app.breaker("bank").status()
    assert (opened.state, opened.opened_by, opened.opened_why) == ("open", "operator-bot", "they move")
    do(operator, "close-breaker", breaker="bank")
    assert shop.app.breaker("bank").status().state == "closed"
    do(operator, "reset-breaker", breaker="bank")
    assert refused(operator, "open-breaker", breaker="bnak") == (
        404,
        "no breaker 'bnak' is known here; did you mean 'bank'?",
    )


def test_a_rate_is_reset(operator: TestClient, shop: Shop) -> None:
    shop.quick.enqueue(5)
    assert do(operator, "reset-rate", rate="default")["changed"] == 1
    assert refused(operator, "reset-rate", rate="nothing")[0] == 409


def test_a_schedule_is_run_paused_and_resumed(operator: TestClient, shop: Shop) -> None:
    made = do(operator, "run-schedule", key="daily")["after"]
    assert shop.app.job(made["job"]).task == "shop.quick"  # type: ignore[index]
    do(operator, "pause-schedule", key="daily", why="holiday")
    assert shop.app.schedules.get("daily").paused_by == "operator-bot"
    do(operator, "resume-schedule", key="daily")
    assert not shop.app.schedules.get("daily").paused
    assert refused(operator, "run-schedule", key="dayly")[0] == 404


def test_a_run_is_paused_resumed_cancelled_and_tried_again(operator: TestClient, shop: Shop) -> None:
    flow = shop.app.workflow("spare")
    flow.step(shop.quick.using(queue="free"), 1, name="only")
    run = flow.start()
    for act, after in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        assert do(operator, f"{act}-run", run=run.id)["after"] == after
    code, message = refused(operator, "cancel-run", run=run.id)
    assert (code, message) == (409, f"run {run.id} is cancelled: it cannot be cancelled")
    assert do(operator, "retry-run", run=shop.run.id)["after"] == "running"
    shop.run.cancel()


@pytest.mark.parametrize(
    ("name", "body", "code"),
    [
        ("pause-queue", {}, 422), ("pause-queue", {"queue": "a b"}, 422), ("pause-queue", {"queue": 3}, 422),
        ("pause-queue", {"queue": "mail", "wy": "typo"}, 422), ("set-limit", {"queue": "mail"}, 422),
        ("set-limit", {"queue": "mail", "max_concurrency": -1}, 422), ("set-limit", {"queue": "mail", "max_concurrency": 10**12}, 422),
        ("retry-jobs", {"ids": ["nonsense"]}, 404), ("retry-jobs", {"state": "lost", "expect": 1}, 422),
        ("cancel-run", {"run": "nonsense"}, 404), ("nothing", {}, 404), ("pause-task", {"task": "a\0b"}, 422),
        ("pause-task", {"task": "x" * 2000}, 422),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    operator: TestClient, name: str, body: dict[str, object], code: int
) -> None:
    assert refused(operator, name, **body)[0] == code


def test_every_act_is_in_the_log_before_and_after(shop: Shop, operator: TestClient) -> None:
    do(operator, "pause-queue", queue="free", why="to be logged")
    refused(operator, "cancel-jobs", queue="free", state="running", expect=9)
    do(operator, "resume-queue", queue="free")
    admin = shop.client(auth=AUTH, headers=bearer("admin"))
    resumed, wrong, paused = admin.get("/api/audit?limit=3").json()["acts"]
    assert (paused["who"], paused["role"], paused["address"]) == ("operator-bot", "operator", "127.0.0.1")
    assert (paused["act"], paused["target"]) == ("pause-queue", "free")
    assert paused["detail"]["why"] == "to be logged"
    assert paused["outcome"]["before"]["paused_by"] is None
    assert paused["outcome"]["after"]["paused_by"] == "operator-bot"
    assert wrong["target"] == "jobs with state=running queue=free"
    assert "nothing was changed" in wrong["outcome"]["refused"]
    assert resumed["outcome"]["said"] == "Queue free is served again."


def test_every_act_is_tested_here() -> None:
    text = Path(__file__).read_text("utf-8")
    loops = {"pause-run", "resume-run", "cancel-run"}
    assert [name for name in ACTS if f'"{name}"' not in text and name not in loops] == []
