"""Record writers: every record goes where its key says, or to all; records are held together as far as memory
allows, and pickled together; what was sent before an event is before it."""

from __future__ import annotations

import weakref
from collections import defaultdict
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
from sortshuffle.options import KIB, MIB
from sortshuffle.partitioner.selector import Ids
from sortshuffle.payload.events import SUPERSTEP, Event
from sortshuffle.payload.pickled import Chunk, Pairs, pack_chunk, pack_content, unpack_chunk
from sortshuffle.storage.files.reader import read_index
from sortshuffle.writing.pickled_sizes import CHUNK_BYTES, HEAP_BYTES_PER_PICKLED, MOST_OBJECTS, PROBE_EVERY
from sortshuffle.writing.record_writer import MOST_PIECES, RecordWriter

PICKLE = PayloadKind.PICKLE


class Target:
    """Keeps the frames that it is sent."""

    def __init__(self, subpartitions: int = 3) -> None:
        self.subpartitions = subpartitions
        self.sent: list[tuple[object, bytes]] = []
        self.failure: BaseException | None = None

    def emit(self, frame: Any, subpartition: int) -> None:
        if self.failure is not None:
            raise self.failure
        self.sent.append((subpartition, bytes(frame)))

    def broadcast_frame(self, frame: Any) -> None:
        self.sent.append(("all", bytes(frame)))

    def broadcast_event(self, event: Event) -> None:
        self.sent.append(("event", b""))

    def frames(self, to: object) -> list[bytes]:
        return [frame for target, frame in self.sent if target == to]

    def chunks(self, to: object) -> list[Chunk]:
        return [unpack_chunk(memoryview(frame)) for frame in self.frames(to)]

    def objects(self, to: object) -> list[Any]:
        return [each for chunk in self.chunks(to) for each in chunk]


class ByRemainder:
    """Keys are numbers, and go to their remainder."""

    is_broadcast: ClassVar[bool] = False

    def __init__(self, subpartitions: int = 3) -> None:
        self.subpartitions = subpartitions

    def assign(self, keys: Any) -> Ids:
        return (np.asarray(keys, np.int64) % self.subpartitions).astype(np.uint16)


class ToAll(ByRemainder):
    is_broadcast = True

    def assign(self, keys: Any) -> Ids:
        raise AssertionError("not asked")


def writer_to(target: Target, *, selector: Any = None, memory: int = 4 * MIB) -> RecordWriter:
    selector = selector or ByRemainder(target.subpartitions)
    return RecordWriter(selector, pack_chunk, target, TaskMetrics(), memory)


class Given(ByRemainder):
    """Gives its keys as ids."""

    def assign(self, keys: Any) -> Any:
        return keys


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([0, 1], "must give a NumPy array of integers"),
        (np.array([0.0, 1.0]), "must give a NumPy array of integers"),
        (np.array([True, False]), "must give a NumPy array of integers"),
        (np.array([[0], [1]]), "must give a NumPy array of integers"),
        (np.ma.array([0, 7], mask=[False, True]), "must give a NumPy array of integers"),
        (np.array([0, 3], np.uint8), "sent a row to subpartition 3: they are 0 to 2"),
        (np.array([2, -1]), "sent a row to subpartition -1: they are 0 to 2"),
        (np.array([0], np.uint8), "gave 1 ids for 2 rows"),
    ],
)
def test_ids_that_are_none_are_refused_before_anything_is_taken(ids: Any, said: str) -> None:
    target = Target()
    writer = writer_to(target, selector=Given())
    with pytest.raises(UsageError, match=said):
        writer.emit_batch(["a", "b"], ids)
    writer.emit_batch(["c"], np.array([2]))  # signed ones that fit are taken
    writer.emit_batch([], np.array([], np.uint8))
    writer.finish()
    assert target.objects(2) == ["c"]
    assert len(target.sent) == 1


def emit(writer: RecordWriter, record: Any, key: int) -> None:
    writer.emit_batch([record], [key])


def packed(pairs: Pairs) -> bytearray:
    return pack_content(len(pairs), pairs.content)


def pack_columns(keys: list[Any], values: list[Any]) -> bytearray:
    return packed(Pairs(keys, values))


# Where records go


def test_a_selector_for_another_number_of_subpartitions_is_refused() -> None:
    with pytest.raises(UsageError, match="selector has 4 subpartitions, its target 3"):
        writer_to(Target(3), selector=ByRemainder(4))


