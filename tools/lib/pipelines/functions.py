"""The functions and tables of pipelines. Results depend on the rows, not on how they are divided into batches
or partitions, so both sides must give the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from oracle import data_frame, every_type
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

ROWS = {"none": 0, "one": 1, "few": 12, "some": 40}
"""Tables by name: how many rows."""
PARQUET = ("id", "by", "i", "lo", "st", "da", "dl", "bo", "d", "ts")
"""The columns of the tables that are Parquet files."""
EXACT = 2**53
"""The largest whole number that a double holds, as all below it. pandas has doubles for whole numbers, if one
of a batch is null, and which rows make a batch is not decided."""


def table(session: SparkSession, name: str, columns: list[str]) -> DataFrame:
    """Return a table of generated rows."""
    return data_frame(session, _rows(len(name), ROWS[name])).select(*columns)


def write_tables(directory: Path) -> None:
    """Write tables as Parquet files: ``plain``, and ``parts`` with a directory for each value of ``by``."""
    rows = _rows(9, 60).select(list(PARQUET))
    # statistics leave NaN out, and Spark then misses it where `~(d < 1.5)` is asked for
    counted = [name for name in PARQUET if name != "d"]
    (directory / "plain").mkdir()
    for number, part in enumerate((rows.slice(0, 25), rows.slice(25))):
        pq.write_table(part, directory / "plain" / f"{number}.parquet", write_statistics=counted)
    pq.write_to_dataset(rows, str(directory / "parts"), partition_cols=["by"], write_statistics=counted)


def _rows(seed: int, count: int) -> pa.Table:
    rows = every_type(seed, count)
    longs = pc.max_element_wise(
        pc.min_element_wise(rows["lo"], EXACT, skip_nulls=False), -EXACT, skip_nulls=False
    )
    return rows.set_column(rows.schema.get_field_index("lo"), "lo", longs)


# ---- functions of batches ---------------------------------------------------------------------------------


def same_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def reversed_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return each batch's rows in reverse."""
    for batch in batches:
        yield batch.take(pa.array(range(batch.num_rows - 1, -1, -1), pa.int64()))


def valid_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the rows whose first column is not null."""
    for batch in batches:
        yield batch.filter(pc.is_valid(batch.column(0)))


def same_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from frames


def doubled_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Return each row twice."""
    for frame in frames:
        yield pd.concat([frame, frame])


# ---- functions of groups ----------------------------------------------------------------------------------


def same_group(group: Any) -> Any:
    return group


def size_in_pandas(key: tuple[Any, ...], group: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"key": [_text(key)], "size": [len(group)]})


def size_in_arrow(key: tuple[pa.Scalar, ...], group: pa.Table) -> pa.Table:
    return pa.table({"key": [_text(part.as_py() for part in key)], "size": [group.num_rows]})


def sizes_in_pandas(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"left": [len(left)], "right": [len(right)]})


def sizes_in_arrow(key: tuple[pa.Scalar, ...], left: pa.Table, right: pa.Table) -> pa.Table:
    keys = [_text(part.as_py() for part in key)]
    return pa.table({"key": keys, "left": [left.num_rows], "right": [right.num_rows]})


def _text(key: Iterable[Any]) -> str:
    """Return a group's key as a text. 0.0 and -0.0 are one group, and which comes first is not decided."""
    return "/".join(str(part + 0.0 if isinstance(part, float) else part) for part in key)


# ---- functions that capture variables ---------------------------------------------------------------------


def digits_of_loop(frame: DataFrame, name: str, *keys: str) -> DataFrame:
    """Add a column ``name``, to which functions append digits: the variable of a loop, and what a list holds
    that is changed after each call. ``keys``: those of groups; without any the functions map batches."""
    frame, digits = frame.withColumn(name, sf.lit(0)), [3]
    for digit in (1, 2):

        def append(part: Any) -> Any:
            longer = pc.add(pc.multiply(part[name], 100), 10 * digit + digits[0])  # noqa: B023 - on purpose
            return part.set_column(part.schema.get_field_index(name), name, longer.cast(pa.int32()))

        def append_to_each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return map(append, batches)

        if keys:
            frame = frame.groupBy(*keys).applyInArrow(append, frame.schema)
        else:
            frame = frame.mapInArrow(append_to_each, frame.schema)
        digits[0] += 1
    return frame
