"""Many at once: the same act in several processes or threads that start together, with a deadline for all."""

import multiprocessing
import os
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
DEADLINE_S = 60.0
_spawn = multiprocessing.get_context("spawn")


class CrowdFailed(AssertionError):
    """Somebody's act failed; the text is its traceback."""


def in_processes(count: int, act: Callable[..., T], *arguments: Any) -> list[T]:
    """What `act(number, *arguments)` returns in each of several fresh processes that begin at the same instant."""
    return _in_processes(_spawn, count, act, arguments)


def in_forks(count: int, act: Callable[..., T], *arguments: Any) -> list[T]:
    """The same in copies of this process, which begin much sooner. The act must use nothing that was open before."""
    return _in_processes(multiprocessing.get_context("fork"), count, act, arguments)


def _in_processes(kind: Any, count: int, act: Callable[..., T], arguments: tuple[Any, ...]) -> list[T]:
    together, answers = kind.Barrier(count), kind.SimpleQueue()
    crowd = [
        kind.Process(target=_act_in_process, args=(together, answers, number, act, arguments))
        for number in range(count)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        for process in crowd:
            process.start()
    try:
        for process in crowd:
            process.join(DEADLINE_S)
        assert [process.exitcode for process in crowd] == [0] * count
        found = dict(answers.get() for _ in crowd)
    finally:
        for process in crowd:
            process.kill()
            process.join()
            process.close()
        answers.close()
    return _answers(found)


def in_threads(count: int, act: Callable[[int], T]) -> list[T]:
    """What `act(number)` returns in each of several threads that begin at the same instant."""
    together = threading.Barrier(count)
    found: dict[int, Any] = {}

    def run(number: int) -> None:
        together.wait(DEADLINE_S)
        found[number] = _outcome(lambda: act(number))

    crowd = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(DEADLINE_S)
    assert len(found) == count, "somebody did not end in time"
    return _answers(found)


def in_fork(act: Callable[[], str]) -> str:
    """What an act returns in a forked child, which inherits every open handle."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested here
        child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(_outcome(act)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


def _act_in_process(
    together: Any, answers: Any, number: int, act: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    together.wait(DEADLINE_S)
    answers.put((number, _outcome(lambda: act(number, *arguments))))


def _outcome(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except BaseException:
        return CrowdFailed(traceback.format_exc())


def _answers(found: dict[int, Any]) -> list[Any]:
    for answer in found.values():
        if isinstance(answer, CrowdFailed):
            raise answer
    return [found[number] for number in sorted(found)]
