"""Adaptors for ``mapInArrow`` and ``mapInPandas``, whose functions iterate over all rows of a partition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import types as st

from sortshuffle.spark.functions.conf import FunctionConf
from sortshuffle.spark.functions.conversion import pandas_frame, with_session_types
from sortshuffle.spark.functions.pickled import PickledFunction
from sortshuffle.spark.functions.result_schema import Batches, ResultSchema
from sortshuffle.spark.functions.results import from_frame
from sortshuffle.spark.functions.running import CloseAtEnd, iterate, user_errors
from sortshuffle.spark.functions.signatures import Function


@dataclass(frozen=True, slots=True)
class MapFunction(ABC):
    """Adaptor for a function of an iterator. ``method``: the name of the method that took the function."""

    method: ClassVar[str]

    function: Function
    declared: ResultSchema
    conf: FunctionConf

    @classmethod
    def of(cls, function: Function, schema: st.StructType | str, conf: FunctionConf) -> MapFunction:
        """Build the adaptor. Raises `UsageError` or `UnsupportedError`."""
        declared = ResultSchema.of(cls.method, function, schema, conf)
        return cls(PickledFunction.of(function), declared, conf)

    def describe(self) -> str:
        return self.declared.place

    def __call__(self, batches: Batches) -> Batches:
        """Yield the results, as batches of ``declared.wire``.

        Raises `SchemaMismatchError`, and whatever the user's function raises.
        """
        return user_errors(self._run(batches))

    @abstractmethod
    def _run(self, batches: Batches) -> Batches: ...


@dataclass(frozen=True, slots=True)
class MapInArrow(MapFunction):
    """``DataFrame.mapInArrow``: an iterator of record batches to an iterator of record batches.

    As in Spark, returned columns are matched by position, and extra columns are dropped. With
    ``conf.exact_schema`` names, order and types must be the declared ones.
    """

    method = "mapInArrow"

    def _run(self, batches: Batches) -> Batches:
        rows = with_session_types(batches, self.conf)
        results = iterate(
            self.function, (), rows, pa.RecordBatch, self.declared, any_iterable=self.conf.any_iterable
        )
        with CloseAtEnd(batches), CloseAtEnd(results):
            for batch in results:
                yield from self._result_batches(batch)
                del batch  # so that it is not held while the function makes the next one

    def _result_batches(self, batch: pa.RecordBatch) -> Batches:
        columns = len(self.declared.wire)
        if self.conf.exact_schema:
            self.declared.check_exactly(batch.schema)
        elif batch.num_columns < columns:
            self.declared.check_names(batch.schema.names, by_name=False)
        elif batch.num_columns > columns:
            batch = batch.select(range(columns))
        return self.declared.deliver(batch, exact=self.conf.exact_schema)


@dataclass(frozen=True, slots=True)
class MapInPandas(MapFunction):
    """``DataFrame.mapInPandas``: an iterator of data frames to an iterator of data frames.

    Of a returned frame only the first columns are read, as many as are declared. They must have the declared
    names, in any order. If no column label is a string, columns are matched by position.
    """

    method = "mapInPandas"

    def _run(self, batches: Batches) -> Batches:
        import pandas as pd

        frames = (pandas_frame(batch, self.conf) for batch in batches)
        results = iterate(
            self.function, (), frames, pd.DataFrame, self.declared, any_iterable=self.conf.any_iterable
        )
        with CloseAtEnd(batches), CloseAtEnd(results):
            for frame in results:
                columns = list(frame.columns[: len(self.declared.wire)])
                yield from from_frame(frame, columns, True, self.declared, self.conf)
                del frame  # so that it is not held while the function makes the next one