def test_records_of_a_batch_go_where_their_keys_say() -> None:
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


def test_what_a_selecting_writer_broadcasts_stays_in_order_with_the_rest() -> None:
    target = Target()
    writer = writer_to(target)
    emit(writer, "first", 1)
    writer.broadcast_emit("to all")
    emit(writer, "last", 1)
    writer.finish()
    assert [target.objects(s) for s in range(3)] == [["to all"], ["first", "to all", "last"], ["to all"]]
    assert target.frames("all") == []


def test_a_broadcast_selector_has_everything_stored_once() -> None:
    target = Target()
    writer = writer_to(target, selector=ToAll())
    writer.emit_batch(["a", "b"], None)
    writer.broadcast_emit("c")
    writer.finish()
    assert (target.objects("all"), target.objects(0)) == (["a", "b", "c"], [])


def test_a_call_that_is_refused_as_it_stands_loses_nothing() -> None:
    target = Target()
    writer = writer_to(target)
    emit(writer, "kept", 0)
    with pytest.raises(UsageError, match="gave 1 ids for 2 rows"):
        writer.emit_batch(["x", "y"], [1])
    with pytest.raises(UsageError, match="the columns have 1, 2 records"):
        writer.emit_columns((["x"], ["y", "z"]), [1])
    with pytest.raises(ValueError, match="no number"):
        writer.emit_batch(["x"], ["no number"])
    writer.finish()
    assert [target.objects(s) for s in range(3)] == [["kept"], [], []]


def test_an_event_goes_behind_all_that_was_sent_before() -> None:
    target = Target()
    writer = writer_to(target)
    writer.emit_batch(range(10), range(10))
    writer.broadcast_event(SUPERSTEP)
    emit(writer, "later", 0)
    writer.finish()
    place = target.sent.index(("event", b""))
    before = [each for _, frame in target.sent[:place] for each in unpack_chunk(memoryview(frame))]
    assert sorted(before) == list(range(10))
    assert unpack_chunk(memoryview(target.sent[-1][1])) == ["later"]


# Columns


@given(st.lists(st.tuples(st.integers(0, 99), st.binary(max_size=300))), st.integers(1, 50))
def test_pairs_arrive_where_their_keys_say_in_order(pairs: list[tuple[int, bytes]], size: int) -> None:
    target, metrics = Target(7), TaskMetrics()
    writer = RecordWriter(ByRemainder(7), pack_columns, target, metrics, memory=16 * KIB)
    for start in range(0, len(pairs), size):
        part = pairs[start : start + size]
        keys = [key for key, _ in part]
        writer.emit_columns((keys, [value for _, value in part]), keys)
    writer.finish()

    wanted: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for pair in pairs:
        wanted[pair[0] % 7].append(pair)
    assert [target.objects(s) for s in range(7)] == [wanted[s] for s in range(7)]
    assert metrics.counts["records_out"] == len(pairs)
    assert metrics.counts["frames_out"] == len(target.sent)
    assert metrics.counts["bytes_out"] == sum(len(frame) for _, frame in target.sent)


def test_a_frame_holds_records_of_one_serializer_and_order_stays() -> None:
    def pack_combined(keys: list[Any], combiners: list[Any]) -> bytearray:
        return packed(Pairs(keys, combiners, combined=True))

    target = Target(1)
    writer = RecordWriter(ByRemainder(1), pack_columns, target, TaskMetrics())
    writer.emit_columns(([1, 2], ["a", "b"]), [1, 2])
    writer.emit_columns(([3], [{4}]), [3], pack_combined)
    writer.emit_columns(([5], ["c"]), [5])
    writer.finish()
    chunks = [(chunk.combined, list(chunk)) for chunk in target.chunks(0) if isinstance(chunk, Pairs)]
    assert target.objects(0) == [(1, "a"), (2, "b"), (3, {4}), (5, "c")]
    assert [pairs for combined, pairs in chunks if combined] == [[(3, {4})]]


# Chunks


def test_records_are_pickled_together_in_chunks_of_about_the_same_size() -> None:
    target = Target(1)
    writer = writer_to(target)
    objects = [(number, f"{number:0100}") for number in range(20_000)]
    for start in range(0, len(objects), 1000):
        writer.emit_batch(objects[start : start + 1000], [0] * 1000)
    writer.finish()
    sizes = list(map(len, target.frames(0)))
    assert target.objects(0) == objects
    assert len(sizes) < 60
    assert max(sizes) < 1.1 * CHUNK_BYTES


