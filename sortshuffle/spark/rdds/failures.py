"""Failures that no user's function may hide.

A function that gets an iterator of records may catch the errors of that iterator. If a file of an exchange is
lost, the function would end well with a part of its partition, and the task with it. So the streams that read
exchanges, merge or sort note their errors (`noting`). Errors of the user's own functions in a merge or a sort
are noted, too. A stage raises a noted error where its chain ends, before it completes a file.

Functions of PySpark's own RDDs run in the same worker, before a stage or after it. They may also read a group
that is on disk after its stage has ended. If they catch an error, perhaps no stage follows that could raise
it again. So a noted error also adds a report that cannot be pickled. PySpark sends reports after the last
record, and a worker that cannot send them ends. So Spark fails the task, and calls the worker crashed. The
worker's log has the error.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, cast

from pyspark import TaskContext

from sortshuffle.spark.worker.reports import Reporter, TaskReport

T = TypeVar("T")

# Stage and partition of the report that cannot be sent. A real report, which may come later, has others, and
# so does not replace it
NOWHERE = -1


@dataclass(slots=True)
class _Attempt:
    """A task attempt with a stage of ours. ``failure``: the first one that was noted."""

    number: int
    reporter: Reporter
    failure: Exception | None = None

    def fail_task(self) -> None:
        """Make the task fail, even if nobody raises its failure again."""
        assert self.failure is not None
        self.reporter.add(NOWHERE, NOWHERE, cast(TaskReport, _Unsendable(self.failure)))


_latest: _Attempt | None = None
"""The latest attempt in this process: a worker runs one task at a time."""


def begin_noting(reporter: Reporter) -> None:
    """Note failures of the running task attempt from now on. ``reporter``: of one of its stages. A task may
    use this worker several times, for partitions that Spark has coalesced. Each time PySpark sends only what
    reporters of that time have, so the latest reporter is the one to add to."""
    global _latest
    number = _running_number()
    if number is None:
        return
    if _latest is None or _latest.number != number:
        _latest = _Attempt(number, reporter)
        return
    _latest.reporter = reporter
    if _latest.failure is not None:
        _latest.fail_task()


@contextmanager
def noting_errors() -> Generator[None, None, None]:
    """Note the error of a ``with`` block."""
    try:
        yield
    except Exception as error:
        _note(error)
        raise


def noting(items: Iterable[T]) -> Generator[T, None, None]:
    """Pass ``items`` on, and note their error."""
    with noting_errors():
        yield from items


def noted() -> Exception | None:
    """Return the first failure of the running task, if there was one."""
    attempt = _running()
    return None if attempt is None else attempt.failure


def at_end() -> Generator[NoReturn, None, None]:
    """Yield nothing. Raise the failure of the running task, if there was one."""
    failure = noted()
    if failure is not None:
        raise failure
    yield from ()


def _note(error: Exception) -> None:
    """Note the first failure of the running task, and make the task fail even if nobody raises it again."""
    attempt = _running()
    if attempt is not None and attempt.failure is None:
        attempt.failure = error
        attempt.fail_task()


class _Unsendable:
    """A report that raises ``failure`` where it is pickled."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    def __reduce__(self) -> Any:
        raise self._failure


def _running() -> _Attempt | None:
    """Return the running task attempt, if it has had a stage of ours."""
    return _latest if _latest is not None and _latest.number == _running_number() else None


def _running_number() -> int | None:
    context: Any = TaskContext.get()
    return None if context is None else context.taskAttemptId()
