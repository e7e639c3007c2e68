"""`ConnectFrame`: the `ShuffleFrame` of Spark Connect. It is a DataFrame of PySpark's Connect kind. Its
plan is made when a request to the server needs it.

Columns of a frame name the id of its plan. So a frame of Python's side has a `DeferredPlan` from the
beginning, with an id. Its shadow is not used: Spark Connect analyses nothing before a request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.connect import dataframe as connect
from pyspark.sql.connect.plan import LogicalPlan

from sortshuffle.spark.frame.delegation import delegating
from sortshuffle.spark.frame.shuffle_frame import ShuffleFrame
from sortshuffle.spark.session.requirements import plain_session


class DeferredPlan(LogicalPlan):
    """A plan with an id, of a DataFrame that ``make`` makes when the plan is sent to the server."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(None)
        self._make = make

    def plan(self, session: Any) -> Any:
        relation = self._make()._plan.plan(session)
        own = type(relation)()
        own.CopyFrom(relation)
        own.common.plan_id = self._plan_id
        return own

    @property
    def observations(self) -> Any:
        return self._make()._plan.observations


@delegating(connect.DataFrame)
class ConnectFrame(ShuffleFrame, connect.DataFrame):
    """A frame of a session of Spark Connect."""

    def __init__(self, plan: Any, session: Any) -> None:
        self._runs, self._lock = [], threading.RLock()
        connect.DataFrame.__init__(self, plan, session)
        self._plain = connect.DataFrame(plan, plain_session(session))

    @classmethod
    def _without_rows(cls, session: Any) -> ConnectFrame:
        frame: ConnectFrame = object.__new__(cls)
        frame._session = session
        frame._support_repr_html = False
        frame._cached_schema = frame._cached_schema_serialized = frame._execution_info = None
        frame._plan = DeferredPlan(frame._as_plain)
        return frame

    @classmethod
    def _of_plain(cls, plain: Any, session: Any) -> ConnectFrame:
        frame = cls(plain._plan, session)
        frame._cached_schema = plain._cached_schema
        return frame

    @property
    def _schema(self) -> Any:
        own = self._own_rows
        return super()._schema if own is None else own.schema

    def _with_ids(self, plain: DataFrame, shadow: DataFrame) -> DataFrame:
        return plain
