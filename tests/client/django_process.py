"""Enqueue inside Django's transactions: `python -m tests.client.django_process URL`. Says what became of each job."""

import json
import sys
from urllib.parse import parse_qs, unquote, urlsplit

import django
from django.conf import settings
from django.db import connection, transaction

from evenflow import Evenflow, Task


def database(url: str) -> dict[str, str]:
    if url.startswith("sqlite"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    parts = urlsplit(url)
    host = parse_qs(parts.query).get("host", [parts.hostname or ""])[0]
    return {
        "ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "HOST": unquote(host),
        "USER": parts.username or "", "PASSWORD": parts.password or "", "PORT": str(parts.port or ""),
    }  # fmt: skip


def same(value: int) -> int:
    return value


def main(url: str) -> None:
    settings.configure(DATABASES={"default": database(url)}, USE_TZ=True)
    django.setup()
    app = Evenflow(url)

    echo: Task[..., int, int] = app.task(name="echo")(same)
    app.migrate()
    with transaction.atomic():
        committed = echo.enqueue(1, connection=connection)
    try:
        with transaction.atomic():
            rolled_back = echo.enqueue(2, connection=connection)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    with transaction.atomic():
        outer = echo.enqueue(3, connection=connection)
        try:
            with transaction.atomic():
                inner = echo.enqueue(4, connection=connection)
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    plain = echo.enqueue(5, connection=connection)
    connection.close()
    app.run_worker(until_empty=True, queues=["default"])
    jobs = {
        "committed": committed,
        "rolled back": rolled_back,
        "outer": outer,
        "inner": inner,
        "plain": plain,
    }
    stored = {job.id: job for job in app.jobs()}
    ends = {
        name: stored[job.id].result(timeout=0) if job.id in stored else None for name, job in jobs.items()
    }
    app.close()
    print(json.dumps(ends))


if __name__ == "__main__":
    main(sys.argv[1])
