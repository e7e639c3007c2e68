"""`Exchange`: one shuffle, from the chain that writes it to the control rows for its readers.

An exchange is built once, lazily, together with other exchanges of the same rows (`spark.plan.fanout`). All
frames derived from it share it: its map stage runs once, however many frames and actions read it. Until it is
built, its extents can be given an order (`Exchange.ordered_by`), because rows in key order suit every reader.

Locks. The fan-out's lock guards the orders, stages and control rows of its exchanges, and is held while a
stage is planned. Placing rows and measuring subpartitions run jobs, so each has a separate lock, and a thread
that makes frames does not wait for these jobs. There is no deadlock, because a waiting thread holds only
locks of exchanges that depend on the one it waits for; `FanOut.build` says how that is ensured.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary, ref

from pyspark.sql import DataFrame

from sortshuffle.payload.ordering import RowOrder, SortKey
from sortshuffle.spark.plan.chain import Chain, MapStage, next_number
from sortshuffle.spark.plan.fanout import fan_out_of
from sortshuffle.spark.plan.measured_sizes import Sizes, measure_sizes
from sortshuffle.spark.plan.schemes import Scheme
from sortshuffle.spark.session.planner import ControlRows
from sortshuffle.spark.worker.map_output import WriteExchange
from sortshuffle.spark.worker.placements import Placement
from sortshuffle.spark.worker.stages import Step


@dataclass(eq=False)
class Exchange:
    """One shuffle. ``scheme``: how rows are placed. ``order``: how extents are sorted, by columns of the
    upstream; None if they are not sorted. ``is_default``: whether the user did not ask for this number of
    subpartitions."""

    upstream: Chain
    subpartitions: int
    scheme: Scheme
    order: RowOrder | None = None
    is_default: bool = False
    number: int = field(default_factory=next_number)
    _stage: MapStage | None = field(default=None, init=False)
    _control: ControlRows | None = field(default=None, init=False)
    _placement: Placement | None = field(default=None, init=False)
    _sizes: Sizes | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # Exchanges of the same rows in other orders. Weak, so that unused ones are not written. Those that
        # are written are kept in `_built_orders`, so that later requests for the same order share them.
        self._by_order: WeakValueDictionary[RowOrder, Exchange] = WeakValueDictionary()
        self._built_orders: list[Exchange] = []
        self._original: ref[Exchange] | None = None
        self._placement_lock, self._sizes_lock = threading.RLock(), threading.RLock()
        self._fan_out = fan_out_of(self.upstream)
        self._fan_out.add(self)

    def ordered_by(self, order: RowOrder) -> Exchange:
        """Return this exchange if its extents have, or can still be given, this order; otherwise another
        exchange of the same rows."""
        with self._fan_out.lock:
            if _begins_with(self.order, order):
                return self
            if self._control is None and _begins_with(order, self.order):
                self.order = order
                return self
            other = self._by_order.get(order)
            if other is None:
                other = self._by_order[order] = Exchange(
                    self.upstream, self.subpartitions, self.scheme, order, self.is_default
                )
                other._original = ref(self)
                other._placement = self._placement  # saves sampling again
            return other

    def control(self) -> DataFrame:
        """Return the control rows: partition s holds those of subpartition s."""
        return self.upstream.context.planner.together([self.control_rows()])

    def control_rows(self) -> ControlRows:
        """Return the control rows, for the planner. They are planned once, together with those of all waiting
        exchanges of the same rows."""
        with self._fan_out.lock:
            control = self._control
        if control is None:
            self._fan_out.build(self)
            control = self._control
            assert control is not None
        return control

    def leave_to_spark(self) -> None:
        """Do `ShuffleDependency.leave_to_spark`."""
        control = self._control
        if control is not None and control.shuffle is not None:
            control.shuffle.leave_to_spark()

    def stage(self) -> MapStage:
        with self._fan_out.lock:
            return self._stage or self._fan_out.stage(self)

    def place(self) -> None:
        """Decide where rows go. This fixes the number of subpartitions, as there may be fewer ranges than
        were requested. The fan-out calls it before `closing`; the scheme may run a job."""
        if self.is_placed:
            return
        with self._placement_lock:
            if self._placement is None:
                placement = self.scheme.placement(self.upstream)
                self.subpartitions = placement.count(self.subpartitions)
                self._placement = placement

    @property
    def is_built(self) -> bool:
        return self._control is not None

    @property
    def is_placed(self) -> bool:
        return self._placement is not None

    @property
    def is_counted(self) -> bool:
        return self.is_placed or not (self.scheme.samples or self.awaits_others)

    @property
    def awaits_others(self) -> bool:
        """Whether exchanges of other rows must be placed before this one."""
        return not self.is_placed and not all(each.is_counted for each in self.scheme.awaits)

    def placed_partitions(self) -> int:
        """Return the final number of subpartitions. May run a job, as `place` does."""
        self.place()
        return self.subpartitions

    def sizes(self) -> Sizes:
        """Return the sizes of the subpartitions. The first call runs the map stage."""
        with self._sizes_lock:
            if self._sizes is None:
                service = self.upstream.context.host_service()
                control = self.control()  # places the exchange, which may then have fewer subpartitions
                counts = {self.number: self.subpartitions}
                self._sizes = measure_sizes(control, counts, service)[self.number]
            return self._sizes

    def measured(self, sizes: Sizes) -> None:
        self._sizes = sizes  # without the lock: whoever holds it finds the same sizes

    @property
    def is_measured(self) -> bool:
        return self._sizes is not None

    def closing(self, first: int, steps: tuple[Step, ...]) -> WriteExchange:
        """Return what a map stage does for this exchange. ``first``: the partition of the control rows'
        shuffle that is subpartition 0. ``steps``: the upstream's steps that are for this exchange alone."""
        assert self._placement is not None
        return WriteExchange(
            self.number,
            first,
            self.subpartitions,
            self._placement,
            self.upstream.wire,
            self.order,
            self._names(),
            steps,
        )

    def built(self, stage: MapStage, control: ControlRows) -> None:
        """Record the stage and the control rows. Called once, by the fan-out."""
        self._stage, self._control = stage, control
        original = self._original() if self._original is not None else None
        if original is not None:
            original._built_orders.append(self)

    def describe(self) -> str:
        where = self.scheme.describe(self.upstream.schema.names)
        names = self._names()
        ordered = f", sorted by {', '.join(names)}" if names else ""
        return f"exchange {self.number}: {where} into {self.subpartitions} subpartitions{ordered}"

    def _names(self) -> tuple[str, ...]:
        return () if self.order is None else self.order.describe(self.upstream.schema.names)


def _begins_with(order: RowOrder | None, other: RowOrder | None) -> bool:
    """Return whether rows sorted by ``order`` are also sorted by ``other``."""
    wanted: Sequence[SortKey] = () if other is None else other.keys
    return (() if order is None else order.keys[: len(wanted)]) == wanted
