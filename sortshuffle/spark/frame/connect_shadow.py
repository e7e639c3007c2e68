"""`ConnectShadow`: a shadow over Spark Connect, whose plan only the server analyses.

A column names the id of its plan, and the server looks for that plan in the request. So the server finds
columns by id that the client would take for others by name: after ``j = f.join(g, "k", "full")``, ``g.k`` is
not the column ``k`` of ``j``. `passes_on` asks the server to compare the two. That request has no stage of
ours: the shadow below, or an empty relation, stands in for Python's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.connect.plan import LogicalPlan

from sortshuffle.spark.frame.shadow import Shadow
from sortshuffle.spark.operators.expressions import column_name

_stages_left_out: ContextVar[bool] = ContextVar("stages_left_out", default=False)


@contextmanager
def _without_stages() -> Iterator[None]:
    """Send plans without the stages of Python in them."""
    token = _stages_left_out.set(True)
    try:
        yield
    finally:
        _stages_left_out.reset(token)


class DeferredPlan(LogicalPlan):
    """A plan with an id, of a DataFrame that ``make`` makes when the plan is sent to the server. ``columns``
    makes one of the same columns, for a request that reads no rows."""

    def __init__(self, make: Callable[[], Any], columns: Callable[[], Any]) -> None:
        super().__init__(None)
        self._make = make
        self._columns = columns
        self._shared_id: int | None = None

    @property
    def _plan_id(self) -> int:
        return super()._plan_id if self._shared_id is None else self._shared_id

    def share_id(self, plan: LogicalPlan) -> None:
        """Take the id of another plan of the same rows."""
        self._shared_id = plan._plan_id

    def plan(self, session: Any) -> Any:
        dataframe = self._columns() if _stages_left_out.get() else self._make()
        relation = dataframe._plan.plan(session)
        own = type(relation)()
        own.CopyFrom(relation)
        own.common.plan_id = self._plan_id
        return own

    @property
    def observations(self) -> Any:
        return self._make()._plan.observations


class ConnectShadow(Shadow):
    """A shadow in a session of Spark Connect."""

    def passes_on(self, columns: Sequence[Column]) -> bool:
        """Return whether columns of a DataFrame below are those that have their names here. Asks the server.
        ``columns``: references, of whose names there are columns here."""
        own, named = self.dataframe(), [sf.col(column_name(column)) for column in columns]
        try:
            with _without_stages():
                # a selection may look for the name where it does not find the id; a drop does not
                same: bool = own.drop(*columns).sameSemantics(own.drop(*named))
                return same
        except (PySparkException, RecursionError):  # no such column, or more than one; a very long plan
            return False
