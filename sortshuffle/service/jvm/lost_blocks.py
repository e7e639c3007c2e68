"""`LostBlocksError`: says which blocks of a request are lost.

A `DataLossError` concerns one place, this error a whole request. It does not leave the engine: the engine
reports it to the JVM in a reply, and the JVM makes Spark run the map tasks again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from sortshuffle.errors import SortShuffleError

_log = logging.getLogger(__name__)

PROBLEMS = (OSError, RuntimeError, SortShuffleError, MemoryError)
"""What may happen to a look for map outputs that says nothing about them."""


class LostBlocksError(Exception):
    """``blocks``: numbers of the lost blocks. ``is_reachable``: False if a service did not answer: all its
    blocks are among these then."""

    def __init__(self, blocks: Sequence[int], why: str, is_reachable: bool = True) -> None:
        super().__init__(why)
        self.blocks = tuple(blocks)
        self.is_reachable = is_reachable


def warn_of(problem: BaseException, shuffle: int) -> None:
    """Log that a look for lost map outputs has failed, of which some are known."""
    _log.warning("what else is lost of shuffle %d cannot be told: %s", shuffle, problem)


def with_all_lost(
    known: Iterable[int], why: str, locate: Callable[[], None], shuffle: int
) -> LostBlocksError:
    """Return an error with the blocks that are known to be lost, by number, and all others that ``locate``
    finds lost when it looks for the blocks of the request again."""
    lost, is_reachable = set(known), True
    try:
        locate()
    except LostBlocksError as others:
        lost.update(others.blocks)
        is_reachable = others.is_reachable
    except PROBLEMS as problem:  # then only the known ones
        warn_of(problem, shuffle)
    return LostBlocksError(sorted(lost), why, is_reachable)
