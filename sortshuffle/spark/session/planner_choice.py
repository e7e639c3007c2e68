"""Which `Planner` a session has (`spark.session.planner`)."""

from __future__ import annotations

from typing import Any

from sortshuffle.spark.session.classic_planner import ClassicPlanner
from sortshuffle.spark.session.plain_planner import PlainPlanner
from sortshuffle.spark.session.planner import Planner


def planner_of(spark: Any) -> Planner:
    """The planner of a session."""
    return ClassicPlanner(spark) if hasattr(spark, "_jsparkSession") else PlainPlanner(spark)
