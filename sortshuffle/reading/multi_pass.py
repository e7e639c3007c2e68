"""Merges any number of sorted runs within the read budget, in one pass if they fit it, else in several.

Used by `InputGate.sorted_batches`, and so by every group, sort and merge of a `ShuffleFrame`. Also by the
sort of a task's own rows, where all runs are on disk from the start (`compute.external_sort`).

A run is *held* (threads read all of it ahead, and its file is closed before the merge begins) or *streamed*
(its file is open, and a part of it is in memory), whichever takes less memory.

* While the runs together take too much memory or too many open files, a pass merges groups of neighbours into
  one run each, on disk (`reading.spill`). A group has as many runs as fit.
* A pass stops as soon as the remaining runs fit, so that no row is written needlessly.
* The last pass streams to the consumer.

A merged run takes the place of its group. So the order stays (key, number of the run, position), however
little memory there is. Each pass divides the number of runs by the size of a group, which is at least two. So
rows are written about log(runs) / log(size of a group) times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import pyarrow as pa

from sortshuffle.errors import InsufficientBuffersError
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.options import format_size
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.reading.channel import Fetch
from sortshuffle.reading.fetcher import Batches, Fetcher
from sortshuffle.reading.merge import SortedRun, merge_runs
from sortshuffle.reading.run_memory import MOST_OPEN_FILES, Demands, Load, RunSize
from sortshuffle.reading.spill import HELD_REGIONS, NewFile, SpilledRun, SpillSize, SpillWriter, spill_header
from sortshuffle.reading.stream_ahead import StreamsAhead
from sortshuffle.storage.writer import PartitionedFileWriter

# The least runs in a group, whatever memory they take: with smaller groups the passes would never end
LEAST_FAN_IN = 2


@dataclass(frozen=True, slots=True)
class Run:
    """A run that waits to be merged. ``held``, ``streamed``: the bytes that it takes either way. ``parts``:
    the number of its parts in memory while it is streamed."""

    source: Fetch | SpilledRun
    size: RunSize
    held: int
    streamed: int
    parts: int = 1

    @property
    def is_spilled(self) -> bool:
        return isinstance(self.source, SpilledRun)

    @property
    def is_held(self) -> bool:
        """Whether to hold the run, as that takes less. A spilled run is streamed: its file is open."""
        return self.held <= self.streamed and not self.is_spilled

    @property
    def is_fetched_ahead(self) -> bool:
        return self.parts > 1

    @property
    def load(self) -> Load:
        if self.is_held:
            return Load(self.held, 0)
        return Load(self.streamed, 0 if self.is_spilled else 1)


class MultiPassMerge:
    """Merges runs in key order within the fetcher's budget.

    ``new_file``: makes the files of passes. Without it, `InsufficientBuffersError` is raised if one pass is
    not enough.
    """

    def __init__(
        self, order: RowOrder, payload: ArrowPayload, fetcher: Fetcher, new_file: NewFile | None
    ) -> None:
        self._order = order
        self._payload = payload
        self._fetcher = fetcher
        self._new_file = new_file
        self._budget: MemoryBudget = fetcher.budget
        self._metrics = fetcher.metrics
        self._demands = Demands.of(order, payload.schema)
        self._spill_size = SpillSize.within(self._budget.limit)

    def merged(self, sources: Sequence[Fetch | SpilledRun]) -> Batches:
        """Yield all rows in order. Closes spilled runs. Raises `OutOfDiskError` if a pass finds no room."""
        with ExitStack() as stack:
            stack.callback(lambda: self._metrics.peak(self._budget.peak))
            for source in sources:
                if isinstance(source, SpilledRun):
                    stack.callback(source.close)
            runs = [self._run(source, RunSize.of(source.extents)) for source in sources]
            while not self._fit(runs):
                runs = self._make_pass(runs, stack)
            self._metrics.add(merge_passes=1)
            yield from self._merge(runs, self._budget.limit)

    def _run(self, source: Fetch | SpilledRun, size: RunSize) -> Run:
        ahead, parts = 0, 1
        if isinstance(source, Fetch):
            ahead, parts = source.channel.read_ahead, source.channel.held_parts
        return Run(source, size, self._demands.held(size), self._demands.streamed(size, ahead, parts), parts)

    def _fit(self, runs: Sequence[Run]) -> bool:
        limit = self._budget.limit
        if len(runs) <= LEAST_FAN_IN or _can_hold_all(runs, limit):
            return True
        return _load_of(runs).fits(limit)

    # --- a pass that is not the last -----------------------------------------------------------------------

    def _make_pass(self, runs: list[Run], stack: ExitStack) -> list[Run]:
        """Merge groups of neighbours into one run each. Returns the runs of the next pass."""
        self._metrics.add(merge_passes=1)
        left: list[Run | None] = []  # None: a run in the new file
        with SpillWriter(
            self._new_spill_file(runs), self._payload, self._spill_size, self._budget, self._metrics
        ) as spill:
            for group in self._groups(runs):
                if len(group) == 1:
                    left += group
                    continue
                with closing(self._merge(group, self._pass_memory)) as batches:
                    spill.write_run(batches)
                left.append(None)
            spilled = iter(spill.finish())
        return [run or self._spilled_run(next(spilled), stack) for run in left]

    def _groups(self, runs: Sequence[Run]) -> Iterable[list[Run]]:
        """Divide the runs into groups of neighbours for a pass to merge. A group of one run is not merged.

        A group takes runs while they fit the pass, but stops as soon as all runs of the next pass would fit.
        """
        limit = self._budget.limit
        all_left = _load_of(runs)
        waiting = deque(runs)
        while waiting:
            if all_left.fits(limit):
                yield from ([run] for run in waiting)
                return
            group: list[Run] = []
            load, size, merged = Load(), RunSize(), Load()
            while waiting:
                with_next = load + waiting[0].load
                if len(group) >= LEAST_FAN_IN:
                    enough = (all_left - load + merged).fits(self._pass_memory)
                    if enough or not with_next.fits(self._pass_memory):
                        break
                run = waiting.popleft()
                group.append(run)
                load, size = with_next, size + run.size
                merged = Load(self._demands.streamed(self._spilled_size(size)))
            if len(group) > 1:
                all_left = all_left - load + merged
            yield group

    @property
    def _pass_memory(self) -> int:
        """Bytes for merging in a pass, beside the memory for writing."""
        return self._budget.limit - HELD_REGIONS * self._spill_size.region - self._spill_size.buffer

    def _spilled_size(self, size: RunSize) -> RunSize:
        """Return the size of a run after it has been written to a spill file."""
        buffers = max(1, size.raw // self._spill_size.buffer)
        return RunSize(size.stored, size.raw, size.records, buffers)

    def _spilled_run(self, run: SpilledRun, stack: ExitStack) -> Run:
        stack.callback(run.close)
        return self._run(run, RunSize.of(run.extents))

    def _new_spill_file(self, runs: Sequence[Run]) -> PartitionedFileWriter:
        if self._new_file is None:
            load = _load_of(runs)
            raise InsufficientBuffersError(
                f"merging {len(runs)} sorted runs takes {format_size(load.memory)} and {load.files} open"
                f" files, where there are {format_size(self._budget.limit)} and {MOST_OPEN_FILES}, and this"
                " reader was given no directory to put rows aside in: give it one, or more memory with"
                " spark.sortshuffle.read.memory"
            )
        return self._new_file(spill_header(self._payload))

    # --- merging what fits ---------------------------------------------------------------------------------

    def _merge(self, runs: Sequence[Run], memory: int) -> Batches:
        """Yield the rows of runs that fit into ``memory`` bytes, or of the smallest possible group."""
        with ExitStack() as stack:
            sources = self._sources(runs, memory, stack)
            yield from merge_runs(sources, self._order, self._budget, self._metrics)

    def _sources(self, runs: Sequence[Run], memory: int, stack: ExitStack) -> list[SortedRun]:
        """Open the inputs of a merge, in the order of the runs."""
        # 1. Read the held runs
        whole = _can_hold_all(runs, memory)
        fetches = [run.source for run in runs if isinstance(run.source, Fetch) and (whole or run.is_held)]
        held: deque[HeldRun] = deque()
        for batches in stack.enter_context(closing(self._fetcher.fetched(fetches))):
            held.append(stack.enter_context(closing(HeldRun(batches, self._budget))))
        # 2. Share the remaining memory among the streamed runs, as larger parts
        spare = max(0, memory - _load_of(runs).memory) // max(1, len(runs) - len(held))
        streams = stack.enter_context(StreamsAhead(self._payload, self._budget, self._metrics))
        sources: list[SortedRun] = []
        for run in runs:
            copied = 1 if run.is_fetched_ahead else 0  # the store's library holds a copy of an arriving part
            part = run.size.part(spare // (run.parts + copied))
            if isinstance(run.source, SpilledRun):
                sources.append(run.source.stream(self._payload, part, self._budget, self._metrics))
            elif whole or run.is_held:
                sources.append(held.popleft())
            elif run.is_fetched_ahead:
                sources.append(streams.stream(run.source, part))
            else:
                sources.append(self._fetcher.streamed(run.source, part))
        return sources


class HeldRun:
    """The batches of a run in memory. Each is charged until it is taken."""

    def __init__(self, batches: Iterable[pa.RecordBatch], budget: MemoryBudget) -> None:
        self._batches = deque((batch, batch.nbytes) for batch in batches)
        self._budget = budget
        budget.charge(sum(size for _, size in self._batches))

    def __iter__(self) -> HeldRun:
        return self

    def __next__(self) -> pa.RecordBatch:
        if not self._batches:
            raise StopIteration
        batch, size = self._batches.popleft()
        self._budget.release(size)
        return batch

    def close(self) -> None:
        for _ in self:
            pass


def _load_of(runs: Iterable[Run]) -> Load:
    return sum((run.load for run in runs), Load())


def _can_hold_all(runs: Sequence[Run], memory: int) -> bool:
    """Return whether all runs can be held, which is fastest."""
    return not any(run.is_spilled for run in runs) and sum(run.held for run in runs) <= memory
