"""`RecordGate`: delivers the records (opaque frames or pickled chunks) of all the channels of one task.

Used by `ShuffleRDD` and `engine.Input`, as `InputGate` is for rows. The order is (map index, region,
position), whatever the number of threads and the memory.

The stream of every channel is frames and events, then END_OF_DATA, then END_OF_PARTITION, and no more.

Rules
* A stream that ends in another way, or has no extents, is a `CorruptDataError`: its producer did not finish
  it, or some of its extents are missing from the channel.
* Frames are handed over, as views of the memory that was read, or in separate memory if a frame was cut. User
  code may keep them. Only frames that are read ahead are charged to the budget.
* A cut frame larger than `payload.spanning.SPILL_BYTES` is assembled in a nameless temporary file; if files
  are encrypted, in memory that no budget counts. Either is freed with the last view, or with the process.
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
_NO_MEMORY = (errno.ENOSPC, errno.ENOMEM)  # when writing to a file in memory


@dataclass(frozen=True, slots=True)
class BufferOrEvent:
    """The content of one buffer: the chunks of records that end in it, or an event and no chunks.

    ``map_index``: of the buffer's channel. ``chunks``: objects that were written together, as lists or
    `Pairs`; an opaque frame is a tuple of that frame. Chunks can be taken once. Each is decoded when it is
    taken, so that large chunks need not be in memory together.
    """

    map_index: int
    chunks: Iterator[Any]
    event: Event | None = None


def chunks_of(buffers: Iterable[BufferOrEvent]) -> Iterator[Any]:
    """Yield the chunks of all buffers. Keeps no reference to a chunk when the next is taken."""
    return chain.from_iterable(map(attrgetter("chunks"), buffers))


class RecordGate:
    """Reads the channels of one subpartition. ``threads``: the number of threads that read ahead.
    ``spill_directory``: where large frames are assembled; None for the system's temporary directory.
    ``off_disk``: assemble large frames in memory instead, because files on disk must be encrypted."""

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
        """Yield everything in every channel, including the events at the end. Taking pickled chunks **runs
        the code that the pickles name**.

        Raises `DataLossError` with the place, also for a stream that does not end as it must;
        `OutOfDiskError` if there is no disk space for a large frame, MemoryError if there is no memory for
        it. Taking a chunk raises `CorruptDataError`, and errors of unpickling. Closing the generator releases
        everything.
        """
        with closing(self._items()) as items:
            for channel, item in items:
                if isinstance(item, list):
                    chunks = map(self._records, item, repeat(channel))
                    yield BufferOrEvent(channel.map_index, chunks)
                else:
                    yield BufferOrEvent(channel.map_index, iter(()), item)

    def records(self) -> Generator[Any, None, None]:
        """Yield every record of `buffers`, and skip events."""
        with closing(self.buffers()) as buffers:
            yield from chain.from_iterable(chunks_of(buffers))

    def _records(self, chunk: memoryview, channel: InputChannel) -> Any:
        try:
            with self._metrics.step("decode"):
                return self._payload.records(chunk)
        except Malformed as problem:
            # At this point it is unknown which of the channel's extents the chunk came from
            subpartition = channel.extents[0].subpartition
            place = Place(channel.path, subpartition=subpartition, writer=channel.writer)
            raise CorruptDataError(
                place, problem.what, expected=problem.expected, found=problem.found
            ) from None

    def _items(self) -> Items:
        """Yield the frames, or the event, of each buffer. Checks how the streams end."""
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
                    continue  # no frame ends in this buffer
                if isinstance(item, list):
                    stream.check_data()
                else:
                    stream.check_event(item)
                yield channel, item
        if stream is not None:
            stream.finish()


class _Stream:
    """Checks the order of one channel's stream: data, END_OF_DATA, END_OF_PARTITION."""

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
        """Check that the stream is complete."""
        if self._ends != [END_OF_DATA, END_OF_PARTITION]:
            raise self.broken(
                "the stream does not end as a complete one",
                "END_OF_DATA, END_OF_PARTITION",
                ", ".join(event.data_type.name for event in self._ends) or "neither",
            )

    def broken(self, what: str, expected: object = None, found: object = None) -> CorruptDataError:
        """Return an error at the last extent, where the end should be."""
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
    """Return what makes the spills for large records: files in ``directory``, or memory."""
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
        """Return the record, mapped: memory of the page cache, not of this process."""
        return memoryview(calls.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))

    def close(self) -> None:
        """Close the file. Views stay readable."""
        self._file.close()

    def _append(self, data: memoryview) -> None:
        while data:
            data = data[calls.write(self._file.fileno(), data) :]


class MemorySpill(RecordSpill):
    """A spill in memory, which grows with the record and is not counted by any budget."""

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
