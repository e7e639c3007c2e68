"""The declared result of a function: its schema, and the checks and conversions of returned batches.

An error names the function, then repeats PySpark's message for the same mistake up to the end of the line
(`ResultSchema.refusal`). So programs that search a job's error for PySpark's text find it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException, PySparkRuntimeError, PySparkTypeError
from pyspark.sql import types as st

from sortshuffle.errors import SchemaMismatchError, UsageError
from sortshuffle.spark.conforming import conform, other_types
from sortshuffle.spark.functions.conf import FunctionConf
from sortshuffle.spark.functions.signatures import Function, function_name
from sortshuffle.spark.schema import parse_schema, to_arrow

Batches: TypeAlias = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class ResultSchema:
    """The declared result of a function.

    ``place``: the function's name in errors, such as ``mapInArrow(parse)``. ``wire``: the schema of delivered
    batches. ``required``: positions of the columns that are ``NOT NULL``.
    """

    place: str
    schema: st.StructType
    wire: pa.Schema
    required: tuple[int, ...]

    @staticmethod
    def of(method: str, function: Function, schema: st.StructType | str, conf: FunctionConf) -> ResultSchema:
        """Check the arguments of ``method``. Raises `UsageError`, or `UnsupportedError` for a type."""
        place = f"{method}({function_name(function)})"
        if not callable(function):
            raise UsageError(f"{method} needs a function, not {function!r}")
        parsed = parse_schema(schema)
        required = tuple(at for at, field in enumerate(parsed.fields) if not field.nullable)
        return ResultSchema(place, parsed, to_arrow(parsed, conf.timezone), required)

    def deliver(self, batch: pa.RecordBatch, *, exact: bool = False) -> Batches:
        """Convert ``batch`` to batches of the wire schema; yield none if it has no rows."""
        if batch.num_rows == 0:
            return
        self.check_types(batch.schema, exact=exact)
        for part in conform(batch, self.wire, self.place, exact=exact):
            self._refuse_nulls(part)
            yield part

    def check_names(self, found: list[Any], *, by_name: bool) -> None:
        """Raise unless the returned columns match the declared ones, by name or by number."""
        missing = ", ".join(sorted(set(self.wire.names).difference(found)))
        unexpected = ", ".join(sorted(map(str, set(found).difference(self.wire.names))))
        if by_name and (missing or unexpected):
            raise self.refusal(
                "RESULT_COLUMN_NAMES_MISMATCH",
                missing=f" Missing: {missing}." if missing else "",
                extra=f" Unexpected: {unexpected}." if unexpected else "",
            )
        if not by_name and len(found) != len(self.wire):
            refusal = self.refusal(
                "RESULT_COLUMN_SCHEMA_MISMATCH", expected=str(len(self.wire)), actual=str(len(found))
            )
            returned = ", ".join(map(str, found))
            raise SchemaMismatchError(
                f"{refusal}\nDeclared: {', '.join(self.wire.names)}. Returned: {returned}"
            )

    def check_types(self, found: pa.Schema, *, exact: bool) -> None:
        """Raise unless `conform` can convert the returned columns, as many as are declared."""
        if found == self.wire or len(found) != len(self.wire):
            return
        wrong = ", ".join(
            f"column '{wanted.name}' (expected {wanted.type}, actual {has.type})"
            for has, wanted in other_types(found, self.wire, exact=exact)
        )
        if wrong:
            refusal = self.refusal("RESULT_COLUMN_TYPES_MISMATCH", mismatch=wrong)
            raise SchemaMismatchError(f"{refusal}\nCast the columns, or declare the types they have")

    def check_exactly(self, found: pa.Schema) -> None:
        """Raise unless the columns of a returned batch have the declared names, in order, and types, and may
        hold nulls only where that is declared, as Spark checks them with ``validateSchema``."""
        if (
            found.names == self.wire.names
            and not other_types(found, self.wire, exact=True)
            and all(map(_holds_nulls_as_declared, found, self.schema.fields))
        ):
            return
        returned = (f"{each.name}: {each.type}{'' if each.nullable else ' not null'}" for each in found)
        raise SchemaMismatchError(
            f"{self.place}: [ARROW_TYPE_MISMATCH] Invalid schema from SQL_MAP_ARROW_ITER_UDF:"
            f" expected {self.schema}, got {', '.join(returned)}"
        )

    def mismatch(self, wanted: str, found: str) -> SchemaMismatchError:
        """Make the error for a result of another kind than ``wanted``."""
        return self.refusal("UDF_RETURN_TYPE", PySparkTypeError, expected=wanted, actual=found)

    def refusal(
        self, condition: str, kind: type[PySparkException] = PySparkRuntimeError, **parameters: str
    ) -> SchemaMismatchError:
        """Make the error for a result that PySpark's worker refuses with an error of class ``kind``."""
        try:
            words = str(kind(errorClass=condition, messageParameters=parameters))
        except (ValueError, AssertionError):  # this version of PySpark has other conditions
            said = ", ".join(f"{name}: {value.strip()}" for name, value in parameters.items() if value)
            words = f"[{condition}] The returned data do not match the declared schema: {said}"
        return SchemaMismatchError(f"{self.place}: {kind.__name__}: {words}")

    def _refuse_nulls(self, batch: pa.RecordBatch) -> None:
        for position in self.required:
            nulls = batch.column(position).null_count
            if nulls:
                raise SchemaMismatchError(
                    f"{self.place}: column '{self.wire.names[position]}' is declared NOT NULL, but its value"
                    f" is null in {nulls} of {batch.num_rows} rows"
                )


def _holds_nulls_as_declared(found: pa.Field, declared: st.StructField) -> bool:
    """Return whether a field of the declared type, and what it contains, is nullable only where declared."""
    if found.nullable and not declared.nullable:
        return False
    arrow, spark = found.type, declared.dataType
    if isinstance(spark, st.ArrayType):
        inner = [(arrow.value_field, st.StructField("", spark.elementType, spark.containsNull))]
    elif isinstance(spark, st.MapType):
        inner = [
            (arrow.key_field, st.StructField("", spark.keyType, False)),
            (arrow.item_field, st.StructField("", spark.valueType, spark.valueContainsNull)),
        ]
    elif isinstance(spark, st.StructType):
        inner = list(zip(arrow, spark.fields, strict=True))
    else:
        return True
    return all(_holds_nulls_as_declared(each, wanted) for each, wanted in inner)
