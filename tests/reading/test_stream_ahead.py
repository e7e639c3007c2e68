"""A stream of a fetch whose next part comes in a thread: the same rows, one part ahead and no more; errors
and ends that leave nothing behind."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from engine import open_files
from map_outputs import MapOutput, rows_of, write_map

from sortshuffle.errors import CorruptDataError
from sortshuffle.format.header import Codec
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.reading.channel import Fetch, LocalInputChannel, Payload
from sortshuffle.reading.stored_channel import CONCURRENT_FETCHES
from sortshuffle.reading.stream_ahead import StreamsAhead
from sortshuffle.storage.files.extents import ExtentPart, ExtentReader

SCHEMA = pa.schema([("number", pa.int64())])
PATIENCE = 30.0  # seconds until a thread counts as hanging
ENOUGH = 1 << 20
PART = 5000  # bytes: two of the buffers below


def batch(start: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch([list(range(start, start + rows))], schema=SCHEMA)


REGIONS = [{0: [batch(start + at, 250) for at in range(0, 2000, 250)]} for start in (0, 2000)]
NUMBERS = list(range(4000))


@pytest.fixture
def output(tmp_path: Path) -> MapOutput:
    return write_map(tmp_path, SCHEMA, REGIONS, codec=Codec.NONE)


class Streams(StreamsAhead):
    """With a budget of their own."""

    def __init__(self, payload: Payload) -> None:
        super().__init__(payload, MemoryBudget(ENOUGH), TaskMetrics())

    @property
    def held(self) -> int:
        return self.budget.used


@pytest.fixture
def streams(output: MapOutput) -> Iterator[Streams]:
    with Streams(output.payload) as streams:
        yield streams


class SlowChannel(LocalInputChannel):
    """One whose parts are worth being fetched ahead."""

    @property
    def held_parts(self) -> int:
        return 2


def fetch_of(output: MapOutput) -> Fetch:
    local = output.channel()
    channel = SlowChannel(local.file, local.file_id, local.map_index, local.writer, local.extents)
    return Fetch(channel, channel.extents)


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return [row["number"] for row in rows_of(batches)]


@pytest.mark.parametrize("part_bytes", [64, PART, ENOUGH])
def test_it_gives_what_a_stream_gives(output: MapOutput, streams: Streams, part_bytes: int) -> None:
    metrics = TaskMetrics()
    fetch = fetch_of(output)
    plain = list(fetch.stream(output.payload, part_bytes, MemoryBudget(ENOUGH), metrics))
    stream = streams.stream(fetch, part_bytes)
    assert list(stream) == plain
    assert numbers(plain) == NUMBERS
    assert streams.metrics.counts == metrics.counts
    assert streams.held == 0
    stream.close()


class Gate:
    """Parts that come when the test says so. ``begun``: how many have been asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.passed = 0
        self._changed = threading.Condition()
        self._open = 0
        real = Fetch.parts

        def parts(fetch: Fetch, *arguments: Any) -> Iterator[Any]:
            for part in real(fetch, *arguments):
                self._pass()
                yield part

        monkeypatch.setattr(Fetch, "parts", parts)

    def _pass(self) -> None:
        with self._changed:
            self.begun += 1
            number = self.begun
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._open >= number, PATIENCE)
            self.passed += 1
            self._changed.notify_all()

    def open(self, parts: int) -> None:
        with self._changed:
            self._open = parts
            self._changed.notify_all()

    def wait_until_begun(self, parts: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.begun >= parts, PATIENCE)

    def wait_until_passed(self, parts: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.passed >= parts, PATIENCE)


