"""A worker in a process of its own: `python -m tests.client.worker_process URL [option=milliseconds ...]`.

Says `serving` on standard output when its first job has run, so that whoever started it knows that it is awake.
"""

import sys

from evenflow import Evenflow, Resilience


def build_app(url: str, **options: int) -> Evenflow:
    """The app of both sides. `poll_ms` is how long an idle worker waits before it looks by itself."""
    poll = options.pop("poll_ms", 60_000)
    app = Evenflow(url, resilience=Resilience(notify_poll_interval_ms=poll), **options)  # type: ignore[arg-type]

    @app.task(name="echo")
    def echo(value: int) -> int:
        return value

    @app.task(name="announce", queue="announce")
    def announce() -> None:
        print("serving", flush=True)

    return app


def main(url: str, given: list[str]) -> None:
    app = build_app(url, **{name: int(value) for name, value in (each.split("=") for each in given)})
    app.tasks["announce"].enqueue()
    app.run_worker()
    app.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
