"""A small shop with jobs in many states, and clients that look at it through the dashboard."""

import threading
from typing import Any

from starlette.testclient import TestClient

from evenflow import Breaker, Concurrency, Context, Evenflow, Fail, Queue, Rate, Retry
from evenflow.web import Basic, Token

ROLES = ("viewer", "reader", "operator", "admin", "producer")
PASSWORD = "correct horse"
AUTH = [
    *(Basic(f"{role}-ann", PASSWORD, role) for role in ROLES),
    *(Token(f"{role}-secret-token", role, f"{role}-bot") for role in ROLES),
]


class Shop:
    """One database, an app, and something of everything."""

    def __init__(self, url: str) -> None:
        self.app = Evenflow(
            url,
            queues=[
                Queue("default", rate=Rate("1000/minute")), Queue("docs"), Queue("mail", max_concurrency=2),
                Queue("bank", breaker=Breaker(3, 60, name="bank")), Queue("free"),
            ],
        )  # fmt: skip
        self.add = self.app.task(name="shop.add", group="tenant", queue="docs")(_add)
        self.fail = self.app.task(name="shop.fail", queue="mail")(_fail)
        self.charge = self.app.task(
            name="shop.charge", queue="bank", concurrency=Concurrency(to=1, key="customer")
        )(_charge)
        self.quick = self.app.task(name="shop.quick")(_quick)
        self.app.recurring("0 6 * * *", key="daily", args=(1,))(self.quick)

    def fill(self) -> None:
        """Jobs that have ended, and jobs that wait."""
        self.failed = self.fail.enqueue("no such card")
        self.done = self.add.enqueue(1, 2, tenant="bob", api_token="hush")
        flow = self.app.workflow("report")
        first = flow.step(self.quick, 1, name="first")
        flow.step(self.fail, "step", after=[first], name="second")
        self.run = flow.start()
        self.run_all()
        self.waiting = self.add.enqueue_many(
            [(number, 1, tenant) for number in range(3) for tenant in ("bob", "alice")]
        )
        self.later = self.quick.using(run_after=3600).enqueue(7)
        self.keyed = [self.charge.enqueue("ann", cents) for cents in (1, 2)]

    def run_all(self) -> None:
        """Run everything that can run now, on a thread: a browser's driver keeps a loop on this one."""
        worker = threading.Thread(target=lambda: self.app.run_worker(until_empty=True))
        worker.start()
        worker.join()

    def client(self, *, headers: dict[str, str] | None = None, **options: Any) -> TestClient:
        """Somebody on this machine."""
        return TestClient(
            self.app.web(**options), base_url="http://localhost", client=("127.0.0.1", 50000), headers=headers,
            follow_redirects=False,
        )  # fmt: skip

    def close(self) -> None:
        self.app.close()


def bearer(role: str) -> dict[str, str]:
    """The header of a program with this role."""
    return {"authorization": f"Bearer {role}-secret-token"}


def form_token(text: str) -> str:
    """What a page puts into its forms."""
    return text.partition('name="form_token" value="')[2].partition('"')[0]


def _add(a: int, b: int = 2, tenant: str = "bob", api_token: str = "") -> int:
    return a + b


def _fail(ctx: Context, why: str) -> None:
    ctx.log.warning("about to fail: %s", why)
    raise ValueError(why)


def _charge(customer: str, cents: int) -> int:
    return cents


def _quick(number: int) -> int:
    if number == 13:
        raise Retry.later(60)
    return Fail("ODD", "no odd numbers") if number == 99 else number  # type: ignore[return-value]
