"""``groupBy().applyInArrow`` and ``applyInPandas``: a function of one group, whole or as an iterator.

As in PySpark, type hints tell which: a function that by them maps an iterator of batches (of
frames) to such an iterator is called with its group in parts, which then need not fit into memory together.
What it does not take of a group is skipped.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as st

from sortshuffle.compute.groups.gathering import gathered
from sortshuffle.compute.groups.groups import GroupRun, group_batches, group_runs, group_tables
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.functions.conf import FunctionConf
from sortshuffle.spark.functions.conversion import given_arrow, joined, pandas_key, pandas_series
from sortshuffle.spark.functions.declared import Batches, Declared
from sortshuffle.spark.functions.group_frames import FrameCollector, group_frames
from sortshuffle.spark.functions.results import from_arrow, from_group_frame
from sortshuffle.spark.functions.running import Closed, in_user_code, mapped, user_errors
from sortshuffle.spark.functions.signatures import (
    Function,
    iterates_in_arrow,
    iterates_in_pandas,
    takes_key,
)

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class GroupFunction(ABC):
    """A function of one group.

    ``keys``: positions of the key columns, in the order of ``groupBy``; their values in the group's first
    row are the key, which a function that ``takes_key`` gets before the rows.
    """

    function: Function
    keys: tuple[int, ...]
    takes_key: bool
    declared: Declared
    conf: FunctionConf

    @classmethod
    def made(
        cls,
        method: str,
        function: Function,
        schema: st.StructType | str,
        conf: FunctionConf,
        keys: Iterable[int],
    ) -> GroupFunction:
        """An adaptor of this kind, for what ``method`` was given."""
        declared = Declared.of(method, function, schema, conf)
        return cls(function, tuple(keys), takes_key(method, function, "rows"), declared, conf)

    def __call__(self, groups: Iterator[Any]) -> Batches:
        """The results of all groups. ``groups``: such as `cut` gives them, all columns, none without rows.

        Raises `SchemaMismatchError`, and what the user's function does.
        """
        return user_errors(gathered(self._run(groups)))

    @abstractmethod
    def cut(self, batches: Batches, order: RowOrder) -> Iterator[Any]:
        """The groups of a stream that is sorted by the keys, the way this function wants them."""

    @abstractmethod
    def _run(self, groups: Iterator[Any]) -> Generator[pa.RecordBatch, None, None]: ...


@dataclass(frozen=True, slots=True)
class GroupApplyInArrow(GroupFunction):
    """``GroupedData.applyInArrow``: the table of a group in, a table out. The key is a tuple of Arrow
    scalars."""

    @staticmethod
    def of(
        function: Function, schema: st.StructType | str, conf: FunctionConf, keys: Iterable[int]
    ) -> GroupFunction:
        """The adaptor for a function of tables, or of batches' iterators if its hints say so.

        Raises `UsageError`, or `UnsupportedError` for a type.
        """
        form: type[GroupFunction] = GroupIterateInArrow if iterates_in_arrow(function) else GroupApplyInArrow
        return form.made("groupBy().applyInArrow", function, schema, conf, keys)

    def cut(self, batches: Batches, order: RowOrder) -> Iterator[pa.Table]:
        return group_tables(batches, order)

    def _run(self, groups: Iterator[pa.Table]) -> Generator[pa.RecordBatch, None, None]:
        with Closed(groups):
            for group in given_arrow(groups, self.conf):
                result = in_user_code(self.function, *self._arguments(group))
                del group  # not to be held while the results are on their way
                if not isinstance(result, pa.Table):
                    raise self.declared.mismatch("a pyarrow.Table", type(result).__name__)
                yield from from_arrow(result, self.declared, self.conf)
                del result

    def _arguments(self, group: pa.Table) -> tuple[Any, ...]:
        return (arrow_key(group, self.keys), group) if self.takes_key else (group,)


@dataclass(frozen=True, slots=True)
class GroupIterateInArrow(GroupFunction):
    """``GroupedData.applyInArrow``, iterator form: a group's batches in, any batches out."""

    def cut(self, batches: Batches, order: RowOrder) -> Iterator[Batches]:
        return group_batches(batches, order)

    def _run(self, groups: Iterator[Batches]) -> Generator[pa.RecordBatch, None, None]:
        with Closed(groups):
            for group in groups:
                yield from self._applied(given_arrow(group, self.conf))

    def _applied(self, group: Batches) -> Batches:
        before: tuple[Any, ...] = ()
        if self.takes_key:
            first = next(group)
            before = (arrow_key(first, self.keys),)
            group = itertools.chain([first], group)
            del first  # the chain lets go of it, once it is taken
        results = mapped(self.function, before, group, pa.RecordBatch, self.declared, any_iterable=False)
        with Closed(results):
            for batch in results:
                yield from from_arrow(batch, self.declared, self.conf)
                del batch  # not to be held while the function makes the next one


