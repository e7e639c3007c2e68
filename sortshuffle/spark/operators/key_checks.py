"""Checks which columns may place, group and sort rows. The checks run on the driver, at the call.

A column's Arrow type does not suffice for this: Spark hashes and compares a collated string by its collation,
of which its bytes say nothing.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, IntegerType, NullType, StringType, StructField, StructType

from sortshuffle.errors import ColumnError
from sortshuffle.partitioner import check_hashable
from sortshuffle.payload.ordering import RowOrder


def check_placement_key(field: StructField, wire: pa.DataType) -> None:
    """Raise `ColumnError` if rows cannot be placed by this column as Spark would place them."""
    _refuse_collation(field.name, field.dataType)
    check_hashable(field.name, wire)


def check_group_key(field: StructField, wire: pa.DataType) -> None:
    """Raise `ColumnError` if rows cannot be grouped by this column as Spark would group them."""
    check_placement_key(field, wire)
    RowOrder.check(field.name, wire)


def check_range_key(field: StructField, wire: pa.DataType) -> None:
    """Raise `ColumnError` if rows cannot be placed by ranges of this column as Spark would place them."""
    name, kind = field.name, field.dataType.simpleString()
    _check_order(field, wire, f"column {name} of type {kind} cannot be cut into ranges")


def check_sort_key(field: StructField, wire: pa.DataType) -> None:
    """Raise `ColumnError` if rows cannot be sorted by this column as Spark would sort them."""
    name, kind = field.name, field.dataType.simpleString()
    _check_order(field, wire, f"rows cannot be sorted by column {name} of type {kind}")


def _check_order(field: StructField, wire: pa.DataType, refusal: str) -> None:
    _refuse_collation(field.name, field.dataType)
    try:
        RowOrder.check(field.name, wire)
    except ColumnError:
        raise ColumnError(
            f"{refusal}: arrays and maps have no order here. Make a column of a plain type from it first,"
            " for example of an element"
        ) from None


def check_id_column(field: StructField) -> None:
    """Raise `ColumnError` if this column cannot hold partition ids, which are of type int, as in Spark."""
    if not isinstance(field.dataType, IntegerType | NullType):
        raise ColumnError(
            f"column {field.name} of type {field.dataType.simpleString()} cannot hold partition ids: cast it"
            " to int first"
        )


def _refuse_collation(name: str, kind: DataType) -> None:
    if isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
        raise ColumnError(
            f"column {name} is a string with collation {kind.collation}, which Spark hashes and compares by"
            " rules that are not available here: cast it to a plain string first"
        )
    if isinstance(kind, StructType):
        for child in kind:
            _refuse_collation(f"{name}.{child.name}", child.dataType)
    if isinstance(kind, ArrayType):
        _refuse_collation(f"{name}.element", kind.elementType)
