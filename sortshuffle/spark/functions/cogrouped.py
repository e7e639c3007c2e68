"""Adaptors for ``cogroup().applyInArrow`` and ``applyInPandas``, whose functions take a key's two groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa
from pyspark.sql import types as st

from sortshuffle.compute.groups.gathering import gather
from sortshuffle.spark.functions.conf import FunctionConf
from sortshuffle.spark.functions.conversion import frame_of, pandas_key, pandas_series, with_session_types
from sortshuffle.spark.functions.grouped import arrow_key
from sortshuffle.spark.functions.pickled import PickledFunction
from sortshuffle.spark.functions.result_schema import Batches, ResultSchema
from sortshuffle.spark.functions.results import from_arrow, from_group_frame
from sortshuffle.spark.functions.running import CloseAtEnd, in_user_code, user_errors
from sortshuffle.spark.functions.signatures import Function, takes_key

Tables: TypeAlias = tuple[pa.Table, pa.Table]


@dataclass(frozen=True, slots=True)
class CoGroupFunction(ABC):
    """Adaptor for a function of the two groups of one key, one of which may be empty.

    ``method``: the method's name in errors. ``left_keys``, ``right_keys``: positions of the key columns, in
    the order of ``groupBy``. The key comes from the left group, or from the right group if the left is empty.
    """

    method: ClassVar[str]

    function: Function
    left_keys: tuple[int, ...]
    right_keys: tuple[int, ...]
    takes_key: bool
    declared: ResultSchema
    conf: FunctionConf

    @classmethod
    def of(
        cls,
        function: Function,
        schema: st.StructType | str,
        conf: FunctionConf,
        left_keys: Iterable[int],
        right_keys: Iterable[int],
    ) -> CoGroupFunction:
        """Build the adaptor. Raises `UsageError`, or `UnsupportedError` for a type."""
        declared = ResultSchema.of(cls.method, function, schema, conf)
        keyed = takes_key(cls.method, function, "left", "right")
        pickled = PickledFunction.of(function)
        return cls(pickled, tuple(left_keys), tuple(right_keys), keyed, declared, conf)

    def __call__(self, groups: Iterator[Tables]) -> Batches:
        """Yield the results of all pairs of groups. A pair holds the tables of both sides, with all columns.

        Raises `SchemaMismatchError`, and whatever the user's function raises.
        """
        return user_errors(gather(self._run(groups)))

    def _run(self, groups: Iterator[Tables]) -> Generator[pa.RecordBatch, None, None]:
        with CloseAtEnd(groups):
            for arguments in map(self._arguments, groups):
                result = in_user_code(self.function, *arguments)
                del arguments  # so that the groups are not held while the result is delivered
                yield from self._result_batches(result)
                del result

    @abstractmethod
    def _arguments(self, groups: Tables) -> tuple[Any, ...]: ...

    @abstractmethod
    def _result_batches(self, result: Any) -> Batches: ...


@dataclass(frozen=True, slots=True)
class CoGroupInArrow(CoGroupFunction):
    """``PandasCogroupedOps.applyInArrow``: two tables to one table. The key is a tuple of Arrow scalars."""

    method = "cogroup().applyInArrow"

    def _arguments(self, groups: Tables) -> tuple[Any, ...]:
        left, right = with_session_types(iter(groups), self.conf)
        if not self.takes_key:
            return left, right
        key = arrow_key(left, self.left_keys) if left.num_rows else arrow_key(right, self.right_keys)
        return key, left, right

    def _result_batches(self, result: Any) -> Batches:
        if not isinstance(result, pa.Table):
            raise self.declared.mismatch("pyarrow.Table", type(result).__name__)
        return from_arrow(result, self.declared, self.conf)


@dataclass(frozen=True, slots=True)
class CoGroupInPandas(CoGroupFunction):
    """``PandasCogroupedOps.applyInPandas``: two data frames to one data frame. The key is a tuple of NumPy or
    Python values."""

    method = "cogroup().applyInPandas"

    def _arguments(self, groups: Tables) -> tuple[Any, ...]:
        left, right = (pandas_series(group, self.conf) for group in groups)
        frames = frame_of(left), frame_of(right)
        if not self.takes_key:
            return frames
        key = pandas_key(left, self.left_keys) if groups[0].num_rows else pandas_key(right, self.right_keys)
        return key, *frames

    def _result_batches(self, result: Any) -> Batches:
        return from_group_frame(result, self.declared, self.conf)