def test_one_part_is_fetched_ahead_from_the_start_and_no_more(
    output: MapOutput, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    streams.pool.shutdown()
    streams.pool = ThreadPoolExecutor(1)  # so that what is submitted later runs behind a fetch
    stream = streams.stream(fetch_of(output), PART)
    gate.wait_until_begun(1)  # nobody has asked for a row
    assert streams.held == PART
    gate.open(1)
    items = iter(stream)
    next(items)
    gate.wait_until_begun(2)
    assert PART < streams.held <= 2 * PART
    gate.open(2)
    gate.wait_until_passed(2)
    next(items)  # of the first part
    streams.pool.submit(lambda: None).result(PATIENCE)  # the thread that fetched has nothing more to do
    assert gate.begun == 2
    gate.open(100)
    assert len(list(items)) == 14
    assert streams.held == 0
    stream.close()


def test_no_more_is_charged_than_there_is(output: MapOutput, streams: Streams) -> None:
    stream = streams.stream(fetch_of(output), ENOUGH)
    assert streams.held == sum(extent.bytes for extent in fetch_of(output).extents)
    stream.close()


@pytest.mark.parametrize("items", [0, 1, 16])
def test_a_stream_that_is_closed_holds_nothing(output: MapOutput, streams: Streams, items: int) -> None:
    stream = streams.stream(fetch_of(output), PART)
    given = iter(stream)
    for _ in range(items):
        next(given)
    stream.close()
    assert streams.held == 0
    assert list(given) == []
    stream.close()  # may be done again


class SilentStore:
    """A store that does not answer: whoever reads asks again until it is given up. ``forsaken``: how many
    were not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting = 0
        self.forsaken = 0
        self._changed = threading.Condition()
        self._given_up: set[ExtentReader] = set()
        monkeypatch.setattr(Fetch, "parts", lambda _, reader, part_bytes: self._parts(reader))
        monkeypatch.setattr(ExtentReader, "give_up", lambda reader: self._give_up(reader))

    def _give_up(self, reader: ExtentReader) -> None:
        with self._changed:
            self._given_up.add(reader)
            self._changed.notify_all()

    def _parts(self, reader: ExtentReader) -> Iterator[ExtentPart]:
        with self._changed:
            self.waiting += 1
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: reader in self._given_up, PATIENCE):
                self.forsaken += 1
        raise OSError("the read was abandoned")
        yield

    def wait_until_waiting(self, readers: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.waiting == readers, PATIENCE)


def test_a_merge_that_is_abandoned_gives_up_all_that_its_threads_wait_for(
    output: MapOutput, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its first stream is closed; and what waits for a thread is never asked for."""
    store = SilentStore(monkeypatch)
    opened = [streams.stream(fetch_of(output), PART) for _ in range(2 * CONCURRENT_FETCHES)]
    store.wait_until_waiting(CONCURRENT_FETCHES)
    opened[-1].close()
    for stream in opened[:-1]:
        stream.close()
    assert (store.waiting, store.forsaken) == (CONCURRENT_FETCHES, 0)
    assert streams.held == 0


def test_streams_that_nobody_has_closed_end_with_the_merge(
    output: MapOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SilentStore(monkeypatch)
    with Streams(output.payload) as streams:
        for _ in range(2):
            streams.stream(fetch_of(output), PART)
        store.wait_until_waiting(2)
    assert (store.forsaken, streams.held) == (0, 0)
    assert open_files(Path(output.file.data_path).parent) == []


def test_a_wait_that_is_interrupted_leaves_nothing(
    output: MapOutput, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is still in the reader then: it is waited for, and what it holds stays charged."""
    store = SilentStore(monkeypatch)
    stream = streams.stream(fetch_of(output), PART)
    store.wait_until_waiting(1)

    def interrupted(_: Future[ExtentPart]) -> ExtentPart:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iter(stream))
    assert streams.held == PART
    stream.close()
    assert (store.forsaken, streams.held) == (0, 0)


def test_a_failed_fetch_is_not_held_by_its_own_error(
    output: MapOutput, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part that it has read is in the error's traceback."""
    held: list[weakref.ref[Part]] = []

    class Part(bytearray):
        """Something that can be referred to weakly."""

    def parts(*_: object) -> Iterator[ExtentPart]:
        part = Part(PART)
        held.append(weakref.ref(part))
        raise OSError("damaged")
        yield

    monkeypatch.setattr(Fetch, "parts", parts)
    gc.disable()
    try:
        stream = streams.stream(fetch_of(output), PART)
        with pytest.raises(OSError, match="damaged"):
            list(stream)
        stream.close()
        streams.pool.shutdown(wait=True)
        assert [each() for each in held] == [None]
    finally:
        gc.enable()


def test_damage_surfaces_where_its_part_is_taken(output: MapOutput, streams: Streams) -> None:
    data = Path(output.file.data_path)
    damaged = bytearray(data.read_bytes())
    damaged[-100] ^= 1
    data.write_bytes(damaged)
    found: list[pa.RecordBatch] = []
    stream = streams.stream(fetch_of(output), 2500)
    with pytest.raises(CorruptDataError) as caught:
        found.extend(stream)
    assert caught.value.place.region == 1
    assert numbers(found) == NUMBERS[:3750]
    stream.close()
    assert streams.held == 0


def test_where_no_thread_can_be_started_nothing_is_held(output: MapOutput, streams: Streams) -> None:
    streams.pool.shutdown()
    with streams, pytest.raises(RuntimeError):
        streams.stream(fetch_of(output), PART)
    assert streams.held == 0
    assert open_files(Path(output.file.data_path).parent) == []


def test_a_part_that_waits_although_no_thread_can_be_started_is_not_fetched(
    output: MapOutput, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool keeps what it is asked for, for the threads that it has, before it starts another."""
    began, go_on = threading.Event(), threading.Event()
    streams.pool.submit(lambda: (began.set(), go_on.wait(PATIENCE)))
    assert began.wait(PATIENCE)
    gate = Gate(monkeypatch)

    def fails(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        with pytest.raises(RuntimeError, match="new thread"):
            streams.stream(fetch_of(output), PART)
    streams.give_up()
    go_on.set()
    with streams:
        pass
    assert (gate.begun, streams.held) == (0, 0)
