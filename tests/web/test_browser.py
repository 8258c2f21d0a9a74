"""The dashboard in a real browser: every page, live updates, acts that a worker obeys, a login; nothing stored becomes markup.

Console errors and violations of the policy fail the test in which they happen.
"""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from evenflow import Breaker, Context, Evenflow, Queue
from evenflow.store import audit, control, leases
from evenflow.store.open import open_engine
from tests.store.scene import execute
from tests.web.corpus import EVERYTHING, XSS
from tests.web.shop import AUTH, PASSWORD, Shop
from tools.screenshots import chromium, served

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PAGES = (
    "/", "/jobs", "/failed", "/queues", "/groups?queue=docs", "/limits", "/workers", "/schedules", "/workflows", "/database",
    "/audit", "/bulk?act=retry&state=failed",
)  # fmt: skip
WITHIN_MS = 30_000
expect.set_options(timeout=WITHIN_MS)  # its own five seconds are few where six test processes share two cores
LOOK = """(() => {
  const all = (what) => [...document.querySelectorAll(what)];
  const ids = all("[id]").map((each) => each.id);
  const named = (each) => each.labels?.length || each.getAttribute("aria-label") || each.textContent.trim();
  return {
    h1: all("h1").length, main: all("main").length, menu: all("nav.menu").length, lang: document.documentElement.lang,
    width: document.documentElement.scrollWidth, twins: ids.length - new Set(ids).size,
    unnamed: all("input:not([type=hidden]), select, button").filter((each) => !named(each)).length,
    aside: all(".menu [aria-current]").filter((each) => each.getBoundingClientRect().right > innerWidth).length,
    broken: all("[aria-labelledby]").filter((each) => !document.getElementById(each.getAttribute("aria-labelledby"))).length,
  };
})()"""
ADDRESSES = """[...document.querySelectorAll("[href], [action], [src]")].map(
  (each) => each.getAttribute("href") || each.getAttribute("action") || each.getAttribute("src"))"""
MARKUP = "document.querySelectorAll('xss-probe, main script, main img, main svg[onload], [onerror], [onmouseover]').length"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address(sqlite_shop: Shop) -> Iterator[str]:
    """A site without a login."""
    with served(sqlite_shop.app.web()) as found:
        yield found


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context()
    made.set_default_timeout(WITHIN_MS)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page in which nothing may go wrong unseen."""
    made = context.new_page()
    wrong: list[str] = []
    made.on("pageerror", lambda error: wrong.append(str(error)))
    made.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    made.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
    yield made
    # Chromium also writes it down when a page that was asked for is not there.
    assert [each for each in wrong if "status of 404" not in each] == []


def in_thread(work: Callable[[], None]) -> None:
    """Playwright keeps a loop on this thread; a worker needs one of its own."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_every_page_loads_can_be_read_aloud_and_fits_a_phone(
    page: Page, address: str, sqlite_shop: Shop
) -> None:
    page.set_viewport_size({"width": 380, "height": 760})
    for path in (
        *PAGES,
        f"/jobs/{sqlite_shop.failed.id}",
        f"/jobs/{sqlite_shop.keyed[1].id}",
        f"/workflows/{sqlite_shop.run.id}",
    ):
        page.goto(address + path)
        found = page.evaluate(LOOK)
        assert found == {
            "h1": 1,
            "main": 1,
            "menu": 1,
            "lang": "en",
            "width": 380,
            "unnamed": 0,
            "twins": 0,
            "aside": 0,
            "broken": 0,
        }, path


def test_the_first_key_skips_to_the_content(page: Page, address: str) -> None:
    page.goto(f"{address}/jobs")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()


def test_light_and_dark_follow_the_system_and_the_switch(page: Page, address: str) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    page.emulate_media(color_scheme="light")
    page.goto(address)
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    assert light != dark
    page.locator("#theme-switch").click()
    assert page.evaluate(ground) == light
    page.reload()
    assert page.evaluate(ground) == light


def test_filters_live_in_the_address(page: Page, address: str, sqlite_shop: Shop) -> None:
    page.goto(f"{address}/jobs")
    page.get_by_label("State").select_option("failed")
    page.get_by_label("Queue").fill("mail")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url(re.compile(r"/jobs\?state=failed&queue=mail"))
    expect(page.get_by_role("link", name=sqlite_shop.failed.id)).to_be_visible()
    assert sqlite_shop.waiting[0].id not in page.content()
    page.get_by_role("link", name=sqlite_shop.failed.id).click()
    expect(page.locator("h1")).to_contain_text(sqlite_shop.failed.id)


