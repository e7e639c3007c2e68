"""`RecordWriter`: what a task's function writes its records to, one record or one batch at a time.

No job makes one: RDDs have a collector of their own for pairs (`spark.rdds.collecting`), which takes from
here what it writes to, a `FrameTarget` (a `SortMergeResultPartition`), and what places keys, a `KeySelector`.

    record --selector: one id for each key of a batch--> collector of frames --> target

* `ChannelSelectorRecordWriter`: every record goes where its key says.
* `BroadcastRecordWriter`: every record goes everywhere, and is stored once.
* `record_writer` picks by the selector. `RecordWriters` is all of a task's: none, one or many.

How records become frames: an opaque frame is one record, written as it comes. Objects are collected for each
subpartition and pickled together (`ObjectCollector`): a record costs its selection and an append.

Rules
* `finish()` or `abandon()`, nothing between; as a context manager, leaving without `finish()` abandons. The
  target is its owner's to finish.
* Records keep their order within a subpartition; what a `BroadcastRecordWriter` sends to all keeps its order
  among itself.
* An object is pickled later than it is sent: who changes it afterwards may change what arrives.
* A failure of the flusher's thread is raised by the next call, and by every other.
* With a policy of every so many seconds the target, and all that it counts in (budget, metrics), is used by
  two threads in turn: it must be this writer's alone.

Locks: one, around every call; the flusher's thread takes it too. The target is called under it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from types import TracebackType
from typing import Any, ClassVar, Protocol

from sortshuffle.errors import StateError, UsageError
from sortshuffle.format.header import PayloadKind
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB
from sortshuffle.partitioner.selector import Ids
from sortshuffle.payload.events import Event
from sortshuffle.payload.pickled import pack_chunk
from sortshuffle.write.flusher import NEVER, FlushPolicy, OutputFlusher
from sortshuffle.write.pickled_sizes import (
    CHUNK_BYTES,
    COLLECTED_BYTES,
    HEAP_BYTES_PER_PICKLED,
    PickledSizes,
)

LEAST_CHUNK_BYTES = KIB


class FrameTarget(Protocol):
    """Takes frames that know their subpartition."""

    @property
    def subpartitions(self) -> int: ...

    def emit(self, frame: Any, subpartition: int) -> None:
        """Send a frame to a subpartition."""

    def broadcast_frame(self, frame: Any) -> None:
        """Send a frame to every subpartition, once."""

    def broadcast_event(self, event: Event) -> None:
        """Send an event to every subpartition, behind what was sent before."""

    def flush(self) -> None:
        """Let consumers have what was sent so far, if they can have it before the end."""


class KeySelector(Protocol):
    """Decides by a batch of keys where records go: a `partitioner.ChannelSelector`, whose keys are the rows
    of an Arrow batch, or one for Python objects."""

    is_broadcast: ClassVar[bool]

    @property
    def subpartitions(self) -> int: ...

    def assign(self, keys: Any) -> Ids:
        """One id per key, shape ``(len(keys),)``, each less than ``subpartitions``."""


class Collector(Protocol):
    """Makes frames of records. ``records``, ``frames``, ``bytes``: what went to the target so far."""

    records: int
    frames: int
    bytes: int

    def add(self, record: Any, subpartition: int) -> None: ...

    def add_batch(self, records: Sequence[Any], subpartitions: list[int]) -> None: ...

    def add_to_all(self, record: Any) -> None:
        """To every subpartition, in order with what goes to that one only."""

    def broadcast(self, record: Any) -> None:
        """To every subpartition, stored once."""

    def flush(self) -> None:
        """Send what is collected to the target."""


class FrameCollector:
    """Opaque frames: each goes to the target as it comes, which copies it."""

    def __init__(self, target: FrameTarget) -> None:
        self.records = 0
        self.frames = 0
        self.bytes = 0
        self._target = target

    def add(self, record: Any, subpartition: int) -> None:
        self._target.emit(record, subpartition)
        self._count(record, 1)

    def add_batch(self, records: Sequence[Any], subpartitions: list[int]) -> None:
        for record, subpartition in zip(records, subpartitions, strict=True):
            self.add(record, subpartition)

    def add_to_all(self, record: Any) -> None:
        for subpartition in range(self._target.subpartitions):
            self._target.emit(record, subpartition)
        self._count(record, self._target.subpartitions)

    def broadcast(self, record: Any) -> None:
        self._target.broadcast_frame(record)
        self._count(record, 1)

    def flush(self) -> None:
        pass

    def _count(self, record: Any, times: int) -> None:
        self.records += times
        self.frames += times
        self.bytes += times * memoryview(record).nbytes


class ObjectCollector:
    """Objects: collected for each subpartition, and pickled together when they are about `CHUNK_BYTES`.

    ``memory``: bytes that may be collected, as far as that can be told (`PickledSizes`). Where it is
    exceeded, all chunks are closed as they are. ``pack``: makes the frame of some of them.
    """

    def __init__(
        self,
        target: FrameTarget,
        memory: int = COLLECTED_BYTES,
        pack: Callable[[Sequence[Any]], bytearray] = pack_chunk,
    ) -> None:
        self.records = 0
        self.frames = 0
        self.bytes = 0
        self._target = target
        self._pack = pack
        share = memory // (HEAP_BYTES_PER_PICKLED * target.subpartitions)
        self._sizes = PickledSizes(memory, max(LEAST_CHUNK_BYTES, min(CHUNK_BYTES, share)))
        self._collected: list[list[Any]] = [[] for _ in range(target.subpartitions)]
        self._append = [objects.append for objects in self._collected]
        self._broadcasts: list[Any] = []
        self._held = 0  # objects in all

    def add(self, record: Any, subpartition: int) -> None:
        objects = self._collected[subpartition]
        objects.append(record)
        self._held += 1
        self._probe_some((record,))
        self._send_full(objects, subpartition)

    def add_batch(self, records: Sequence[Any], subpartitions: list[int]) -> None:
        append = self._append
        for record, subpartition in zip(records, subpartitions, strict=True):
            append[subpartition](record)
        self._held += len(records)
        self._probe_some(records)
        for subpartition in set(subpartitions):
            self._send_full(self._collected[subpartition], subpartition)

    def add_to_all(self, record: Any) -> None:
        for subpartition in range(self._target.subpartitions):
            self.add(record, subpartition)

    def broadcast(self, record: Any) -> None:
        self._broadcasts.append(record)
        self._held += 1
        self._probe_some((record,))
        self._send_full(self._broadcasts, None)

    def flush(self) -> None:
        for subpartition, objects in enumerate(self._collected):
            self._send_all(objects, subpartition)
        self._send_all(self._broadcasts, None)

    def _send_full(self, objects: list[Any], subpartition: int | None) -> None:
        """Send what is enough for chunks; then everything, if too much is held. ``subpartition``: None for
        what goes to all."""
        sent = 0
        while len(objects) - sent >= self._sizes.most_in_chunk:  # which changes with each chunk
            chunk = objects[sent : sent + self._sizes.most_in_chunk]
            self._send(chunk, subpartition)
            sent += len(chunk)
        if sent:
            del objects[:sent]
        if self._held > self._sizes.most_held:
            self.flush()

    def _send_all(self, objects: list[Any], subpartition: int | None) -> None:
        if objects:
            self._send(objects, subpartition)
            objects.clear()

    def _send(self, objects: list[Any], subpartition: int | None) -> None:
        chunk = self._pack(objects)
        if subpartition is None:
            self._target.broadcast_frame(chunk)
        else:
            self._target.emit(chunk, subpartition)
        self._held -= len(objects)
        self.records += len(objects)
        self.frames += 1
        self.bytes += len(chunk)
        self._sizes.sent(len(chunk), len(objects))

    def _probe_some(self, records: Sequence[Any]) -> None:
        for place in self._sizes.due(len(records)):
            self._sizes.probed(len(self._pack([records[place]])), self.flush)


class RecordWriter:
    """What all record writers do. ``seed``: of `random_emit`, so that every attempt of a task makes the same
    choices; tasks that differ in it make different ones.

    Counts in ``metrics`` at its end: records_out (one sent to all counts for each subpartition it was sent to
    on its own), frames_out, bytes_out.
    """

    def __init__(
        self,
        target: FrameTarget,
        collector: Collector,
        metrics: TaskMetrics,
        policy: FlushPolicy = NEVER,
        seed: int = 0,
    ) -> None:
        self._target = target
        self._collector = collector
        self._metrics = metrics
        self._policy = policy
        self._random = Random(seed)
        self._lock = threading.Lock()
        self._state = "open"
        self._flusher: OutputFlusher | None = None
        if policy.seconds:
            self._flusher = OutputFlusher(self._flush_from_thread, policy.seconds, self._lock)

    def emit(self, record: Any, subpartition: int) -> None:
        """Send a record to a subpartition."""
        self._check_subpartition(subpartition)
        with self._emitting() as collector:
            collector.add(record, subpartition)

    def random_emit(self, record: Any) -> None:
        """Send a record to any subpartition."""
        self.emit(record, self._random.randrange(self._target.subpartitions))

    def emit_batch(self, records: Sequence[Any], keys: Any) -> None:
        """Send each record where its key says. ``keys``: as many, in the form that the selector takes."""
        raise NotImplementedError

    def broadcast_emit(self, record: Any) -> None:
        """Send a record to every subpartition."""
        raise NotImplementedError

    def broadcast_event(self, event: Event) -> None:
        """Send an event to every subpartition, behind all records sent before."""
        with self._emitting() as collector:
            collector.flush()
            self._target.broadcast_event(event)

    def flush(self) -> None:
        """Give everything collected to the target, and let it go on to the consumers."""
        with self._emitting():
            self._flush()

    def finish(self) -> None:
        """Give everything collected to the target, which has no more to come from here."""
        self._expect_open()
        self._close_flusher()
        with self._emitting() as collector:
            collector.flush()
        self._state = "finished"
        self._metrics.add(
            records_out=collector.records, frames_out=collector.frames, bytes_out=collector.bytes
        )

    def abandon(self) -> None:
        """Drop what is collected. Does nothing after `finish()`."""
        if self._state in ("finished", "abandoned"):
            return
        self._state = "abandoned"
        self._close_flusher()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    @contextmanager
    def _emitting(self) -> Iterator[Collector]:
        """A call: alone, in order, and flushed behind if that is the policy. If it fails there is no way on,
        because what was collected may be lost."""
        with self._lock:
            self._expect_open()
            if self._flusher is not None:
                self._flusher.check()
            try:
                yield self._collector
                if self._policy.is_always:
                    self._flush()
            except BaseException:
                self._state = "failed"
                raise

    def _flush(self) -> None:
        self._collector.flush()
        self._target.flush()

    def _flush_from_thread(self) -> None:
        if self._state == "open":
            self._flush()

    def _close_flusher(self) -> None:
        # without the lock, which a flush in progress holds
        if self._flusher is not None:
            self._flusher.close()

    def _expect_open(self) -> None:
        if self._state != "open":
            raise StateError(f"the record writer is {self._state}, which does not allow this call")

    def _check_subpartition(self, subpartition: int) -> None:
        if not 0 <= subpartition < self._target.subpartitions:
            raise UsageError(
                f"there is no subpartition {subpartition}: they are 0 to {self._target.subpartitions - 1}"
            )


class ChannelSelectorRecordWriter(RecordWriter):
    """Sends each record where a selector says."""

    def __init__(
        self,
        selector: KeySelector,
        target: FrameTarget,
        collector: Collector,
        metrics: TaskMetrics,
        policy: FlushPolicy = NEVER,
        seed: int = 0,
    ) -> None:
        super().__init__(target, collector, metrics, policy, seed)
        self._selector = selector

    def emit_batch(self, records: Sequence[Any], keys: Any) -> None:
        ids = self._selector.assign(keys)
        if len(ids) != len(records):
            raise UsageError(f"there are {len(records)} records and {len(ids)} keys")
        with self._emitting() as collector:
            collector.add_batch(records, ids.tolist())

    def broadcast_emit(self, record: Any) -> None:
        """Send a record to every subpartition, each time in order with its other records. It is stored as
        often: a broadcast region for it would come out of that order."""
        with self._emitting() as collector:
            collector.add_to_all(record)


class BroadcastRecordWriter(RecordWriter):
    """Sends every record to every subpartition, and stores it once."""

    def emit_batch(self, records: Sequence[Any], keys: Any = None) -> None:
        """Send all of them to every subpartition; keys are not looked at."""
        with self._emitting() as collector:
            for record in records:
                collector.broadcast(record)

    def broadcast_emit(self, record: Any) -> None:
        with self._emitting() as collector:
            collector.broadcast(record)


def record_writer(
    target: FrameTarget,
    selector: KeySelector,
    kind: PayloadKind,
    metrics: TaskMetrics,
    policy: FlushPolicy = NEVER,
    seed: int = 0,
) -> RecordWriter:
    """The record writer for this selector. ``kind``: of the target's payload, pickled chunks or frames.

    Raises `UsageError` where selector and target differ in their subpartitions, and for Arrow, whose batches
    go to the result partition itself.
    """
    if selector.subpartitions != target.subpartitions:
        raise UsageError(
            f"the selector has {selector.subpartitions} subpartitions, its target {target.subpartitions}"
        )
    collector = _collector(target, kind)
    if selector.is_broadcast:
        return BroadcastRecordWriter(target, collector, metrics, policy, seed)
    return ChannelSelectorRecordWriter(selector, target, collector, metrics, policy, seed)


def _collector(target: FrameTarget, kind: PayloadKind) -> Collector:
    if kind is PayloadKind.FRAMES:
        return FrameCollector(target)
    if kind is PayloadKind.PICKLE:
        return ObjectCollector(target)
    raise UsageError("Arrow batches need no record writer: write them to the result partition")


class RecordWriters:
    """The record writers of one pass over a task's input: one for each exchange that it feeds, or none.

    Events and the end go to all of them. As a context manager, leaving without `finish()` abandons them.
    """

    def __init__(self, writers: Sequence[RecordWriter]) -> None:
        self._writers = tuple(writers)

    def __len__(self) -> int:
        return len(self._writers)

    def __getitem__(self, output: int) -> RecordWriter:
        return self._writers[output]

    def __iter__(self) -> Iterator[RecordWriter]:
        return iter(self._writers)

    def broadcast_event(self, event: Event) -> None:
        for writer in self._writers:
            writer.broadcast_event(event)

    def flush(self) -> None:
        for writer in self._writers:
            writer.flush()

    def finish(self) -> None:
        """Finish all. If one fails, those after it are not finished: leave the context, or abandon."""
        for writer in self._writers:
            writer.finish()

    def abandon(self) -> None:
        """Abandon all, also if one fails."""
        with ExitStack() as stack:
            for writer in self._writers:
                stack.callback(writer.abandon)

    def __enter__(self) -> RecordWriters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()
