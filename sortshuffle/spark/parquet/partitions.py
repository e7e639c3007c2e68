"""Columns that stand in the names of directories: ``.../year=2024/city=Oslo/file``.

Spark's rules, for directories that hold data files:
* From the file up to a base path (a root, or the option ``basePath``) every ``column=value`` is a column; the
  first other directory above one ends the search, and is where that table begins. There must be one such
  place, and one list of columns.
* A column's type is inferred from all its texts: the first of int, long, decimal without a scale, double,
  timestamp, date and string that each can be, widened where they differ. A user's schema overrides that.
* Escapes such as ``%2F`` stand for characters; ``__HIVE_DEFAULT_PARTITION__`` is null.

What Spark reads by rules that are not rebuilt here is refused: times of day, dates before the year 1, and
decimals whose scale the text does not say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as st

from sortshuffle.errors import UsageError
from sortshuffle.spark.parquet.file_systems import shown
from sortshuffle.spark.parquet.finding import parent_of
from sortshuffle.spark.parquet.partition_values import NULL, cached, inferred, reader, unescaped
from sortshuffle.spark.parquet.settings import ReadSettings


@dataclass(frozen=True, slots=True)
class Partitioning:
    """``columns``: of the directories. ``values``: of each directory, in the order of the columns; of other
    directories nothing is read."""

    columns: st.StructType
    values: Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _Parsed:
    """``columns``: names and texts, the outermost first. ``base``: where the table begins."""

    directory: str
    columns: tuple[tuple[str, str], ...]
    base: str


def partitioning(
    directories: Sequence[str],
    base_paths: Collection[str],
    settings: ReadSettings,
    declared: st.StructType | None = None,
) -> Partitioning | None:
    """What the names of these directories say; None if they are not named so.

    ``declared``: the user's schema. Raises `UsageError` for names that contradict each other, and for values
    that their type cannot hold; `UnsupportedError` for what is read otherwise here than by Spark.
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
        kind = inferred(texts, name, settings) if field is None else field.dataType
        columns = columns.add(name if field is None else field.name, kind)
        read = cached(reader(kind, name, settings))
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
        if parent_of(current) == current or "/" not in current:
            break
        current = parent_of(current)
    return _Parsed(directory, tuple(reversed(columns)), current if columns else directory)


def _column(name: str, path: str) -> tuple[str, str]:
    column, text = name.split("=", 1)
    if not column or not text:
        missing = "column name in front of" if not column else "value behind"
        raise UsageError(f"the directory {shown(path)} has no {missing} its '='")
    return unescaped(column), text


def _check_bases(parsed: Sequence[_Parsed]) -> None:
    bases = sorted({each.base for each in parsed}, key=str.lower)
    if len({base.lower() for base in bases}) > 1:
        raise UsageError(
            f"the directories have conflicting structures: partition directories begin at {_few(bases)}. Name"
            " the root of the table with the option basePath, or read the roots apart and union() the frames"
        )


def _check_names(partitions: Sequence[_Parsed], case_sensitive: bool) -> None:
    lists: dict[tuple[str, ...], str] = {}
    for each in partitions:
        names = tuple(name if case_sensitive else name.lower() for name, _ in each.columns)
        lists.setdefault(names, each.directory)
    if len(lists) > 1:
        shown_lists = [f"{', '.join(names)} ({shown(directory)})" for names, directory in lists.items()]
        raise UsageError(
            f"the directories name different partition columns: {_few(shown_lists)}. Data files must be at"
            " one depth, and directories of one depth have one column"
        )


def _few(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - 4} more" if len(texts) > 4 else ""
    return "; ".join(texts[:4]) + more


def _declared_field(name: str, declared: st.StructType | None, case_sensitive: bool) -> st.StructField | None:
    def same(other: str) -> bool:
        return other == name if case_sensitive else other.lower() == name.lower()

    return next((field for field in declared or () if same(field.name)), None)
