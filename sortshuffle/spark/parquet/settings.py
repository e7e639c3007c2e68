"""What a reader was told: its options, and the session's settings where they say nothing.

Names of options count without their letters' case, as in Spark. Spark passes over options that it does not
know; here they are refused, because one that is misspelt, or that this scan does not have, would change rows
without a word. Options that begin with ``fsspec.`` are for the file system. They may be credentials, so
nothing prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException

from sortshuffle.errors import UnsupportedError, UsageError

STORAGE_PREFIX = "fsspec."
REBASE_MODES = ("EXCEPTION", "CORRECTED", "LEGACY")
_KNOWN = (
    "mergeSchema",
    "basePath",
    "recursiveFileLookup",
    "pathGlobFilter",
    "datetimeRebaseMode",
    "int96RebaseMode",
    "ignoreCorruptFiles",
    "ignoreMissingFiles",
)
_INSTEAD = "read with spark.read.parquet and pass the DataFrame to sortshuffle.frame"


@dataclass(frozen=True, slots=True)
class LeafRules:
    """The session's settings for what a stored type is read as. ``int96``: as timestamps, unshifted."""

    binary_as_string: bool = False
    infer_ntz: bool = True
    nanos_as_long: bool = False
    int96: bool = True


@dataclass(frozen=True, slots=True)
class FileRules:
    """How any file is to be understood; travels to the workers.

    ``datetime_rebase``, ``int96_rebase``: modes for files whose footers do not say which calendar they are
    in. ``null_structs``: where a file has none of a struct's fields the struct is null, not of nulls.
    """

    case_sensitive: bool = False
    leaves: LeafRules = field(default_factory=LeafRules)
    datetime_rebase: str = "CORRECTED"
    int96_rebase: str = "CORRECTED"
    null_structs: bool = False


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Everything that decides which files are read, and as what. ``name_glob``: for names of files."""

    rules: FileRules = field(default_factory=FileRules)
    timezone: str = "UTC"
    merge_schema: bool = False
    base_path: str | None = None
    recursive: bool = False
    name_glob: str | None = None
    infer_partition_types: bool = True
    timestamps_are_ntz: bool = False
    storage: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(
        conf: Callable[[str], Any], options: Mapping[str, Any], *, case_sensitive: bool, timezone: str
    ) -> ReadSettings:
        """``conf``: gives a setting of the session. Raises `UsageError` for a value that means nothing,
        `UnsupportedError` for an option that this scan does not have."""
        told = {name.lower(): _told(value) for name, value in options.items() if not _is_storage(name)}
        _refuse_unknown([name for name in options if not _is_storage(name)])
        for name in ("ignoreCorruptFiles", "ignoreMissingFiles"):
            if _flag(told, name, "false"):
                raise UnsupportedError(f"the option {name} would leave out rows unseen: {_INSTEAD}")
        leaves = LeafRules(
            binary_as_string=_is_true(conf("spark.sql.parquet.binaryAsString")),
            infer_ntz=_is_true(conf("spark.sql.parquet.inferTimestampNTZ.enabled")),
            nanos_as_long=_is_true(conf("spark.sql.legacy.parquet.nanosAsLong")),
            int96=_is_true(conf("spark.sql.parquet.int96AsTimestamp"))
            and not _is_true(conf("spark.sql.parquet.int96TimestampConversion")),
        )
        rules = FileRules(
            case_sensitive,
            leaves,
            _mode(told, "datetimeRebaseMode", conf("spark.sql.parquet.datetimeRebaseModeInRead")),
            _mode(told, "int96RebaseMode", conf("spark.sql.parquet.int96RebaseModeInRead")),
            _is_true(conf("spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing")),
        )
        return ReadSettings(
            rules,
            timezone,
            merge_schema=_flag(told, "mergeSchema", conf("spark.sql.parquet.mergeSchema")),
            base_path=told.get("basepath"),
            recursive=_flag(told, "recursiveFileLookup", "false"),
            name_glob=told.get("pathglobfilter"),
            infer_partition_types=_is_true(conf("spark.sql.sources.partitionColumnTypeInference.enabled")),
            timestamps_are_ntz=str(conf("spark.sql.timestampType")).upper() == "TIMESTAMP_NTZ",
            storage={
                name[len(STORAGE_PREFIX) :]: value for name, value in options.items() if _is_storage(name)
            },
        )


def _is_storage(name: str) -> bool:
    return name.lower().startswith(STORAGE_PREFIX)


def _told(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refuse_unknown(names: list[str]) -> None:
    known = {each.lower() for each in _KNOWN}
    unknown = [name for name in names if name.lower() not in known]
    if unknown:
        raise UnsupportedError(
            f"a Parquet scan has no option {', '.join(unknown)}: it has {', '.join(_KNOWN)} and"
            f" {STORAGE_PREFIX}<name> for the file system. For others {_INSTEAD}"
        )


def _flag(told: Mapping[str, str], name: str, otherwise: Any) -> bool:
    value = told.get(name.lower(), str(otherwise)).lower()
    if value not in ("true", "false"):
        raise UsageError(f"the option {name} is true or false, not {value!r}")
    return value == "true"


def _known(conf: Callable[[str], Any], name: str, otherwise: str) -> Any:
    """A setting that not every Spark has."""
    try:
        return conf(name)
    except (PySparkException, KeyError):
        return otherwise


def _is_true(value: Any) -> bool:
    return str(value).lower() == "true"


def _mode(told: Mapping[str, str], name: str, otherwise: Any) -> str:
    mode = told.get(name.lower(), str(otherwise)).upper()
    if mode not in REBASE_MODES:
        raise UsageError(f"the option {name} is one of {', '.join(REBASE_MODES)}, not {mode!r}")
    return mode
