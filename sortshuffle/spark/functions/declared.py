"""The declared result of a function: its schema, and the checks and conversions of returned batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import types as st

from sortshuffle.errors import SchemaMismatchError, UsageError
from sortshuffle.spark.conforming import conform
from sortshuffle.spark.functions.conf import FunctionConf
from sortshuffle.spark.functions.signatures import Function, function_name
from sortshuffle.spark.schema import parse_schema, to_arrow

Batches: TypeAlias = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Declared:
    """The declared result of a function.

    ``place``: the function's name in errors, such as ``mapInArrow(parse)``. ``wire``: the schema of delivered
    batches. ``required``: positions of the columns that are ``NOT NULL``.
    """

    place: str
    schema: st.StructType
    wire: pa.Schema
    required: tuple[int, ...]

    @staticmethod
    def of(method: str, function: Function, schema: st.StructType | str, conf: FunctionConf) -> Declared:
        """Check the arguments of ``method``. Raises `UsageError`, or `UnsupportedError` for a type."""
        place = f"{method}({function_name(function)})"
        if not callable(function):
            raise UsageError(f"{method} needs a function, not {function!r}")
        parsed = parse_schema(schema)
        required = tuple(at for at, field in enumerate(parsed.fields) if not field.nullable)
        return Declared(place, parsed, to_arrow(parsed, conf.timezone), required)

    def deliver(self, batch: pa.RecordBatch, *, exact: bool = False) -> Batches:
        """Convert ``batch`` to batches of the wire schema; yield none if it has no rows."""
        if batch.num_rows == 0:
            return
        for part in conform(batch, self.wire, self.place, exact=exact):
            self._refuse_nulls(part)
            yield part

    def check_names(self, found: list[Any], *, by_name: bool) -> None:
        """Raise unless the returned columns match the declared ones, by name or by number."""
        missing = ", ".join(sorted(set(self.wire.names).difference(found)))
        unexpected = ", ".join(sorted(map(str, set(found).difference(self.wire.names))))
        if by_name and (missing or unexpected):
            raise SchemaMismatchError(
                f"{self.place}: column names differ from the declared schema."
                + (f" Missing: {missing}." if missing else "")
                + (f" Unexpected: {unexpected}." if unexpected else "")
            )
        if not by_name and len(found) != len(self.wire):
            raise SchemaMismatchError(
                f"{self.place}: expected {len(self.wire)} columns ({', '.join(self.wire.names)}),"
                f" found {len(found)} ({', '.join(map(str, found))})"
            )

    def mismatch(self, wanted: str, found: object) -> SchemaMismatchError:
        """Make the error for a result of another kind than ``wanted``."""
        return SchemaMismatchError(f"{self.place} must return {wanted}, but returned {found}")

    def _refuse_nulls(self, batch: pa.RecordBatch) -> None:
        for position in self.required:
            nulls = batch.column(position).null_count
            if nulls:
                raise SchemaMismatchError(
                    f"{self.place}: column '{self.wire.names[position]}' is declared NOT NULL, but"
                    f" {nulls} of its {batch.num_rows} values are null"
                )
