"""Fan-out: one pass of a stage that feeds several exchanges.

Exchanges that are made of the same rows, selections and filters apart, wait together in a `FanOut`. When
the first of them is needed, all that are alive and wait are planned as one map stage: what they have in
common is computed once for each task, then each has its own selections and filters, and its own map
output. An exchange that is made later has a map stage of its own.

The same rows means: the very same origin and step objects (`RowSource`), which is what frames derived from
one frame share. Equal ones would not do, because a function called twice may give other rows.

Who owns what: an exchange holds its fan-out, the fan-out knows its exchanges weakly, so one whose frames
are all gone is not written. The lock of a fan-out is held while its stage is planned, which takes the locks
of the fan-outs that it reads from: always from a consumer to its producers, so never in a circle.

An exchange that awaits others (a broadcast one the number of partitions of the frame that it is for) is not
built with those that are needed before: they could be what those others are made of.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Protocol
from weakref import WeakSet

from sortshuffle.spark.control import COLUMNS
from sortshuffle.spark.plan.chain import Branch, Chain, MapStage, ShuffleDependency
from sortshuffle.spark.plan.staging import staged
from sortshuffle.spark.session.classic_planner import rdd_of
from sortshuffle.spark.session.planner import ControlRows
from sortshuffle.spark.worker.map_output import WriteExchange, WriteExchanges
from sortshuffle.spark.worker.stages import PerBatchStep, Step


class Waiting(ShuffleDependency, Protocol):
    """An exchange (`spark.plan.exchange`), as far as its fan-out knows it."""

    @property
    def is_placed(self) -> bool:
        """Whether it is decided where rows go."""

    @property
    def awaits_others(self) -> bool:
        """Whether it cannot be placed yet, because exchanges of other rows must be placed before."""

    def place(self) -> None:
        """Decide where rows go, and with that how many subpartitions there are. May run a job."""

    def closing(self, first: int, steps: tuple[Step, ...]) -> WriteExchange:
        """What a map stage does for it, once it is placed."""

    def built(self, stage: MapStage, control: ControlRows) -> None:
        """Called once, with the stage that writes it and its control rows."""

    def describe(self) -> str: ...


class RowSource:
    """Rows that several chains begin with: an origin and the steps up to the last that is not `PerBatchStep`.
    Equal to another one only if it is of the very same objects."""

    __slots__ = ("_objects",)

    def __init__(self, chain: Chain) -> None:
        steps = list(chain.steps)
        while steps and isinstance(steps[-1], PerBatchStep):
            steps.pop()
        self._objects = (chain.origin, *steps)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowSource) or len(self._objects) != len(other._objects):
            return False
        return all(mine is its for mine, its in zip(self._objects, other._objects, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self._objects)))


class FanOut:
    """The exchanges of the same rows that are not built yet. ``lock``: held to change what they will be."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._waiting: WeakSet[Waiting] = WeakSet()

    def add(self, exchange: Waiting) -> None:
        with self.lock:
            self._waiting.add(exchange)

    def stage(self, wanted: Waiting) -> MapStage:
        """What building the wanted one would do now, for all that go with it."""
        with self.lock:
            return _stage_for(self._with(wanted))

    def build(self, wanted: Waiting) -> None:
        """Plan one map stage for the wanted exchange and all that go with it, and give each its control rows.

        Where their rows go is decided before the lock is taken. That may run jobs, which build what these
        exchanges are made of, and none that awaits others is made to wait for them here.
        """
        wanted.place()
        for exchange in self._with(wanted):
            exchange.place()
        with self.lock:
            if wanted not in self._waiting:
                return  # built by another thread
            exchanges = [each for each in self._with(wanted) if each.is_placed]
            stage = _stage_for(exchanges)
            for exchange, control in zip(exchanges, _control_rows(exchanges, stage), strict=True):
                exchange.built(stage, control)
            self._waiting.difference_update(exchanges)

    def _with(self, wanted: Waiting) -> list[Waiting]:
        """The wanted exchange and those of the others that can go with it, in the order of their numbers; one
        that awaits others goes alone."""
        with self.lock:
            waiting = set(self._waiting)
        others = () if wanted.awaits_others else (each for each in waiting if not each.awaits_others)
        return sorted({wanted, *others}, key=lambda exchange: exchange.number)


_looking_up = threading.Lock()  # held while a fan-out is looked up, or made


def fan_out_of(chain: Chain) -> FanOut:
    """That of the rows that this chain selects and filters last. It lives as long as one of its exchanges."""
    if not chain.context.planner.keeps:
        return FanOut()  # each reader's map stage runs anew, so nothing is written in one pass
    source, known = RowSource(chain), chain.context.fan_outs
    with _looking_up:
        found: FanOut | None = known.get(source)
        if found is None:
            found = known[source] = FanOut()
        return found


def _stage_for(exchanges: Sequence[Waiting]) -> MapStage:
    steps = _common([exchange.upstream.steps for exchange in exchanges])
    branches = tuple(
        Branch(exchange.number, exchange.upstream.steps[len(steps) :], exchange.describe())
        for exchange in exchanges
    )
    # the lowest number: above those of the exchanges that are read, below those of all that read these
    return MapStage(exchanges[0].number, steps, branches)


def _control_rows(exchanges: Sequence[Waiting], stage: MapStage) -> list[ControlRows]:
    """Those of each exchange, which all go through one shuffle: its partitions are the exchanges'
    subpartitions, laid one after the other."""
    sizes = [exchange.subpartitions for exchange in exchanges]
    writes = tuple(
        exchange.closing(first, branch.steps)
        for exchange, first, branch in zip(
            exchanges, accumulate(sizes, initial=0), stage.branches, strict=False
        )
    )
    numbers = ", ".join(str(exchange.number) for exchange in exchanges)
    upstream, purpose = exchanges[0].upstream, f"writes exchange {numbers}"
    rows = staged(upstream, stage.number, WriteExchanges(writes), COLUMNS, steps=stage.steps, purpose=purpose)
    label = "sortshuffle " + "; ".join(branch.text for branch in stage.branches)
    context = upstream.context
    control = context.planner.control(rows, sizes, label)
    for exchange, its in zip(exchanges, control, strict=True):
        context.services.remember(context.spark_context(), exchange.number, partial(_rdd_of, its))
    return control


def _rdd_of(control: ControlRows) -> Any:
    return rdd_of(control.rows)


def _common(chains: Sequence[tuple[Step, ...]]) -> tuple[Step, ...]:
    """The steps that all begin with: the very same objects."""
    common: list[Step] = []
    for steps in zip(*chains, strict=False):
        if any(step is not steps[0] for step in steps):
            break
        common.append(steps[0])
    return tuple(common)