@dataclass(frozen=True, slots=True)
class GroupApplyInPandas(GroupFunction):
    """``GroupedData.applyInPandas``: the data frame of a group in, a data frame out.

    The key is a tuple of NumPy or Python values. The frame's index counts its rows. A returned frame without
    columns may be empty or stand for rows of nulls.
    """

    @staticmethod
    def of(
        function: Function, schema: st.StructType | str, conf: FunctionConf, keys: Iterable[int]
    ) -> GroupFunction:
        """The adaptor for a function of frames, or of frames' iterators if its hints say so.

        Raises `UsageError`, or `UnsupportedError` for a type.
        """
        form: type[GroupFunction] = (
            GroupIterateInPandas if iterates_in_pandas(function) else GroupApplyInPandas
        )
        return form.made("groupBy().applyInPandas", function, schema, conf, keys)

    def cut(self, batches: Batches, order: RowOrder) -> Iterator[GroupRun]:
        return group_runs(batches, order)

    def _run(self, groups: Iterator[GroupRun]) -> Generator[pa.RecordBatch, None, None]:
        results = FrameCollector(self.declared, self.conf)
        with Closed(groups):
            for key, frame in group_frames(groups, self.keys, self.conf):
                arguments = (key, frame) if self.takes_key else (frame,)
                del frame  # not to be held while its result is on its way
                result = in_user_code(self.function, *arguments)
                del arguments
                yield from results.add(result)
                del result
            yield from results.flush()


@dataclass(frozen=True, slots=True)
class GroupIterateInPandas(GroupFunction):
    """``GroupedData.applyInPandas``, iterator form: a group's rows as frames in, any frames out.

    The index of every frame counts that frame's rows.
    """

    def cut(self, batches: Batches, order: RowOrder) -> Iterator[Batches]:
        return group_batches(batches, order)

    def _run(self, groups: Iterator[Batches]) -> Generator[pa.RecordBatch, None, None]:
        with Closed(groups):
            for group in groups:
                yield from self._applied(group)

    def _applied(self, group: Batches) -> Batches:
        import pandas as pd

        before: tuple[Any, ...] = ()
        if self.takes_key:
            first = next(group)
            before = (pandas_key(pandas_series(first.slice(0, 1), self.conf), self.keys),)
            group = itertools.chain([first], group)
            del first  # the chain lets go of it, once it is taken
        frames = (joined(pandas_series(batch, self.conf)) for batch in group)
        # PySpark takes whatever can be iterated over from this form, from the one in Arrow only an iterator
        results = mapped(self.function, before, frames, pd.DataFrame, self.declared, any_iterable=True)
        with Closed(results):
            for frame in results:
                yield from from_group_frame(frame, self.declared, self.conf)
                del frame  # not to be held while the function makes the next one


def arrow_key(rows: pa.Table | pa.RecordBatch, keys: tuple[int, ...]) -> tuple[pa.Scalar, ...]:
    """The key of rows that are all of one group."""
    return tuple(rows.column(position)[0] for position in keys)
