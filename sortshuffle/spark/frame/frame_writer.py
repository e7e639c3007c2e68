"""`ShuffleFrameWriter`: PySpark's writer, for a frame whose rows are Python's."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameWriter

from sortshuffle.errors import OptionError, UnsupportedError, UsageError
from sortshuffle.spark.frame.delegation import delegating, own_errors
from sortshuffle.spark.frame.parquet_job import ParquetJob
from sortshuffle.spark.frame.sides import copied
from sortshuffle.spark.session.requirements import is_classic, require_session


@delegating(
    DataFrameWriter, lambda writer, method, args, kwargs: writer._spark_writer(method, *args, **kwargs)
)
class ShuffleFrameWriter(DataFrameWriter):
    """Writes the rows of a frame, which `ShuffleFrame.write` makes it for. Parquet files on a local path are
    written by the Python workers (`parquet_job`). Spark writes everything else, with the same settings."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self._settings: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._of_no_rows: DataFrameWriter | None = None  # PySpark's, with the same settings

    def mode(self, saveMode: str | None) -> ShuffleFrameWriter:
        """Choose what to do if the target exists: error (the default), append, overwrite, ignore."""
        return self._set("mode", saveMode)

    def format(self, source: str) -> ShuffleFrameWriter:
        """Choose the format in which `save` writes."""
        return self._set("format", source)

    def option(self, key: str, value: Any) -> ShuffleFrameWriter:
        """Set an option, such as ``compression``."""
        return self._set("option", key, value)

    def options(self, **options: Any) -> ShuffleFrameWriter:
        """Set several options."""
        return self._set("options", **options)

    def partitionBy(self, *cols: Any) -> ShuffleFrameWriter:
        """Write into a directory for each value of the columns."""
        return self._set("partitionBy", *cols)

    def bucketBy(self, numBuckets: int, col: Any, *cols: Any) -> ShuffleFrameWriter:
        """Divide the rows of a table into buckets by the hash of the columns."""
        return self._set("bucketBy", numBuckets, col, *cols)

    def sortBy(self, col: Any, *cols: Any) -> ShuffleFrameWriter:
        """Sort each bucket by the columns."""
        return self._set("sortBy", col, *cols)

    def clusterBy(self, *cols: Any) -> ShuffleFrameWriter:
        """Cluster the rows of a table by the columns."""
        return self._set("clusterBy", *cols)

    def parquet(
        self,
        path: str,
        mode: str | None = None,
        partitionBy: str | list[str] | None = None,
        compression: str | None = None,
    ) -> None:
        """Run the frame and write its rows as Parquet files, like `DataFrameWriter.parquet`."""
        if mode is not None:
            self.mode(mode)
        if partitionBy is not None:
            self.partitionBy(partitionBy)
        if compression is not None:
            self.option("compression", compression)
        self._write_parquet("parquet", path)

    def save(
        self,
        path: str | None = None,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: str | list[str] | None = None,
        **options: Any,
    ) -> None:
        """Run the frame and write its rows, like `DataFrameWriter.save`."""
        if mode is not None:
            self.mode(mode)
        if options:
            self.options(**options)
        if partitionBy is not None:
            self.partitionBy(partitionBy)
        if format is not None:
            self.format(format)
        formats = [args[0] for setting, args, _ in self._settings if setting == "format"]
        if path is None or formats[-1:] != ["parquet"]:
            self._write_by_spark("save", path)
        else:
            self._write_parquet("save", path)

    def _set(self, setting: str, *args: Any, **kwargs: Any) -> ShuffleFrameWriter:
        """Note a setting. PySpark refuses a wrong one now, and reads lists now, which may change later."""
        if self._of_no_rows is None:
            # of other rows: no setting is checked against the columns, and the frame's shadow may take long
            self._of_no_rows = require_session(self._frame.sparkSession).range(0).write
        getattr(self._of_no_rows, setting)(*args, **kwargs)
        self._settings.append((setting, copied(args), {key: copied(value) for key, value in kwargs.items()}))
        return self

    def _write_parquet(self, method: str, path: str) -> None:
        """Write in Python, or by Spark's ``method`` if Python refuses. Spark also raises its own errors of
        wrong calls."""
        frame = self._frame
        try:
            job = ParquetJob.of(frame._chain, frame._new_run, path, **self._parquet_settings())
        except OptionError:
            raise
        except UsageError as refusal:
            frame._log_crossing("write", "Spark", str(refusal))
            self._write_by_spark(method, path)
            return
        with own_errors():
            job.run()

    def _write_by_spark(self, method: str, path: str | None) -> None:
        with own_errors():
            getattr(self._spark_writer(method, path), method)(path)

    def _parquet_settings(self) -> dict[str, str]:
        """Return the mode and the codec. Raises `UnsupportedError` for settings that only Spark follows."""
        found: dict[str, str] = {}
        for setting, args, kwargs in self._settings:
            options = dict([args]) if setting == "option" else kwargs
            if setting == "partitionBy":
                raise UnsupportedError("only Spark writes into a directory for each value of a column")
            if setting in ("bucketBy", "sortBy", "clusterBy"):
                raise UnsupportedError(f"only Spark knows {setting}()")
            if setting == "mode" and args[0] is not None:
                found["how"] = args[0]
            for key, value in options.items():
                if str(key).lower() != "compression":
                    raise UnsupportedError(f"only Spark's Parquet writer has the option {key!r}")
                found["codec"] = value
        return found

    def _spark_writer(self, method: str, /, *args: Any, **kwargs: Any) -> DataFrameWriter:
        """Return PySpark's writer, with the same settings, to call ``method`` with these arguments."""
        refused = method != "insertInto" and self._may_be_refused(method, args, kwargs)
        writer = (self._frame._to_spark() if refused else self._frame._for_action()).write
        for setting, values, named in self._settings:
            writer = getattr(writer, setting)(*values, **named)
        return writer

    def _may_be_refused(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether Spark may refuse to write, or write nothing, because the target exists. Then no
        stage should run first. Where the target is not known, it may be so."""
        call = inspect.signature(getattr(DataFrameWriter, method)).bind(self, *args, **kwargs)
        call.apply_defaults()
        _, target, *_ = call.arguments.values()  # a path, a table or, of jdbc(), a URL
        modes = [args[0] for setting, args, _ in self._settings if setting == "mode"]
        last = next(filter(None, (call.arguments.get("mode"), *reversed(modes))), "")
        if str(last).lower() in ("append", "overwrite") or not is_classic(self._frame.sparkSession):
            return False
        try:
            return _exists(self._frame.sparkSession, target, is_table=method == "saveAsTable")
        except (PySparkException, Py4JError):
            return True

    def _delegated(self, method: str, result: Any, args: Sequence[Any]) -> Any:
        return result


def _exists(session: Any, target: Any, *, is_table: bool) -> bool:
    """Return whether there is a table of this name, or something at this path."""
    if is_table:
        return bool(session.catalog.tableExists(target))
    path = session._jvm.org.apache.hadoop.fs.Path(target)
    return bool(path.getFileSystem(session._jsc.hadoopConfiguration()).exists(path))
