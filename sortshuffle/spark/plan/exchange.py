"""`Exchange`: one shuffle, from the chain that writes it to the control rows that its readers are given.

It is built once, lazily, together with the others of the same rows (`spark.plan.fanout`), and then shared by
everything derived from it: its map stage runs once however many frames and actions read it. Until then its
extents may still be given an order (`Exchange.ordered_by`), because rows in key order serve every reader.

Locks. The fan-out's guards what the exchange will be, and is held while its stage is planned. Deciding where
rows go and measuring subpartitions run jobs, so each has a lock of its own, and whoever makes frames does not
wait for them. Whoever waits holds only locks of exchanges that need what is waited for, so never in a circle;
`FanOut.build` says how that is kept.
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
from sortshuffle.spark.plan.measured_sizes import Sizes, measured
from sortshuffle.spark.plan.schemes import Scheme
from sortshuffle.spark.session.planner import ControlRows
from sortshuffle.spark.worker.map_output import WriteExchange
from sortshuffle.spark.worker.placements import Placement
from sortshuffle.spark.worker.stages import Step


@dataclass(eq=False)
class Exchange:
    """One shuffle. ``scheme``: how rows are placed. ``order``: how extents are sorted, by upstream columns,
    None for not at all.
    """

    upstream: Chain
    subpartitions: int
    scheme: Scheme
    order: RowOrder | None = None
    number: int = field(default_factory=next_number)
    _stage: MapStage | None = field(default=None, init=False)
    _control: ControlRows | None = field(default=None, init=False)
    _placement: Placement | None = field(default=None, init=False)
    _sizes: Sizes | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # By their orders. Weak, because one that nobody wants any more must not be written; those that are
        # written are kept, for whoever asks for that order again.
        self._twins: WeakValueDictionary[RowOrder, Exchange] = WeakValueDictionary()
        self._built_twins: list[Exchange] = []
        self._twin_of: ref[Exchange] | None = None
        self._placing, self._measuring = threading.RLock(), threading.RLock()
        self._fan_out = fan_out_of(self.upstream)
        self._fan_out.add(self)

    def ordered_by(self, order: RowOrder) -> Exchange:
        """This exchange with extents in this order; another one, of the same rows, where this one is built
        already, or sorted in another way."""
        with self._fan_out.lock:
            if _begins_with(self.order, order):
                return self
            if self._control is None and _begins_with(order, self.order):
                self.order = order
                return self
            twin = self._twins.get(order)
            if twin is None:
                twin = self._twins[order] = Exchange(self.upstream, self.subpartitions, self.scheme, order)
                twin._twin_of = ref(self)
                twin._placement = self._placement  # what was sampled once is not sampled again
            return twin

    def control(self) -> DataFrame:
        """The control rows: partition s holds those of subpartition s."""
        return self.upstream.context.planner.together([self.control_rows()])

    def control_rows(self) -> ControlRows:
        """The control rows, for the planner. Planned once, with those of all exchanges of the same rows that
        wait."""
        with self._fan_out.lock:
            control = self._control
        if control is None:
            self._fan_out.build(self)
            control = self._control
            assert control is not None
        return control

    def stage(self) -> MapStage:
        """The stage that writes this exchange, or would if it were built now."""
        with self._fan_out.lock:
            return self._stage or self._fan_out.stage(self)

    def place(self) -> None:
        """Decide where rows go, and with that how many subpartitions there are: ranges may be fewer than were
        asked for. Called by the fan-out before `closing`; the scheme may run a job."""
        if self.is_placed:
            return
        with self._placing:
            if self._placement is None:
                placement = self.scheme.placement(self.upstream)
                self.subpartitions = placement.count(self.subpartitions)
                self._placement = placement

    @property
    def is_placed(self) -> bool:
        """Whether it is decided where rows go."""
        return self._placement is not None

    @property
    def is_counted(self) -> bool:
        """Whether it can be told at once how many subpartitions there are."""
        return self.is_placed or not (self.scheme.samples or self.awaits_others)

    @property
    def awaits_others(self) -> bool:
        """Whether it cannot be placed yet, because exchanges of other rows must be placed before."""
        return not self.is_placed and not all(each.is_counted for each in self.scheme.awaits)

    def placed_partitions(self) -> int:
        """How many subpartitions there are in the end. May run a job, as `place` does."""
        self.place()
        return self.subpartitions

    def sizes(self) -> Sizes:
        """How large its subpartitions are. Runs the map stage, once."""
        with self._measuring:
            if self._sizes is None:
                service = self.upstream.context.host_service()
                self._sizes = measured(self.number, self.control(), self.subpartitions, service)
            return self._sizes

    @property
    def is_measured(self) -> bool:
        """Whether `sizes` are known."""
        return self._sizes is not None

    def closing(self, first: int, steps: tuple[Step, ...]) -> WriteExchange:
        """What a map stage does for this exchange. ``first``: the partition of the control rows' shuffle
        that subpartition 0 is; ``steps``: of the upstream ones, those for this exchange alone."""
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
        """Called by the fan-out, once."""
        self._stage, self._control = stage, control
        original = self._twin_of() if self._twin_of is not None else None
        if original is not None:
            original._built_twins.append(self)

    def describe(self) -> str:
        where = self.scheme.describe(self.upstream.schema.names)
        names = self._names()
        ordered = f", sorted by {', '.join(names)}" if names else ""
        return f"exchange {self.number}: {where} into {self.subpartitions} subpartitions{ordered}"

    def _names(self) -> tuple[str, ...]:
        """The columns of the order."""
        return () if self.order is None else self.order.describe(self.upstream.schema.names)


def _begins_with(order: RowOrder | None, other: RowOrder | None) -> bool:
    """Whether rows in this order are in the other one, too."""
    wanted: Sequence[SortKey] = () if other is None else other.keys
    return (() if order is None else order.keys[: len(wanted)]) == wanted
