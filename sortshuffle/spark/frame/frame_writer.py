"""`frame.write.parquet(path)`: files written by the Python workers, committed as a whole or not at all.

Each task writes one file into a staging directory beside the target, and returns its name as a row. Spark
keeps exactly one attempt's row per partition, so the rows that arrive at the driver are the manifest. The
files of the manifest are moved to another directory, and then one rename makes that directory the target.
Appending moves the files one by one, and removes them all again if one cannot be moved.

By then the paths of attempts that lost, or are still being cancelled, no longer exist.

Every worker must see the paths as local ones (one machine, or a shared mount).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.types import ArrayType, DataType, DayTimeIntervalType, MapType, NullType, StructType

from sortshuffle import calls
from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.spark.plan.chain import Chain
from sortshuffle.spark.plan.staging import plan_stage
from sortshuffle.spark.steps.write_parquet import WriteParquet

MODES = ("error", "errorifexists", "default", "append", "overwrite", "ignore")
# Spark's names and pyarrow's
CODECS = {"none": "none", "uncompressed": "none", "lz4_raw": "lz4"}
CODECS |= {name: name for name in ("snappy", "gzip", "zstd", "lz4", "brotli")}
SPARK_SCHEMA_KEY = "org.apache.spark.sql.parquet.row.metadata"


@dataclass(frozen=True)
class FrameWriter:
    """Writes the rows of a frame. `ShuffleFrame.write` makes it. Immutable: settings return a new writer.

    ``new_run``: returns the number for the result stage of a run.
    """

    chain: Chain
    new_run: Callable[[], int]
    how: str = "error"
    codec: str | None = None

    def mode(self, saveMode: str) -> FrameWriter:
        """Choose what to do if the target exists: error (the default), append, overwrite, ignore."""
        how = str(saveMode).lower()
        if how not in MODES:
            raise UsageError(f"mode {saveMode!r} is not one of {', '.join(MODES)}")
        return replace(self, how=how)

    def option(self, key: str, value: str) -> FrameWriter:
        """Set ``compression``, the only option."""
        if key.lower() != "compression":
            raise UsageError(f"the Parquet writer has no option {key!r}: there is compression")
        return replace(self, codec=_codec(value))

    def parquet(self, path: str, mode: str | None = None, compression: str | None = None) -> None:
        """Run the frame and write its rows as Parquet files below ``path``, one per non-empty partition.

        A frame without rows writes one file without rows, which has the schema. Raises `UsageError` if the
        target exists and the mode forbids that, and `UnsupportedError` for paths that are not local and for
        column types that Spark cannot write to Parquet.
        """
        writer = self if mode is None else self.mode(mode)
        writer = writer if compression is None else writer.option("compression", compression)
        target = _local(path)
        _check_fields("the frame", "", self.chain.schema)
        if calls.exists(target):
            if writer.how == "ignore":
                return
            if writer.how not in ("append", "overwrite"):
                raise UsageError(f'{target} exists: choose mode("overwrite"), "append" or "ignore"')
            if writer.how == "append" and not calls.isdir(target):
                raise UsageError(f"{target} is not a directory, and only to one can files be appended")
        writer._write(target)

    def _write(self, target: str) -> None:
        job = uuid.uuid4().hex[:12]
        staging = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.writing-{job}")
        attempts, whole = os.path.join(staging, "attempts"), os.path.join(staging, "whole")
        calls.makedirs(staging)
        try:
            calls.mkdir(attempts)
            calls.mkdir(whole)
            names = self._run(self._closing(attempts, job))
            for name in names:
                calls.rename(os.path.join(attempts, name), os.path.join(whole, name))
            _commit(whole, target, names, replaced=f"{staging}.replaced", append=self.how == "append")
        finally:
            _discard(staging)

    def _closing(self, directory: str, job: str) -> WriteParquet:
        spark = self.chain.context.spark
        codec = self.codec or _codec(str(spark.conf.get("spark.sql.parquet.compression.codec")))
        schema = self.chain.wire.with_metadata({SPARK_SCHEMA_KEY: self.chain.schema.json()})
        return WriteParquet(directory, job, codec, schema)

    def _run(self, closing: WriteParquet) -> list[str]:
        """Run the frame. Return the names of the files to commit."""
        rows = plan_stage(self.chain, self.new_run(), closing, "name string").collect()
        return [row.name for row in rows] or [closing.write_empty()]


def _commit(whole: str, target: str, names: Sequence[str], *, replaced: str, append: bool) -> None:
    """Make the directory ``whole`` the target. ``replaced``: path of an old target until it is deleted."""
    with calls.open_file(os.path.join(whole, "_SUCCESS"), "w", encoding="ascii"):
        pass
    if not calls.exists(target):
        calls.rename(whole, target)
        return
    if append:
        _move_into(whole, target, [*names, "_SUCCESS"])
        return
    calls.rename(target, replaced)
    try:
        calls.rename(whole, target)
    except BaseException:
        calls.rename(replaced, target)
        raise
    if calls.isdir(replaced):
        calls.rmtree(replaced)
    else:
        calls.unlink(replaced)


def _discard(staging: str) -> None:
    # renamed first: otherwise a task that is still being cancelled could open a file in the directory
    # meanwhile, and so keep it from being removed
    gone = f"{staging}.gone"
    calls.rename(staging, gone)
    calls.rmtree(gone, ignore_errors=True)


def _move_into(whole: str, target: str, names: Sequence[str]) -> None:
    moved: list[str] = []
    try:
        for name in names:
            calls.rename(os.path.join(whole, name), os.path.join(target, name))
            moved.append(name)
    except BaseException:
        for name in moved:
            calls.unlink(os.path.join(target, name))
        raise


def _local(path: str) -> str:
    plain = path.removeprefix("file://")
    if "://" in plain:
        raise UnsupportedError(f"{path} is not a local path: use frame.toDF().write.parquet(...) for it")
    return calls.realpath(plain)  # write to the target of a link, and leave the link


def _codec(name: str) -> str:
    if str(name).lower() not in CODECS:
        raise UsageError(f"compression {name!r} is not one of {', '.join(CODECS)}")
    return CODECS[str(name).lower()]


def _check_type(path: str, kind: DataType) -> None:
    if isinstance(kind, NullType | DayTimeIntervalType):
        raise UnsupportedError(
            f"column {path} of type {kind.simpleString()} cannot be written to Parquet: cast it first"
        )
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
        _check_type(f"{prefix}{each.name}", each.dataType)
