"""`ParquetJob`: Parquet files written by the Python workers, committed as a whole or not at all.

Each task writes one file into a staging directory beside the target, and returns its name as a row. Spark
keeps exactly one attempt's row per partition, so the rows that arrive at the driver are the manifest. The
files of the manifest are moved to another directory, and then one rename makes that directory the target.
Appending moves the files one by one, and removes them all again if one cannot be moved.

Files of attempts that lost stay in the staging directory, so they never reach the target. The directory is
renamed and removed after the commit: an attempt that is still being cancelled then finds no path to write to.

Readers find what they find in Spark's files: types, columns without nulls, and Spark's schema as metadata,
with comments and types such as varchar. Settings and types that Python does not follow are refused.

Every worker must see the paths as local ones (one machine, or a shared mount).
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    MapType,
    NullType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from sortshuffle import calls
from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.spark.parquet.fitting import INT96_MENDED
from sortshuffle.spark.plan.chain import Chain
from sortshuffle.spark.plan.coalescing import for_action
from sortshuffle.spark.plan.staging import plan_stage
from sortshuffle.spark.session.requirements import is_classic
from sortshuffle.spark.steps.write_parquet import WriteParquet

MODES = ("error", "errorifexists", "default", "append", "overwrite", "ignore")
# Spark's names and pyarrow's
CODECS = {"none": "none", "uncompressed": "none", "lz4_raw": "lz4"}
CODECS |= {name: name for name in ("snappy", "gzip", "zstd", "lz4", "brotli")}
SPARK_SCHEMA_KEY = "org.apache.spark.sql.parquet.row.metadata"
SPARK_VERSION_KEY = "org.apache.spark.version"  # without it, readers' settings say which calendar days are of
FIELD_ID_KEY = "parquet.field.id"
SUCCESS_FILE = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
FOLLOWED = {
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.output.committer.class": "org.apache.parquet.hadoop.ParquetOutputCommitter",
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
    "spark.sql.files.maxRecordsPerFile": "0",
}
"""Settings that only Spark's writer follows, and the values by which Python writes."""


@dataclass(frozen=True, slots=True)
class ParquetJob:
    """Writes the rows of a chain below ``target``, a local path. ``new_run``: returns the number for the
    result stage. ``how``: what to do if the target exists. ``codec``: pyarrow's name of the compression.
    ``int96``: the representation of timestamps."""

    chain: Chain
    new_run: Callable[[], int]
    target: str
    how: str
    codec: str
    int96: bool

    @staticmethod
    def of(
        chain: Chain, new_run: Callable[[], int], path: str, how: str = "error", codec: str | None = None
    ) -> ParquetJob:
        """Check the arguments. Raises `UsageError` if one is wrong, or if the target exists and the mode
        forbids that, and `UnsupportedError` for paths that are not local, and for settings and column types
        by which only Spark writes."""
        how = str(how).lower()
        if how not in MODES:
            raise UsageError(f"mode {how!r} is not one of {', '.join(MODES)}")
        target = _local(chain.context.spark, path)
        _check_fields("the frame", "", chain.schema)
        _check_names(chain.schema.names, chain.context.case_sensitive)
        if calls.exists(target):
            if how not in ("append", "overwrite", "ignore"):
                raise UsageError(f'{target} exists: choose mode("overwrite"), "append" or "ignore"')
            if how == "append" and not calls.isdir(target):
                raise UsageError(f"{target} is not a directory, and only to one can files be appended")
            _check_parent(target)
        _check_settings(chain.context.spark)
        int96 = _is_int96(chain.context.spark, chain.schema)
        default = chain.context.spark.conf.get("spark.sql.parquet.compression.codec")
        return ParquetJob(chain, new_run, target, how, _codec(codec or str(default)), int96)

    def run(self) -> None:
        """Run the frame and write its rows, one file per non-empty partition. A frame without rows writes one
        file without rows, which has the schema."""
        if self.how == "ignore" and calls.exists(self.target):
            return
        job = uuid.uuid4().hex[:12]
        staging = os.path.join(
            os.path.dirname(self.target), f".{os.path.basename(self.target)}.writing-{job}"
        )
        attempts, whole = os.path.join(staging, "attempts"), os.path.join(staging, "whole")
        calls.makedirs(staging)
        try:
            calls.mkdir(attempts)
            calls.mkdir(whole)
            names = self._run(self._closing(attempts, job))
            for name in names:
                calls.rename(os.path.join(attempts, name), os.path.join(whole, name))
            try:
                _commit(whole, self.target, names, replaced=f"{staging}.replaced", how=self.how)
            except BaseException:  # an interrupt may come when the commit is done
                with suppress(Exception):  # this error counts
                    _refresh(self.chain.context.spark, self.target)
                raise
            _refresh(self.chain.context.spark, self.target)
        finally:
            _discard(staging)

    def _closing(self, directory: str, job: str) -> WriteParquet:
        version = str(self.chain.context.spark.version)
        metadata = {SPARK_VERSION_KEY: version, SPARK_SCHEMA_KEY: self.chain.schema.json()}
        fields = [
            wire.with_nullable(declared.nullable)
            for wire, declared in zip(self.chain.wire, self.chain.schema, strict=True)
        ]
        return WriteParquet(directory, job, self.codec, pa.schema(fields, metadata), self.int96)

    def _run(self, closing: WriteParquet) -> list[str]:
        """Run the frame. Return the names of the files to commit."""
        rows = plan_stage(for_action(self.chain), self.new_run(), closing, "name string").collect()
        return [row.name for row in rows] or [closing.write_empty()]


