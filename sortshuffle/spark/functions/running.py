"""Calls of users' functions: the functions' input, results and errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from pyspark.errors import PySparkRuntimeError

from sortshuffle.spark.functions.result_schema import ResultSchema
from sortshuffle.spark.worker_errors import note_fields

T = TypeVar("T")

_OUR_CODE = f"{Path(__file__).resolve().parents[2]}{os.sep}"
_END = object()


def user_errors(results: Iterator[T]) -> Iterator[T]:
    """Pass ``results`` on. The traceback of a user's error shows the user's frames and one line of ours.

    Other errors may be faults of this package, and keep their whole traceback; those that this package raises
    on purpose get a note for the driver. Each adaptor calls this, and a stage calls it once more around its
    chain of adaptors.
    """
    try:
        yield from results
    except Exception as error:
        note_fields(error)
        raise error.with_traceback(_without_plumbing(error.__traceback__))  # noqa: B904  it is the error itself


def in_user_code(function: Callable[..., T], *arguments: Any) -> T:
    """Call a user's function. All such calls go through here: `_without_plumbing` looks for this frame."""
    try:
        return function(*arguments)
    except StopIteration as stop:
        # uncaught, a StopIteration would end the generators above as if the data had ended
        raise PySparkRuntimeError(
            errorClass="STOP_ITERATION_OCCURRED", messageParameters={"exc": str(stop)}
        ) from stop


_ENTRANCES = {in_user_code.__code__, user_errors.__code__}


def _without_plumbing(traceback: TracebackType | None) -> TracebackType | None:
    """Return ``traceback`` without our frames above the innermost call of a user's function."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    entrances = [at for at, entry in enumerate(entries) if entry.tb_frame.f_code in _ENTRANCES]
    innermost = entrances[-1] if entrances else -1
    for at, entry in reversed(list(enumerate(entries))):
        if at > innermost or not entry.tb_frame.f_code.co_filename.startswith(_OUR_CODE):
            traceback = TracebackType(traceback, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return traceback


class _Input(Iterator[T]):
    """The input of a function. ``failure``: the input's error, kept because the function may swallow it, or
    raise one of its own instead."""

    __slots__ = ("_items", "failure")

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self.failure: Exception | None = None

    def __next__(self) -> T:
        try:
            return next(self._items)
        except StopIteration:
            raise
        except Exception as error:
            self.failure = error
            raise


def iterate(
    function: Callable[..., Any],
    before: tuple[Any, ...],
    items: Iterator[Any],
    kind: type[T],
    declared: ResultSchema,
    *,
    any_iterable: bool,
) -> Iterator[T]:
    """Yield the results of ``function`` for the iterator ``items``. Each must be of class ``kind``.

    An error of the input comes first, even if the function then raises another.
    ``before``: arguments before the iterator. ``any_iterable``: accept a list, say, besides iterators.
    """
    source = _Input(items)
    try:
        yield from _results(function, before, source, kind, declared, any_iterable)
        return
    except Exception as error:
        if source.failure is None or source.failure is error:
            raise
        failure = source.failure
    raise failure  # not in the handler, so that it keeps its own cause and context: the worker looks at them


def _results(
    function: Callable[..., Any],
    before: tuple[Any, ...],
    source: _Input[Any],
    kind: type[T],
    declared: ResultSchema,
    any_iterable: bool,
) -> Iterator[T]:
    wanted = f"iterator of {kind.__module__.partition('.')[0]}.{kind.__name__}"
    results: Any = in_user_code(function, *before, source)
    if any_iterable and not isinstance(results, Iterator):
        results = _iterator(results)
    if not isinstance(results, Iterator):
        raise declared.mismatch(wanted, type(results).__name__)
    with CloseAtEnd(results):
        while True:
            result = in_user_code(next, results, _END)
            if source.failure is not None:
                raise source.failure
            if result is _END:
                return
            if not isinstance(result, kind):
                raise declared.mismatch(wanted, f"iterator of {type(result).__name__}")
            yield result
            del result


def _iterator(results: object) -> object:
    try:
        return iter(results)  # type: ignore[call-overload]
    except TypeError:  # the caller reports it
        return results


class CloseAtEnd(Generic[T]):
    """Context that closes its iterator, if that can be closed, so that generators run their ``finally``."""

    __slots__ = ("_iterator",)

    def __init__(self, iterator: T) -> None:
        self._iterator = iterator

    def __enter__(self) -> T:
        return self._iterator

    def __exit__(self, *raised: object) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
