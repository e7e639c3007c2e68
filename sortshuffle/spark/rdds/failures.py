"""Failures of this package that no user's function may hide.

A function that gets an iterator of records may catch the errors of that iterator. If a file of an exchange is
lost, the function would end well with a part of its partition, and the task with it. So the streams that read
exchanges, merge or sort note their errors (`noting`). A stage raises a noted error where its chain ends,
before it completes a file.

Functions of PySpark's own RDDs run in the same worker, after the stage or before the next one. An error that
they have caught is raised by the next stage of the task. If there is none, the task's report is replaced by
one that cannot be pickled (`fail_task`). PySpark sends reports after the last record, and a worker that
cannot send them ends. So Spark fails the task, and calls the worker crashed. The worker's log has the error.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar, cast

from pyspark import TaskContext

from sortshuffle.spark.worker.reports import Reporter, TaskReport

T = TypeVar("T")

_first_of: dict[int, Exception] = {}
"""The first failure of each task attempt in this process. All of these tasks fail, and PySpark ends a worker
whose task has failed: this stays small."""


@contextmanager
def noting_errors() -> Generator[None, None, None]:
    """Note the error of a ``with`` block."""
    try:
        yield
    except Exception as error:
        attempt = _attempt()
        if attempt is not None:
            _first_of.setdefault(attempt, error)
        raise


def noting(items: Iterable[T]) -> Generator[T, None, None]:
    """Pass ``items`` on, and note their error."""
    with noting_errors():
        yield from items


def noted() -> Exception | None:
    """Return the first failure of the running task, if there was one."""
    attempt = _attempt()
    return None if attempt is None else _first_of.get(attempt)


def at_end() -> Generator[NoReturn, None, None]:
    """Yield nothing. Raise the failure of the running task, if there was one."""
    failure = noted()
    if failure is not None:
        raise failure
    yield from ()


def fail_task(reporter: Reporter, stage: int, partition: int, failure: Exception) -> None:
    """Make the running task fail, even if nobody else raises its failure."""
    reporter.add(stage, partition, cast(TaskReport, _Unsendable(failure)))


class _Unsendable:
    """A report that raises ``failure`` where it is pickled."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    def __reduce__(self) -> Any:
        raise self._failure


def _attempt() -> int | None:
    context: Any = TaskContext.get()
    return None if context is None else context.taskAttemptId()
