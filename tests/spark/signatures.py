"""Which of PySpark's public methods a class of ours lacks, or has with other parameters. It differs between
releases, and between PySpark's two kinds of sessions."""

from __future__ import annotations

import inspect
from typing import Any

from pyspark.sql import DataFrame, DataFrameWriter, GroupedData, PandasCogroupedOps, SparkSession

from sortshuffle.spark.frame.classic_frame import ClassicFrame
from sortshuffle.spark.frame.frame_writer import ShuffleFrameWriter
from sortshuffle.spark.frame.grouped_frame import CoGroupedFrame, GroupedFrame
from sortshuffle.spark.frame.shuffle_session import ShuffleSession
from sortshuffle.spark.session.requirements import is_classic


def pairs(spark: Any) -> list[tuple[type, type]]:
    """Classes of ours for a session, each with PySpark's."""
    if is_classic(spark):
        return [
            (ClassicFrame, DataFrame),
            (GroupedFrame, GroupedData),
            (CoGroupedFrame, PandasCogroupedOps),
            (ShuffleFrameWriter, DataFrameWriter),
            (ShuffleSession, SparkSession),
        ]
    # packages that classic sessions do without
    from pyspark.sql.connect import dataframe, group, readwriter, session

    from sortshuffle.spark.frame.connect_frame import ConnectFrame
    from sortshuffle.spark.frame.connect_session import ConnectShuffleSession

    return [
        (ConnectFrame, dataframe.DataFrame),
        (GroupedFrame, group.GroupedData),
        (CoGroupedFrame, group.PandasCogroupedOps),
        (ShuffleFrameWriter, readwriter.DataFrameWriter),
        (ConnectShuffleSession, session.SparkSession),
    ]


def parameters(function: Any) -> list[tuple[str, str, str]]:
    found = inspect.signature(function).parameters.values()
    return [(each.name, str(each.kind), str(each.default)) for each in found]


def public_names(cls: type) -> list[str]:
    return [name for name in dir(cls) if not name.startswith("_")]


def differing_signatures(spark: Any) -> dict[str, str]:
    """What differs, by class and method, for the classes of a session."""
    differing = {}
    for ours, theirs in pairs(spark):
        for name in public_names(theirs):
            wanted = inspect.getattr_static(theirs, name)
            found = inspect.getattr_static(ours, name, None)
            if found is None:
                differing[f"{ours.__name__}.{name}"] = "not there"
            elif inspect.isfunction(wanted):
                right, mine = (inspect.signature(getattr(cls, name)) for cls in (theirs, ours))
                if parameters(getattr(theirs, name)) != parameters(getattr(ours, name)):
                    differing[f"{ours.__name__}.{name}"] = f"{mine}, not {right}"
            elif isinstance(wanted, property) and inspect.isfunction(found):
                differing[f"{ours.__name__}.{name}"] = "a method, not a property"
    return differing
