"""Broadcast joins: every task of the large side reads the whole small side. The large side does not move.

    small side --broadcast exchange-------------------> control rows of all map outputs for each partition
    large side --rows as Spark feeds them to a stage--> zipped with the control rows, partition by partition

A task joins its rows of the large side in order (`steps.broadcast_join`), so that side's layout still holds.

As in Spark, a side cannot be the small one if its rows come out without a match, because every task has them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from sortshuffle.compute.join.hash_join import JoinKind, JoinSpec
from sortshuffle.errors import StateError
from sortshuffle.spark.control_rows import COLUMNS
from sortshuffle.spark.operators.layouts import exchange_rows
from sortshuffle.spark.plan.chain import Chain, Origin, Rows, ShuffleDependency
from sortshuffle.spark.plan.estimated_sizes import combined_size
from sortshuffle.spark.plan.once import once
from sortshuffle.spark.plan.origins import exchanges_of, input_of, lines_of
from sortshuffle.spark.plan.schemes import Broadcast
from sortshuffle.spark.schema import quote
from sortshuffle.spark.steps.broadcast_join import BroadcastJoin
from sortshuffle.spark.worker.stages import Opening


def broadcast_join(left: Rows, right: Rows, spec: JoinSpec, schema: StructType, label: str) -> Rows | None:
    """Join with one side broadcast; return None if no side is marked and allowed, or over Spark Connect."""
    small_is_left = _small_side(left, right, spec.kind)
    if small_is_left is None or not left.context.planner.zips:
        return None
    small, large = (left, right) if small_is_left else (right, left)
    rows = _LargeSide(large.chain)
    sent = exchange_rows(small, Broadcast(rows.partitions, large.chain.origin.exchanges()), 1)
    origin = BroadcastOrigin(rows, sent.chain, spec, small_is_left, f"broadcast {label}, of")
    sources = [each.right if small_is_left else each.left for each in spec.output]
    layout = large.layout.selected([-1 if source is None else source for source in sources])
    return Rows(Chain(left.context, origin, schema, spec.schema), layout)


def _small_side(left: Rows, right: Rows, kind: JoinKind) -> bool | None:
    """Return True if the left side is broadcast, False if the right side is, None if neither is."""
    if right.broadcast and kind.repeats_right:
        return False
    if left.broadcast and kind.repeats_left:
        return True
    return None


class _LargeSide:
    """The rows that Spark feeds to the large side's stage, in a struct column. A second struct column is for
    control rows, and null in these rows."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain

    @once
    def planned(self) -> DataFrame:
        """The rows, planned once, so that the number of partitions cannot change later."""
        rows = self.chain.origin.rows()
        columns = [quote(name) for name in rows.columns]
        none = sf.lit(None).cast(StructType.fromDDL(COLUMNS))
        wrapped = rows.select(none.alias("control"), sf.struct(*columns).alias("rows"))
        return self.chain.context.planner.share(wrapped)

    def partitions(self) -> int:
        """Return the number of partitions, without building an exchange: the broadcast exchange calls this
        when it is placed, and may be built together with the exchanges that these rows read."""
        origin = self.chain.origin
        planner = self.chain.context.planner
        count = origin.partitions() if origin.exchanges() else planner.partitions(self.planned)
        assert count is not None  # a planner that zips partitions can count them
        return count

    def with_control(self, control: DataFrame) -> DataFrame:
        """Return the rows with the control rows of each partition first."""
        columns = [sf.col(name) for name in control.columns]
        none = sf.lit(None).cast(self.planned.schema["rows"].dataType)
        wrapped = control.select(sf.struct(*columns).alias("control"), none.alias("rows"))
        planner = self.chain.context.planner
        counts = planner.partitions(wrapped), planner.partitions(self.planned)
        if not counts[1]:
            return self.planned
        if counts[0] != counts[1]:
            what = self.chain.origin.lines()[0]
            raise StateError(
                f"a broadcast for {counts[0]} partitions meets {counts[1]}: the plan of {what} has changed"
                " since the join was planned"
            )
        return planner.zip_partitions([wrapped, self.planned])


@dataclass(frozen=True, eq=False)
class BroadcastOrigin(Origin):
    """The rows of a broadcast join. ``large``: the side that does not move. ``small``: a chain that begins
    with the broadcast exchange."""

    large: _LargeSide
    small: Chain
    spec: JoinSpec
    small_is_left: bool
    label: str

    def rows(self) -> DataFrame:
        return self.large.with_control(self.small.origin.rows())

    def opening(self) -> Opening:
        small, large = self.small, self.large.chain
        read = input_of(small)
        return BroadcastJoin(
            self.spec, read, small.wire, self.small_is_left, large.origin.opening(), large.steps, self.label
        )

    def partitions(self) -> int:
        return self.large.partitions()

    def is_reproducible(self) -> bool:
        return self.small.is_reproducible() and self.large.chain.is_reproducible()

    def exchanges(self) -> tuple[ShuffleDependency, ...]:
        return exchanges_of((self.small, self.large.chain))

    def lines(self) -> list[str]:
        return [self.label, *lines_of((self.small, self.large.chain))]

    def size_and_schema(self) -> tuple[int | None, StructType | None]:
        return combined_size((self.large.chain, self.small), only_first=self.spec.kind.is_existence)
