"""Record writers: every record goes where its key says, to all, or anywhere; objects are pickled together;
what is collected is bounded; flushed never, always, or by a thread whose failure the next call raises."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from engine import WRITER, Modulo, new_frame_output
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import StateError, UsageError
from sortshuffle.format.header import PayloadKind
from sortshuffle.format.index import RegionKind
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB
from sortshuffle.partitioner.selector import Ids
from sortshuffle.payload.events import SUPERSTEP, Event
from sortshuffle.payload.pickled import pack_chunk, unpack_chunk
from sortshuffle.storage.reader import read_index
from sortshuffle.write.flusher import ALWAYS, NEVER, FlushPolicy
from sortshuffle.write.pickled_sizes import CHUNK_BYTES, HEAP_BYTES_PER_PICKLED, PROBE_EVERY
from sortshuffle.write.record_writer import (
    BroadcastRecordWriter,
    ChannelSelectorRecordWriter,
    ObjectCollector,
    RecordWriter,
    RecordWriters,
    record_writer,
)

FRAMES, PICKLE = PayloadKind.FRAMES, PayloadKind.PICKLE
LONG = 60.0


class Target:
    """Keeps what it is sent, and says what was called."""

    def __init__(self, subpartitions: int = 3) -> None:
        self.subpartitions = subpartitions
        self.sent: list[tuple[object, bytes]] = []
        self.events: list[Event] = []
        self.flushed = threading.Semaphore(0)
        self.flushes = 0
        self.failure: Exception | None = None

    def emit(self, frame: Any, subpartition: int) -> None:
        self._fail_if_asked()
        self.sent.append((subpartition, bytes(frame)))

    def broadcast_frame(self, frame: Any) -> None:
        self._fail_if_asked()
        self.sent.append(("all", bytes(frame)))

    def broadcast_event(self, event: Event) -> None:
        self.sent.append(("event", b""))

    def flush(self) -> None:
        self._fail_if_asked()
        self.flushes += 1
        self.flushed.release()

    def frames(self, to: object) -> list[bytes]:
        return [frame for target, frame in self.sent if target == to]

    def objects(self, to: object) -> list[Any]:
        return [each for frame in self.frames(to) for each in unpack_chunk(memoryview(frame))]

    def _fail_if_asked(self) -> None:
        if self.failure is not None:
            raise self.failure


class ByRemainder:
    """Keys are numbers, and go to their remainder."""

    is_broadcast: ClassVar[bool] = False

    def __init__(self, subpartitions: int = 3) -> None:
        self.subpartitions = subpartitions

    def assign(self, keys: Any) -> Ids:
        return (np.asarray(keys) % self.subpartitions).astype(np.uint8)


class ToAll(ByRemainder):
    is_broadcast = True

    def assign(self, keys: Any) -> Ids:
        raise AssertionError("not asked")


def writer_to(
    target: Target, kind: PayloadKind = PICKLE, *, selector: Any = None, policy: FlushPolicy = NEVER
) -> RecordWriter:
    return record_writer(target, selector or ByRemainder(target.subpartitions), kind, TaskMetrics(), policy)


# Where records go


def test_the_selector_decides_which_writer_it_is() -> None:
    assert isinstance(writer_to(Target()), ChannelSelectorRecordWriter)
    assert isinstance(writer_to(Target(), selector=ToAll()), BroadcastRecordWriter)


def test_a_selector_for_another_number_of_subpartitions_is_refused() -> None:
    with pytest.raises(UsageError, match="selector has 4 subpartitions, its target 3"):
        writer_to(Target(3), selector=ByRemainder(4))


def test_arrow_needs_no_record_writer() -> None:
    with pytest.raises(UsageError, match="write them to the result partition"):
        writer_to(Target(), PayloadKind.ARROW)


def test_objects_of_a_batch_go_where_their_keys_say() -> None:
    target = Target()
    writer = writer_to(target)
    keys = [5, 0, 3, 4, 1, 1, 9]
    writer.emit_batch([("row", key) for key in keys], keys)
    writer.finish()
    assert [target.objects(s) for s in range(3)] == [
        [("row", 0), ("row", 3), ("row", 9)],
        [("row", 4), ("row", 1), ("row", 1)],
        [("row", 5)],
    ]


def test_the_selectors_of_rows_serve_as_well() -> None:
    class Rows(Modulo):
        is_broadcast: ClassVar[bool] = False

    target = Target()
    writer = writer_to(target, selector=Rows(3))
    writer.emit_batch(["a", "b", "c"], pa.record_batch({"k": [2, 1, 2]}))
    writer.finish()
    assert [target.objects(s) for s in range(3)] == [[], ["b"], ["a", "c"]]


def test_opaque_frames_go_as_they_are_and_at_once() -> None:
    target = Target()
    writer = writer_to(target, FRAMES)
    writer.emit_batch([b"a", b"b", b"c"], [1, 2, 1])
    writer.emit(b"d", 0)
    assert target.sent == [(1, b"a"), (2, b"b"), (1, b"c"), (0, b"d")]
    writer.finish()


@pytest.mark.parametrize("kind", [FRAMES, PICKLE])
def test_what_a_selecting_writer_broadcasts_stays_in_order_with_the_rest(kind: PayloadKind) -> None:
    target = Target()
    writer = writer_to(target, kind)
    writer.emit(b"first", 1)
    writer.broadcast_emit(b"to all")
    writer.emit(b"last", 1)
    writer.finish()
    read = target.frames if kind is FRAMES else target.objects
    assert [read(s) for s in range(3)] == [[b"to all"], [b"first", b"to all", b"last"], [b"to all"]]
    assert read("all") == []


@pytest.mark.parametrize("kind", [FRAMES, PICKLE])
def test_a_broadcasting_writer_sends_everything_once(kind: PayloadKind) -> None:
    target = Target()
    writer = writer_to(target, kind, selector=ToAll())
    writer.emit_batch([b"a", b"b"], None)
    writer.broadcast_emit(b"c")
    writer.emit(b"just one", 2)
    writer.finish()
    read = target.frames if kind is FRAMES else target.objects
    assert (read("all"), read(2), read(0)) == ([b"a", b"b", b"c"], [b"just one"], [])


def test_random_records_go_anywhere_and_again_to_the_same() -> None:
    choices = []
    for seed in (1, 1, 2):
        target = Target()
        writer = record_writer(target, ByRemainder(), FRAMES, TaskMetrics(), NEVER, seed)
        for number in range(300):
            writer.random_emit(b"%d" % number)
        writer.finish()
        choices.append([to for to, _ in target.sent])
        assert all(choices[-1].count(s) > 60 for s in range(3))
    assert choices[0] == choices[1] != choices[2]


@pytest.mark.parametrize("subpartition", [-1, 3])
def test_a_subpartition_that_is_not_there_is_refused_and_nothing_is_lost(subpartition: int) -> None:
    target = Target()
    writer = writer_to(target)
    writer.emit("kept", 0)
    with pytest.raises(UsageError, match="they are 0 to 2"):
        writer.emit("refused", subpartition)
    with pytest.raises(UsageError, match="2 records and 1 keys"):
        writer.emit_batch(["x", "y"], [1])
    writer.finish()
    assert [target.objects(s) for s in range(3)] == [["kept"], [], []]


def test_an_event_goes_behind_all_that_was_sent_before() -> None:
    target = Target()
    writer = writer_to(target)
    for number in range(10):
        writer.emit(number, number % 3)
    writer.broadcast_event(SUPERSTEP)
    writer.emit("later", 0)
    writer.finish()
    place = target.sent.index(("event", b""))
    before = [each for _, frame in target.sent[:place] for each in unpack_chunk(memoryview(frame))]
    assert sorted(before) == list(range(10))
    assert unpack_chunk(memoryview(target.sent[-1][1])) == ["later"]


# Chunks


def test_objects_are_pickled_together_in_chunks_of_about_the_same_size() -> None:
    target = Target(1)
    writer = writer_to(target)
    objects = [(number, f"{number:0100}") for number in range(20_000)]
    for start in range(0, len(objects), 1000):
        writer.emit_batch(objects[start : start + 1000], [0] * 1000)
    writer.finish()
    sizes = list(map(len, target.frames(0)))
    assert target.objects(0) == objects
    assert len(sizes) < 50
    assert max(sizes) < 1.1 * CHUNK_BYTES
    assert min(sizes[5:-1]) > 0.8 * CHUNK_BYTES, "when their size is known"


def test_one_at_a_time_is_the_same_as_in_batches() -> None:
    objects = [(number, "x" * (number % 50)) for number in range(5000)]
    targets = [Target(), Target()]
    for target, size in zip(targets, (1, 777), strict=True):
        writer = writer_to(target)
        for start in range(0, len(objects), size):
            part = objects[start : start + size]
            if size == 1:
                writer.emit(part[0], part[0][0] % 3)
            else:
                writer.emit_batch(part, [number for number, _ in part])
        writer.finish()
    assert [targets[0].objects(s) for s in range(3)] == [targets[1].objects(s) for s in range(3)]


def test_chunks_follow_the_size_of_the_objects() -> None:
    target = Target(1)
    writer = writer_to(target)
    small = [b"%010d" % number for number in range(20_000)]
    large = [bytes([number]) * 30_000 for number in range(200)]
    for record in (*small, *large, *small):
        writer.emit(record, 0)
    writer.finish()
    assert target.objects(0) == [*small, *large, *small]
    too_large = [len(frame) for frame in target.frames(0) if len(frame) > 3 * CHUNK_BYTES]
    assert len(too_large) <= 1, "only where the change came as a surprise"
    assert max(map(len, target.frames(0))) < 1.1 * PROBE_EVERY * 30_000


def test_what_is_collected_is_bounded_however_many_subpartitions_there_are() -> None:
    target = Target(1000)
    memory = 256 * KIB
    collector = ObjectCollector(target, memory)
    most = 0
    for number in range(20_000):
        collector.add(b"%020d" % number, number * 7 % 1000)
        most = max(most, collector._held)
    pickled = len(b"x" * 20) + 4  # about, of each
    assert most * pickled * HEAP_BYTES_PER_PICKLED < 1.3 * memory
    collector.flush()
    assert sum(len(target.objects(s)) for s in range(1000)) == 20_000


def test_objects_that_become_large_all_at_once_are_noticed_before_many_are_collected() -> None:
    target = Target(1000)
    collector = ObjectCollector(target)
    for number in range(50_000):
        collector.add(number, number % 1000)
    for number in range(2000):
        collector.add(bytes(100_000) + b"%d" % number, number % 1000)
        if number >= PROBE_EVERY:
            assert collector._held < PROBE_EVERY
    collector.flush()
    assert collector.records == 52_000


@pytest.mark.parametrize("size", [1, 5, 128, 1000])
def test_one_object_in_so_many_is_pickled_alone_however_they_come(size: int) -> None:
    alone: list[int] = []

    def counting(objects: Any) -> bytearray:
        if len(objects) == 1:
            alone.append(objects[0])
        return pack_chunk(objects)

    collector = ObjectCollector(Target(1), pack=counting)
    for start in range(0, 10_000, size):
        batch = list(range(start, min(10_000, start + size)))
        collector.add_batch(batch, [0] * len(batch))
    first_chunk = 1
    assert len(alone) == 10_000 // PROBE_EVERY + first_chunk


def test_objects_that_share_what_they_hold_are_no_surprise() -> None:
    target = Target(1)
    collector = ObjectCollector(target)
    shared = "what all of them hold" * 50
    for number in range(20_000):
        collector.add((number, shared), 0)
    collector.flush()
    assert collector.frames < 20


def test_an_object_larger_than_all_bounds_is_a_chunk_of_its_own() -> None:
    target = Target(1)
    collector = ObjectCollector(target, 64 * KIB)
    for record in (b"a", bytes(1 << 20), b"b"):
        collector.add(record, 0)
    collector.flush()
    assert target.objects(0) == [b"a", bytes(1 << 20), b"b"]


def test_an_object_that_cannot_be_pickled_fails_the_writer() -> None:
    target = Target()
    writer = writer_to(target)
    with pytest.raises((AttributeError, TypeError)), writer:
        writer.emit(lambda: None, 0)
        writer.finish()
    with pytest.raises(StateError, match=r"is failed|is abandoned"):
        writer.emit(1, 0)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.text(max_size=20)), max_size=50), max_size=6),
    st.sampled_from([PICKLE, FRAMES]),
    st.sampled_from([1, 4, 60]),
)
def test_any_records_come_back_through_a_result_partition(
    tmp_path: Path, batches: list[list[tuple[int, str]]], kind: PayloadKind, segments: int
) -> None:
    output = new_frame_output(tmp_path, kind=kind, subpartitions=4, segments=segments, buffer_size=64)
    made: list[list[Any]] = [
        [text.encode() if kind is FRAMES else (key, text) for key, text in batch] for batch in batches
    ]
    keys = [[key for key, _ in batch] for batch in batches]
    metrics = TaskMetrics()
    try:
        with output.partition as partition:
            with record_writer(partition, ByRemainder(4), kind, metrics) as writer:
                for records, where in zip(made, keys, strict=True):
                    writer.emit_batch(records, np.array(where, np.int64))
                writer.finish()
            partition.finish(WRITER)
        wanted: list[list[Any]] = [[] for _ in range(4)]
        for records, where in zip(made, keys, strict=True):
            for record, key in zip(records, where, strict=True):
                wanted[key % 4].append(record)
        assert output.records() == wanted
        assert partition.subpartition_records.tolist() == list(map(len, wanted))
        assert metrics.counts["records_out"] == sum(map(len, wanted))
        assert output.is_whole()
    finally:
        output.file.delete()


def test_what_is_broadcast_is_stored_once_in_a_result_partition(tmp_path: Path) -> None:
    output = new_frame_output(tmp_path, kind=PICKLE, subpartitions=10, segments=100)
    objects = [("row", number) for number in range(3000)]
    with output.partition as partition:
        with record_writer(partition, ToAll(10), PICKLE, TaskMetrics()) as writer:
            writer.emit_batch(objects, None)
            writer.finish()
        partition.finish(WRITER)
    assert output.records() == [objects] * 10
    assert read_index(output.file).kinds == (RegionKind.BROADCAST,)


# Flushing


@pytest.mark.parametrize("kind", [FRAMES, PICKLE])
def test_without_a_policy_nothing_is_flushed_before_the_end(kind: PayloadKind) -> None:
    target = Target()
    writer = writer_to(target, kind)
    for _ in range(100):
        writer.emit(b"x", 0)
    writer.finish()
    assert target.flushes == 0
    assert len(target.frames(0)) == (100 if kind is FRAMES else 2)


def test_flushing_sends_what_is_collected() -> None:
    target = Target()
    writer = writer_to(target)
    for number in range(5):
        writer.emit(number, 0)
    writer.flush()
    assert (target.objects(0), target.flushes) == ([0, 1, 2, 3, 4], 1)
    writer.finish()
    assert target.objects(0) == [0, 1, 2, 3, 4]


def test_always_is_behind_every_call() -> None:
    target = Target()
    writer = writer_to(target, policy=ALWAYS)
    writer.emit("a", 0)
    writer.emit_batch(["b", "c"], [1, 1])
    assert [target.objects(s) for s in (0, 1)] == [["a"], ["b", "c"]]
    assert target.flushes == 2
    writer.finish()


def test_a_thread_flushes_what_nobody_adds_to() -> None:
    target = Target()
    writer = writer_to(target, policy=FlushPolicy(0.001))
    for number in range(5):
        writer.emit(number, 0)
    for _ in range(2):  # a flush that had begun before the last record may be the first
        assert target.flushed.acquire(timeout=LONG)
    while len(target.objects(0)) < 5:
        assert target.flushed.acquire(timeout=LONG)
    assert target.objects(0) == [0, 1, 2, 3, 4]
    writer.finish()


def test_a_failure_of_the_thread_is_raised_by_the_next_call() -> None:
    target = Target()
    writer = writer_to(target, policy=FlushPolicy(0.001))
    target.failure = ConnectionError("the service is gone")
    assert writer._flusher is not None
    writer._flusher._thread.join(LONG)
    for call in (lambda: writer.emit("x", 0), lambda: writer.emit_batch(["x"], [0]), writer.finish):
        with pytest.raises(ConnectionError, match="the service is gone"):
            call()
    writer.abandon()


@pytest.mark.parametrize("end", ["finish", "abandon"])
def test_no_thread_is_left(end: str) -> None:
    writer = writer_to(Target(), policy=FlushPolicy(LONG))
    getattr(writer, end)()
    assert [each for each in threading.enumerate() if each.name == "sortshuffle-flush"] == []


@pytest.mark.parametrize("kind", [FRAMES, PICKLE])
def test_a_thread_that_flushes_all_the_time_loses_doubles_and_reorders_nothing(kind: PayloadKind) -> None:
    target = Target()
    writer = writer_to(target, kind, policy=FlushPolicy(1e-6))
    records = [b"%d" % number for number in range(5000)]
    for start in range(0, len(records), 5):
        if start % 2:
            writer.emit_batch(records[start : start + 5], list(range(start, start + 5)))
        else:
            for number in range(start, start + 5):
                writer.emit(records[number], number % 3)
    assert target.flushed.acquire(timeout=LONG)
    writer.finish()
    read = target.frames if kind is FRAMES else target.objects
    assert [read(s) for s in range(3)] == [records[s::3] for s in range(3)]


@pytest.mark.parametrize("end", ["finish", "abandon"])
def test_the_end_waits_for_a_flush_in_progress_and_nothing_is_sent_behind_it(end: str) -> None:
    target = Target()
    emitted, begun, go_on = (threading.Event() for _ in range(3))
    flush = target.flush

    def slow_flush() -> None:
        if emitted.is_set():  # or who emits would wait for it, and the flush for the test
            begun.set()
            assert go_on.wait(LONG)
        flush()

    target.flush = slow_flush  # type: ignore[method-assign]
    writer = writer_to(target, policy=FlushPolicy(0.001))
    writer.emit("first", 0)
    emitted.set()
    assert begun.wait(LONG)
    before = target.flushes
    ending = threading.Thread(target=getattr(writer, end))
    ending.start()
    assert target.flushes == before
    go_on.set()
    ending.join(LONG)
    assert not ending.is_alive()
    assert target.flushes > before
    sent = list(target.sent)
    with pytest.raises(StateError):
        writer.emit("late", 0)
    assert (target.sent, target.objects(0)) == (sent, ["first"])


def test_a_flush_that_fails_just_before_the_end_fails_it() -> None:
    target, metrics = Target(), TaskMetrics()
    writer = record_writer(target, ByRemainder(), PICKLE, metrics, FlushPolicy(0.001))
    writer.emit_batch(["a", "b", "c"], [0, 0, 0])
    target.failure = ConnectionError("the service is gone")
    assert writer._flusher is not None
    writer._flusher._thread.join(LONG)
    target.failure = None
    for _ in range(2):
        with pytest.raises(ConnectionError, match="the service is gone"):
            writer.finish()
    assert metrics.counts == {}
    writer.abandon()


# Calls in their order


@pytest.mark.parametrize("state", ["finished", "abandoned", "failed"])
def test_a_call_after_the_end_is_a_state_error(state: str) -> None:
    target = Target()
    writer = writer_to(target, FRAMES)
    if state == "failed":
        target.failure = OSError("full")
        with pytest.raises(OSError, match="full"):
            writer.emit(b"x", 0)
    else:
        getattr(writer, {"finished": "finish", "abandoned": "abandon"}[state])()
    for call in (
        lambda: writer.emit(b"x", 0),
        lambda: writer.emit_batch([b"x"], [0]),
        lambda: writer.broadcast_emit(b"x"),
        lambda: writer.random_emit(b"x"),
        lambda: writer.broadcast_event(SUPERSTEP),
        writer.flush,
        writer.finish,
    ):
        with pytest.raises(StateError, match=f"the record writer is {state}"):
            call()
    writer.abandon()


@pytest.mark.parametrize("kind", [FRAMES, PICKLE])
def test_an_interrupt_within_a_call_leaves_only_abandon(kind: PayloadKind) -> None:
    class Interrupted(Target):
        def emit(self, frame: Any, subpartition: int) -> None:
            raise KeyboardInterrupt

    writer = writer_to(Interrupted(), kind, policy=FlushPolicy(LONG))
    with pytest.raises(KeyboardInterrupt):
        writer.emit(b"x", 0)
    for call in (lambda: writer.emit(b"x", 0), writer.flush, writer.finish):
        with pytest.raises(StateError, match="is failed"):
            call()
    writer.abandon()
    assert [each for each in threading.enumerate() if each.name == "sortshuffle-flush"] == []


def test_leaving_without_finish_sends_nothing_more() -> None:
    target = Target()
    with writer_to(target) as writer:
        writer.emit("first", 0)
        writer.emit("second", 0)
    assert target.objects(0) == ["first"], "objects are collected from the second on"


# Metrics


def test_records_frames_and_bytes_are_counted() -> None:
    target, metrics = Target(), TaskMetrics()
    writer = record_writer(target, ByRemainder(), PICKLE, metrics)
    writer.emit_batch(list(range(100)), list(range(100)))
    writer.broadcast_emit("all")
    writer.finish()
    assert metrics.counts == {
        "records_out": 103,
        "frames_out": len(target.sent),
        "bytes_out": sum(len(frame) for _, frame in target.sent),
    }


# None, one, many


@pytest.mark.parametrize("count", [0, 1, 3])
def test_one_pass_feeds_as_many_exchanges_as_there_are(count: int) -> None:
    targets = [Target() for _ in range(count)]
    with RecordWriters([writer_to(target) for target in targets]) as writers:
        assert len(writers) == count
        for number in range(10):
            for output, writer in enumerate(writers):
                assert writers[output] is writer
                writer.emit_batch([number], [number + output])
        writers.flush()
        writers.broadcast_event(SUPERSTEP)
        writers.finish()
    for output, target in enumerate(targets):
        assert [target.objects(s) for s in range(3)] == [
            [n for n in range(10) if (n + output) % 3 == s] for s in range(3)
        ]
        assert (target.flushes, target.sent.count(("event", b""))) == (1, 1)


def test_leaving_many_abandons_all_even_if_one_cannot_be() -> None:
    writers = [writer_to(Target(), policy=FlushPolicy(LONG)) for _ in range(3)]

    def fail() -> None:
        RecordWriter.abandon(writers[1])
        raise OSError("not now")

    writers[1].abandon = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="not now"), RecordWriters(writers):
        pass
    assert [each._state for each in writers] == ["abandoned"] * 3


def test_leaving_many_without_finish_abandons_all() -> None:
    targets = [Target(), Target()]
    writers = RecordWriters([writer_to(target, policy=FlushPolicy(LONG)) for target in targets])
    with pytest.raises(ZeroDivisionError), writers:
        raise ZeroDivisionError
    for writer in writers:
        with pytest.raises(StateError, match="is abandoned"):
            writer.emit("x", 0)
