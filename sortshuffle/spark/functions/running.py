"""Running users' code: what a function is given, what it gives, and what becomes of its errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from sortshuffle.spark.functions.declared import Declared

T = TypeVar("T")

_OUR_CODE = f"{Path(__file__).resolve().parents[2]}{os.sep}"
_END = object()


def user_errors(produced: Iterator[T]) -> Iterator[T]:
    """``produced``, whose errors out of users' functions show the users' frames and one line of ours.

    Errors that are not from a user's function, which may be our own faults, keep their whole traceback.
    Adaptors do this themselves; whoever runs several in a chain does it once more around the chain.
    """
    try:
        yield from produced
    except Exception as error:
        raise error.with_traceback(_without_plumbing(error.__traceback__))  # noqa: B904  it is the error itself


def in_user_code(function: Callable[..., T], *arguments: Any) -> T:
    """Every call of a user's code goes through here, and `_without_plumbing` finds it by this frame."""
    try:
        return function(*arguments)
    except StopIteration as stop:
        # left alone it would end the generators above as if the data had ended
        raise RuntimeError(
            f"StopIteration was raised by a function, outside of an iterator: {stop}"
        ) from stop


_ENTRANCES = {in_user_code.__code__, user_errors.__code__}


def _without_plumbing(traceback: TracebackType | None) -> TracebackType | None:
    """``traceback`` without our frames above the innermost user's function it has run."""
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


class _Watched(Iterator[T]):
    """A function's input, which remembers how it failed: the function may swallow the error."""

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


def mapped(
    function: Callable[..., Any],
    before: tuple[Any, ...],
    given: Iterator[Any],
    kind: type[T],
    declared: Declared,
    *,
    any_iterable: bool,
) -> Iterator[T]:
    """What ``function`` makes of the iterator ``given``, each item checked to be a ``kind``.

    ``before``: its arguments before the iterator. ``any_iterable``: whether it may return a list, say.
    """
    wanted = f"an iterator of {kind.__module__.partition('.')[0]}.{kind.__name__}"
    source = _Watched(given)
    results: Any = in_user_code(function, *before, source)
    if any_iterable and not isinstance(results, Iterator):
        results = _iterator(results)
    if not isinstance(results, Iterator):
        raise declared.mismatch(wanted, type(results).__name__)
    with Closed(results):
        while True:
            result = in_user_code(next, results, _END)
            if source.failure is not None:
                raise source.failure
            if result is _END:
                return
            if not isinstance(result, kind):
                raise declared.mismatch(wanted, f"an iterator of {type(result).__name__}")
            yield result
            del result


def _iterator(results: object) -> object:
    """The iterator over ``results``, or ``results`` itself if there is none."""
    try:
        return iter(results)  # type: ignore[call-overload]
    except TypeError:
        return results


class Closed:
    """Closes an iterator at the end of a block, if it can be closed: generators run their ``finally``."""

    __slots__ = ("_iterator",)

    def __init__(self, iterator: object) -> None:
        self._iterator = iterator

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
