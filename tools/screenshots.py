"""`python -m tools.screenshots [FOLDER]`: every page of the dashboard as PNG files, for the manual and for a look.

Fills a database of its own, serves it, and drives Chromium: light, dark and as on a phone.
"""

import contextlib
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from playwright.sync_api import Browser, sync_playwright

from evenflow import Evenflow
from tools.browser import ARGUMENTS, NO_BROWSER, environment, find_chromium
from tools.server_binaries import ROOT
from tools.stage import at_work, fill, make_app

IMAGES = ROOT / "docs" / "images" / "dashboard"
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 380, "height": 780}
TALLEST = 900
WITHIN_S = 30.0


def main(arguments: list[str]) -> int:
    """Write the images; the exit code."""
    folder = Path(arguments[0]) if arguments else IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    if find_chromium() is None:
        print(NO_BROWSER, file=sys.stderr)
        return 1
    is_over = threading.Event()
    with tempfile.TemporaryDirectory() as place, chromium() as browser:
        empty = Evenflow(f"sqlite:///{place}/empty.db")
        with empty, served(empty.web()) as address:
            shoot(browser, address, {"empty": "/"}, folder)
        app = make_app(f"sqlite:///{place}/shop.db", is_over)
        with app, served(app.web()) as address:
            ids = fill(app)
            with at_work(app, is_over):
                shoot(browser, address, pages(ids), folder)
                dark = {
                    "overview-dark": "/",
                    "job-dark": f"/jobs/{ids['failed']}",
                    "workflow-dark": f"/workflows/{ids['broken']}",
                }
                shoot(browser, address, dark, folder, scheme="dark")
                phone = {
                    "overview-phone": "/",
                    "queues-phone": "/queues",
                    "job-phone": f"/jobs/{ids['failed']}",
                    "jobs-phone": "/jobs",
                }
                shoot(browser, address, phone, folder, size=PHONE)
    return 0


def pages(ids: dict[str, str]) -> dict[str, str]:
    """The name of an image -> the page."""
    return {
        "overview": "/", "jobs": "/jobs?limit=18", "job": f"/jobs/{ids['failed']}", "why": f"/jobs/{ids['blocked']}",
        "failed": "/failed", "queues": "/queues", "groups": "/groups?queue=documents", "limits": "/limits", "workers": "/workers",
        "schedules": "/schedules", "workflows": "/workflows", "workflow": f"/workflows/{ids['run']}",
        "bulk": "/bulk?act=retry&state=failed&queue=billing", "database": "/database", "audit": "/audit",
    }  # fmt: skip


def shoot(
    browser: Browser,
    address: str,
    wanted: dict[str, str],
    folder: Path,
    *,
    scheme: str = "light",
    size: Any = WIDE,
) -> None:
    """One image for each page, as high as the page up to a bound."""
    context = browser.new_context(viewport=size, color_scheme=scheme, device_scale_factor=1)  # type: ignore[arg-type]
    page = context.new_page()
    for name, path in wanted.items():
        page.goto(address + path)
        page.wait_for_selector("#live-switch:not([hidden])") if page.query_selector("[data-live]") else None
        height = min(
            TALLEST if size is WIDE else 1200, int(page.evaluate("document.documentElement.scrollHeight"))
        )
        target = folder / f"{name}.png"
        page.screenshot(
            path=target, full_page=True, clip={"x": 0, "y": 0, "width": size["width"], "height": height}
        )
        print(f"{target} ({target.stat().st_size // 1000} KB)", flush=True)
    context.close()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for as long as the block lasts."""
    program = find_chromium()
    if program is None:
        raise FileNotFoundError(NO_BROWSER)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program,
            args=ARGUMENTS,
            env={**_own_environment(), **environment()},
            timeout=90_000,
        )
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def served(asgi: Any) -> Iterator[str]:
    """The application on a free port of this machine, on a thread; its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        config = uvicorn.Config(asgi, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        ends_at = time.monotonic() + WITHIN_S
        while not server.started:
            if time.monotonic() > ends_at:
                raise TimeoutError("the server did not start")
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(WITHIN_S)


def _own_environment() -> dict[str, str | float | bool]:
    import os

    return dict(os.environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
