"""`ConnectFrame`: the `ShuffleFrame` of Spark Connect. It is a DataFrame of PySpark's Connect kind. Its
plan is made when a request to the server needs it.

Columns of a frame name the id of its plan, and the server looks for it in the plan of a request. So a frame
of Python's side has a `DeferredPlan` from the beginning, with an id. What Spark must do with the frame, it
does on its shadow (`connect_shadow`), in which the server finds the ids of the frames before.
"""

from __future__ import annotations

import copy
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql.connect import dataframe as connect
from pyspark.sql.types import StructType

from sortshuffle.errors import ColumnError
from sortshuffle.spark.frame.connect_shadow import ConnectShadow, DeferredPlan
from sortshuffle.spark.frame.delegation import delegating
from sortshuffle.spark.frame.shadow import Shadow
from sortshuffle.spark.frame.shuffle_frame import ShuffleFrame
from sortshuffle.spark.frame.two_sided import TwoSidedFrame
from sortshuffle.spark.operators.expressions import column_name, references, resolve
from sortshuffle.spark.operators.twin import empty_twin
from sortshuffle.spark.schema import copy_of
from sortshuffle.spark.session.requirements import plain_session

# Methods of PySpark that read the rows: those that Python makes
_ACTIONS = {"collect", "count", "explain", "first", "foreach", "foreachPartition", "head", "isEmpty", "show"}
_ACTIONS |= {"tail", "take", "toArrow", "toJSON", "toLocalIterator", "toPandas"}


@delegating(connect.DataFrame, lambda frame, method, *_: frame._target(method))
class ConnectFrame(ShuffleFrame, connect.DataFrame):
    """A frame of a session of Spark Connect."""

    _shadow_class = ConnectShadow
    _outline: Shadow | None = None  # of a call that makes the columns of this base, but other rows

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
        frame._plan = DeferredPlan(frame._to_spark, frame._without_stage)
        return frame

    @classmethod
    def _of_plain(cls, plain: Any, session: Any) -> ConnectFrame:
        frame = cls(plain._plan, session)
        frame._cached_schema = plain._cached_schema
        return frame

    def __deepcopy__(self, memo: Any) -> ConnectFrame:
        return copy.copy(self)  # a frame's plan does not change, and its lock cannot be copied

    def _target(self, method: str) -> DataFrame:
        """Return the DataFrame on which a method of PySpark runs."""
        return self if method in _ACTIONS or not self._is_in_python else self._for_spark()

    def _for_spark(self) -> DataFrame:
        return self._shadow.dataframe() if self._is_in_python else self._to_spark()

    def _without_stage(self) -> DataFrame:
        """Return a DataFrame with the columns of this frame of Python's side, but not its rows."""
        return self._twin if self._outline is None else self._outline.dataframe()

    def _set_shadow(self, shadow: Shadow) -> None:
        if shadow.base is not None and not shadow.is_passable:
            self._outline = shadow  # Spark may not make the frame's rows: its own plan is the base
            return
        super()._set_shadow(shadow)
        # a column of what Spark makes of the call, or of its plan of the same rows, is also this frame's
        dataframe: Any = shadow.dataframe()
        self._plan.share_id(dataframe._plan)

    def _has(self, columns: Sequence[Column], others: Sequence[TwoSidedFrame]) -> bool:
        by_plan: dict[int, list[Column]] = defaultdict(list)
        for column in columns:
            for number, reference in references(column):
                by_plan[number].append(reference)
        frames: Any = (self, *others)
        case_sensitive = self._chain.context.case_sensitive if by_plan else False
        for number, of_plan in by_plan.items():
            own = [each for each in frames if each._plan._plan_id == number]
            if own:  # PySpark does not look whether the frame of ``frame["k"]`` has such a column
                own[0]._resolve_all(of_plan, case_sensitive)
            elif not any(each._passes_on(of_plan, case_sensitive) for each in frames):
                return False
        return True

    def _resolve_all(self, columns: Sequence[Column], case_sensitive: bool) -> None:
        """Raise `ColumnError` unless this frame has columns of these names."""
        schema = self._schema
        for column in columns:
            resolve(column_name(column), schema, case_sensitive)

    def _passes_on(self, columns: Sequence[Column], case_sensitive: bool) -> bool:
        """Return whether columns of another frame are those that have their names here."""
        shadow = self._shadow
        assert isinstance(shadow, ConnectShadow)
        try:
            self._resolve_all(columns, case_sensitive)
        except ColumnError:
            return False
        return shadow.passes_on(columns)

    @property
    def _twin(self) -> DataFrame:
        # without the rows of the shadow, whose stage the server would have to plan
        context = self._chain.context
        return empty_twin(context, self._chain.schema)

    def _first_shadow(self) -> Shadow:
        return ConnectShadow.of_plan(connect.DataFrame(self._plan, plain_session(self._session)))

    def persist(self, storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_DESER) -> ConnectFrame:
        """Keep the rows in Spark's cache. Spark makes those of calls after a function, as it will for the
        frames that are derived from this one."""
        shadow: Any = self._shadow.dataframe()
        if self._is_in_python and shadow._plan is not self._plan:
            self._plain = shadow
        super().persist(storageLevel)
        return self

    @property
    def schema(self) -> StructType:
        """Spark's schema of the rows. As in PySpark's Connect, it is another copy each time."""
        return copy_of(self._own_schema) if self._is_in_python else super().schema

    @property
    def _schema(self) -> Any:
        return self._own_schema if self._is_in_python else super()._schema
