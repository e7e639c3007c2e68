"""Adaptors for ``groupBy().applyInArrow`` and ``applyInPandas``: functions of a whole group or an iterator.

As in PySpark, type hints choose the form. A function whose hints say that it maps an iterator of batches (or
of frames) to another gets its group in parts of at most ``conf.batch_rows`` rows, and the group need not fit
into memory. The part of a group that the function does not read is skipped.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st

from sortshuffle.compute.groups.gathering import gather
from sortshuffle.compute.groups.groups import GroupRun, group_batches, group_runs, group_tables
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.functions.conf import FunctionConf
from sortshuffle.spark.functions.conversion import frame_of, pandas_key, pandas_series, with_session_types
from sortshuffle.spark.functions.group_frames import FrameCollector, group_frames
from sortshuffle.spark.functions.pickled import PickledFunction
from sortshuffle.spark.functions.result_schema import Batches, ResultSchema
from sortshuffle.spark.functions.results import from_arrow, from_group_frame
from sortshuffle.spark.functions.running import CloseAtEnd, in_user_code, iterate, user_errors
from sortshuffle.spark.functions.signatures import (
    Function,
    iterates_in_arrow,
    iterates_in_pandas,
    takes_key,
)


@dataclass(frozen=True, slots=True)
class GroupFunction(ABC):
    """Adaptor for a function of one group.

    ``keys``: positions of the key columns, in the order of ``groupBy``. Their values in the group's first row
    are the key. ``takes_key``: whether the key is passed, as the argument before the rows.
    """

    function: Function
    keys: tuple[int, ...]
    takes_key: bool
    declared: ResultSchema
    conf: FunctionConf

    @classmethod
    def build(
        cls,
        method: str,
        function: Function,
        schema: st.StructType | str,
        conf: FunctionConf,
        keys: Iterable[int],
    ) -> GroupFunction:
        """Build the adaptor from the arguments of ``method``."""
        declared = ResultSchema.of(method, function, schema, conf)
        keyed = takes_key(method, function, "rows")
        return cls(PickledFunction.of(function), tuple(keys), keyed, declared, conf)

    def __call__(self, groups: Iterator[Any]) -> Batches:
        """Yield the results of all groups. ``groups``: from `cut`, with all columns; no group is empty.

        Raises `SchemaMismatchError`, and whatever the user's function raises.
        """
        return user_errors(gather(self._run(groups)))

    @abstractmethod
    def cut(self, batches: Batches, order: RowOrder) -> Iterator[Any]:
        """Cut a stream sorted by the keys into groups, in the form that this function takes."""

    @abstractmethod
    def _run(self, groups: Iterator[Any]) -> Generator[pa.RecordBatch, None, None]: ...


@dataclass(frozen=True, slots=True)
class GroupApplyInArrow(GroupFunction):
    """``GroupedData.applyInArrow``: a group's table to a table. The key is a tuple of Arrow scalars."""

    @staticmethod
    def of(
        function: Function, schema: st.StructType | str, conf: FunctionConf, keys: Iterable[int]
    ) -> GroupFunction:
        """Build the adaptor for a function of tables, or of iterators of batches if its hints say so.

        Raises `UsageError`, or `UnsupportedError` for a type.
        """
        form: type[GroupFunction] = GroupIterateInArrow if iterates_in_arrow(function) else GroupApplyInArrow
        return form.build("groupBy().applyInArrow", function, schema, conf, keys)

    def cut(self, batches: Batches, order: RowOrder) -> Iterator[pa.Table]:
        return group_tables(batches, order)

    def _run(self, groups: Iterator[pa.Table]) -> Generator[pa.RecordBatch, None, None]:
        with CloseAtEnd(groups):
            for group in with_session_types(groups, self.conf):
                result = in_user_code(self.function, *self._arguments(group))
                del group  # so that the table is not held while the results are delivered
                if not isinstance(result, pa.Table):
                    raise self.declared.mismatch("pyarrow.Table", type(result).__name__)
                yield from from_arrow(result, self.declared, self.conf)
                del result

    def _arguments(self, group: pa.Table) -> tuple[Any, ...]:
        return (arrow_key(group, self.keys), group) if self.takes_key else (group,)


