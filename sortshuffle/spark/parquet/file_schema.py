"""The schema of one Parquet file, in Spark's types.

A file's columns are described twice, and the descriptions agree leaf by leaf. Parquet's schema
(`ParquetSchema`) says how each leaf is stored and annotated. The Arrow schema with which pyarrow reads the
file says how leaves nest and which arrays a read returns. The Spark type of a column follows from Parquet's
schema alone, because Arrow's types may be those of the program that wrote the file.

A file written by Spark carries a Spark schema in its metadata, which is used unchanged, as in Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as at
from pyspark.sql import types as st

from sortshuffle.errors import UnsupportedError
from sortshuffle.spark.parquet.settings import LeafRules

SPARK_NOTE = b"org.apache.spark.sql.parquet.row.metadata"
_SIGNED: dict[int, st.DataType] = {8: st.ByteType(), 16: st.ShortType(), 32: st.IntegerType()}
_UNSIGNED: dict[int, st.DataType] = {8: st.ShortType(), 16: st.IntegerType(), 32: st.LongType()}


@dataclass(frozen=True, slots=True)
class Leaf:
    """The storage of a leaf. ``path``: Parquet's dotted path. ``physical``: the stored type, such as INT32.
    ``logical``: the annotation, such as DECIMAL, or NONE. ``details``: the parameters of the annotation."""

    path: str
    physical: str
    logical: str
    details: Mapping[str, Any]

    @property
    def is_signed(self) -> bool:
        return bool(self.details.get("isSigned", True))

    @property
    def is_adjusted(self) -> bool:
        """Whether a timestamp is an instant, not a wall clock's reading."""
        return self.physical == "INT96" or bool(self.details.get("isAdjustedToUTC", False))

    @property
    def is_nanos(self) -> bool:
        return self.details.get("timeUnit") == "nanoseconds"

    def __str__(self) -> str:
        shown = {name: value for name, value in self.details.items() if "_" not in name}
        details = ", ".join(f"{name}={value}" for name, value in shown.items())
        if self.logical == "NONE":
            return self.physical
        return f"{self.physical} {self.logical}({details})" if details else f"{self.physical} {self.logical}"


@dataclass(frozen=True, slots=True)
class FileField:
    """A column of a file, or a field nested in one. It has either a ``leaf`` or ``children``: the fields of a
    struct, the element of a list, or the key and value of a map."""

    name: str
    arrow: pa.DataType
    leaf: Leaf | None
    children: tuple[FileField, ...] = ()

    def leaves(self) -> Iterator[Leaf]:
        """Yield the field's leaves, in the order of the file."""
        if self.leaf is not None:
            yield self.leaf
        for child in self.children:
            yield from child.leaves()

    @property
    def is_list(self) -> bool:
        return is_list(self.arrow)

    def __str__(self) -> str:
        if self.leaf is not None:
            return str(self.leaf)
        inner = ", ".join(
            f"{child.name}: {child}" if at.is_struct(self.arrow) else str(child) for child in self.children
        )
        kind = "map" if at.is_map(self.arrow) else "list" if self.is_list else "struct"
        return f"{kind}<{inner}>"


def is_list(arrow: pa.DataType) -> bool:
    """Return whether a type is a list in any representation. A map is not a list."""
    return bool(at.is_list(arrow) or at.is_large_list(arrow) or at.is_fixed_size_list(arrow))


def file_fields(parquet: Any) -> tuple[FileField, ...]:
    """Return the columns of a ``pyarrow.parquet.ParquetSchema``."""
    leaves = (_leaf(parquet.column(position)) for position in range(len(parquet)))
    return tuple(_file_field(field.name, field.type, leaves) for field in parquet.to_arrow_schema())


def _leaf(column: Any) -> Leaf:
    details = json.loads(column.logical_type.to_json())
    kind = details.pop("Type")
    physical = str(column.physical_type)
    if kind == "Null" and physical != "INT32":
        kind = "Interval"  # pyarrow has no name for it
    return Leaf(str(column.path), physical, kind.upper(), details)


def _file_field(name: str, arrow: pa.DataType, leaves: Iterator[Leaf]) -> FileField:
    inner: Sequence[pa.Field] = ()
    while isinstance(arrow, pa.BaseExtensionType):  # Parquet has its storage, as many leaves as that has
        arrow = arrow.storage_type
    if at.is_struct(arrow):
        inner = list(arrow)
    elif at.is_map(arrow):
        inner = (arrow.key_field, arrow.item_field)
    elif is_list(arrow):
        inner = (arrow.value_field,)
    if not inner:
        return FileField(name, arrow, next(leaves))
    return FileField(name, arrow, None, tuple(_file_field(child.name, child.type, leaves) for child in inner))


# --- Spark's types --------------------------------------------------------------------------------------


