"""What a reader is told, without Spark, and the file systems that its options are for."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from parquet_cases import ONE_SPLIT, write
from pyspark.sql import SparkSession

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.spark.parquet.file_systems import FileSystem
from sortshuffle.spark.parquet.files import ParquetFiles
from sortshuffle.spark.parquet.paths import redact
from sortshuffle.spark.parquet.scanning import readable
from sortshuffle.spark.parquet.settings import LeafRules, ReadSettings, check_listing
from sortshuffle.spark.schema import to_arrow
from sortshuffle.spark.session.requirements import setting_of

CONF = {
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.legacy.parquet.nanosAsLong": "false",
    "spark.sql.parquet.int96AsTimestamp": "true",
    "spark.sql.parquet.int96TimestampConversion": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "EXCEPTION",
    "spark.sql.parquet.mergeSchema": "false",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "true",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing": "false",
}


def told(conf: dict[str, str] | None = None, **options: Any) -> ReadSettings:
    return ReadSettings.of((CONF | (conf or {})).__getitem__, options, case_sensitive=False, timezone="UTC")


def test_options_go_before_the_session() -> None:
    assert told().merge_schema is False
    assert told(mergeSchema=True).merge_schema is True
    assert told(MERGEschema="TRUE").merge_schema is True
    assert told({"spark.sql.parquet.mergeSchema": "true"}).merge_schema is True
    assert told({"spark.sql.parquet.mergeSchema": "true"}, mergeSchema="false").merge_schema is False
    assert (told().rules.datetime_rebase, told().rules.int96_rebase) == ("CORRECTED", "EXCEPTION")
    assert told(datetimeRebaseMode="legacy", int96rebasemode="corrected").rules.int96_rebase == "CORRECTED"
    assert told(basePath="/t", pathGlobFilter="*.pq", recursiveFileLookup="true").base_path == "/t"
    assert told({"spark.sql.timestampType": "TIMESTAMP_NTZ"}).timestamps_are_ntz


def test_settings_by_which_spark_would_list_other_files_are_refused(spark: SparkSession) -> None:
    hidden, summaries = "spark.sql.files.ignoredPathSegmentRegex", "spark.sql.parquet.respectSummaryFiles"
    check_listing(partial(setting_of, spark), True)
    with pytest.raises(UnsupportedError, match=r"ignoredPathSegmentRegex: read with spark\.read\.parquet"):
        check_listing({hidden: "", summaries: "false"}.get, False)
    check_listing({summaries: "true"}.get, False)
    with pytest.raises(UnsupportedError, match=r"respectSummaryFiles says: read with spark\.read\.parquet"):
        check_listing({summaries: "true"}.get, True)


def test_the_session_says_what_stored_types_are() -> None:
    assert told().rules.leaves == LeafRules()
    assert told({"spark.sql.parquet.binaryAsString": "true"}).rules.leaves == LeafRules(binary_as_string=True)
    assert told({"spark.sql.parquet.int96TimestampConversion": "true"}).rules.leaves == LeafRules(int96=False)


@pytest.mark.parametrize("name", ["modifiedBefore", "modifiedAfter", "mergeSchemas", "header", "timeZone"])
def test_options_that_are_not_there_are_refused_by_name(name: str) -> None:
    with pytest.raises(
        UnsupportedError, match=rf"no option {name}: it has mergeSchema, .*spark\.read\.parquet"
    ):
        told(**{name: "x"})


@pytest.mark.parametrize("name", ["ignoreCorruptFiles", "ignoreMissingFiles"])
def test_losing_rows_is_refused(name: str) -> None:
    assert told(**{name: "false"}) == told()
    with pytest.raises(UnsupportedError, match=f"{name} would leave out rows"):
        told(**{name: True})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mergeSchema": "maybe"}, "mergeSchema is true or false, not 'maybe'"),
        ({"datetimeRebaseMode": "old"}, "datetimeRebaseMode is one of EXCEPTION, CORRECTED, LEGACY"),
    ],
)
def test_values_that_mean_nothing_are_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        told(**options)


# --- file systems ---------------------------------------------------------------------------------------


class LockedFileSystem(LocalFileSystem):
    """The local files, for who has the key."""

    protocol = "locked"

    def __init__(self, *, key: str, **others: Any) -> None:
        super().__init__(**others)
        if key != "s3cr3t":
            raise ValueError(f"{key} is wrong")


@pytest.fixture(autouse=True)
def _locked() -> None:
    fsspec.register_implementation("locked", LockedFileSystem, clobber=True)


def test_options_reach_the_file_system_also_after_pickling(tmp_path: Path) -> None:
    write(tmp_path / "k=1" / "f.parquet", {"a": [1]})
    files = ParquetFiles.find([f"locked://{tmp_path}"], told(**{"fsspec.key": "s3cr3t"}))
    wire = to_arrow(files.schema, "UTC")
    scan = files.scan(files.plan(None, ONE_SPLIT, wire), ("a", "k"), wire, None)
    assert isinstance(files.source.filesystem.fsspec, LockedFileSystem)
    (batch,) = pickle.loads(pickle.dumps(scan)).read(0)
    assert batch.to_pylist() == [{"a": 1, "k": 1}]
    for instance in (files, scan, told(**{"fsspec.key": "s3cr3t"})):
        assert "s3cr3t" not in repr(instance)


def test_a_file_system_that_refuses_its_options_does_not_tell_them(tmp_path: Path) -> None:
    for options in ({"fsspec.key": "guess"}, {"fsspec.token": "guess"}):
        with pytest.raises(UsageError, match=r"no file system for .* with fsspec\.(key|token) \(") as caught:
            ParquetFiles.find([f"locked://{tmp_path}"], told(**options))
        assert "guess" not in str(caught.value)
    with pytest.raises(UsageError, match="no file system for nosuch://x could be made with no options"):
        ParquetFiles.find(["nosuch://x"])


def test_paths_on_several_file_systems_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"several file systems.*union\(\)"):
        FileSystem.of([f"file://{tmp_path}", "memory://x"], {})
    assert FileSystem.of([str(tmp_path), f"file://{tmp_path}"], {}).is_local


def test_users_and_passwords_of_urls_are_not_shown() -> None:
    assert redact("ftp://me:word@host/dir/a@b") == "ftp://host/dir/a@b"
    assert redact("/a@b/c") == "/a@b/c"
    assert redact("http://me:p@ss word@host/f") == "http://host/f"


def test_errors_of_a_file_system_are_shown_without_the_password() -> None:
    path = "http://me:p@ss word@host/f"
    message = r"^http://host/f cannot be read .*: http://host/f is gone$"
    with pytest.raises(UsageError, match=message), readable(path):
        raise FileNotFoundError(f"{path} is gone")