@dataclass(frozen=True, slots=True)
class GroupIterateInArrow(GroupFunction):
    """``GroupedData.applyInArrow``, iterator form: a group's batches to any number of batches."""

    def cut(self, batches: Batches, order: RowOrder) -> Iterator[Batches]:
        return group_batches(batches, order)

    def _run(self, groups: Iterator[Batches]) -> Generator[pa.RecordBatch, None, None]:
        with CloseAtEnd(groups):
            for group in groups:
                yield from self._apply(with_session_types(_in_parts(group, self.conf), self.conf))

    def _apply(self, group: Batches) -> Batches:
        before: tuple[Any, ...] = ()
        if self.takes_key:
            first = next(group)
            before = (arrow_key(first, self.keys),)
            group = itertools.chain(iter((first,)), group)  # `chain` would hold a list until its end
            del first
        results = iterate(self.function, before, group, pa.RecordBatch, self.declared, any_iterable=False)
        with CloseAtEnd(results):
            for batch in results:
                yield from from_arrow(batch, self.declared, self.conf)
                del batch  # so that it is not held while the function makes the next one


@dataclass(frozen=True, slots=True)
class GroupApplyInPandas(GroupFunction):
    """``GroupedData.applyInPandas``: a group's data frame to a data frame.

    The key is a tuple of NumPy or Python values. The index of the group's frame counts its rows. A returned
    frame without columns may be empty or stand for rows of nulls.
    """

    @staticmethod
    def of(
        function: Function, schema: st.StructType | str, conf: FunctionConf, keys: Iterable[int]
    ) -> GroupFunction:
        """Build the adaptor for a function of frames, or of iterators of frames if its hints say so.

        Raises `UsageError`, or `UnsupportedError` for a type.
        """
        form: type[GroupFunction] = (
            GroupIterateInPandas if iterates_in_pandas(function) else GroupApplyInPandas
        )
        return form.build("groupBy().applyInPandas", function, schema, conf, keys)

    def cut(self, batches: Batches, order: RowOrder) -> Iterator[GroupRun]:
        return group_runs(batches, order)

    def _run(self, groups: Iterator[GroupRun]) -> Generator[pa.RecordBatch, None, None]:
        results = FrameCollector(self.declared, self.conf)
        keys = self.keys if self.takes_key else ()  # it takes pandas 8 us to look a value up
        with CloseAtEnd(groups):
            for key, frame in group_frames(groups, keys, self.conf):
                arguments = (key, frame) if self.takes_key else (frame,)
                del frame  # so that the frame is not held while its result is delivered
                result = in_user_code(self.function, *arguments)
                del arguments
                yield from results.add(result)
                del result
            yield from results.flush()


@dataclass(frozen=True, slots=True)
class GroupIterateInPandas(GroupFunction):
    """``GroupedData.applyInPandas``, iterator form: a group's rows as frames to any number of frames.

    The index of every frame counts that frame's rows.
    """

    def cut(self, batches: Batches, order: RowOrder) -> Iterator[Batches]:
        return group_batches(batches, order)

    def _run(self, groups: Iterator[Batches]) -> Generator[pa.RecordBatch, None, None]:
        with CloseAtEnd(groups):
            for group in groups:
                yield from self._apply(_in_parts(group, self.conf))

    def _apply(self, group: Batches) -> Batches:
        import pandas as pd

        before: tuple[Any, ...] = ()
        if self.takes_key:
            first = next(group)
            before = (pandas_key(pandas_series(first.slice(0, 1), self.conf), self.keys),)
            group = itertools.chain(iter((first,)), group)  # `chain` would hold a list until its end
            del first
        frames = (frame_of(pandas_series(batch, self.conf)) for batch in group)
        # PySpark accepts any iterable here, but from the Arrow form it accepts only an iterator
        results = iterate(self.function, before, frames, pd.DataFrame, self.declared, any_iterable=True)
        with CloseAtEnd(results):
            for frame in results:
                yield from from_group_frame(frame, self.declared, self.conf)
                del frame  # so that it is not held while the function makes the next one


def _in_parts(group: Batches, conf: FunctionConf) -> Batches:
    """Cut the batches of a group into parts of as many rows as the session allows."""
    if conf.batch_rows <= 0:
        yield from group
        return
    for batch in group:
        for start in range(0, batch.num_rows, conf.batch_rows):
            yield batch.slice(start, conf.batch_rows)
        del batch  # so that it is not held while the next one is read


def arrow_key(rows: pa.Table | pa.RecordBatch, keys: tuple[int, ...]) -> tuple[pa.Scalar, ...]:
    """Return the key of ``rows``, all of one group."""
    return tuple(rows.column(position)[0] for position in keys)
