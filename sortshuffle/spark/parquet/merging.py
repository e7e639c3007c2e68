"""Merges the schemas of files (``mergeSchema``), and of files and directories.

Spark's rules: columns, and fields of structs, are matched by name; those that only a later schema has are
appended. Types are not widened, except that decimals of one scale take the larger precision. A column that
both files and directories have keeps its position in the files, and takes its type from the directories.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from pyspark.sql import types as st

from sortshuffle.errors import UsageError


def merge_schemas(schemas: Iterable[tuple[str, st.StructType]], case_sensitive: bool) -> st.StructType:
    """Merge the schemas of files, given as (path, schema) in order. Raises `UsageError` with the file, the
    column and both types if types contradict each other."""
    result: st.StructType | None = None
    for path, schema in schemas:
        left = schema if result is None else result
        result = _merged_structs(left, schema, case_sensitive, path, "")
    return result or st.StructType()


def with_partitions(data: st.StructType, partitions: st.StructType, case_sensitive: bool) -> st.StructType:
    """Merge the columns of the files with those of the directories."""
    replacements = by_name(partitions, case_sensitive)
    names = by_name(data, case_sensitive)
    fields = [replacements.get(fold_case(field.name, case_sensitive), field) for field in data.fields]
    added = [field for field in partitions.fields if fold_case(field.name, case_sensitive) not in names]
    return st.StructType([*fields, *added])


def without_columns(schema: st.StructType, left_out: st.StructType, case_sensitive: bool) -> st.StructType:
    """Return ``schema`` without the columns that ``left_out`` has."""
    out = by_name(left_out, case_sensitive)
    return st.StructType(
        [field for field in schema.fields if fold_case(field.name, case_sensitive) not in out]
    )


def check_names(schema: st.StructType, case_sensitive: bool, place: str) -> None:
    """Raise `UsageError` if two columns, or two fields of one struct at any depth, have the same name."""
    seen: dict[str, str] = {}
    for field in schema.fields:
        other = seen.get(fold_case(field.name, case_sensitive))
        seen[fold_case(field.name, case_sensitive)] = field.name
        if other is not None:
            raise UsageError(
                f"{place} has two columns of one name, {other} and {field.name}: name the columns that you"
                " want with schema(), or tell letters' case apart with spark.sql.caseSensitive=true"
            )
        _check_nested(field.dataType, case_sensitive, place)


def by_name(schema: st.StructType, case_sensitive: bool) -> dict[str, st.StructField]:
    """Return the fields by folded name."""
    return {fold_case(field.name, case_sensitive): field for field in schema.fields}


def fold_case(name: str, case_sensitive: bool) -> str:
    """Return a name in the form in which names are compared."""
    return name if case_sensitive else name.lower()


def _check_nested(kind: st.DataType, case_sensitive: bool, place: str) -> None:
    if isinstance(kind, st.StructType):
        check_names(kind, case_sensitive, place)
    elif isinstance(kind, st.ArrayType):
        _check_nested(kind.elementType, case_sensitive, place)
    elif isinstance(kind, st.MapType):
        _check_nested(kind.keyType, case_sensitive, place)
        _check_nested(kind.valueType, case_sensitive, place)


def _merged_structs(
    left: st.StructType, right: st.StructType, case_sensitive: bool, path: str, parent: str
) -> st.StructType:
    others = by_name(right, case_sensitive)
    fields = []
    for field in left.fields:
        other = others.get(fold_case(field.name, case_sensitive))
        if other is None:
            fields.append(field)
            continue
        kind = _merged_types(field.dataType, other.dataType, case_sensitive, path, f"{parent}{field.name}")
        fields.append(st.StructField(field.name, kind, True, field.metadata))
    return st.StructType([*fields, *without_columns(right, left, case_sensitive).fields])


def _merged_types(
    left: st.DataType, right: st.DataType, case_sensitive: bool, path: str, column: str
) -> st.DataType:
    merge = functools.partial(_merged_types, case_sensitive=case_sensitive, path=path)
    if isinstance(left, st.StructType) and isinstance(right, st.StructType):
        return _merged_structs(left, right, case_sensitive, path, f"{column}.")
    if isinstance(left, st.ArrayType) and isinstance(right, st.ArrayType):
        return st.ArrayType(merge(left.elementType, right.elementType, column=f"{column}.element"))
    if isinstance(left, st.MapType) and isinstance(right, st.MapType):
        key = merge(left.keyType, right.keyType, column=f"{column}.key")
        return st.MapType(key, merge(left.valueType, right.valueType, column=f"{column}.value"))
    both_decimal = isinstance(left, st.DecimalType) and isinstance(right, st.DecimalType)
    if both_decimal and left.scale == right.scale:
        return left if left.precision >= right.precision else right
    if left == right:
        return left
    raise UsageError(
        f"the schemas cannot be merged: column '{column}' is {right.simpleString()} in {path}, and"
        f" {left.simpleString()} in files before it. Name the types that you want with schema(), or read the"
        " files apart and cast the column"
    )