def test_a_chunk_of_small_records_is_bounded_by_their_number() -> None:
    target = Target(1)
    writer = writer_to(target, memory=64 * MIB)
    for _ in range(100):
        writer.emit_batch([True] * 4096, [0] * 4096)
    writer.finish()
    assert max(map(len, target.chunks(0))) == MOST_OBJECTS


def test_what_gets_large_is_not_held() -> None:
    """A chunk of large values, behind many small ones, is not as many values."""
    target = Target(1)
    writer = RecordWriter(ByRemainder(1), pack_columns, target, TaskMetrics(), MIB)
    writer.emit_columns(([1] * 20_000, [b""] * 20_000), [1] * 20_000)
    for _ in range(20):  # the first of each batch stay small
        values = [b"", *(bytes(20_000 + n) for n in range(127))]
        writer.emit_columns(([1] * 128, values), [1] * 128)
    writer.finish()
    assert len(target.objects(0)) == 20_000 + 20 * 128
    large = [chunk for chunk in target.chunks(0) if isinstance(chunk, Pairs) and len(chunk.values[-1]) > 100]
    assert max(map(len, large)) <= 32


def test_what_a_broadcast_selector_holds_is_bounded_and_has_the_serializer_of_its_batch() -> None:
    target = Target(3)
    writer = RecordWriter(ToAll(), pack_chunk, target, TaskMetrics(), 64 * KIB)
    for number in range(100):
        writer.emit_columns(([number] * 100, ["value"] * 100), None, pack_columns)
    assert writer.records > 5000
    writer.finish()
    assert target.objects("all") == [(number, "value") for number in range(100) for _ in range(100)]


def test_ids_of_single_records_take_little() -> None:
    writer = writer_to(Target(1))
    for _ in range(20_000):
        emit(writer, None, 0)
    assert len(writer._unicast._ids) <= MOST_PIECES


def test_what_is_abandoned_is_held_no_longer() -> None:
    class Record:
        pass

    target = Target(1)
    writer = RecordWriter(ByRemainder(1), lambda records: b"frame", target, TaskMetrics())
    records = [Record() for _ in range(10)]
    ends = [weakref.ref(record) for record in records]
    writer.emit_batch(records, [0] * 10)
    writer.emit_batch(records, [0] * 10)
    writer.abandon()
    del records
    assert [end() for end in ends] == [None] * 10


def test_chunks_follow_the_size_of_the_records() -> None:
    target = Target(1)
    writer = writer_to(target)
    small = [b"%010d" % number for number in range(20_000)]
    large = [bytes([number]) * 30_000 for number in range(200)]
    for record in (*small, *large, *small):
        emit(writer, record, 0)
    writer.finish()
    assert target.objects(0) == [*small, *large, *small]
    too_large = [len(frame) for frame in target.frames(0) if len(frame) > 3 * CHUNK_BYTES]
    assert len(too_large) <= 1, "only where the change came as a surprise"
    assert max(map(len, target.frames(0))) < 1.1 * PROBE_EVERY * 30_000


def test_what_is_held_is_bounded_however_many_subpartitions_there_are() -> None:
    target = Target(1000)
    memory = 256 * KIB
    writer = writer_to(target, memory=memory)
    most = 0
    for number in range(20_000):
        emit(writer, b"%020d" % number, number * 7 % 1000)
        most = max(most, number + 1 - writer.records)
    pickled = len(b"x" * 20) + 4  # about, of each
    assert 100 < most * pickled * HEAP_BYTES_PER_PICKLED / (memory / 1000) < 1300
    writer.finish()
    assert sum(len(target.objects(s)) for s in range(1000)) == 20_000


def test_records_that_become_large_all_at_once_are_noticed_before_many_are_held() -> None:
    target = Target(1000)
    writer = writer_to(target)
    for number in range(50_000):
        emit(writer, number, number % 1000)
    for number in range(2000):
        emit(writer, bytes(100_000) + b"%d" % number, number % 1000)
        if number >= PROBE_EVERY:
            assert 50_001 + number - writer.records < PROBE_EVERY
    writer.finish()
    assert writer.records == 52_000


