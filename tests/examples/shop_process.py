"""One example in a process of its own, asked over its test client: `python -m tests.examples.shop_process NAME`.

Signs a user up, waits for the job's result, and tries the same user again, whose job must go with the failed request.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

Ask = Callable[[str, str], tuple[int, Any]]


@contextlib.contextmanager
def fastapi(example: Any) -> Iterator[Ask]:
    from fastapi.testclient import TestClient

    here: Any = {"base_url": "http://127.0.0.1", "client": ("127.0.0.1", 50000)}
    with TestClient(example.service, raise_server_exceptions=False, **here) as client:
        page = client.get("/dashboard/jobs")
        assert page.status_code == 200 and "/dashboard/" in page.text, (page.status_code, page.text[:500])
        yield lambda method, path: _answer(client.request(method, path))


@contextlib.contextmanager
def litestar(example: Any) -> Iterator[Ask]:
    from litestar.testing import TestClient

    with TestClient(example.service, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        page = client.get("/dashboard/jobs")  # this client has no address, so it is none of this machine
        assert page.status_code == 403 and "answers only to this machine" in page.text, page.text[:500]
        yield lambda method, path: _answer(client.request(method, path))


@contextlib.contextmanager
def flask(example: Any) -> Iterator[Ask]:
    from evenflow.contrib.wsgi import running_worker

    example.prepare()
    client = example.service.test_client()

    def ask(method: str, path: str) -> tuple[int, Any]:
        response = client.open(path, method=method)
        return response.status_code, response.get_json(silent=True)

    with running_worker(example.jobs, concurrency=2):
        yield ask


def _answer(response: Any) -> tuple[int, Any]:
    is_json = "json" in response.headers.get("content-type", "")
    return response.status_code, response.json() if is_json else None


def main(name: str) -> None:
    example = importlib.import_module(f"examples.{name}_shop")
    asking = {"fastapi": fastapi, "litestar": litestar, "flask": flask}[name]
    with asking(example) as ask:
        code, said = ask("POST", "/users/bob@example.org")
        assert code in (200, 201), (code, said)
        code, found = ask("GET", f"/jobs/{said['job']}")
        assert (code, found["result"]) == (200, "hello bob@example.org"), (code, found)
        code, _ = ask("POST", "/users/bob@example.org")
        assert code == 500, code
    assert len(list(example.jobs.jobs())) == 1
    assert example.jobs.stats() == {}
    print("fine")


if __name__ == "__main__":
    main(sys.argv[1])