def _refresh(spark: Any, target: str) -> None:
    """Let Spark forget the rows and the list of files below a path, as after writes of its own."""
    if is_classic(spark):
        spark.catalog.refreshByPath(target)


def _commit(whole: str, target: str, names: Sequence[str], *, replaced: str, how: str) -> None:
    """Make the directory ``whole`` the target. ``replaced``: path of an old target until it is deleted.
    Raises `UsageError` if another writer has made the target meanwhile and the mode does not replace it."""
    with calls.open_file(os.path.join(whole, "_SUCCESS"), "w", encoding="ascii"):
        pass
    if not calls.exists(target):
        calls.rename(whole, target)
        return
    if how == "append":
        _move_into(whole, target, [*names, "_SUCCESS"])
        return
    if how == "ignore":
        return
    if how != "overwrite":
        raise UsageError(f"{target} exists: somebody else has written it meanwhile")
    _replace(whole, target, replaced, names[0])


def _replace(whole: str, target: str, replaced: str, name: str) -> None:
    """Put the directory ``whole`` in the target's place, and delete what was there. ``name``: of a file in
    ``whole``. No other job writes a file of that name."""
    is_done = False
    try:
        calls.rename(target, replaced)
        calls.rename(whole, target)
        is_done = True
        _delete(replaced)
    except BaseException as error:
        # an interrupt may come when a rename is done, so look
        is_done = is_done or calls.exists(os.path.join(target, name))
        with suppress(OSError):
            if is_done:
                _delete(replaced)
            elif not calls.exists(target):
                calls.rename(replaced, target)
        if calls.exists(replaced):
            _add_note(error, f"The old files of {target}, or what is left of them, are in {replaced}")
        raise


def _delete(path: str) -> None:
    if calls.isdir(path):
        calls.rmtree(path)
    else:
        calls.unlink(path)


def _discard(staging: str) -> None:
    # renamed first: otherwise a task that is still being cancelled could open a file in the directory
    # meanwhile, and so keep it from being removed
    gone = f"{staging}.gone"
    calls.rename(staging, gone)
    calls.rmtree(gone, ignore_errors=True)


def _move_into(whole: str, target: str, names: Sequence[str]) -> None:
    new = [name for name in names if not calls.exists(os.path.join(target, name))]
    try:
        for name in names:
            calls.rename(os.path.join(whole, name), os.path.join(target, name))
    except BaseException as error:
        # an interrupt may come when a rename is done, so look. If a file was not moved, one of that
        # name in the target is another writer's
        moved = [name for name in new if not calls.exists(os.path.join(whole, name))]
        left = [name for name in moved if not _is_removed(os.path.join(target, name))]
        if left:
            _add_note(error, f"These new files could not be removed from {target}: {', '.join(left)}")
        raise


def _is_removed(path: str) -> bool:
    """Remove a file. Return whether it is gone."""
    try:
        calls.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _add_note(error: BaseException, note: str) -> None:
    add_note = getattr(error, "add_note", None)  # since Python 3.11
    if add_note is not None:
        add_note(note)


def _local(spark: Any, path: str) -> str:
    """Return the local path that ``path`` means to Spark."""
    if not isinstance(path, str):
        raise UsageError(f"a path is a text, not {type(path).__name__}")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", path)
    if scheme is None and is_classic(spark):
        default = str(spark._jsc.hadoopConfiguration().get("fs.defaultFS") or "file:")
        if not default.startswith("file:"):
            raise UnsupportedError(f"{path} is a path in {default}, where only Spark writes")
    if scheme is not None and scheme[1].lower() != "file":
        raise UnsupportedError(f"{path} is not a local path, and only Spark writes to others")
    plain = path if scheme is None else re.sub(r"^file:(//)?", "", path, flags=re.IGNORECASE)
    if not plain.strip() or "\0" in plain:
        raise UsageError(f"{path!r} is no path")
    if scheme is not None and not os.path.isabs(plain):
        raise UsageError(f"{path} is no absolute path")
    if not os.path.isabs(plain) and is_classic(spark):  # to Spark it is relative to its JVM's directory
        plain = os.path.join(str(spark._jvm.java.lang.System.getProperty("user.dir")), plain)
    return calls.realpath(plain)  # write to the target of a link, and leave the link


