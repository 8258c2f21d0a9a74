"""`evenflow retry`, `cancel` and `discard`: jobs by id, or all that match a filter, after a look at how many that are."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from evenflow import Evenflow, EvenflowError
from evenflow.cli.documents import json_option, tell
from evenflow.cli.places import Place, opened, takes_place
from evenflow.cli.progress import showing_progress
from evenflow.cli.texts import count_of
from evenflow.ids import id_text, job_number
from evenflow.job import State
from evenflow.store import reads
from evenflow.store.open import AnyEngine
from evenflow.store.reads import Filter

BATCH = 500
OPEN = tuple(state for state in State if not state.is_end)
TROUBLE = (State.FAILED, State.QUARANTINED)

RETRIED = (*TROUBLE, State.CANCELLED, State.EXPIRED, State.DISCARDED, State.SCHEDULED)
"""States that `retry` can do something about; a scheduled job becomes due at once."""
CANCELLED = OPEN
DISCARDED = (
    *(state for state in OPEN if not state.is_in_flight),
    *TROUBLE,
    State.CANCELLED,
    State.EXPIRED,
)
Act = Callable[[Sequence[str]], int]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which jobs the user means, and how sure he is."""

    ids: tuple[str, ...]
    filters: tuple[Filter, ...]
    expect: int | None
    is_sure: bool
    as_json: bool


def takes_choice(can: Sequence[State], default: Sequence[State]) -> Callable[..., Callable[..., None]]:
    """Give a command ids, filters, `--expect`, `--yes` and `--json`, and pass them on as `choice`.

    `can` are the states it can act on; `default` those that a filter means where no state is given.
    """

    meant = "all of these" if set(default) == set(can) else ", ".join(default)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.argument("ids", nargs=-1, metavar="[ID]...")
        @click.option("--state", "states", type=click.Choice([state.value for state in can]), multiple=True,
                      help=f"Jobs in this state; may be repeated. Default: {meant}.")  # fmt: skip
        @click.option("--queue", metavar="NAME", help="Jobs of this queue.")
        @click.option("--task", metavar="NAME", help="Jobs of this task.")
        @click.option("--group", metavar="NAME", help="Jobs of this group.")
        @click.option(
            "--expect",
            type=click.IntRange(min=0),
            metavar="N",
            help="Do nothing unless exactly N jobs match.",
        )
        @click.option("--yes", is_flag=True, help="Do not ask.")
        @json_option
        @functools.wraps(command)
        def wrapped(
            *, ids: tuple[str, ...], states: tuple[str, ...], queue: str | None, task: str | None, group: str | None,
            expect: int | None, yes: bool, as_json: bool, **options: Any,
        ) -> None:  # fmt: skip
            has_filter = bool(states or queue or task or group)
            if bool(ids) == has_filter:
                raise click.UsageError(
                    "name jobs by their ids, or by a filter (--state, --queue, --task, --group)"
                )
            filters = tuple(Filter(State(state), queue, task, group) for state in states or default)
            command(choice=Choice(ids, () if ids else filters, expect, yes, as_json), **options)

        return wrapped

    return decorate


@click.command()
@takes_choice(RETRIED, TROUBLE)
@takes_place
def retry(place: Place, choice: Choice) -> None:
    """Put jobs back to work, with all their attempts anew.

    By id: whatever has ended without success. By filter: failed and quarantined jobs, unless --state says otherwise.
    A scheduled job becomes due at once.
    """
    with place.acting() as app:
        _apply(app, choice, "retry", "retried", app.retry)


@click.command()
@click.option("--why", metavar="TEXT", default="", help="The reason, told to jobs that run.")
@takes_choice(CANCELLED, OPEN)
@takes_place
def cancel(place: Place, choice: Choice, why: str) -> None:
    """Stop open jobs.

    At once where they do not run yet; else their worker is told.
    """
    with place.acting() as app:
        _apply(app, choice, "cancel", "cancelled", lambda ids: app.cancel(ids, why))


@click.command()
@takes_choice(DISCARDED, TROUBLE)
@takes_place
def discard(place: Place, choice: Choice) -> None:
    """Give jobs up.

    Open ones do not run, failed ones leave the list of the failed. By filter: failed and quarantined
    jobs, unless --state says otherwise. Running jobs are left alone.
    """
    with place.acting() as app:
        _apply(app, choice, "discard", "discarded", app.discard)


def _apply(app: Evenflow, choice: Choice, verb: str, done: str, act: Act) -> None:
    if choice.ids:
        ids = list(dict.fromkeys(id_text(job_number(each)) for each in choice.ids))
        _require(choice, len(ids), f"{count_of(len(ids), 'job')} named")
        _report(choice, done, act(ids), len(ids))
        return
    with opened(app.settings) as engine:
        matching = sum(reads.count(engine, wanted) for wanted in choice.filters)
        found = f"{count_of(matching, 'job')} match{'es' if matching == 1 else ''}"
        click.echo(found, err=True)
        _require(choice, matching, found)
        if matching == 0:
            if choice.as_json:
                _report(choice, done, 0, 0)
            return
        if not choice.is_sure:
            _confirm(f"{verb} {count_of(matching, 'job')}?")
        changed = _in_batches(_pages(engine, choice.filters, matching), matching, done, act)
        _report(choice, done, changed, matching)


def _confirm(question: str) -> None:
    try:
        is_agreed = click.confirm(question, err=True)
    except click.Abort:
        raise EvenflowError("nothing was changed; where nobody can answer, add --yes") from None
    if not is_agreed:
        raise EvenflowError("nothing was changed")


def _require(choice: Choice, count: int, found: str) -> None:
    if choice.expect is not None and choice.expect != count:
        raise EvenflowError(f"--expect {choice.expect:,}, but {found}: nothing was changed; look again")


def _pages(engine: AnyEngine, filters: Sequence[Filter], most: int) -> Iterator[list[str]]:
    """Ids in batches, newest first. What an act moves from one state to another is not met twice by one filter.

    No more than were counted: what came to match meanwhile nobody has seen.
    """
    left = most
    for wanted in filters:
        before = reads.NEWEST
        while left and (page := reads.page(engine, wanted, before=before, top=min(BATCH, left))):
            left -= len(page)
            yield [id_text(record.id) for record in page]
            before = page[-1].id


def _in_batches(pages: Iterator[list[str]], total: int, done: str, act: Act) -> int:
    if total <= BATCH:
        return sum(map(act, pages))
    changed = seen = 0
    with showing_progress({done: total}) as show:
        for ids in pages:
            changed += act(ids)
            seen += len(ids)
            show(done, min(seen, total))
    return changed


def _report(choice: Choice, done: str, changed: int, of: int) -> None:
    rest = f"; {count_of(of - changed, 'other')} could not be, as they are now" if changed < of else ""
    tell(choice.as_json, f"{done} {count_of(changed, 'job')}{rest}", act=done, matched=of, changed=changed)