@pytest.mark.parametrize("size", [1, 5, 128, 1000])
def test_one_record_in_so_many_is_pickled_alone_however_they_come(size: int) -> None:
    alone: list[int] = []

    def counting(objects: list[Any]) -> bytearray:
        if len(objects) == 1:
            alone.append(objects[0])
        return pack_chunk(objects)

    writer = RecordWriter(ByRemainder(1), counting, Target(1), TaskMetrics())
    for start in range(0, 10_000, size):
        batch = list(range(start, min(10_000, start + size)))
        writer.emit_batch(batch, [0] * len(batch))
    first_chunk = 1
    assert len(alone) == 10_000 // PROBE_EVERY + first_chunk


def test_records_that_share_what_they_hold_are_no_surprise() -> None:
    target = Target(1)
    writer = writer_to(target)
    shared = "what all of them hold" * 50
    for number in range(20_000):
        emit(writer, (number, shared), 0)
    writer.finish()
    assert len(target.frames(0)) < 30


def test_a_record_larger_than_all_bounds_is_a_chunk_of_its_own() -> None:
    target = Target(1)
    writer = writer_to(target, memory=64 * KIB)
    for record in (b"a", bytes(1 << 20), b"b"):
        emit(writer, record, 0)
    writer.finish()
    assert target.objects(0) == [b"a", bytes(1 << 20), b"b"]


# Through a result partition


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.text(max_size=20)), max_size=50), max_size=6),
    st.sampled_from([1, 4, 60]),
)
def test_any_records_come_back_through_a_result_partition(
    tmp_path: Path, batches: list[list[tuple[int, str]]], segments: int
) -> None:
    output = new_frame_output(tmp_path, kind=PICKLE, subpartitions=4, segments=segments, buffer_size=64)
    metrics = TaskMetrics()
    try:
        with output.partition as partition:
            with RecordWriter(ByRemainder(4), pack_chunk, partition, metrics) as writer:
                for batch in batches:
                    writer.emit_batch(batch, [key for key, _ in batch])
                writer.finish()
            partition.finish(WRITER)
        wanted: list[list[Any]] = [[] for _ in range(4)]
        for record in (each for batch in batches for each in batch):
            wanted[record[0] % 4].append(record)
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
        with RecordWriter(ToAll(10), pack_chunk, partition, TaskMetrics()) as writer:
            writer.emit_batch(objects, None)
            writer.finish()
        partition.finish(WRITER)
    assert output.records() == [objects] * 10
    assert read_index(output.file).kinds == (RegionKind.BROADCAST,)


# Calls in their order


@pytest.mark.parametrize(
    ("state", "failure"),
    [("finished", None), ("abandoned", None), ("failed", OSError("full")), ("failed", KeyboardInterrupt())],
    ids=["finished", "abandoned", "failed", "interrupted"],
)
def test_a_call_after_the_end_is_a_state_error(state: str, failure: BaseException | None) -> None:
    target = Target()
    writer = writer_to(target)
    if failure:
        target.failure = failure
        with pytest.raises(type(failure)):
            emit(writer, "x", 0)
    else:
        getattr(writer, {"finished": "finish", "abandoned": "abandon"}[state])()
    for call in (
        lambda: emit(writer, "x", 0),
        lambda: writer.emit_batch(["x"], [0]),
        lambda: writer.broadcast_emit("x"),
        lambda: writer.broadcast_event(SUPERSTEP),
        writer.finish,
    ):
        with pytest.raises(StateError, match=f"the record writer is {state}"):
            call()
    writer.abandon()


def test_a_record_that_cannot_be_pickled_fails_the_writer() -> None:
    writer = writer_to(Target())
    with pytest.raises((AttributeError, TypeError)), writer:
        emit(writer, lambda: None, 0)
        writer.finish()
    with pytest.raises(StateError, match="is abandoned"):
        emit(writer, 1, 0)


def test_leaving_without_finish_sends_nothing_more() -> None:
    target = Target()
    with writer_to(target) as writer:
        emit(writer, "first", 0)
        emit(writer, "second", 0)
    assert target.objects(0) == ["first"], "records are held from the second on"


def test_records_frames_and_bytes_are_counted() -> None:
    target, metrics = Target(), TaskMetrics()
    writer = RecordWriter(ByRemainder(), pack_chunk, target, metrics)
    writer.emit_batch(list(range(100)), list(range(100)))
    writer.broadcast_emit("all")
    writer.finish()
    assert metrics.counts == {
        "records_out": 103,
        "frames_out": len(target.sent),
        "bytes_out": sum(len(frame) for _, frame in target.sent),
    }