def test_a_new_job_shows_up_by_itself_unless_the_page_is_paused(
    page: Page, address: str, sqlite_shop: Shop
) -> None:
    page.goto(f"{address}/jobs")
    job = sqlite_shop.quick.using(queue="free").enqueue(1)
    expect(page.get_by_role("link", name=job.id)).to_be_visible()
    switch = page.locator("#live-switch")
    switch.click()
    expect(switch).to_have_attribute("aria-pressed", "false")
    page.wait_for_load_state("networkidle")  # what was asked for before may still come
    fresh = page.evaluate("document.documentElement.dataset.fresh")
    second = sqlite_shop.quick.using(queue="free").enqueue(2)
    page.wait_for_timeout(2600)  # longer than a tick: nothing may happen in it
    assert page.evaluate("document.documentElement.dataset.fresh") == fresh
    switch.click()
    expect(page.get_by_role("link", name=second.id)).to_be_visible()


def test_somebody_who_types_is_not_interrupted(page: Page, address: str, sqlite_shop: Shop) -> None:
    page.goto(f"{address}/queues")
    field = page.get_by_label("Why pause docs")
    field.fill("because")
    page.wait_for_selector('html[data-fresh]:not([data-fresh="1"])')
    expect(field).to_have_value("because")
    expect(field).to_be_focused()


def test_what_has_the_focus_keeps_it_when_rows_come_before_it(
    page: Page, address: str, sqlite_shop: Shop
) -> None:
    """Enter must not pause another queue than the one whose button had the focus."""
    page.goto(f"{address}/queues")
    page.get_by_role("button", name="Pause free").focus()
    with Evenflow(
        sqlite_shop.app.settings.database.masked()
    ) as other:  # which declares nothing, so any name will do
        other.pause("aaa", why="comes first in the list")
    page.get_by_role("button", name="Resume aaa").wait_for()
    expect(page.get_by_role("button", name="Pause free")).to_be_focused()


def test_what_is_open_stays_open_when_rows_come_before_it(page: Page, address: str) -> None:
    def resume(queue: str) -> None:
        assert page.request.post(f"{address}/api/acts/resume-queue", data={"queue": queue}).ok

    resume("zzz")
    page.goto(f"{address}/audit")
    page.locator("summary").first.click()
    resume("yyy")
    expect(page.locator("tbody tr").first).to_contain_text("yyy")
    expect(page.locator("tbody tr").filter(has=page.locator("details[open]"))).to_contain_text("zzz")


def test_without_events_the_page_asks_now_and_then(context: BrowserContext, page: Page, address: str) -> None:
    context.add_init_script("delete window.EventSource")
    page.goto(f"{address}/queues")
    page.wait_for_selector("html[data-fresh]")


def test_a_queue_is_paused_and_resumed(page: Page, address: str, sqlite_shop: Shop) -> None:
    page.goto(f"{address}/queues")
    page.get_by_label("Why pause free").fill("the shop is closed")
    page.get_by_role("button", name="Pause free").click()
    expect(page.get_by_role("status").first).to_contain_text("Queue free is paused.")
    assert (
        next(row for row in sqlite_shop.app.queues() if row.name == "free").paused_why == "the shop is closed"
    )
    page.get_by_role("button", name="Resume free").click()
    expect(page.get_by_role("status").first).to_contain_text("Queue free is served again.")


def test_failed_jobs_are_retried_together_after_a_look_at_their_number(
    page: Page, address: str, sqlite_shop: Shop
) -> None:
    jobs = sqlite_shop.fail.using(queue="free").enqueue_many([("again",)] * 3)
    in_thread(lambda: sqlite_shop.app.run_worker(queues=["free"], until_empty=True))
    page.goto(f"{address}/failed?queue=free&state=failed")
    page.get_by_role("link", name="Retry all…").click()
    expect(page.locator("h1")).to_have_text("Retry 3 jobs?")
    page.get_by_role("button", name="Retry 3 jobs").click()
    expect(page.get_by_role("status").first).to_contain_text("3 jobs retried.")
    assert {job.refresh().state.value for job in jobs} <= {"arriving", "ready"}
    sqlite_shop.app.cancel([job.id for job in jobs])


def test_a_limit_that_is_changed_is_obeyed_by_a_worker_at_work(page: Page, tmp_path: Path) -> None:
    app = Evenflow(f"sqlite:///{tmp_path}/limits.db", queues=[Queue("slow", max_concurrency=1)])
    is_over, lock = threading.Event(), threading.Lock()
    running: list[int] = []

    @app.task(queue="slow")
    def wait(number: int) -> None:
        with lock:
            running.append(number)
        is_over.wait()

    worker = threading.Thread(target=lambda: app.run_worker(until_empty=True, concurrency=6))
    with app, served(app.web()) as address:
        wait.enqueue_many([(number,) for number in range(6)])
        worker.start()
        try:
            until(lambda: len(running) == 1)
            page.goto(f"{address}/queues")
            page.get_by_text("Limits", exact=True).last.click()
            page.get_by_label("Max concurrency").fill("4")
            page.get_by_role("button", name="Set limits").click()
            expect(page.get_by_role("status").first).to_contain_text("The limits of queue slow are set.")
            until(lambda: len(running) == 4)
            assert len(running) == 4
            expect(page.locator("main")).to_contain_text("4/4")
            page.goto("about:blank")  # its stream would come back to a server that is gone
        finally:
            is_over.set()
            worker.join()
    assert sorted(running) == list(range(6))


