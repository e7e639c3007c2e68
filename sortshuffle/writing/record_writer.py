"""`RecordWriter`: collects a task's Python objects and sends them, pickled together, as frames.

Used by `ShuffleRDD` (`spark.rdds.writing`) and `engine.Output`. The target is a `FrameResultPartition`.

    records, keys --selector: one id per record--> held --full: by subpartition--> frames --> target

A batch is a tuple of columns of equal length: `(records,)`, or `(keys, values)`. With separate columns, the
loops over records run in C, and no tuple outlives its batch: pairs of an int and a short string into 64
subpartitions took 435 ns each as tuples in a list for each subpartition, and 180 ns as columns, on a busy
machine. A `Serializer` makes a frame of a part of each column.

Rules
* A writer ends with `finish()` or `abandon()`; leaving its context without `finish()` abandons it. The owner
  of the target finishes the target.
* Records keep their order within a subpartition. Records that are broadcast and stored once keep their order
  among themselves.
* An object is pickled some time after it is sent: a caller that changes it may change what arrives.
* Single-threaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from sortshuffle.errors import StateError, UsageError
from sortshuffle.metrics import TaskMetrics
from sortshuffle.partitioner.selector import Ids, check_ids, id_dtype
from sortshuffle.payload.events import Event
from sortshuffle.writing.pickled_sizes import COLLECTED_BYTES, PickledSizes

# Number of arrays of ids that are held before they are joined: an array of a single id takes 120 bytes
MOST_PIECES = 256

Serializer: TypeAlias = Callable[..., Any]
"""Makes one frame of records. Called with a list for each column; raises the errors of pickling."""

Columns: TypeAlias = "tuple[Sequence[Any], ...]"
"""Records in columns of equal length, one or more."""


class FrameTarget(Protocol):
    """Receives the frames of a `RecordWriter`."""

    @property
    def subpartitions(self) -> int: ...

    def emit(self, frame: Any, subpartition: int) -> None:
        """Send a frame to a subpartition."""

    def broadcast_frame(self, frame: Any) -> None:
        """Send a frame to every subpartition, storing it once."""

    def broadcast_event(self, event: Event) -> None:
        """Send an event to every subpartition, after everything that was sent before."""


class KeySelector(Protocol):
    """Chooses subpartitions by a batch of keys: a `partitioner.ChannelSelector`, whose keys are the rows of
    an Arrow batch, or a selector for Python objects."""

    is_broadcast: ClassVar[bool]

    @property
    def subpartitions(self) -> int: ...

    def assign(self, keys: Any) -> Ids:
        """Return an unsigned NumPy array of one id per key: shape ``(len(keys),)``, each less than
        ``subpartitions``. The caller keeps the array, so the selector must not change it later."""


class RecordWriter:
    """Sends records where ``selector`` says, or everywhere if it is a broadcast selector.

    ``serializer``: makes the frames. ``memory``: bytes that held records may take, as estimated by
    `PickledSizes`. ``records``, ``bytes``: totals sent to the target so far; a record for all subpartitions
    counts once if it is stored once, else once for each subpartition.

    Each call costs some microseconds, however many records it has, so send large batches. Raises `UsageError`
    if selector and target have different numbers of subpartitions. After `finish()`, `abandon()` or a call
    that failed while it took records, every call raises `StateError`. A call with invalid arguments changes
    nothing. `finish()` adds records_out, frames_out and bytes_out to ``metrics``.
    """

    def __init__(
        self,
        selector: KeySelector,
        serializer: Serializer,
        target: FrameTarget,
        metrics: TaskMetrics,
        memory: int = COLLECTED_BYTES,
    ) -> None:
        if selector.subpartitions != target.subpartitions:
            raise UsageError(
                f"the selector has {selector.subpartitions} subpartitions, its target {target.subpartitions}"
            )
        self._selector = selector
        self._target = target
        self._metrics = metrics
        self._unicast = _HeldRecords(serializer, target.emit, memory)
        self._broadcast = _HeldRecords(serializer, lambda frame, _: target.broadcast_frame(frame), memory)
        self._state = "open"

    @property
    def records(self) -> int:
        return self._unicast.sent_records + self._broadcast.sent_records

    @property
    def bytes(self) -> int:
        return self._unicast.sent_bytes + self._broadcast.sent_bytes

    def emit_batch(self, records: Sequence[Any], keys: Any) -> None:
        """Send each record where its key says. ``keys``: one for each record, in the form that the selector
        takes; a broadcast selector ignores them."""
        self.emit_columns((records,), keys)

    def emit_columns(self, columns: Columns, keys: Any, serializer: Serializer | None = None) -> None:
        """Send records in columns, like `emit_batch`. ``serializer``: for these records; None for the
        writer's. Records of two serializers are never in one frame. Raises `UsageError` for columns or keys
        of different lengths, and for invalid ids."""
        self._expect_open()
        count = len(columns[0])
        if any(len(column) != count for column in columns):
            raise UsageError(f"the columns have {', '.join(str(len(column)) for column in columns)} records")
        if self._selector.is_broadcast:
            with self._guard():
                self._broadcast.add(columns, self._ids([0]).repeat(count), serializer)
            return
        ids = check_ids(self._selector.assign(keys), count, self._selector)
        with self._guard():
            self._unicast.add(columns, ids, serializer)

    def broadcast_emit(self, record: Any) -> None:
        """Send a record to every subpartition; only for a writer of one column. With a broadcast selector the
        record is stored once. Otherwise it is stored for each subpartition: a broadcast region would not keep
        its order with the other records."""
        with self._guard():
            if self._selector.is_broadcast:
                self._broadcast.add(([record],), self._ids([0]))
            else:
                count = self._target.subpartitions
                self._unicast.add(([record] * count,), self._ids(range(count)))

    def broadcast_event(self, event: Event) -> None:
        """Send an event to every subpartition, after all records that were sent before."""
        with self._guard():
            self._send_held()
            self._target.broadcast_event(event)

    def finish(self) -> None:
        """Send everything held to the target, and take no more records."""
        with self._guard():
            self._send_held()
        self._state = "finished"
        self._metrics.add(
            records_out=self.records,
            frames_out=self._unicast.sent_frames + self._broadcast.sent_frames,
            bytes_out=self.bytes,
        )

    def abandon(self) -> None:
        """Drop everything held. Does nothing after `finish()`."""
        if self._state != "finished":
            self._state = "abandoned"
            self._unicast.drop()
            self._broadcast.drop()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Guard a call that changes what is held. If it fails, records may be lost, so only `abandon()` is
        allowed."""
        self._expect_open()
        try:
            yield
        except BaseException:
            self._state = "failed"
            raise

    def _expect_open(self) -> None:
        if self._state != "open":
            raise StateError(f"the record writer is {self._state}, which does not allow this call")

    def _send_held(self) -> None:
        self._unicast.send()
        self._broadcast.send()

    def _ids(self, subpartitions: Sequence[int]) -> Ids:
        return np.array(subpartitions, id_dtype(self._target.subpartitions))


