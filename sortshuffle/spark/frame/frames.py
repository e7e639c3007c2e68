"""`frame` and `broadcast`, and `frame_of`, which chooses the class of frame by the kind of session."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from sortshuffle.errors import UsageError
from sortshuffle.spark.frame.classic_frame import ClassicFrame
from sortshuffle.spark.frame.shuffle_frame import ShuffleFrame
from sortshuffle.spark.frame.two_sided import rows_of
from sortshuffle.spark.operators.dataframe_facts import DataFrameFacts
from sortshuffle.spark.plan.chain import Rows
from sortshuffle.spark.session.requirements import is_classic


def frame(df: DataFrame) -> ShuffleFrame:
    """Make a `ShuffleFrame` of any DataFrame. What follows runs in Python, as far as this package can. The
    DataFrame's own plan runs in Spark, in the same stage. If it is nothing but a scan of Parquet files, the
    workers read them, as `sortshuffle.read` does.

    Raises `UnsupportedError` for streaming frames and for columns that Arrow cannot carry, and `OptionError`
    for a wrong ``spark.sortshuffle.*`` setting.
    """
    if isinstance(df, ShuffleFrame):
        return df._to_python("frame")
    if not isinstance(df, DataFrame):
        raise UsageError(f"frame() takes a DataFrame, not {type(df).__name__}")
    facts = DataFrameFacts.of(df)
    frame = frame_of(rows_of(df, facts), df.sparkSession)
    frame._set_shadow(frame._shadow_class.of_plan(df))
    if facts.reads_files:
        frame._facts = facts
    return frame


def broadcast(frame: DataFrame) -> ShuffleFrame:
    """Mark a frame as small, like PySpark's `broadcast`. A join gives the whole of it to every task of the
    other side, which then needs no exchange.

    The mark is a hint: an outer join that keeps the rows of the marked side exchanges it all the same. The
    mark holds for the returned frame, not for frames made from it. In the join the frame must fit into the
    memory of a task.
    """
    if not isinstance(frame, ShuffleFrame):
        raise UsageError(f"broadcast() takes a ShuffleFrame, not {type(frame).__name__}: wrap it in frame()")
    return frame._to_python("broadcast").hint("broadcast")


def frame_of(rows: Rows, session: Any) -> ShuffleFrame:
    """Return a frame of Python's side. ``session``: what its `sparkSession` is."""
    return frame_class(session)._of_rows(rows, session)


def frame_class(session: Any) -> type[ShuffleFrame]:
    """Return the class of the frames of a session."""
    if is_classic(session):
        return ClassicFrame
    # imports packages that classic sessions do without
    from sortshuffle.spark.frame.connect_frame import ConnectFrame

    return ConnectFrame


def framed(result: Any, session: Any) -> Any:
    """Return ``result``, or a frame if it is a DataFrame. ``session``: what the frame's `sparkSession` is."""
    if isinstance(result, DataFrame) and not isinstance(result, ShuffleFrame):
        return frame_class(session)._of_plain(result, session)
    return result
