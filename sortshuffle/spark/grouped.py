"""`GroupedFrame`: what `ShuffleFrame.groupBy` gives; it only waits for the function.

The rows of a group must be in one partition and come together. Rows that are already placed by some of the
group's keys, and only selected or filtered since, stay where they are: then the exchange that placed them
sorts its extents by the keys. Otherwise there is a repartition by the keys first, as in Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.functions import GroupApplyInArrow, GroupApplyInPandas
from sortshuffle.spark.keys import check_group_key
from sortshuffle.spark.plan import Chain, ExchangeOrigin
from sortshuffle.spark.stages import Filter, GroupApply, Select

if TYPE_CHECKING:
    from sortshuffle.spark.frame import ShuffleFrame


class GroupedFrame:
    """The groups of a frame. ``keys``: positions of the grouping columns, in the order given."""

    def __init__(self, frame: ShuffleFrame, keys: tuple[int, ...]) -> None:
        for key in keys:
            check_group_key(frame.schema.fields[key], frame._chain.wire.field(key).type)
        self._frame = frame
        self._keys = keys

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> ShuffleFrame:
        """Like PySpark's: ``func(table)`` or ``func(key, table)`` gets one group as a `pyarrow.Table` and
        returns a table of ``schema``."""
        return self._applied(GroupApplyInArrow.of(func, schema, self._frame._chain.context.conf, self._keys))

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> ShuffleFrame:
        """Like PySpark's: ``func(pdf)`` or ``func(key, pdf)`` gets one group as a pandas DataFrame and
        returns one of ``schema``."""
        return self._applied(GroupApplyInPandas.of(func, schema, self._frame._chain.context.conf, self._keys))

    def _applied(self, function: GroupApplyInArrow | GroupApplyInPandas) -> ShuffleFrame:
        from sortshuffle.spark.frame import ShuffleFrame

        names = ", ".join(self._frame.columns[key] for key in self._keys)
        label = function.declared.place.replace("groupBy()", f"groupBy({names})")
        step = GroupApply(RowOrder(self._keys), function, label)
        return ShuffleFrame(self._sorted_chain().then(step, function.declared.schema))

    def _sorted_chain(self) -> Chain:
        """The frame's rows with every group in one partition, in key order."""
        frame = self._frame
        if frame._placed_by and set(frame._placed_by) <= set(self._keys):
            return _sorted_at_exchange(frame._chain, self._keys)
        count = frame._shuffle_partitions() if self._keys else 1
        return _sorted_at_exchange(frame._exchanged(count, self._keys)._chain, self._keys)


def _sorted_at_exchange(chain: Chain, keys: tuple[int, ...]) -> Chain:
    """The same chain with its exchange delivering in the order of these columns of its last step."""
    origin = chain.origin
    assert isinstance(origin, ExchangeOrigin)
    for step in reversed(chain.steps):
        assert isinstance(step, Select | Filter)  # nothing else keeps a placement
        if isinstance(step, Select):
            keys = tuple(step.columns[key] for key in keys)
    return replace(chain, origin=ExchangeOrigin(origin.exchange.ordered_by(keys), RowOrder(keys)))
