"""Which `Planner` a session has (`spark.planning`)."""

from __future__ import annotations

from typing import Any

from sortshuffle.spark.plain_planner import PlainPlanner
from sortshuffle.spark.planner import ClassicPlanner
from sortshuffle.spark.planning import Planner


def planner_of(spark: Any) -> Planner:
    """The planner of a session."""
    return ClassicPlanner(spark) if hasattr(spark, "_jsparkSession") else PlainPlanner(spark)
