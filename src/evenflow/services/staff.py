"""The services that a worker runs beside its jobs, wherever it runs: under a supervisor or in a process of the user's."""

from evenflow.services.dispatcher import Dispatcher
from evenflow.services.keeper import Service
from evenflow.services.pruner import Pruner
from evenflow.services.rescuer import Rescuer
from evenflow.services.scheduler import Plan, Scheduler
from evenflow.services.spacer import Spacer
from evenflow.settings import Settings
from evenflow.store.open import AnyEngine


def all_services(engine: AnyEngine, settings: Settings, plan: Plan | None) -> list[Service]:
    """One of each, in the order of their steps; a scheduler where there is a plan to follow."""
    return [
        Dispatcher(engine, settings.retention, settings.concurrency_maintenance_interval_s),
        *([Scheduler(engine, plan)] if plan is not None else []),
        Rescuer(engine, settings),
        Pruner(engine, settings.retention),
        Spacer(engine),
    ]
