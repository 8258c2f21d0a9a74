"""The pages in Django's admin: who may see them, what they show and what can be done there."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.test import Client

from evenflow import State
from evenflow.contrib.django import links, queue_app
from evenflow.store.sqlite import SqliteEngine
from tests.contrib.django.conftest import Run
from tests.contrib.django.shop import tasks
from tests.store.test_dashboard_plans import LOOKS

PAGES = ("job", "failedjob", "queue", "schedule", "worker")
pytestmark = pytest.mark.usefixtures("sqlite_database")
SignIn = Callable[..., Client]


def address(page: str, rest: str = "") -> str:
    return f"/admin/evenflow/{page}/{rest}"


@pytest.fixture
def sign_in() -> SignIn:
    """A browser of a member of staff with these permissions."""

    def sign(*permissions: str) -> Client:
        user = User.objects.create_user(f"staff-{User.objects.count()}", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        assert user.user_permissions.count() == len(permissions)
        client = Client()
        client.force_login(user)
        return client

    return sign


def page_of(client: Client, page: str, **given: str) -> str:
    answer = client.get(address(page), given)
    assert answer.status_code == 200
    text: str = answer.rendered_content
    return text


def act(client: Client, page: str, action: str, *chosen: str) -> tuple[int, list[str]]:
    answer = client.post(address(page), {"action": action, "chosen": chosen})
    told = [str(message) for message in get_messages(answer.wsgi_request)]
    client.cookies.pop("messages", None)
    return answer.status_code, told


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_for_those_who_may_view_it(sign_in: SignIn, page: str) -> None:
    assert Client().get(address(page)).status_code == 302
    assert sign_in().get(address(page)).status_code == 403
    others = [f"view_{each}" for each in PAGES if each != page]
    assert sign_in(*others).get(address(page)).status_code == 403
    assert sign_in(f"view_{page}").get(address(page)).status_code == 200


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_added_or_deleted_by_hand(sign_in: SignIn, page: str) -> None:
    client = sign_in(f"view_{page}", f"change_{page}")
    for rest in ("add/", "1/delete/", "1/history/"):
        assert client.post(address(page, rest)).status_code == 404


def test_jobs_are_listed_and_filtered(sign_in: SignIn) -> None:
    first, second = tasks.note.enqueue("a"), tasks.note_later.enqueue("b")
    client = sign_in("view_job")
    everything = page_of(client, "job")
    assert first.id in everything
    assert second.id in everything
    assert "<script>" not in page_of(client, "job", queue="<script>")
    by_queue = page_of(client, "job", queue="mail")
    assert first.id not in by_queue
    assert second.id in by_queue
    assert first.id not in page_of(client, "job", state="failed")


def test_a_long_list_goes_on_with_older_jobs(sign_in: SignIn) -> None:
    from evenflow.contrib.django import evenflow_task, listing

    jobs = evenflow_task(tasks.note).enqueue_many([(number,) for number in range(listing.PAGE + 1)])
    client = sign_in("view_job")
    newest = page_of(client, "job")
    assert jobs[0].id not in newest
    assert jobs[-1].id in newest
    assert jobs[0].id in page_of(client, "job", before=jobs[1].id)
    assert f"before={jobs[1].id}" in newest


def test_a_search_without_end_stops_for_its_time_and_goes_on(
    sign_in: SignIn, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenflow.contrib.django import evenflow_task
    from evenflow.store import dashboard

    rare = tasks.note_later.enqueue("the oldest")
    evenflow_task(tasks.note).enqueue_many([(number,) for number in range(6)])
    run()
    at_once = {**(dashboard.search.__kwdefaults__ or {}), "within_s": -1}
    monkeypatch.setattr(dashboard.search, "__kwdefaults__", at_once)
    monkeypatch.setattr(dashboard, "DEPTH", 5)
    client = sign_in("view_job")
    answer = client.get(address("job"), {"queue": "mail"})
    assert rare.id not in answer.rendered_content
    assert "None yet." in answer.rendered_content
    assert "Search on" in answer.rendered_content
    going_on = client.get(f"{address('job')}?{answer.context_data['older']}")
    assert rare.id in going_on.rendered_content
    assert "Search on" not in going_on.rendered_content


@pytest.mark.parametrize(
    "given", [{}, {"state": "failed"}, {"state": "succeeded", "task": "nobody"}, {"queue": "mail"}]
)
def test_a_list_of_jobs_runs_none_but_statements_whose_work_is_bounded(
    sign_in: SignIn, run: Run, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks.fails.enqueue("x")
    run()
    client = sign_in("view_job")
    ran = set()
    run_unit = SqliteEngine.run

    def noted(engine: SqliteEngine, unit: str, *rest: Any, **options: Any) -> Any:
        ran.add(unit)
        return run_unit(engine, unit, *rest, **options)

    monkeypatch.setattr(SqliteEngine, "run", noted)
    assert client.get(address("job"), given).status_code == 200
    assert any(unit.startswith("browse_") for unit in ran)
    assert ran <= LOOKS.keys()  # whose plans are tested at twenty thousand jobs


def test_a_job_s_page_tells_its_arguments_errors_and_reasons(sign_in: SignIn, run: Run) -> None:
    failed = tasks.fails.enqueue("<b>no such thing</b>")
    run()
    queue_app().pause("mail", who="Ada")
    waiting = tasks.note_later.enqueue("soon")
    client = sign_in("view_job")
    text = client.get(address("job", f"{failed.id}/change/")).rendered_content
    assert "ValueError" in text
    assert "Traceback" in text
    assert "&lt;b&gt;no such thing&lt;/b&gt;" in text
    assert "<b>no such" not in text
    assert "paused" in client.get(address("job", f"{waiting.id}/change/")).rendered_content
    assert client.get(address("job", "0000000000000/change/")).status_code == 404
    assert sign_in().get(address("job", f"{failed.id}/change/")).status_code == 403


def test_failed_jobs_are_retried_and_given_up_by_those_who_may(sign_in: SignIn, run: Run) -> None:
    again, given_up = tasks.fails.enqueue("again"), tasks.fails.enqueue("enough")
    app = run()
    viewer, editor = sign_in("view_failedjob"), sign_in("view_failedjob", "change_failedjob")
    assert "Retry" not in page_of(viewer, "failedjob")
    assert act(viewer, "failedjob", "retry", again.id)[0] == 403
    assert app.job(again.id).state is State.FAILED
    assert "Retry" in page_of(editor, "failedjob")
    assert act(editor, "failedjob", "retry", again.id) == (302, ["1 of 1 jobs go back to work."])
    assert app.job(again.id).state in (State.ARRIVING, State.READY)
    assert act(editor, "failedjob", "discard", given_up.id) == (302, ["1 of 1 jobs were given up."])
    assert app.job(given_up.id).state is State.DISCARDED
    assert given_up.id not in page_of(editor, "failedjob")


def test_the_page_of_failed_jobs_is_about_no_others(sign_in: SignIn, run: Run) -> None:
    failed = tasks.fails.enqueue("no")
    app = run()
    open_job, cancelled = tasks.note.enqueue("open"), tasks.note.enqueue("cancelled")
    app.cancel(cancelled.id)
    editor = sign_in("view_failedjob", "change_failedjob")
    for other in (open_job.id, cancelled.id):
        assert editor.get(address("failedjob", f"{other}/change/")).status_code == 404
        for action in ("retry", "discard"):
            [told] = act(editor, "failedjob", action, other)[1]
            assert told.startswith("None of these jobs is failed")
    assert [app.job(each.id).state for each in (open_job, cancelled)] == [State.READY, State.CANCELLED]
    assert editor.get(address("failedjob", f"{failed.id}/change/")).status_code == 200
    assert act(editor, "failedjob", "retry", failed.id, open_job.id)[1] == ["1 of 1 jobs go back to work."]


def test_an_action_needs_rows_and_a_name(sign_in: SignIn) -> None:
    editor = sign_in("change_job")
    asked = ["Choose one row at least, and what to do with it."]
    assert act(editor, "job", "retry") == (302, asked)
    assert act(editor, "job", "drop", "0000000000000") == (302, asked)
    assert act(editor, "job", "cancel", "nonsense")[1][0].startswith("expected a job id")


def test_queues_are_paused_and_resumed(sign_in: SignIn) -> None:
    tasks.note.enqueue(1)
    editor = sign_in("view_queue", "change_queue")
    assert act(editor, "queue", "pause", "mail") == (302, ["Paused: mail."])
    [mail] = [queue for queue in queue_app().queues() if queue.name == "mail"]
    assert (mail.paused_by or "").startswith("staff-")
    assert "since" in page_of(editor, "queue")
    assert act(editor, "queue", "resume", "mail") == (302, ["Resumed: mail."])
    assert act(sign_in("view_queue"), "queue", "pause", "mail")[0] == 403


def test_schedules_are_shown_paused_and_run(sign_in: SignIn) -> None:
    app = links.link_of().load()
    app.prepare()
    app.run_worker(until_empty=True)  # its scheduler declares them
    editor = sign_in("view_schedule", "change_schedule")
    assert "nightly" in page_of(editor, "schedule")
    assert act(editor, "schedule", "pause", "nightly") == (302, ["Paused: nightly."])
    assert "paused by staff-" in page_of(editor, "schedule")
    assert act(editor, "schedule", "resume", "nightly") == (302, ["Resumed: nightly."])
    _, [enqueued] = act(editor, "schedule", "run now", "often")
    assert app.job(enqueued.removeprefix("Enqueued: ").rstrip(".")).args == ("all",)


def test_workers_are_listed_and_cannot_be_acted_upon(sign_in: SignIn) -> None:
    from evenflow.store import leases

    app = queue_app()
    app.prepare()
    leases.register(
        app._producer.engine,
        7,
        kind="worker",
        host="host-of-a-test",
        pid=4711,
        lease_us=10_000_000,
        parent=None,
    )
    editor = sign_in("view_worker", "change_worker")
    text = page_of(editor, "worker")
    assert "host-of-a-test" in text
    assert "4711" in text
    assert act(editor, "worker", "retry", "7")[1] == ["Choose one row at least, and what to do with it."]


def test_of_several_backends_one_is_chosen(sign_in: SignIn, options: Callable[..., None]) -> None:
    client: Any = sign_in("view_job")
    assert client.get(address("job"), {"backend": "nowhere"}).status_code == 404


def test_a_forged_form_is_refused(sign_in: SignIn) -> None:
    client = sign_in("view_job", "change_job")
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = client.cookies
    assert strict.post(address("job"), {"action": "retry", "chosen": ["x"]}).status_code == 403


def test_counts_of_queues_stop_where_the_dashboard_s_do(
    sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenflow.contrib.django import evenflow_task
    from evenflow.store import dashboard

    evenflow_task(tasks.note_later).using(run_after=60).enqueue_many([(number,) for number in range(3)])
    evenflow_task(tasks.note).enqueue("now")
    viewer = sign_in("view_queue")
    assert "<td>3</td>" in page_of(viewer, "queue")
    monkeypatch.setattr(dashboard.depths, "__kwdefaults__", {"top": 2})
    assert "<td>2 or more</td>" in page_of(viewer, "queue")


def test_an_address_that_names_nothing_is_no_error_of_the_server(sign_in: SignIn) -> None:
    job = tasks.note.enqueue(1)
    client = sign_in("view_job")
    assert client.get(address("job"), {"backend": "nobody"}).status_code == 404
    assert client.get(address("job", f"{job.id}/change/"), {"backend": "nobody"}).status_code == 404
    assert client.get(address("job", "no-id/change/")).status_code == 404
    assert b"Expected a job id" in client.get(address("job"), {"before": "no id"}).content


def test_a_job_whose_arguments_cannot_be_read_is_shown_all_the_same(sign_in: SignIn) -> None:
    from django.db import connection

    job = tasks.note.enqueue(1)
    with connection.cursor() as cursor:
        cursor.execute("update evenflow_job set payload = '{<b>forged'")
    text = sign_in("view_job").get(address("job", f"{job.id}/change/")).rendered_content
    assert "{&lt;b&gt;forged" in text
