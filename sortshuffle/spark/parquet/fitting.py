"""Converts a file's columns to the requested types, where Spark's reader does so.

Files of one table differ, and a user may request another type than a file has. Spark's reader widens numbers
and decimals, narrows integers by dropping bits, and reads timestamps with and without a zone as each other,
and text and bytes as each other. It matches struct fields by name; missing ones are null. It does not
reinterpret stored values (a decimal as its unscaled number, a date as days).

`Fitting.column` makes one `Fit` for each column of a file, which then converts array after array. The results
have the requested values, in a type that `spark.conforming.conform` converts to the final one.

The old calendar: Spark before 3.0 wrote dates before 1582-10-15, and timestamps before 1900, in another
calendar. Footers say whether that is so. If a footer does, or if it says nothing and the mode is not
CORRECTED, such values are refused. All others are the same in both calendars.

INT96: pyarrow before `INT96_MENDED` wrote times before 1970, except midnights, with a negative time of the
day (Apache Arrow's issue 48246). Spark reads these correctly, and pyarrow reads them 584 years too late. In
files of such a pyarrow two kinds of values are refused: those from 2184 to 2554, and those before 1970 that
are not midnight. Limit: a time from 1386 to 1599 looks like one from 1970 to 2183, and is not detected.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at
from pyspark.sql import types as st

from sortshuffle.errors import SchemaMismatchError, UnsupportedError
from sortshuffle.spark.parquet.conversions import target_of
from sortshuffle.spark.parquet.file_schema import FileField, Leaf, leaf_type
from sortshuffle.spark.parquet.merging import fold_case
from sortshuffle.spark.parquet.settings import FileRules

Conversion: TypeAlias = Callable[[pa.Array], pa.Array]

_FIRST_GREGORIAN_DAY = -141_427  # 1582-10-15, in days since 1970
_DAY_MICROS = 86_400_000_000
# where times of 1600 and of the end of 1969 are read, if their time of the day is negative: 2^64 ns later
_FIRST_MISREAD_MICROS = -11_676_096_000_000_000 + 2**64 // 1000
_END_OF_MISREAD_MICROS = 2**64 // 1000 + 1
_FIRST_SURE_MICROS = -2_208_988_800_000_000  # 1900-01-01 UTC; from here on both calendars agree in every zone


@dataclass(frozen=True, slots=True)
class Calendars:
    """Whether a file's dates and timestamps may be in the old calendar; those stored as INT96 apart."""

    datetime: bool
    int96: bool

    @staticmethod
    def of(metadata: Mapping[bytes, bytes] | None, rules: FileRules) -> Calendars:
        """Decide by the metadata of a file's footer, or by the rules if that names no version of Spark."""
        notes = metadata or {}
        version = notes.get(b"org.apache.spark.version")
        if version is None:
            return Calendars(rules.datetime_rebase != "CORRECTED", rules.int96_rebase != "CORRECTED")
        return Calendars(
            _before(version, 3, 0) or b"org.apache.spark.legacyDateTime" in notes,
            _before(version, 3, 1) or b"org.apache.spark.legacyINT96" in notes,
        )

    def may_be_old(self, leaf: Leaf) -> bool:
        return self.int96 if leaf.physical == "INT96" else self.datetime


INT96_MENDED = 23
"""The release of pyarrow that writes times before 1970 as INT96 in a way that itself reads."""


def reads_int96(writer: str | None) -> bool:
    """Return whether pyarrow reads all INT96 values of a file. ``writer``: what its footer says."""
    match = re.match(r"parquet-cpp(-arrow)? version (\d+)", writer or "")
    return match is None or (bool(match[1]) and int(match[2]) >= INT96_MENDED)


