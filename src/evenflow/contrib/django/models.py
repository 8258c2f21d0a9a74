"""Names for Django's admin and permissions. No tables stand behind them: Evenflow keeps its own."""

from django.db import models


class _Meta:
    app_label = "evenflow"
    managed = False
    # To look at, and to act upon: retry, discard, pause. Nothing is added or deleted here.
    default_permissions = ("view", "change")


class Job(models.Model):
    """A job: one call of a task."""

    class Meta(_Meta):
        verbose_name = "job"


class FailedJob(models.Model):
    """A job that failed, or that killed its workers."""

    class Meta(_Meta):
        verbose_name = "failed job"


class Queue(models.Model):
    """A queue with its limits and its pause."""

    class Meta(_Meta):
        verbose_name = "queue"


class Schedule(models.Model):
    """What recurs."""

    class Meta(_Meta):
        verbose_name = "schedule"


class Worker(models.Model):
    """A process that runs jobs."""

    class Meta(_Meta):
        verbose_name = "worker"
