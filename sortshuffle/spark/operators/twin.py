"""`empty_twin`: a DataFrame without rows that has the columns of a frame.

Operators let Spark analyse their calls on a twin of the frame, so that names, types, nullability and errors
are those of the Spark in use. The twin is mostly the frame's shadow (`spark.frame.shadow`), which begins with
an empty one. Unions and joins use empty twins of both sides, as does every operator over Spark Connect.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sortshuffle.spark.plan.chain import FrameContext
from sortshuffle.spark.session.java import java_class
from sortshuffle.spark.session.requirements import is_classic, require_running


def empty_twin(context: FrameContext, schema: StructType) -> DataFrame:
    """Make an empty DataFrame of ``schema`` in the frame's session. Raises `StateError` if it was stopped."""
    session: Any = context.spark
    require_running(session)
    if not is_classic(session):
        empty: DataFrame = session.createDataFrame([], schema)
        return empty
    # PySpark's createDataFrame would make an RDD, by some thirty calls of the JVM
    rows = java_class(session.sparkContext._jvm, "java.util.ArrayList")()
    java = session._jsparkSession
    return DataFrame(java.createDataFrame(rows, java.parseDataType(schema.json())), session)