class _HeldRecords:
    """Records and their ids, held until there are enough for frames. ``emit``: called with a frame and its
    subpartition. ``sent_records``, ``sent_frames``, ``sent_bytes``: totals passed to ``emit`` so far.
    """

    def __init__(self, serializer: Serializer, emit: Callable[[Any, int], None], memory: int) -> None:
        self.sent_records = 0
        self.sent_frames = 0
        self.sent_bytes = 0
        self._own_serializer = self._serializer = serializer
        self._emit = emit
        self._sizes = PickledSizes(memory)
        self._ids: list[Ids] = []
        self._columns: list[list[Any]] = []
        self._count = 0

    def add(self, columns: Columns, ids: Ids, serializer: Serializer | None = None) -> None:
        serializer = serializer or self._own_serializer
        if serializer is not self._serializer:
            self.send()
            self._serializer = serializer
        for place in self._sizes.due(len(ids)):
            alone = serializer(*([column[place]] for column in columns))
            self._sizes.probed(len(alone), self.send)
        if not self._count:
            self._columns = [[] for _ in columns]
        for held, column in zip(self._columns, columns, strict=True):
            held.extend(column)
        self._ids.append(ids)
        if len(self._ids) > MOST_PIECES:
            self._ids = [np.concatenate(self._ids)]
        self._count += len(ids)
        if self._count >= self._sizes.most_held:
            self.send()

    def send(self) -> None:
        """Pass everything held to ``emit``, subpartition by subpartition, in chunks."""
        if not self._count:
            return
        ids = np.concatenate(self._ids)
        order = ids.argsort(kind="stable")
        subpartitions, starts = np.unique(ids[order], return_index=True)
        places = order.tolist()
        ends = [*starts[1:].tolist(), len(places)]
        for subpartition, start, end in zip(subpartitions.tolist(), starts.tolist(), ends, strict=True):
            while start < end:
                stop = min(end, start + self._sizes.most_in_chunk)  # the limit changes with each chunk
                self._send_chunk(subpartition, places[start:stop])
                start = stop
        self.drop()

    def drop(self) -> None:
        self._ids, self._columns, self._count = [], [], 0

    def _send_chunk(self, subpartition: int, places: list[int]) -> None:
        frame = self._serializer(*(list(map(column.__getitem__, places)) for column in self._columns))
        self._emit(frame, subpartition)
        self.sent_records += len(places)
        self.sent_frames += 1
        self.sent_bytes += len(frame)
        self._sizes.sent(len(frame), len(places))
