"""The settings of a reader: its options, and the session's settings for options that are not given.

Names of options are compared without case, as in Spark. Spark ignores unknown options; here they are refused,
because ignoring one that is misspelt, or that this scan does not have, could change rows silently. Options
that begin with ``fsspec.`` are for the file system. They may be credentials, so nothing prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
_HIDDEN = "spark.sql.files.ignoredPathSegmentRegex"  # since Spark 4.3
_SPARKS_HIDDEN = "^[._]"
_ONLY_SUMMARIES = "spark.sql.parquet.respectSummaryFiles"
_INSTEAD = "read with spark.read.parquet and pass the DataFrame to sortshuffle.frame"


@dataclass(frozen=True, slots=True)
class LeafRules:
    """The session's settings for the types of leaves. ``int96``: read INT96 as unshifted timestamps."""

    binary_as_string: bool = False
    infer_ntz: bool = True
    nanos_as_long: bool = False
    int96: bool = True


@dataclass(frozen=True, slots=True)
class FileRules:
    """The rules for reading any file; they travel to the workers.

    ``datetime_rebase``, ``int96_rebase``: the modes for files whose footers do not name a calendar.
    ``null_structs``: a struct none of whose fields is in the file is null, instead of a struct of nulls.
    """

    case_sensitive: bool = False
    leaves: LeafRules = field(default_factory=LeafRules)
    datetime_rebase: str = "CORRECTED"
    int96_rebase: str = "CORRECTED"
    null_structs: bool = False


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """All settings that decide which files are read, and as what. ``name_glob``: a pattern for file names."""

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
        """Read the options and the session's settings. ``conf``: returns a setting of the session, None if
        its Spark has none of that name. Raises `UsageError` for an invalid value, `UnsupportedError` for an
        option that this scan does not have."""
        texts = {name.lower(): _text(value) for name, value in options.items() if not _is_storage(name)}
        _refuse_unknown([name for name in options if not _is_storage(name)])
        for name in ("ignoreCorruptFiles", "ignoreMissingFiles"):
            if _flag(texts, name, "false"):
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
            _mode(texts, "datetimeRebaseMode", conf("spark.sql.parquet.datetimeRebaseModeInRead")),
            _mode(texts, "int96RebaseMode", conf("spark.sql.parquet.int96RebaseModeInRead")),
            _is_true(conf("spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing")),
        )
        return ReadSettings(
            rules,
            timezone,
            merge_schema=_flag(texts, "mergeSchema", conf("spark.sql.parquet.mergeSchema")),
            base_path=texts.get("basepath"),
            recursive=_flag(texts, "recursiveFileLookup", "false"),
            name_glob=texts.get("pathglobfilter"),
            infer_partition_types=_is_true(conf("spark.sql.sources.partitionColumnTypeInference.enabled")),
            timestamps_are_ntz=str(conf("spark.sql.timestampType")).upper() == "TIMESTAMP_NTZ",
            storage={
                name[len(STORAGE_PREFIX) :]: value for name, value in options.items() if _is_storage(name)
            },
        )


def _is_storage(name: str) -> bool:
    return name.lower().startswith(STORAGE_PREFIX)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refuse_unknown(names: list[str]) -> None:
    known = {each.lower() for each in _KNOWN}
    unknown = [name for name in names if name.lower() not in known]
    if unknown:
        raise UnsupportedError(
            f"a Parquet scan has no option {', '.join(unknown)}: it has {', '.join(_KNOWN)} and"
            f" {STORAGE_PREFIX}<name> for the file system. For others {_INSTEAD}"
        )


def check_listing(conf: Callable[[str], Any], merges_schemas: bool) -> None:
    """Refuse settings of the session by which Spark would list other files, or find another schema in them.
    Raises `UnsupportedError`."""
    hidden = conf(_HIDDEN)
    if hidden not in (None, _SPARKS_HIDDEN):
        raise UnsupportedError(f"a Parquet scan knows only {_SPARKS_HIDDEN} as {_HIDDEN}: {_INSTEAD}")
    if merges_schemas and _is_true(conf(_ONLY_SUMMARIES)):
        raise UnsupportedError(
            f"a Parquet scan merges the schemas of all files, whatever {_ONLY_SUMMARIES} says: {_INSTEAD}"
        )


def _flag(texts: Mapping[str, str], name: str, default: Any) -> bool:
    value = texts.get(name.lower(), str(default)).lower()
    if value not in ("true", "false"):
        raise UsageError(f"the option {name} is true or false, not {value!r}")
    return value == "true"


def _is_true(value: Any) -> bool:
    return str(value).lower() == "true"


def _mode(texts: Mapping[str, str], name: str, default: Any) -> str:
    mode = texts.get(name.lower(), str(default)).upper()
    if mode not in REBASE_MODES:
        raise UsageError(f"the option {name} is one of {', '.join(REBASE_MODES)}, not {mode!r}")
    return mode
