"""How a consumer task fetches: in order, charged while it is fetched, and counted by the task itself."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from consumers import PATIENCE
from engine import open_files
from hypothesis import given
from hypothesis import strategies as st
from map_outputs import MIB, MapOutput, reading_threads, write_map

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import Seconds, TaskMetrics
from sortshuffle.reading.channel import Decoder, Fetch, LocalInputChannel, OpenReaders
from sortshuffle.reading.fetcher import Fetcher, plan_fetches
from sortshuffle.storage.files.extents import Extent, ExtentReader

SCHEMA = pa.schema([("number", pa.int64())])


def fetches_of(output: MapOutput) -> list[Fetch]:
    channel = output.channel()
    return [Fetch(channel, (extent,)) for extent in channel.extents]


def output_of(directory: Path, extents: int) -> MapOutput:
    regions = [{0: [pa.record_batch([[n]], schema=SCHEMA)] * 2} for n in range(extents)]
    return write_map(directory, SCHEMA, regions)


@pytest.mark.parametrize("extents", [0, 1, 30])
def test_fetches_come_in_order_and_are_the_callers(tmp_path: Path, extents: int) -> None:
    output = output_of(tmp_path, extents)
    fetcher = Fetcher(output.payload, MemoryBudget(MIB), 3, TaskMetrics())
    found = list(fetcher.fetched(fetches_of(output)))
    assert [[row for batch in each for row in batch.column(0).to_pylist()] for each in found] == [
        [n, n] for n in range(extents)
    ]
    assert fetcher.budget.used == 0
    assert fetcher.metrics.counts["extents_read"] == extents
    assert (fetcher.budget.peak > 0) == (extents > 0)


def test_a_single_fetch_needs_no_thread(tmp_path: Path) -> None:
    output = output_of(tmp_path, 1)
    fetcher = Fetcher(output.payload, MemoryBudget(MIB), 3, TaskMetrics())
    fetched = fetcher.fetched(fetches_of(output))
    next(fetched)
    assert reading_threads() == []
    fetched.close()


def test_a_stream_gives_the_same_and_holds_a_part(tmp_path: Path) -> None:
    output = output_of(tmp_path, 1)
    (fetch,) = fetches_of(output)
    fetcher = Fetcher(output.payload, MemoryBudget(MIB), 3, TaskMetrics())
    stream = fetcher.streamed(fetch, 64)
    assert next(stream).to_pylist() == [{"number": 0}]
    assert 0 < fetcher.budget.used < fetch.memory(output.payload)
    stream.close()
    assert fetcher.budget.used == 0
    assert open_files(tmp_path) == []


class Copying:
    """A payload that copies half of what it decodes."""

    def decoder(self, seconds: Seconds) -> Decoder:
        raise AssertionError("nothing is decoded")

    def copied(self, raw_bytes: int) -> int:
        return raw_bytes // 2


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=30), st.integers(1, 150))
def test_extents_are_fetched_together_up_to_a_size(sizes: list[tuple[int, int]], most: int) -> None:
    extents = tuple(Extent(region, 0, 0, *size, 0, 0, 0) for region, size in enumerate(sizes))
    channels = [
        LocalInputChannel(None, b"", number, "", part)  # type: ignore[arg-type]
        for number, part in enumerate((extents[:7], (), extents[7:]))
    ]
    memory = [stored + raw + raw // 2 for stored, raw in sizes]
    fetches = list(plan_fetches(channels, Copying(), most))
    assert [extent for fetch in fetches for extent in fetch.extents] == list(extents)
    for fetch in fetches:
        held = sum(memory[extent.region] for extent in fetch.extents)
        assert fetch.memory(Copying()) == held
        assert held <= most or len(fetch.extents) == 1
    for fetch, behind in itertools.pairwise(fetches):
        if behind.channel is fetch.channel:
            assert fetch.memory(Copying()) + memory[behind.extents[0].region] > most


@pytest.mark.parametrize("memory", [200, 3000, MIB], ids=["streamed", "some", "read ahead"])
def test_items_come_in_the_order_of_the_channels_and_say_which_it_was(tmp_path: Path, memory: int) -> None:
    channels = []
    for number in range(3):
        (directory := tmp_path / str(number)).mkdir()
        output = output_of(directory, 5)
        channels.append(replace(output.channel(), map_index=number))
    fetcher = Fetcher(output.payload, MemoryBudget(memory), 2, TaskMetrics())
    found = [(channel, batch.column(0).to_pylist()) for channel, batch in fetcher.items(channels)]
    assert found == [(channel, [n]) for channel in channels for n in range(5) for _ in range(2)]
    assert fetcher.budget.used == 0


@pytest.mark.parametrize("memory", [200, MIB], ids=["streamed", "read ahead"])
def test_whoever_closes_the_items_lets_go_of_everything(tmp_path: Path, memory: int) -> None:
    output = output_of(tmp_path, 30)
    fetcher = Fetcher(output.payload, MemoryBudget(memory), 3, TaskMetrics())
    items = fetcher.items([output.channel()])
    next(items)
    items.close()
    assert (fetcher.budget.used, open_files(tmp_path), reading_threads()) == (0, [], [])


@dataclass
class Gone:
    """Whether somebody was asked, and whether he was given up."""

    asked: threading.Event = field(default_factory=threading.Event)
    given_up: threading.Event = field(default_factory=threading.Event)


class WaitingReader(ExtentReader):
    """Waits for somebody who never answers."""

    def __init__(self, path: str, gone: Gone) -> None:
        super().__init__(path, None)
        self._gone = gone

    def fetch(self, size: int, extent: Extent, position: int = 0) -> pa.Buffer:
        self._gone.asked.set()
        assert self._gone.given_up.wait(PATIENCE)
        raise RuntimeError("given up")

    def give_up(self) -> None:
        self._gone.given_up.set()

    def close(self) -> None:
        return None


@dataclass(frozen=True)
class WaitingChannel:
    """An `InputChannel` behind somebody who does not answer."""

    local: LocalInputChannel
    gone: Gone
    read_ahead: int = 0
    held_parts: int = 1

    @property
    def map_index(self) -> int:
        return self.local.map_index

    @property
    def path(self) -> str:
        return self.local.path

    @property
    def writer(self) -> str:
        return self.local.writer

    @property
    def extents(self) -> tuple[Extent, ...]:
        return self.local.extents

    def open(self, extents: Sequence[Extent]) -> ExtentReader:
        return WaitingReader(self.local.path, self.gone)


def test_whoever_closes_what_is_fetched_does_not_wait_for_somebody_who_does_not_answer(
    tmp_path: Path,
) -> None:
    output = output_of(tmp_path, 3)
    gone = Gone()
    first, *others = fetches_of(output)
    silent = [Fetch(WaitingChannel(output.channel(), gone), fetch.extents) for fetch in others]
    fetcher = Fetcher(output.payload, MemoryBudget(MIB), 3, TaskMetrics())
    fetched = fetcher.fetched([first, *silent])
    next(fetched)
    assert gone.asked.wait(PATIENCE)
    assert not gone.given_up.is_set()
    fetched.close()
    assert gone.given_up.is_set()
    assert fetcher.budget.used == 0
    assert reading_threads() == []


def test_what_is_opened_after_it_was_given_up_is_given_up_at_once(tmp_path: Path) -> None:
    readers, gone = OpenReaders(), Gone()
    with readers:
        pass
    with readers.knowing(WaitingReader("somewhere", gone)):
        assert gone.given_up.is_set()
