"""Pages in Django's admin: jobs, failed jobs, queues, schedules and workers.

To look at them a member of staff needs the permission to view, to act the one to change; both are those of `models.py`. The
rows are Evenflow's own, so each page is a view of its own in the admin's frame.
"""

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path

from evenflow import Evenflow, EvenflowError, JobNotFound, State
from evenflow.contrib.django import listing, models
from evenflow.contrib.django.compat import DEFAULT_ALIAS
from evenflow.contrib.django.links import link_of, links
from evenflow.store.reads import Filter

Act = Callable[[Evenflow, list[str], HttpRequest], str]
ACTION, CHOSEN = "action", "chosen"
FAILED = (State.FAILED, State.QUARANTINED)


class Page(admin.ModelAdmin):
    """One list in the admin. Subclasses give its rows and what can be done with them."""

    columns: tuple[str, ...] = ()
    acts: dict[str, Act] = {}  # noqa: RUF012 - constant, and read by name only
    change_list_template = "admin/evenflow/list.html"

    def rows(self, app: Evenflow, request: HttpRequest) -> listing.Listing:
        """The rows of the page."""
        raise NotImplementedError

    def more(self, request: HttpRequest, found: listing.Listing) -> dict[str, Any]:
        """What else the template is told."""
        return {}

    def get_urls(self) -> list[Any]:
        """The list alone: no table stands behind the forms that the admin would offer."""
        name = f"evenflow_{self.opts.model_name}_changelist"
        return [path("", self.admin_site.admin_view(self.changelist_view), name=name)]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The list, or, by POST, an action on chosen rows."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        alias, app = _backend_of(request)
        if request.method == "POST":
            return self._act(app, request)
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        found = self._found(app, request)
        context = {
            **self.admin_site.each_context(request), "title": str(self.opts.verbose_name_plural).capitalize(),
            "opts": self.opts, "columns": self.columns, "rows": found.rows, "alias": alias,
            "aliases": [link.alias for link in links()],
            "acts": list(self.acts) if self.has_change_permission(request) else [], "chosen": CHOSEN, "action": ACTION,
            **self.more(request, found), **(extra_context or {}),
        }  # fmt: skip
        return TemplateResponse(request, self.change_list_template, context)

    def _found(self, app: Evenflow, request: HttpRequest) -> listing.Listing:
        """The rows; none, and a message, where the address or the database does not allow to read them."""
        try:
            return self.rows(app, request)
        except EvenflowError as wrong:
            messages.error(request, str(wrong))
            return listing.Listing([])

    def _act(self, app: Evenflow, request: HttpRequest) -> HttpResponse:
        if not self.has_change_permission(request):
            raise PermissionDenied
        act, chosen = self.acts.get(request.POST.get(ACTION, "")), request.POST.getlist(CHOSEN)
        if act is None or not chosen:
            messages.warning(request, "Choose one row at least, and what to do with it.")
        else:
            try:
                messages.success(request, act(app, chosen, request))
            except EvenflowError as wrong:
                messages.error(request, str(wrong))
        return HttpResponseRedirect(request.get_full_path())


def _backend_of(request: HttpRequest) -> tuple[str, Evenflow]:
    """The alias that the address names, and its app; Http404 where there is none."""
    alias = request.GET.get("backend", DEFAULT_ALIAS)
    if alias not in {link.alias for link in links()}:
        raise Http404(f"TASKS has no backend of Evenflow called {alias!r}")
    return alias, link_of(alias).app


def _retry(app: Evenflow, chosen: list[str], _: HttpRequest) -> str:
    return f"{app.retry(chosen)} of {len(chosen)} jobs go back to work."


def _retry_failed(app: Evenflow, chosen: list[str], request: HttpRequest) -> str:
    return _retry(app, _failed(app, chosen), request)


def _discard_failed(app: Evenflow, chosen: list[str], request: HttpRequest) -> str:
    return _discard(app, _failed(app, chosen), request)


def _failed(app: Evenflow, chosen: list[str]) -> list[str]:
    """Those that are on the page of failed jobs: its permission is for no others, whatever a form says."""
    kept = listing.in_states(app, chosen, FAILED)
    if not kept:
        raise EvenflowError("None of these jobs is failed: look at the list again.")
    return kept


def _discard(app: Evenflow, chosen: list[str], _: HttpRequest) -> str:
    return f"{app.discard(chosen)} of {len(chosen)} jobs were given up."


def _cancel(app: Evenflow, chosen: list[str], request: HttpRequest) -> str:
    return f"{app.cancel(chosen, f'by {request.user} in the admin')} of {len(chosen)} jobs are stopped."


def _pause(app: Evenflow, chosen: list[str], request: HttpRequest) -> str:
    for queue in chosen:
        app.pause(queue, who=str(request.user), why="in the admin")
    return f"Paused: {', '.join(chosen)}."


