"""Evenflow for Django: the backend of its tasks framework, and decorators for what the framework has no words for.

TASKS = {"default": {"BACKEND": "evenflow.contrib.django.EvenflowBackend"}}
INSTALLED_APPS = [..., "evenflow.contrib.django"]
"""

from importlib.util import find_spec

from evenflow.errors import DriverMissing

if find_spec("django") is None:
    raise DriverMissing("Django is not installed", extra="django")

from evenflow.contrib.django.backend import EvenflowBackend
from evenflow.contrib.django.declaring import limits_concurrency, limits_rate, policy, recurring
from evenflow.contrib.django.links import evenflow_task, queue_app
from evenflow.contrib.django.references import RowReference

__all__ = [
    "EvenflowBackend",
    "RowReference",
    "evenflow_task",
    "limits_concurrency",
    "limits_rate",
    "policy",
    "queue_app",
    "recurring",
]
