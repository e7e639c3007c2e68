"""`LostBlocksError`: says which blocks of a request are lost.

A `DataLossError` concerns one place, this error a whole request. It does not leave the engine: the engine
reports it to the JVM in a reply, and the JVM makes Spark run the map tasks again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeGuard, TypeVar

from sortshuffle.errors import DataLossError, ServiceUnavailableError, SortShuffleError

_log = logging.getLogger(__name__)

PROBLEMS = (OSError, RuntimeError, SortShuffleError, MemoryError)
"""The errors that looking for a map output may raise: its loss, or an error that says nothing about it
(`is_no_loss`)."""

MOST_REASONS = 8  # in the text of an error: a lost disk may have thousands

Error = TypeVar("Error", bound=Exception)


class LostBlocksError(Exception):
    """``blocks``: numbers of the lost blocks. ``reasons``: why they are lost; the text has the first ones.
    ``silent``: numbers of the request's services that did not answer. All their blocks are lost."""

    def __init__(self, blocks: Iterable[int], reasons: Iterable[str], silent: Iterable[int] = ()) -> None:
        self.blocks = tuple(sorted(set(blocks)))
        self.reasons = tuple(dict.fromkeys(reasons))
        self.silent = tuple(sorted(set(silent)))
        super().__init__(_text_of(self.reasons))


def _text_of(reasons: Sequence[str]) -> str:
    more = len(reasons) - MOST_REASONS
    return "; ".join([*reasons[:MOST_REASONS], *([f"and {more} more"] if more > 0 else [])])


def joined(*errors: LostBlocksError) -> LostBlocksError:
    """Return one error for all of these. Services that do not answer are named first: the text, which a
    person reads, does not have all reasons."""
    silent_first = sorted(errors, key=lambda error: not error.silent)
    return LostBlocksError(
        (block for error in errors for block in error.blocks),
        (reason for error in silent_first for reason in error.reasons),
        (service for error in errors for service in error.silent),
    )


def is_no_loss(answer: object) -> TypeGuard[Exception]:
    """Return whether the answer of a look for a map output is an error that says nothing about it."""
    return isinstance(answer, Exception) and not isinstance(answer, DataLossError | ServiceUnavailableError)


def raise_for(losses: Sequence[LostBlocksError], answers: Iterable[object], shuffle: int) -> None:
    """Raise these losses as one error: Spark must hear of them, whatever else has failed. If there are none,
    raise the first of the ``answers`` that is an error."""
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    if losses:
        other = next(filter(is_no_loss, errors), None)
        if other is not None:
            warn_of(other, shuffle)
        raise joined(*losses)
    if errors:
        raise errors[0]


def without_frames(error: Error) -> Error:
    """Return the error, without the tracebacks of itself and what it came from: their frames would keep files
    open, and memory. For errors that are kept."""
    each: BaseException | None = error
    while each is not None and each.__traceback__ is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error


def warn_of(problem: BaseException, shuffle: int) -> None:
    """Log that a look for lost map outputs has failed, of which some are known."""
    _log.warning("what else is lost of shuffle %d cannot be told: %s", shuffle, problem)


def with_all_lost(known: LostBlocksError, locate: Callable[[], None], shuffle: int) -> LostBlocksError:
    """Return an error with the blocks that are known to be lost, and all others that ``locate`` finds lost
    when it looks for the blocks of the request again."""
    try:
        locate()
    except LostBlocksError as others:
        return joined(known, others)
    except PROBLEMS as problem:  # then only the known ones
        warn_of(problem, shuffle)
    return known
