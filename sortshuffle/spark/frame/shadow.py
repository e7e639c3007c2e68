"""`Shadow`: the DataFrame that has the columns of a frame, on which Spark analyses calls.

A column such as ``frame.k`` must be a column of a plan, and a frame of Python's side has none yet. Its shadow
has one. While rows stay in Python, the shadow of a result is what Spark makes of the same call on the shadows
of the frames in it. So Spark analyses every call, and a column of a frame can be used on the frames derived
from it, as in PySpark. When rows go to Spark, their plan gets the shadow's column ids.

With a JVM (`classic_shadow`):

    frame                                       its shadow
    what a function returns                     an empty DataFrame of that schema (`twin`)
    what an operator of Python's side returns   the same call on the shadows of its frames
    of Spark's side                             its plan, with its rows

Spark also finds columns that a selection dropped: ``f.select("id").filter(f.k > 1)``. It changes the plan
below the selection, and rows from Python have no such plan. So Spark analyses the call on the shadow, and
`with_rows` then puts the rows into the plan of the result. It puts them in at the *bases*. A base is the
result of a function, of an operator whose rows Spark would make differently or not at all, or rows in Spark's
cache.

A hidden column below a base is reached by making the base's rows again, in Spark, of the rows of the bases
below. After ``limit`` or ``dropDuplicates`` Spark may choose other rows, as it may for any two plans. Hidden
columns never pass a sample, whose rows must stay the same, or what only Python can make.

Over Spark Connect (`connect_shadow`) nothing is analysed before a request. There a base's shadow is the plan
of its stage, with its rows. Spark repeats all calls since the base, samples included.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import DataFrame

_base_numbers = itertools.count(1)


def next_base() -> int:
    """Return a number for a new base, unique in this process."""
    return next(_base_numbers)


class HiddenColumnError(Exception):
    """Hidden columns would have to pass a base that has not got them."""


@dataclass(frozen=True, slots=True)
class Base:
    """A frame whose rows belong into a shadow's plan. ``is_passable``: whether hidden columns may pass it.
    Then the plan below the base makes its rows, of those of bases further down."""

    frame: Any
    is_passable: bool


class Shadow:
    """A DataFrame that is made when it is first needed. ``make``: makes it, once ``sources`` are made.
    ``base``: the number of this base; None if it is none. ``bases``: those below it in the plan, by number. A
    base without them is one that hidden columns do not pass."""

    impassable: ClassVar[frozenset[str]] = frozenset()  # methods whose results hidden columns do not pass

    def __init__(
        self,
        make: Callable[[], DataFrame] | None,
        sources: Sequence[Shadow] = (),
        *,
        base: int | None = None,
        bases: Mapping[int, Base] | None = None,
    ) -> None:
        self._make = make
        self._sources = tuple(sources)
        self._made: DataFrame | None = None
        self._lock = threading.RLock()  # of the attributes above; no other lock is taken under it
        self.base = base
        self.is_passable = bases is not None
        self.bases: Mapping[int, Base] = bases or {}

    @classmethod
    def of_plan(cls, plan: DataFrame) -> Shadow:
        """Return the shadow of a frame whose rows are those of a plan of Spark's."""
        shadow = cls(None)
        shadow._made = plan
        return shadow

    def dataframe(self) -> DataFrame:
        """Return the DataFrame. Raises what Spark's analysis raises for a wrong call."""
        pending = [self]  # no recursion, because a chain of calls may be longer than Python's stack
        while pending:
            shadow = pending[-1]
            unmade = [each for each in shadow._sources if each._made is None]
            if unmade:
                pending += unmade
            else:
                pending.pop()._make_once()
        assert self._made is not None
        return self._made

    def _make_once(self) -> None:
        with self._lock:
            if self._made is None:
                assert self._make is not None
                made = self._make()
                self._set(made)
                self._made = made  # after everything that belongs to it, for threads that look without a lock
            self._make, self._sources = None, ()  # they hold other frames

    def _set(self, made: DataFrame) -> None:
        """Note what `with_ids` and `with_rows` need to know of the DataFrame. Runs once, with the lock."""

    # ---- with a JVM ---------------------------------------------------------------------------------

    def with_ids(self, plan: DataFrame) -> DataFrame:
        """Return ``plan``, which has the rows of the shadow's frame, with the shadow's column ids."""
        return plan

    def has_ids_of(self, plan: DataFrame) -> bool:
        """Return whether ``plan``, made by `with_ids`, has the shadow's column ids. If not, Spark has renewed
        them, because a DataFrame below gives them, too."""
        return True

    def renewed(self, plan: DataFrame) -> DataFrame:
        """Return a DataFrame of the same rows that gives none of the shadow's column ids, so that one above
        it can. Spark's cache serves both. Returns ``plan`` if there is no such one."""
        return plan

    def replaced_by(self, plan: DataFrame) -> Shadow:
        """Return the shadow of the same frame for what is made from now on, because Spark has renewed the
        column ids. ``plan``: as Spark planned it."""
        return self

    def kept(self) -> Shadow:
        """Return the shadow of the same frame for what is made from now on, because Spark keeps its rows: a
        base, so that Spark does not make the rows again of those below."""
        return self

    def needs_hidden(self, result: DataFrame) -> bool:
        """Return whether ``result``, of a call on this shadow and others, needs hidden columns."""
        return False

    def with_rows(self, result: DataFrame, bases: Mapping[int, Base]) -> DataFrame:
        """Return ``result``, of a call on this shadow and others, with the rows of ``bases`` in its plan.
        Raises `HiddenColumnError` if hidden columns would have to pass one that they may not pass."""
        return result