def test_somebody_logs_in_acts_and_logs_out(page: Page, sqlite_shop: Shop) -> None:
    with served(sqlite_shop.app.web(auth=AUTH)) as address:
        page.goto(f"{address}/schedules")
        page.get_by_label("Name").fill("operator-ann")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(f"{address}/schedules")
        page.get_by_role("button", name="Run now daily").click()
        expect(page.get_by_role("status").first).to_contain_text("Schedule daily has made job")
        page.get_by_role("button", name="Log out").click()
        page.goto(f"{address}/schedules")
        expect(page.get_by_role("button", name="Log in")).to_be_visible()
        page.goto("about:blank")


def test_nothing_that_is_stored_becomes_markup(page: Page, tmp_path: Path) -> None:
    app = Evenflow(
        f"sqlite:///{tmp_path}/corpus.db",
        queues=[Queue("default", breaker=Breaker(1, 60, name=XSS[1])), Queue("docs")],
    )
    with app, served(app.web()) as address:
        ids, run = poison(app)
        paths = [*PAGES, *(f"/jobs/{id}" for id in ids), f"/workflows/{run}"]
        paths += [
            "/jobs?state=ready&queue=%3Cxss-probe%3E&task=%22%3E%3Cxss-probe%3E",
            "/groups?queue=default",
            "/jobs/%3Cxss-probe%3E",
        ]
        for path in paths:
            page.goto(address + path)
            assert page.evaluate("window.broken") is None, path
            assert page.evaluate(MARKUP) == 0, path
            hrefs = page.evaluate(ADDRESSES)
            assert [href for href in hrefs if not href.startswith(("/", "#"))] == [], path
        shown = {
            path: page_text(page, address + path)
            for path in ("/jobs", f"/jobs/{ids[0]}", "/groups?queue=docs", "/audit")
        }
        for text in XSS[:3]:
            assert text in shown["/jobs"]
            assert text in shown[f"/jobs/{ids[0]}"]
        assert XSS[0] in shown["/groups?queue=docs"]
        assert XSS[0] in shown["/audit"]
        page.goto("about:blank")  # its stream would come back to a server that is gone


def page_text(page: Page, address: str) -> str:
    page.goto(address)
    return str(page.evaluate("document.body.innerText"))


def poison(app: Evenflow) -> tuple[list[str], str]:
    """The corpus in every text that is stored: names, keys, arguments, messages, logs, reasons, people."""

    def fail(ctx: Context, why: str, note: dict[str, str]) -> None:
        ctx.log.warning(EVERYTHING)
        ctx.progress(1, 2, EVERYTHING)
        raise ValueError(EVERYTHING)

    def echo(text: str) -> str:
        return text

    bad = app.task(name=EVERYTHING[:200], queue="docs", group="why")(fail)
    echoed = app.task(name=XSS[2], queue="docs", group="text")(echo)
    app.recurring("0 6 * * *", key=XSS[0], description=EVERYTHING, args=(XSS[0],))(echoed)
    jobs = [bad.enqueue(text, {text: text}) for text in XSS] + [echoed.enqueue(text) for text in XSS]
    flow = app.workflow("poisoned")
    flow.step(echoed, XSS[0], name="only")
    run = flow.start()
    in_thread(lambda: app.run_worker(until_empty=True))
    jobs += [echoed.enqueue(text) for text in XSS[:4]]
    app.pause("docs", who=XSS[1], why=EVERYTHING)
    app.pause(task=XSS[2], who=XSS[0], why=EVERYTHING)
    app.schedules.pause(XSS[0], who=XSS[0], why=EVERYTHING)
    app.breaker(XSS[1]).open(who=XSS[0], why=EVERYTHING)
    engine = open_engine(app.settings.database)
    with contextlib.closing(engine):
        leases.register(
            engine, 1, kind=XSS[0], host=XSS[1], pid=1, lease_us=10**12, about='{"queues": ["<xss-probe>"]}'
        )
        asked = audit.Asked(XSS[0], XSS[1], XSS[2], XSS[3], XSS[4], {XSS[0]: EVERYTHING})
        audit.answer(engine, audit.ask(engine, asked), asked, {"said": EVERYTHING, "after": {XSS[1]: XSS[0]}})
        control.set_weights(engine, "docs", {XSS[0]: 2.0})
        # Names that the client refuses, but a database can hold.
        execute(
            engine,
            "update evenflow_run set name = '<xss-probe>', run_key = '\"><xss-probe>', paused_why = '<xss-probe>'",
        )
        execute(engine, "update evenflow_step set name = '<xss-probe>', task = '<xss-probe>'")
    return [jobs[0].id, jobs[-1].id, jobs[len(XSS)].id], run.id


def until(is_so: Callable[[], bool], within_s: float = 30.0) -> None:
    ends_at = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < ends_at, "it did not come to that"
        time.sleep(0.01)
