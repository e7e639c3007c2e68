"""Columns from the names of directories: ``.../year=2024/city=Oslo/file``.

Spark's rules, for directories that hold data files:
* From the file up to a base path (a root, or the option ``basePath``) every directory ``column=value`` is a
  column. Above a column, the first other directory ends the search: the table begins there. The beginning and
  the columns must be the same for all directories.
* The type is inferred from a column's texts (`spark.parquet.partition_values`). A user's schema overrides it.
* Escapes such as ``%2F`` stand for characters; ``__HIVE_DEFAULT_PARTITION__`` is null.

Texts that Spark reads by rules that are not implemented here are refused: times of day, dates before the year
1, and texts of a column that a user's schema declares as a decimal with a scale.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as st

from sortshuffle.errors import UsageError
from sortshuffle.spark.parquet.merging import fold_case
from sortshuffle.spark.parquet.partition_values import NULL, infer_type, unescape, value_reader, with_cache
from sortshuffle.spark.parquet.paths import parent_of, redact
from sortshuffle.spark.parquet.settings import ReadSettings


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The partition columns of a table. ``values``: by directory, in the order of ``columns``. Files in other
    directories are not read."""

    columns: st.StructType
    values: Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A directory's columns: names and texts, the outermost first. ``base``: where the table begins."""

    directory: str
    columns: tuple[tuple[str, str], ...]
    base: str


def find_partitioning(
    directories: Sequence[str],
    base_paths: Collection[str],
    settings: ReadSettings,
    declared: st.StructType | None = None,
) -> Partitioning | None:
    """Return the partition columns of these directories; None if no name has the form ``column=value``.

    ``declared``: the user's schema. Raises `UsageError` for names that contradict each other, and for values
    that their type cannot hold; `UnsupportedError` for values that would not be read as Spark reads them.
    """
    parsed = [_parsed(directory, base_paths) for directory in directories]
    partitions = [each for each in parsed if each.columns]
    if not partitions:
        return None
    _check_bases(parsed)
    _check_names(partitions, settings.rules.case_sensitive)
    columns, values = st.StructType(), []
    for at, (name, _) in enumerate(partitions[0].columns):
        texts = [each.columns[at][1] for each in partitions]
        field = _declared_field(name, declared, settings.rules.case_sensitive)
        kind = infer_type(texts, name, settings) if field is None else field.dataType
        columns = columns.add(name if field is None else field.name, kind)
        read = with_cache(value_reader(kind, name, settings))
        values.append([None if text == NULL else read(text) for text in texts])
    by_directory = zip((each.directory for each in partitions), zip(*values, strict=True), strict=True)
    return Partitioning(columns, dict(by_directory))


# --- from paths to texts --------------------------------------------------------------------------------


def _parsed(directory: str, base_paths: Collection[str]) -> _Parsed:
    columns: list[tuple[str, str]] = []
    current = directory
    while current not in base_paths and current != "/" and current:
        name = current.rsplit("/", 1)[-1]
        if "=" in name:
            columns.append(_column(name, current))
        elif columns:
            break
        current = parent_of(current)
    return _Parsed(directory, tuple(reversed(columns)), current if columns else directory)


def _column(name: str, path: str) -> tuple[str, str]:
    column, text = name.split("=", 1)
    if not column or not text:
        missing = "column name in front of" if not column else "value behind"
        raise UsageError(f"the directory {redact(path)} has no {missing} its '='")
    return unescape(column), text


def _check_bases(parsed: Sequence[_Parsed]) -> None:
    bases = sorted({each.base for each in parsed}, key=str.lower)
    if len({base.lower() for base in bases}) > 1:
        raise UsageError(
            "the directories have conflicting structures: partition directories begin at"
            f" {_few([redact(base) for base in bases])}. Name"
            " the root of the table with the option basePath, or read the roots apart and union() the frames"
        )


def _check_names(partitions: Sequence[_Parsed], case_sensitive: bool) -> None:
    lists: dict[tuple[str, ...], str] = {}
    for each in partitions:
        names = tuple(fold_case(name, case_sensitive) for name, _ in each.columns)
        lists.setdefault(names, each.directory)
    if len(lists) > 1:
        shown_lists = [f"{', '.join(names)} ({redact(directory)})" for names, directory in lists.items()]
        raise UsageError(
            f"the directories name different partition columns: {_few(shown_lists)}. Data files must be at"
            " one depth, and directories of one depth have one column"
        )


def _few(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - 4} more" if len(texts) > 4 else ""
    return "; ".join(texts[:4]) + more


def _declared_field(name: str, declared: st.StructType | None, case_sensitive: bool) -> st.StructField | None:
    wanted = fold_case(name, case_sensitive)
    return next((field for field in declared or () if fold_case(field.name, case_sensitive) == wanted), None)