def _check_parent(target: str) -> None:
    """Raise `UnsupportedError` if files beside an existing target cannot be moved into it, or not be made."""
    parent = os.path.dirname(target)
    if calls.stat(parent).st_dev != calls.stat(target).st_dev:
        raise UnsupportedError(
            f"{target} is on a file system of its own, and only Spark writes right into it"
        )
    if not calls.access(parent, os.W_OK):
        raise UnsupportedError(f"{parent} is not writable, and only Spark writes right into {target}")


def _codec(name: str) -> str:
    if str(name).lower() not in CODECS:
        raise UsageError(f"compression {name!r} is not one of {', '.join(CODECS)}")
    return CODECS[str(name).lower()]


def _check_names(names: Sequence[str], case_sensitive: bool) -> None:
    different = set(names) if case_sensitive else {name.lower() for name in names}
    if len(different) < len(names):
        raise UnsupportedError("two columns have names that only differ in their case, which Spark refuses")


def _check_settings(spark: Any) -> None:
    """Raise `UnsupportedError` if a setting of Spark or of Hadoop asks for what only Spark writes."""
    for name, value in FOLLOWED.items():
        found = str(spark.conf.get(name, value))
        if found.lower() != value.lower():
            raise UnsupportedError(f"only Spark writes by {name}={found}")
    if not is_classic(spark):
        return  # the server's Hadoop settings are not known
    hadoop = spark._jsparkSession.sessionState().newHadoopConf()
    if not hadoop.getPropsWithPrefix("parquet.").isEmpty():
        raise UnsupportedError("only Spark's Parquet writer follows Hadoop's settings parquet.*")
    if not hadoop.getBoolean(SUCCESS_FILE, True):
        raise UnsupportedError(f"only Spark writes by {SUCCESS_FILE}=false")


def _is_int96(spark: Any, schema: StructType) -> bool:
    """Return whether timestamps are written as Spark does by default. Raises `UnsupportedError` for other
    representations that pyarrow does not write in the same way."""
    kinds = {type(kind) for kind in _kinds(schema)}
    chosen = str(spark.conf.get(TIMESTAMPS)).upper()
    if TimestampType not in kinds or chosen == "TIMESTAMP_MICROS":
        return False
    if chosen != "INT96":
        raise UnsupportedError(f"only Spark writes by {TIMESTAMPS}={chosen}")
    if TimestampNTZType in kinds:
        raise UnsupportedError("only Spark writes timestamps with and without a time zone in different ways")
    if int(pa.__version__.partition(".")[0]) < INT96_MENDED:
        raise UnsupportedError(f"only Spark writes INT96, with a pyarrow before {INT96_MENDED}")
    return True


def _kinds(kind: DataType) -> Iterator[DataType]:
    """Yield a type and those in it."""
    yield kind
    if isinstance(kind, ArrayType):
        yield from _kinds(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _kinds(kind.keyType)
        yield from _kinds(kind.valueType)
    elif isinstance(kind, StructType):
        for each in kind:
            yield from _kinds(each.dataType)


def _check_type(path: str, kind: DataType) -> None:
    if isinstance(kind, NullType | DayTimeIntervalType | TimeType):
        raise UnsupportedError(f"only Spark writes, or refuses, column {path} of type {kind.simpleString()}")
    if isinstance(kind, ArrayType):
        _check_type(f"{path}.element", kind.elementType)
    elif isinstance(kind, MapType):
        _check_type(f"{path}.key", kind.keyType)
        _check_type(f"{path}.value", kind.valueType)
    elif isinstance(kind, StructType):
        _check_fields(f"the struct {path}", f"{path}.", kind)


def _check_fields(what: str, prefix: str, kind: StructType) -> None:
    if not kind.fields:
        raise UnsupportedError(f"{what} has no columns, and Parquet cannot hold that")
    for each in kind:
        if FIELD_ID_KEY in (each.metadata or {}):
            raise UnsupportedError(f"only Spark writes the field id of the column {prefix}{each.name}")
        _check_type(f"{prefix}{each.name}", each.dataType)
