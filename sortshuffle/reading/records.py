"""`RecordGate`: all the channels of one consumer task, where records are opaque frames or pickled chunks.

Used by `ShuffleRDD` and `engine.Input`, as `InputGate` is for rows. The order is the same: (map index,
region, position), whatever threads and memory there are.

    every channel: frames and events .. END_OF_DATA, END_OF_PARTITION, nothing

Rules
* A stream that ends in another way, or has no extents, is a `CorruptDataError`: its producer did not finish
  it, or some of its extents are missing from the channel.
* Frames are handed over: as a view of the memory that was read, or in memory of their own if a frame was cut.
  User code may keep them. Only frames that are read ahead are charged to the budget.
* A cut frame larger than `payload.spanning.SPILL_BYTES` is assembled in a nameless temporary file; where
  files are encrypted, in memory that no budget counts. Both are freed with the last view, or with the
  process.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from operator import attrgetter
from typing import Any

from sortshuffle import calls
from sortshuffle.errors import CorruptDataError, OutOfDiskError, Place
from sortshuffle.format.malformed import Malformed
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.events import END_OF_DATA, END_OF_PARTITION, Event
from sortshuffle.payload.frames import FrameDecoding, FramesPayload
from sortshuffle.reading.channel import InputChannel
from sortshuffle.reading.fetcher import Fetcher, Items

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_MEMORY = (errno.ENOSPC, errno.ENOMEM)  # of a file without a disk


@dataclass(frozen=True, slots=True)
class BufferOrEvent:
    """The content of one buffer: the chunks of records that end in it, or an event and no chunks.

    ``map_index``: of its channel. ``chunks``: lists of objects, or `Pairs`, as they were written together; of
    opaque frames a tuple with one frame each. They can be taken once. Each is decoded when it is taken, so
    that large ones need not be in memory together.
    """

    map_index: int
    chunks: Iterator[Any]
    event: Event | None = None


def chunks_of(buffers: Iterable[BufferOrEvent]) -> Iterator[Any]:
    """The chunks of all buffers. A chunk is not held here when the next is taken."""
    return chain.from_iterable(map(attrgetter("chunks"), buffers))


class RecordGate:
    """Reads the channels of one subpartition. ``threads``: for reading ahead. ``spill_directory``: large
    frames are assembled there; None for the system's temporary directory. ``off_disk``: they are assembled in
    memory instead, because files on disk must be encrypted."""

    def __init__(
        self,
        channels: Sequence[InputChannel],
        payload: FramesPayload,
        budget: MemoryBudget,
        threads: int,
        metrics: TaskMetrics,
        spill_directory: str | None = None,
        off_disk: bool = False,
    ) -> None:
        self._channels = sorted(channels, key=lambda channel: channel.map_index)
        self._payload = payload
        self._metrics = metrics
        decoding = FrameDecoding(payload, spills(spill_directory, off_disk))
        self._fetcher = Fetcher(decoding, budget, threads, metrics)

    def buffers(self) -> Generator[BufferOrEvent, None, None]:
        """Everything in every channel, including the events at the ends. Taking pickled chunks **runs the
        code that the pickles name**.

        Raises `DataLossError` with the place, also for a stream that does not end as it must;
        `OutOfDiskError` if there is no disk space for a large frame, MemoryError if there is no memory for
        it. Taking a chunk raises `CorruptDataError`, and errors of unpickling. Closing the generator lets go
        of everything.
        """
        with closing(self._items()) as items:
            for channel, item in items:
                if isinstance(item, list):
                    chunks = map(self._records, item, repeat(channel))
                    yield BufferOrEvent(channel.map_index, chunks)
                else:
                    yield BufferOrEvent(channel.map_index, iter(()), item)

    def records(self) -> Generator[Any, None, None]:
        """Every record of `buffers`; events are passed over."""
        with closing(self.buffers()) as buffers:
            yield from chain.from_iterable(chunks_of(buffers))

    def _records(self, chunk: memoryview, channel: InputChannel) -> Any:
        try:
            with self._metrics.step("decode"):
                return self._payload.records(chunk)
        except Malformed as problem:
            # by now it is not known from which of the channel's extents it came
            subpartition = channel.extents[0].subpartition
            place = Place(channel.path, subpartition=subpartition, writer=channel.writer)
            raise CorruptDataError(
                place, problem.what, expected=problem.expected, found=problem.found
            ) from None

    def _items(self) -> Items:
        """Of each buffer its frames, or its event. Checks how streams end."""
        for channel in self._channels:
            if not channel.extents:
                raise _Stream(channel).broken("the stream has no end: there are no extents")
        stream: _Stream | None = None
        with closing(self._fetcher.items(self._channels)) as items:
            for channel, item in items:
                if stream is None or stream.channel is not channel:
                    if stream is not None:
                        stream.finish()
                    stream = _Stream(channel)
                if item == []:
                    continue  # the buffer lies within a long frame
                if isinstance(item, list):
                    stream.check_data()
                else:
                    stream.check_event(item)
                yield channel, item
        if stream is not None:
            stream.finish()


class _Stream:
    """The state of one channel's stream: data, END_OF_DATA, END_OF_PARTITION."""

    def __init__(self, channel: InputChannel) -> None:
        self.channel = channel
        self._ends: list[Event] = []

    def check_data(self) -> None:
        if self._ends:
            raise self.broken("there is data behind its end")

    def check_event(self, event: Event) -> None:
        if self._ends and (event != END_OF_PARTITION or self._ends != [END_OF_DATA]):
            raise self.broken("there is an event behind its end", found=event)
        if event in (END_OF_DATA, END_OF_PARTITION):
            self._ends.append(event)

    def finish(self) -> None:
        """The stream ends here."""
        if self._ends != [END_OF_DATA, END_OF_PARTITION]:
            raise self.broken(
                "the stream does not end as a complete one",
                "END_OF_DATA, END_OF_PARTITION",
                ", ".join(event.data_type.name for event in self._ends) or "neither",
            )

    def broken(self, what: str, expected: object = None, found: object = None) -> CorruptDataError:
        """An error at the last extent, where the end should be."""
        channel = self.channel
        last = channel.extents[-1] if channel.extents else None
        place = Place(
            channel.path,
            last.region if last else None,
            last.subpartition if last else None,
            last.offset if last else None,
            channel.writer,
        )
        return CorruptDataError(place, what, expected=expected, found=found)