def _resume(app: Evenflow, chosen: list[str], _: HttpRequest) -> str:
    return f"Resumed: {', '.join(queue for queue in chosen if app.resume(queue)) or 'none was paused'}."


def _pause_schedule(app: Evenflow, chosen: list[str], request: HttpRequest) -> str:
    for key in chosen:
        app.schedules.pause(key, who=str(request.user), why="in the admin")
    return f"Paused: {', '.join(chosen)}."


def _resume_schedule(app: Evenflow, chosen: list[str], _: HttpRequest) -> str:
    return f"Resumed: {', '.join(key for key in chosen if app.schedules.resume(key)) or 'none was paused'}."


def _run_now(app: Evenflow, chosen: list[str], _: HttpRequest) -> str:
    return f"Enqueued: {', '.join(app.schedules.run_now(key).id for key in chosen)}."


@admin.register(models.Job)
class JobPage(Page):
    """Jobs of every state, newest first, with filters in the address."""

    columns = ("Job", "Task", "Queue", "Group", "State", "Priority", "Attempt", "Enqueued", "Ended")
    acts = {"retry": _retry, "cancel": _cancel, "discard": _discard}  # noqa: RUF012
    states: tuple[str, ...] = tuple(State)
    always: str | None = None

    def rows(self, app: Evenflow, request: HttpRequest) -> listing.Listing:
        given = self._filters(request)
        state = State(given["state"]) if "state" in given else None
        wanted = Filter(state, given.get("queue"), given.get("task"), given.get("group"))
        return listing.jobs(app, wanted, request.GET.get("before") or None)

    def more(self, request: HttpRequest, found: listing.Listing) -> dict[str, Any]:
        older = request.GET.copy()
        older["before"] = found.older or ""
        return {
            "states": self.states, "filters": self._filters(request), "details": self._details,
            "older": older.urlencode() if found.older else None, "is_partial": found.is_partial,
        }  # fmt: skip

    def get_urls(self) -> list[Any]:
        """The list, and a page for each job."""
        name = f"evenflow_{self.opts.model_name}_change"
        return [
            *super().get_urls(),
            path("<slug:object_id>/change/", self.admin_site.admin_view(self.change_view), name=name),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """One job: its arguments, its errors, what it logged, and why it does not run."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        _, app = _backend_of(request)
        try:
            found = listing.details(app, object_id)
        except JobNotFound as missing:
            raise Http404(str(missing)) from missing
        if found["job"].state not in self.states:  # another page's, with a permission of its own
            raise Http404(f"job {object_id} is {found['job'].state}")
        context = {
            **self.admin_site.each_context(request), "title": f"Job {object_id}", "opts": self.opts, **found,
            "changelist": f"admin:evenflow_{self.opts.model_name}_changelist",
        }  # fmt: skip
        return TemplateResponse(request, "admin/evenflow/job.html", context)

    def _filters(self, request: HttpRequest) -> dict[str, str]:
        given = {name: request.GET.get(name, "") for name in ("state", "queue", "task", "group")}
        if given["state"] not in self.states:
            given["state"] = ""
        if self.always is not None and not given["state"]:
            given["state"] = self.always
        return {name: value for name, value in given.items() if value}

    @property
    def _details(self) -> str:
        return f"admin:evenflow_{self.opts.model_name}_change"


@admin.register(models.FailedJob)
class FailedJobPage(JobPage):
    """Jobs that failed, to be mended and retried, or given up."""

    acts = {"retry": _retry_failed, "discard": _discard_failed}  # noqa: RUF012
    states = FAILED
    always = State.FAILED


@admin.register(models.Queue)
class QueuePage(Page):
    """Queues, how full they are, and whether they are paused."""

    columns = ("Queue", "Ready", "Running", "Scheduled", "Waiting", "Cap", "Paused")
    acts = {"pause": _pause, "resume": _resume}  # noqa: RUF012

    def rows(self, app: Evenflow, request: HttpRequest) -> listing.Listing:
        return listing.Listing(list(listing.queues(app)))


@admin.register(models.Schedule)
class SchedulePage(Page):
    """What recurs, and when it fires next."""

    columns = ("Key", "Fires", "Task", "Next", "Last", "State")
    acts = {"pause": _pause_schedule, "resume": _resume_schedule, "run now": _run_now}  # noqa: RUF012

    def rows(self, app: Evenflow, request: HttpRequest) -> listing.Listing:
        return listing.Listing(list(listing.schedules(app)))


@admin.register(models.Worker)
class WorkerPage(Page):
    """The processes that run jobs, and when they last gave a sign of life."""

    columns = ("Worker", "Kind", "Host", "Process", "Running", "Started", "Last heartbeat", "State")

    def rows(self, app: Evenflow, request: HttpRequest) -> listing.Listing:
        return listing.Listing(list(listing.workers(app)))
