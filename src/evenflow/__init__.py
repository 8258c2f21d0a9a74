"""Evenflow: a task queue that lives in your database, with exact control of the flow."""

from evenflow.app import Evenflow
from evenflow.client.handle import Job
from evenflow.client.run import Run
from evenflow.client.schedules import Schedule
from evenflow.client.step import Step
from evenflow.client.task import Task
from evenflow.client.workflow import Workflow
from evenflow.conditions import Conditional
from evenflow.context import Context
from evenflow.errors import (
    ConfigError,
    DuplicateJob,
    EnqueueError,
    EvenflowError,
    EventTimeout,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    PayloadError,
    QueueFull,
    ResultTimeout,
    RunCancelled,
    RunFailed,
    ScheduleNotFound,
    StoreError,
    UnknownQueue,
)
from evenflow.events import Event
from evenflow.job import JobError, State
from evenflow.limits import Breaker, Concurrency, Rate
from evenflow.queues import Queue
from evenflow.rules.retry import Retry
from evenflow.settings import Resilience, Retention
from evenflow.signals import Cancel, Fail, Snooze
from evenflow.unique import Unique

__version__ = "0.1.0"

__all__ = [
    "Breaker",
    "Cancel",
    "Concurrency",
    "Conditional",
    "ConfigError",
    "Context",
    "DuplicateJob",
    "EnqueueError",
    "Evenflow",
    "EvenflowError",
    "Event",
    "EventTimeout",
    "Fail",
    "Job",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobNotFound",
    "PayloadError",
    "Queue",
    "QueueFull",
    "Rate",
    "Resilience",
    "ResultTimeout",
    "Retention",
    "Retry",
    "Run",
    "RunCancelled",
    "RunFailed",
    "Schedule",
    "ScheduleNotFound",
    "Snooze",
    "State",
    "Step",
    "StoreError",
    "Task",
    "Unique",
    "UnknownQueue",
    "Workflow",
]