def spills(directory: str | None, off_disk: bool) -> Callable[[], RecordSpill]:
    """Makes the places where large records are assembled: files in ``directory``, or memory."""
    return MemorySpill if off_disk else partial(RecordSpill, directory)


class RecordSpill:
    """A nameless temporary file, in which one large record is assembled. A `payload.spanning.Spill`."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory or tempfile.gettempdir()
        with _room_in(self._directory, 0):
            self._file = calls.nameless_file(self._directory)

    def write(self, data: memoryview) -> None:
        """Append all of it. Raises `OutOfDiskError`."""
        with _room_in(self._directory, len(data)):
            self._append(data)

    def view(self) -> memoryview:
        """All of it, mapped: memory of the page cache, not of this process."""
        return memoryview(calls.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))

    def close(self) -> None:
        """A view stays readable."""
        self._file.close()

    def _append(self, data: memoryview) -> None:
        while data:
            data = data[calls.write(self._file.fileno(), data) :]


class MemorySpill(RecordSpill):
    """The same in memory, which grows with the record, and which no budget counts."""

    def __init__(self) -> None:
        self._file = io.FileIO(calls.memfd_create("sortshuffle-record", os.MFD_CLOEXEC), "r+b")

    def write(self, data: memoryview) -> None:
        """Append all of it. Raises MemoryError."""
        wanted = len(data)
        try:
            self._append(data)
        except OSError as error:
            if error.errno not in _NO_MEMORY:
                raise
            raise MemoryError(f"the system gives no {wanted} bytes for a large record: {error}") from error


@contextmanager
def _room_in(directory: str, wanted: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        space = calls.statvfs(directory)
        raise OutOfDiskError(directory, wanted, space.f_bavail * space.f_frsize) from error
