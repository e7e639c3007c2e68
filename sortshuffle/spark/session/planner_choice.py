"""The choice of a session's `Planner`. It cannot be in `planner`, which both implementations import."""

from __future__ import annotations

from typing import Any

from sortshuffle.spark.session.classic_planner import ClassicPlanner
from sortshuffle.spark.session.connect_planner import ConnectPlanner
from sortshuffle.spark.session.planner import Planner
from sortshuffle.spark.session.requirements import is_classic


def planner_of(spark: Any) -> Planner:
    """Return the planner of a session."""
    return ClassicPlanner(spark) if is_classic(spark) else ConnectPlanner(spark)
