"""`RecordWriter`: what a task writes its records to, a batch at a time.

    records, keys --selector: one id per record--> held --full: by subpartition--> frames --> target

Used by `ShuffleRDD` (`spark.rdds.writing`) and `engine.Output`. The target is a `FrameResultPartition`.

A batch is a tuple of columns of equal length: `(records,)`, or `(keys, values)`. Columns stand apart because
the loops over records are then Python's own, in C, and no tuple lives longer than the batch it came in: pairs
of an int and a short string into 64 subpartitions took 435 ns each as tuples in a list for each subpartition,
and 180 so, on a busy machine. A `Serializer` makes a frame of a part of each column.

Rules
* `finish()` or `abandon()`, nothing between; as a context manager, leaving without `finish()` abandons. The
  target is its owner's to finish.
* Records keep their order within a subpartition. What is sent to all and stored once keeps its order among
  itself.
* An object is pickled later than it is sent: who changes it afterwards may change what arrives.
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

# Arrays of ids that are held before they become one: an array of a single id takes 120 bytes
MOST_PIECES = 256

Serializer: TypeAlias = Callable[..., Any]
"""Makes one frame of records: called with a list for each column. Raises what pickling raises."""

Columns: TypeAlias = "tuple[Sequence[Any], ...]"
"""Records in columns of equal length, one or more."""


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


class KeySelector(Protocol):
    """Decides by a batch of keys where records go: a `partitioner.ChannelSelector`, whose keys are the rows
    of an Arrow batch, or one for Python objects."""

    is_broadcast: ClassVar[bool]

    @property
    def subpartitions(self) -> int: ...

    def assign(self, keys: Any) -> Ids:
        """An unsigned NumPy array, one id per key: shape ``(len(keys),)``, each less than
        ``subpartitions``. It is held: the selector does not change it afterwards."""


class RecordWriter:
    """Sends records where ``selector`` says, or everywhere if it is a broadcast selector.

    ``serializer``: makes the frames. ``memory``: bytes that records may take while they are held, as far as
    that can be told (`PickledSizes`). ``records``, ``bytes``: what went to the target so far; a record sent
    to all counts once if it is stored once, else for each subpartition.

    Each call costs some microseconds, however many records it has: batches are the way. Raises `UsageError`
    where selector and target differ in their subpartitions. After `finish()`, `abandon()` or a call that
    failed while it took records, every call is a `StateError`; what is refused as it stands changes nothing.
    At its end it counts in ``metrics``: records_out, frames_out, bytes_out.
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
        """Send each record where its key says. ``keys``: as many, in the form that the selector takes; a
        broadcast selector does not look at them."""
        self.emit_columns((records,), keys)

    def emit_columns(self, columns: Columns, keys: Any, serializer: Serializer | None = None) -> None:
        """The same for records in columns. ``serializer``: of these; None for the writer's own. Records of
        two serializers are never in one frame. Raises `UsageError` for columns or keys of other lengths, and
        for ids that are none."""
        self._expect_open()
        count = len(columns[0])
        if any(len(column) != count for column in columns):
            raise UsageError(f"the columns have {', '.join(str(len(each)) for each in columns)} records")
        if self._selector.is_broadcast:
            with self._calling():
                self._broadcast.add(columns, self._ids([0]).repeat(count), serializer)
            return
        ids = check_ids(self._selector.assign(keys), count, self._selector)
        with self._calling():
            self._unicast.add(columns, ids, serializer)

    def broadcast_emit(self, record: Any) -> None:
        """Send a record to every subpartition, of a writer of one column. A broadcast selector's is stored
        once. Of another selector it is stored for each, in order with the other records: a broadcast region
        would come out of that order."""
        with self._calling():
            if self._selector.is_broadcast:
                self._broadcast.add(([record],), self._ids([0]))
            else:
                count = self._target.subpartitions
                self._unicast.add(([record] * count,), self._ids(range(count)))

    def broadcast_event(self, event: Event) -> None:
        """Send an event to every subpartition, behind all records sent before."""
        with self._calling():
            self._send_held()
            self._target.broadcast_event(event)

    def finish(self) -> None:
        """Give everything held to the target, which has no more to come from here."""
        with self._calling():
            self._send_held()
        self._state = "finished"
        self._metrics.add(
            records_out=self.records,
            frames_out=self._unicast.sent_frames + self._broadcast.sent_frames,
            bytes_out=self.bytes,
        )

    def abandon(self) -> None:
        """Drop what is held. Does nothing after `finish()`."""
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
    def _calling(self) -> Iterator[None]:
        """A call that changes what is held. If it fails, only `abandon()` is left: records may be lost."""
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
    """Records with their ids, held until they are enough for frames. ``emit``: takes a frame and its
    subpartition.

    ``sent_records``, ``sent_frames``, ``sent_bytes``: what ``emit`` was given so far.
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
            held += column
        self._ids.append(ids)
        if len(self._ids) > MOST_PIECES:
            self._ids = [np.concatenate(self._ids)]
        self._count += len(ids)
        if self._count >= self._sizes.most_held:
            self.send()

    def send(self) -> None:
        """Give all of it to ``emit``: subpartition by subpartition, in chunks."""
        if not self._count:
            return
        ids = np.concatenate(self._ids)
        order = ids.argsort(kind="stable")
        subpartitions, starts = np.unique(ids[order], return_index=True)
        places = order.tolist()
        ends = [*starts[1:].tolist(), len(places)]
        for subpartition, start, end in zip(subpartitions.tolist(), starts.tolist(), ends, strict=True):
            while start < end:
                stop = min(end, start + self._sizes.most_in_chunk)  # which changes with each chunk
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
