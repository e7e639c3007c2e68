"""A frame's twin: an empty DataFrame with the same columns, on which Spark analyses an operator's call.

So names, types, nullability and errors are those of the Spark in use. Nothing runs: Spark only analyses the
empty DataFrame, on the driver.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sortshuffle.spark.plan.chain import FrameContext
from sortshuffle.spark.session.requirements import require_running


def twin(context: FrameContext, schema: StructType) -> DataFrame:
    """Make an empty DataFrame of ``schema`` in the frame's session. Raises `StateError` if it was stopped."""
    require_running(context.spark)
    return context.spark.createDataFrame([], schema)
