"""Fan-out: one pass of a stage that feeds several exchanges.

Exchanges of the same rows, apart from selections and filters, wait together in a `FanOut`. When the first of
them is needed, all live waiting ones are planned as one map stage: each task runs the common steps once, then
those of each exchange, and writes a map output for each. An exchange made later has its own stage.

"The same rows" means identical origin and step objects (`RowSource`), as frames derived from one frame share
them. Equal objects do not suffice, because a function that is called twice may return other rows.

Ownership: an exchange holds its fan-out. The fan-out refers to its exchanges weakly, so an exchange whose
frames are all gone is not written. Lock order: a fan-out's lock is held while its stage is planned, which
takes the locks of the fan-outs that the stage reads: always from consumer to producer, never in a circle.

A broadcast exchange needs the number of partitions of the frame that it is for: it *awaits* that frame's
exchanges, until their numbers are known. While it waits, it is not built in one pass with an exchange that is
needed earlier: that would be a circle if the frame is made from that exchange.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Protocol
from weakref import WeakSet

from sortshuffle.spark.control_rows import COLUMNS
from sortshuffle.spark.plan.chain import Branch, Chain, MapStage, ShuffleDependency
from sortshuffle.spark.plan.coalescing import coalesced, ends_of
from sortshuffle.spark.plan.staging import plan_stage
from sortshuffle.spark.session.planner import ControlRows
from sortshuffle.spark.worker.map_output import WriteExchange, WriteExchanges
from sortshuffle.spark.worker.stages import PerBatchStep, Step


class Waiting(ShuffleDependency, Protocol):
    """An exchange (`spark.plan.exchange`), as seen by its fan-out."""

    @property
    def is_placed(self) -> bool:
        """Whether `place` has decided where rows go."""

    @property
    def awaits_others(self) -> bool:
        """Whether exchanges of other rows must be placed before this one."""

    def place(self) -> None:
        """Decide where rows go, and so the number of subpartitions. May run a job."""

    def closing(self, first: int, steps: tuple[Step, ...]) -> WriteExchange:
        """Return what a map stage does for this exchange, which must be placed."""

    def built(self, stage: MapStage, control: ControlRows) -> None:
        """Record the stage that writes this exchange, and its control rows. Called once."""

    def describe(self) -> str: ...


class RowSource:
    """The rows that several chains begin with: an origin, and the steps up to the last one that is not a
    `PerBatchStep`. Equal only to a source of the identical objects."""

    __slots__ = ("_objects",)

    def __init__(self, chain: Chain) -> None:
        steps = list(chain.steps)
        while steps and isinstance(steps[-1], PerBatchStep):
            steps.pop()
        self._objects = (chain.origin, *steps)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowSource) or len(self._objects) != len(other._objects):
            return False
        return all(one is another for one, another in zip(self._objects, other._objects, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self._objects)))


class FanOut:
    """The exchanges of the same rows that are not built yet. ``lock``: guards their state."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._waiting: WeakSet[Waiting] = WeakSet()

    def add(self, exchange: Waiting) -> None:
        with self.lock:
            self._waiting.add(exchange)

    def stage(self, wanted: Waiting) -> MapStage:
        """Return the stage that `build` would plan now."""
        with self.lock:
            return _stage_for(self._group_of(wanted))

    def build(self, wanted: Waiting) -> None:
        """Plan one map stage for the wanted exchange and those that can go with it, and record it there.

        The exchanges are placed before the lock is taken. Placing them may run jobs, which build the
        exchanges that they read. Except for ``wanted``, no exchange that awaits others is placed here.
        """
        wanted.place()
        for exchange in self._group_of(wanted):
            exchange.place()
        with self.lock:
            if wanted not in self._waiting:
                return  # built by another thread
            exchanges = [each for each in self._group_of(wanted) if each.is_placed]
            stage = _stage_for(exchanges)
            for exchange, control in zip(exchanges, _control_rows(exchanges, stage), strict=True):
                exchange.built(stage, control)
            self._waiting.difference_update(exchanges)

    def _group_of(self, wanted: Waiting) -> list[Waiting]:
        """Return the wanted exchange and the others that can be built with it, ordered by number. An exchange
        that awaits others is built alone."""
        with self.lock:
            waiting = set(self._waiting)
        others = () if wanted.awaits_others else (each for each in waiting if not each.awaits_others)
        return sorted({wanted, *others}, key=lambda exchange: exchange.number)


_fan_outs_lock = threading.Lock()  # guards `FrameContext.fan_outs`


def fan_out_of(chain: Chain) -> FanOut:
    """Return the fan-out of the chain's `RowSource`. It lives as long as one of its exchanges."""
    if not chain.context.planner.keeps:
        return FanOut()  # the map stage runs again for each reader, so there is nothing to share
    source, known = RowSource(chain), chain.context.fan_outs
    with _fan_outs_lock:
        fan_out: FanOut | None = known.get(source)
        if fan_out is None:
            fan_out = known[source] = FanOut()
        return fan_out


def _stage_for(exchanges: Sequence[Waiting]) -> MapStage:
    steps = _common_steps([exchange.upstream.steps for exchange in exchanges])
    branches = tuple(
        Branch(exchange.number, exchange.upstream.steps[len(steps) :], exchange.describe())
        for exchange in exchanges
    )
    # the lowest number is above those of the exchanges that the stage reads, and below those of its readers
    ends = ends_of(replace(exchanges[0].upstream, steps=steps))
    return MapStage(exchanges[0].number, steps, branches, ends)


def _control_rows(exchanges: Sequence[Waiting], stage: MapStage) -> list[ControlRows]:
    """Plan the control rows of each exchange. All go through one shuffle, whose partitions are the
    subpartitions of the first exchange, then those of the next, and so on."""
    sizes = [exchange.subpartitions for exchange in exchanges]
    writes = tuple(
        exchange.closing(first, branch.steps)
        for exchange, first, branch in zip(
            exchanges, accumulate(sizes, initial=0), stage.branches, strict=False
        )
    )
    numbers = ", ".join(str(exchange.number) for exchange in exchanges)
    chain = coalesced(replace(exchanges[0].upstream, steps=stage.steps), stage.ends)
    rows = plan_stage(
        chain, stage.number, WriteExchanges(writes), COLUMNS, purpose=f"writes exchange {numbers}"
    )
    label = "sortshuffle " + "; ".join(branch.text for branch in stage.branches)
    context = chain.context
    control = context.planner.control(rows, sizes, label)
    for exchange, control_rows in zip(exchanges, control, strict=True):
        context.services.remember(
            context.spark_context(), exchange.number, partial(_shuffle_of, control_rows)
        )
    return control


def _shuffle_of(control: ControlRows) -> int | None:
    return None if control.shuffle is None else control.shuffle.number


def _common_steps(chains: Sequence[tuple[Step, ...]]) -> tuple[Step, ...]:
    """Return the identical step objects that all begin with."""
    common: list[Step] = []
    for steps in zip(*chains, strict=False):
        if any(step is not steps[0] for step in steps):
            break
        common.append(steps[0])
    return tuple(common)
