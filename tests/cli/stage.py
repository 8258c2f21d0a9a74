"""A database with an app beside it: what commands are run against."""

from typing import Any

from evenflow import Evenflow, Job
from evenflow.ids import id_number
from evenflow.store.open import AnyEngine, open_engine
from tests.store.scene import execute


class Stage:
    """One database, its app, and jobs in every state. `url` is what commands are given."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = Evenflow(url)
        self.add = self.app.task(name="shop.add", group="tenant")(_add)
        self.fail = self.app.task(name="shop.fail", queue="mail")(_fail)
        self.app.migrate()
        self.engine: AnyEngine = open_engine(self.app.settings.database)

    def run_all(self) -> None:
        """Run everything that can run now, here."""
        self.app.run_worker(until_empty=True)

    def failed(self, count: int = 1) -> list[Job[Any]]:
        """Jobs of `shop.fail` in the queue `mail` that have failed."""
        jobs = self.fail.enqueue_many([("no such card",)] * count)
        self.run_all()
        return jobs

    def set_state(self, job: Job[Any], state: str) -> None:
        """Move a job within the live table or within history."""
        table = "evenflow_history" if self._has_ended(job) else "evenflow_job"
        change = f"set state = '{state}' where id = {id_number(job.id)}"
        execute(self.engine, f"update {table} {change}", f"update {table.replace('_', '.', 1)} {change}")

    def states(self, *jobs: Job[Any]) -> list[str]:
        """Where these jobs are now."""
        return [self.app.job(job.id).state.value for job in jobs]

    def close(self) -> None:
        self.app.close()
        self.engine.close()

    def _has_ended(self, job: Job[Any]) -> bool:
        return self.app.job(job.id).state.is_end


def _add(a: int, b: int = 2, tenant: str = "bob") -> int:
    return a + b


def _fail(why: str) -> None:
    raise ValueError(why)