def _before(version: bytes, major: int, minor: int) -> bool:
    match = re.match(rb"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) < (major, minor)


@dataclass(frozen=True, slots=True)
class Fit:
    """How a column is read as the requested type. ``paths``: the leaves to read. ``convert``: None if
    `conform` does the conversion. ``is_missing``: the file stores none of the requested fields; the leaves
    are read only to see which values are null."""

    paths: tuple[str, ...]
    convert: Conversion | None = None
    is_missing: bool = False


@dataclass(frozen=True, slots=True)
class Fitting:
    """Fits the columns of one file. ``place``: names the file in errors. ``reads_int96``: whether pyarrow
    reads all its INT96 values."""

    rules: FileRules
    calendars: Calendars
    place: str
    reads_int96: bool

    def column(
        self, name: str, fields: Sequence[FileField], wanted: st.DataType, wire: pa.DataType
    ) -> tuple[str, Fit] | None:
        """Return the name and the fit of the file's column that ``name`` means; None if there is none. Raises
        `SchemaMismatchError` if there are several, or if the column cannot be read as ``wanted``."""
        field = self._named(name, fields, name)
        return None if field is None else (field.name, self._fit(field, wanted, wire, name))

    def _named(self, name: str, fields: Sequence[FileField], path: str) -> FileField | None:
        case_sensitive = self.rules.case_sensitive
        named = [
            each for each in fields if fold_case(each.name, case_sensitive) == fold_case(name, case_sensitive)
        ]
        if len(named) > 1:
            raise SchemaMismatchError(
                f"{self.place}: there are several columns that '{path}' could be,"
                f" {', '.join(each.name for each in named)}. Tell letters' case apart with"
                " spark.sql.caseSensitive=true, or leave the column out"
            )
        return named[0] if named else None

    def _fit(self, field: FileField, wanted: st.DataType, wire: pa.DataType, path: str) -> Fit:
        if field.leaf is not None:
            if isinstance(wanted, (st.StructType, st.ArrayType, st.MapType)):
                raise self._mismatch(field, wanted, path)
            return Fit((field.leaf.path,), self._leaf(field, field.leaf, wanted, wire, path))
        if at.is_struct(field.arrow) and isinstance(wanted, st.StructType):
            return self._struct(field, wanted, wire, path)
        if field.is_list and isinstance(wanted, st.ArrayType):
            element = self._fit(field.children[0], wanted.elementType, wire.value_type, f"{path}.element")
            if element.is_missing and self.rules.null_structs:
                return Fit(element.paths, functools.partial(_nulls, wire), is_missing=True)
            convert = element.convert and functools.partial(_converted_list, element.convert)
            return Fit(element.paths, convert, element.is_missing)
        if at.is_map(field.arrow) and isinstance(wanted, st.MapType):
            key = self._fit(field.children[0], wanted.keyType, wire.key_type, f"{path}.key")
            value = self._fit(field.children[1], wanted.valueType, wire.item_type, f"{path}.value")
            changed = key.convert or value.convert
            convert = functools.partial(_converted_map, key.convert, value.convert) if changed else None
            return Fit(key.paths + value.paths, convert)
        raise self._mismatch(field, wanted, path)

    def _struct(self, field: FileField, wanted: st.StructType, wire: pa.DataType, path: str) -> Fit:
        sources: list[tuple[str, Conversion | None] | pa.DataType] = []
        paths: tuple[str, ...] = ()
        is_missing = True
        for child, target in zip(wanted.fields, wire, strict=True):
            stored = self._named(child.name, field.children, f"{path}.{child.name}")
            if stored is None:
                sources.append(target.type)
                continue
            fit = self._fit(stored, child.dataType, target.type, f"{path}.{child.name}")
            sources.append((stored.name, fit.convert))
            paths += fit.paths
            is_missing = is_missing and fit.is_missing
        as_stored = [(child.name, None) for child in field.children]
        if sources == as_stored:
            return Fit(paths)
        # any leaf tells which structs are null
        paths = paths or (next(field.leaves()).path,)
        if is_missing and self.rules.null_structs:
            return Fit(paths, functools.partial(_nulls, wire), is_missing)
        convert = functools.partial(_converted_struct, tuple(sources), tuple(wanted.names))
        return Fit(paths, convert, is_missing)

    def _leaf(
        self, field: FileField, leaf: Leaf, wanted: st.DataType, wire: pa.DataType, path: str
    ) -> Conversion | None:
        target = target_of(leaf, field.arrow, wanted, wire)
        if target is None:
            raise self._mismatch(field, wanted, path)
        convert = None
        if target != field.arrow:
            convert = functools.partial(_cast, target)
        if leaf.physical == "INT96" and not self.reads_int96:
            convert = functools.partial(_refuse_early, convert, self.place, path)
        # Spark reads a timestamp without a zone in today's calendar, unless it converts it from a date
        has_calendar = isinstance(wanted, (st.DateType, st.TimestampType)) or leaf.logical == "DATE"
        if has_calendar and self.calendars.may_be_old(leaf):
            return functools.partial(_refuse_old, convert, self.place, path)
        return convert

    def _mismatch(self, field: FileField, wanted: st.DataType, path: str) -> SchemaMismatchError:
        natural = None if field.leaf is None else leaf_type(field.leaf, self.rules.leaves)
        found = f"{field}" if natural is None else f"{natural.simpleString()}, stored as {field}"
        return SchemaMismatchError(
            f"{self.place}: column '{path}' cannot be read as it should be (expected"
            f" {wanted.simpleString()}, found {found}). Name the type that the files have in schema(), or"
            " read these files apart and cast the column"
        )


# --- arrays ---------------------------------------------------------------------------------------------


def _storage(array: pa.Array) -> pa.Array:
    while isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return array


def _cast(target: pa.DataType, array: pa.Array) -> pa.Array:
    array = _storage(array)
    if at.is_dictionary(array.type):
        array = array.dictionary_decode()
    if at.is_duration(array.type):
        array = array.cast(pa.int64())  # the unit is Arrow's annotation: to Spark the column is a number
    # unsafe, as in Spark: integers lose the bits that do not fit, and text is not validated
    return array.cast(target, safe=False)


def _refuse_old(convert: Conversion | None, place: str, path: str, array: pa.Array) -> pa.Array:
    array = _storage(array)
    if len(array):
        first = pc.min(array.dictionary_decode() if at.is_dictionary(array.type) else array)
        if first.is_valid and _is_old(first):
            raise UnsupportedError(
                f"{place}: column '{path}' has dates before 1582-10-15 or timestamps before 1900, which this"
                " file may hold by the calendar of Spark before 3.0. If they are by today's calendar and the"
                " file does not say otherwise, set the options datetimeRebaseMode and int96RebaseMode to"
                " CORRECTED; else read it with spark.read.parquet and pass the DataFrame to sortshuffle.frame"
            )
    return array if convert is None else convert(array)


def _refuse_early(convert: Conversion | None, place: str, path: str, array: pa.Array) -> pa.Array:
    array = _storage(array)
    micros = np.asarray(array.drop_null().view(pa.int64()))
    is_late = (micros >= _FIRST_MISREAD_MICROS) & (micros < _END_OF_MISREAD_MICROS)
    if np.any(is_late | ((micros < 0) & (micros % _DAY_MICROS != 0))):
        raise UnsupportedError(
            f"{place}: column '{path}' is stored as INT96 by pyarrow before {INT96_MENDED}, whose times"
            " before 1970 only Spark reads as they were meant. Let Spark write the file again:"
            " spark.read.parquet(...).write.parquet(...)"
        )
    return array if convert is None else convert(array)


def _is_old(value: pa.Scalar) -> bool:
    if at.is_date(value.type):
        return bool(value.cast(pa.date32()).value < _FIRST_GREGORIAN_DAY)
    return bool(value.cast(pa.timestamp("us", value.type.tz), safe=False).value < _FIRST_SURE_MICROS)


def _nulls(kind: pa.DataType, array: pa.Array) -> pa.Array:
    return pa.nulls(len(array), kind)


def _converted_struct(
    sources: Sequence[tuple[str, Conversion | None] | pa.DataType], names: Sequence[str], array: pa.Array
) -> pa.Array:
    array, arrays = _storage(array), []
    for source in sources:
        if isinstance(source, pa.DataType):
            arrays.append(pa.nulls(len(array), source))
            continue
        name, convert = source
        child = array.field(array.type.get_field_index(name))
        arrays.append(child if convert is None else convert(child))
    mask = array.is_null() if array.null_count else None
    fields = [pa.field(name, each.type) for name, each in zip(names, arrays, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def _converted_list(convert: Conversion, array: pa.Array) -> pa.Array:
    array = _storage(array)
    if at.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_field))
    start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    values = convert(array.values.slice(start, end - start))
    kind = pa.LargeListArray if at.is_large_list(array.type) else pa.ListArray
    return kind.from_arrays(_offsets_from_zero(array), values, mask=_mask(array))


def _converted_map(
    convert_keys: Conversion | None, convert_values: Conversion | None, array: pa.Array
) -> pa.Array:
    array = _storage(array)
    start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    keys, values = array.keys.slice(start, end - start), array.items.slice(start, end - start)
    keys = keys if convert_keys is None else convert_keys(keys)
    values = values if convert_values is None else convert_values(values)
    return pa.MapArray.from_arrays(_offsets_from_zero(array), keys, values, mask=_mask(array))


def _offsets_from_zero(array: pa.Array) -> pa.Array:
    return pc.subtract(array.offsets, array.offsets[0])


def _mask(array: pa.Array) -> Any:
    return array.is_null() if array.null_count else None