def spark_schema(
    fields: Sequence[FileField], metadata: Mapping[bytes, bytes] | None, rules: LeafRules, place: str
) -> st.StructType:
    """Return the schema that ``spark.read.parquet`` gives a file with these columns and this metadata.

    All fields are nullable, as in Spark. Raises `UnsupportedError` naming a column that Spark does not read.
    """
    note = (metadata or {}).get(SPARK_NOTE)
    if note is not None:
        return nullable(_schema_of_note(note, place))
    return st.StructType(
        [st.StructField(field.name, spark_type(field, rules, field.name, place)) for field in fields]
    )


def _schema_of_note(note: bytes, place: str) -> st.StructType:
    try:
        return st.StructType.fromJson(json.loads(note))
    except Exception as error:  # a user-defined type's module is imported, and may raise anything
        raise UnsupportedError(
            f"the schema that Spark wrote into {place} cannot be read ({error}): read it with"
            " spark.read.parquet and pass the DataFrame to sortshuffle.frame"
        ) from error


def nullable(schema: st.StructType) -> st.StructType:
    """Return the schema with nulls allowed at all depths, as Spark has that of every file: a file may lack a
    column, or contradict whoever declared it."""
    return st.StructType([_nullable_field(field) for field in schema.fields])


def _nullable_field(field: st.StructField) -> st.StructField:
    return st.StructField(field.name, _nullable(field.dataType), True, field.metadata)


def _nullable(kind: st.DataType) -> st.DataType:
    if isinstance(kind, st.StructType):
        return nullable(kind)
    if isinstance(kind, st.ArrayType):
        return st.ArrayType(_nullable(kind.elementType))
    if isinstance(kind, st.MapType):
        return st.MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def spark_type(field: FileField, rules: LeafRules, path: str, place: str) -> st.DataType:
    """Return Spark's type of a column, by its storage. Raises `UnsupportedError` if there is none."""
    if field.leaf is not None:
        kind = leaf_type(field.leaf, rules)
        if kind is None:
            raise UnsupportedError(
                f"column '{path}' of {place} is stored as {field.leaf}, which is not read as any type: leave"
                " it out by naming the other columns with schema(), or let another library read it and pass"
                " the DataFrame to sortshuffle.frame"
            )
        return kind
    if at.is_struct(field.arrow):
        return st.StructType(
            [
                st.StructField(child.name, spark_type(child, rules, f"{path}.{child.name}", place))
                for child in field.children
            ]
        )
    names = ("key", "value") if at.is_map(field.arrow) else ("element",)
    inner = [
        spark_type(child, rules, f"{path}.{name}", place)
        for child, name in zip(field.children, names, strict=True)
    ]
    return st.MapType(*inner) if at.is_map(field.arrow) else st.ArrayType(*inner)


def leaf_type(leaf: Leaf, rules: LeafRules) -> st.DataType | None:
    """Return Spark's type of a leaf, None if Spark does not read it."""
    if leaf.logical == "DECIMAL":
        precision, scale = leaf.details["precision"], leaf.details["scale"]
        return st.DecimalType(precision, scale) if precision <= 38 and 0 <= scale <= precision else None
    return _READ[leaf.physical](leaf, rules)


def _read_int32(leaf: Leaf, rules: LeafRules) -> st.DataType | None:
    if leaf.logical == "INT":
        return (_SIGNED if leaf.is_signed else _UNSIGNED).get(leaf.details["bitWidth"])
    return {"NONE": st.IntegerType(), "DATE": st.DateType(), "NULL": st.IntegerType()}.get(leaf.logical)


def _read_int64(leaf: Leaf, rules: LeafRules) -> st.DataType | None:
    if leaf.logical == "TIMESTAMP":
        if leaf.is_nanos:
            return st.LongType() if rules.nanos_as_long else None
        is_instant = leaf.is_adjusted or not rules.infer_ntz
        return st.TimestampType() if is_instant else st.TimestampNTZType()
    if leaf.logical not in ("NONE", "INT"):
        return None
    return st.LongType() if leaf.is_signed else st.DecimalType(20, 0)


def _read_bytes(leaf: Leaf, rules: LeafRules) -> st.DataType | None:
    if leaf.logical == "NONE":
        return st.StringType() if rules.binary_as_string else st.BinaryType()
    if leaf.logical in ("STRING", "ENUM", "JSON"):
        return st.StringType()
    return st.BinaryType() if leaf.logical == "BSON" else None


_READ: dict[str, Callable[[Leaf, LeafRules], st.DataType | None]] = {
    "BOOLEAN": lambda leaf, rules: st.BooleanType(),
    "INT32": _read_int32,
    "INT64": _read_int64,
    "INT96": lambda leaf, rules: st.TimestampType() if rules.int96 else None,
    "FLOAT": lambda leaf, rules: st.FloatType(),
    "DOUBLE": lambda leaf, rules: st.DoubleType(),
    "BYTE_ARRAY": _read_bytes,
    "FIXED_LEN_BYTE_ARRAY": lambda leaf, rules: st.BinaryType() if leaf.logical == "NONE" else None,
}
