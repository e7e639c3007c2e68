"""A frame's twin: an empty DataFrame of the same columns. Spark is asked what an operator gives of it.

Names, types and nullability of a result, and what is wrong with a call, are then Spark's own answers, in
every version of it. Nothing runs: an empty DataFrame is analysed, on the driver.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sortshuffle.spark.plan.chain import FrameContext
from sortshuffle.spark.session.requirements import require_running


def twin(context: FrameContext, schema: StructType) -> DataFrame:
    """An empty DataFrame of ``schema`` in the frame's session. Raises `StateError` if it was stopped."""
    require_running(context.spark)
    return context.spark.createDataFrame([], schema)
