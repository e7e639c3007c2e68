"""`DataFrameFacts`: what a frame needs to know of the DataFrame that it is made of.

Almost every DataFrame of a session becomes a frame, so the JVM tells everything in one text (``DataFrames``
in the manager's jar). Where there is no such JVM, PySpark is asked, and the plan's source is not known.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as st

from sortshuffle.errors import UnsupportedError
from sortshuffle.spark.manager.jar_methods import jar_method
from sortshuffle.spark.schema import copy_of, schema_of_json

_FILES = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"


@dataclass(frozen=True, slots=True)
class DataFrameFacts:
    """``source``: the class of the only source of its plan, or of the source's relation; empty if there are
    several. ``why_no_source``: why that is not known; empty if it is."""

    is_streaming: bool
    schema: st.StructType
    source: str
    why_no_source: str = ""

    @property
    def reads_files(self) -> bool:
        """Whether the source is a relation of files."""
        return self.source == _FILES

    @staticmethod
    def of(df: Any) -> DataFrameFacts:
        """Ask Spark. Raises `UnsupportedError` if Python does not know a type of the schema, and what Spark's
        analysis raises, if it analyses ``df`` only now."""
        if not hasattr(df, "_jdf"):
            return DataFrameFacts._without_jvm(df, "over Spark Connect the plan of a DataFrame is not known")
        try:
            describe = jar_method("DataFrames", "describe")
        except UnsupportedError as error:
            return DataFrameFacts._without_jvm(df, str(error))
        told = json.loads(describe(df._jdf))
        schema = schema_of_json(told["schema"])
        return DataFrameFacts(told["streaming"], schema, told["source"])

    @staticmethod
    def _without_jvm(df: Any, reason: str) -> DataFrameFacts:
        # copied, because the user may change the schema of `df`
        return DataFrameFacts(df.isStreaming, copy_of(df.schema), "", reason)
