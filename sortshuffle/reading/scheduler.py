"""`ReadScheduler`: reads one result partition for all of its consumers in this process, in file order.

The door that uses it is the shuffle service: one long-lived process per host, with dozens of consumers of
each map output at the same time. Left to themselves they would read small pieces from all over the file. (A
task knows all that it will read, has a process of its own, and uses `InputGate`.)

    create_reader -> idle --(a reader may have more)--> one run on the shared threads:
                      ^                                   one batch of segments from the pool, all or nothing;
                      |                                   readers in order of their next offset;
                      +-------(nobody may)--------------- neighbours in one positioned read, slices to each

Rules
* At most one run of a partition at a time, one batch per run: the queue of the threads is what makes
  partitions take turns.
* A *pass* serves each reader once, in ascending file order (`Sweep`). A run makes passes until its batch is
  used up, and leaves the rest of a pass to the next run. So offsets go back only between passes.
* What is next in the file for several readers is read with one call, and bytes that several read (a broadcast
  region) once: a segment then belongs to several readers, by reference-counted slices.
* A reader may hold half of what is left of the partition's allowance: `BATCHES_AHEAD` batches, or its fair
  part of the pool if that is less. So while consumers keep up, a turn takes whole extents and a read a whole
  batch; consumers that keep what they have get less and less, and never all of it. (The dynamic thresholds of
  Choudhury and Hahne, 1998, for queues that share the memory of a switch.)
* A reader is never given more than its consumer has credit for.
* When one batch more would go over the allowance, only readers that hold nothing are read for, whatever the
  others keep. So slow consumers, however many, stall nobody as long as the pool has a batch. At most 4
  batches, the run's own, and one segment per reader are out; more only while the pool has plenty.
* A failed read fails the readers whose bytes these are; a failed request for segments, or `close`, fails all
  that have something left to read.
* The files are opened for the first reader and closed when the last has had its last byte, failed or left.
  They are opened under a lock of their own, so that only who opens a view waits for a disk.

Ownership: the run owns its batch and gives back what it did not fill; a delivered slice is its reader's. When
slices come to an end the segment returns to the pool by itself.

Lock order: the opening lock, then the scheduler's, then the pool's. Readers are called, futures completed and
runs submitted under no lock, and none but the opening lock is held while a file is read.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future

from sortshuffle import calls
from sortshuffle.errors import BufferTimeoutError, CorruptDataError, Place
from sortshuffle.format.header import Codec
from sortshuffle.format.index import Index
from sortshuffle.format.malformed import Malformed
from sortshuffle.memory.buffer import Buffer
from sortshuffle.memory.read_buffer_pool import ReadBufferPool
from sortshuffle.memory.segment import MemorySegment
from sortshuffle.reading.segment_batch import SegmentBatch
from sortshuffle.reading.subpartition_reader import ReadPiece, SubpartitionReader
from sortshuffle.reading.sweep import Chunk, PlannedRead, ReadLimits, Sweep
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.ranges import (
    EVERYTHING,
    ExtentCursor,
    RangeExtent,
    RangePart,
    SubpartitionRange,
)
from sortshuffle.storage.files.reader import PartitionedFileReader, read_index

# Batches that the readers of a partition may hold between them: 16 MiB, as in the ancestor. In tools/bench
# readers, 64 readers with extents of 1 MiB are then read with 3.7 MB per call; equal shares gave 0.5 MB
BATCHES_AHEAD = 4
LEAST_SHARE = 1  # segments that each reader may hold whatever the others do
# And this part of what the pool has beyond that for all, up to half a batch: where memory is plenty, many
# readers of large extents are read in large pieces, too. 64 consumers of one map output were read with
# 0.46 MB a call without this, 0.95 MB with a sixteenth, 1.1 to 2 MB with an eighth and the tails
POOL_SHARES = 8
TAIL_SEGMENTS = 2  # that a reader gets then beyond its share if they end the extent: or a small read is left
BUFFER_TIMEOUT = 300.0  # seconds in which nobody got or gave back a segment; the ancestor's
THREADS_PER_CORE = 4  # they wait for disks more than they compute
IOV_MAX = os.sysconf("SC_IOV_MAX")  # pieces that one scattered read takes; 1024 on Linux


def sweep_threads(pool: ReadBufferPool) -> int:
    """How many threads are worth having for all partitions that read into this pool."""
    return max(1, min(pool.max_concurrent_requests, THREADS_PER_CORE * (os.cpu_count() or 1)))


class SweptFile(PartitionedFileReader):
    """A data file, with its index, that is read into segments. What it reads is *not* verified: the consumer
    does that, who has the whole buffers."""

    def __init__(self, file: PartitionedFile, index: Index) -> None:
        super().__init__(file, index.header.file_id, str(index.writer))
        self.index = index

    def read_into(self, views: Sequence[memoryview], offset: int, extent: RangeExtent) -> None:
        """Fill ``views`` from ``offset`` of the file on. ``extent``: what lies there, for errors.

        Raises `CorruptDataError` if the file ends before that or cannot be read; OSError if the system has no
        memory for it, which says nothing of the file.
        """
        left, at = list(views), offset
        while left:
            try:
                got = calls.preadv(self.fileno(), left[:IOV_MAX], at)
            except OSError as error:
                if error.errno == errno.ENOMEM:
                    raise
                problem = f"the data file cannot be read: {error.strerror}"
                raise CorruptDataError(self._place_in(extent, at), problem) from error
            if got == 0:
                end = offset + sum(map(len, views))
                raise CorruptDataError(
                    self._place_in(extent, at), "the data file is cut short", expected=end, found=at
                )
            at += got
            left = _behind(left, got)

    def _place_in(self, extent: RangeExtent, offset: int) -> Place:
        return Place(
            self.file.data_path, extent.region, extent.subpartitions.first, offset, str(self.index.writer)
        )


class ReadScheduler:
    """Reads for the consumers of one result partition. ``file_id``: the id that both files must have.

    ``threads``: shared by all partitions (see `sweep_threads`). ``timeout``: seconds, on ``clock``, which
    must be the pool's own.
    """

    def __init__(
        self,
        file: PartitionedFile,
        file_id: bytes,
        pool: ReadBufferPool,
        threads: Executor,
        *,
        timeout: float = BUFFER_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.file = file
        self.file_id = file_id
        self._pool = pool
        self._threads = threads
        self._timeout = timeout
        self._clock = clock
        self.reads = 0  # so far; one run at a time counts them
        self.bytes_read = 0
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        self._data: SweptFile | None = None  # open while there is something to read
        self._creating = 0  # readers that are being made: the files stay open for them
        self._sweep = Sweep()
        # Segments of earlier runs that are not back in the pool, by identity. A dictionary, because a segment
        # may come back in any thread: its single operations cannot be interrupted
        self._lent: dict[int, None] = {}
        self._running = False
        self._cause: BaseException | None = None
        self._closed: Future[None] = Future()
        self._closed.set_running_or_notify_cancel()  # whoever waits for it cannot cancel it
        self._told = False

    @property
    def is_idle(self) -> bool:
        """Whether no run is on the threads or waiting for one."""
        return not self._running

    @property
    def is_open(self) -> bool:
        """Whether the data file is open."""
        return self._data is not None

    @property
    def passes(self) -> int:
        """Passes begun so far: the offsets of its reads have gone back fewer times than that."""
        return self._sweep.passes

    @property
    def readers(self) -> int:
        """Readers that have something left to read."""
        return len(self._sweep.readers)

    def create_reader(
        self,
        subpartitions: SubpartitionRange,
        on_available: Callable[[SubpartitionReader], None],
        part: RangePart = EVERYTHING,
        credits: int | None = None,
    ) -> SubpartitionReader:
        """A view of (a part of) these subpartitions; reading for it begins at once. The caller releases it.
        ``credits``: segments that its consumer has room for (`SubpartitionReader.grant`), None: any number.

        Raises `MissingDataError` or `CorruptDataError` if the files are not what they must be, `UsageError`
        for what is not there, and after `close` its cause.
        """
        self._begin_creating()
        try:
            data = self._opened()
            cursor = self._cursor(data.index, subpartitions, part)
            compressed = data.index.header.codec is not Codec.NONE
            reader = SubpartitionReader(
                cursor, self._pool.segment_bytes, self, on_available, compressed, credits
            )
            is_empty = cursor.is_at_end
            with self._lock:
                self._expect_open()
                if not is_empty:
                    self._sweep.add(reader)
        finally:
            self._end_creating()
        if is_empty:
            _add(reader, (), complete=True)
        return reader

    def close(self, cause: BaseException) -> Future[None]:
        """Fail all readers with ``cause`` and take no new ones; what was read to its end may still be polled.
        The future is done when the run has let go of the files. May be called again, from any thread."""
        with self._lock:
            if self._cause is None:
                self._cause = cause
        self._fail_all(cause)
        self._go_on()
        return self._closed

    def recycle(self, segment: MemorySegment) -> None:
        """Nobody uses the segment any more. Never blocks."""
        self._lent.pop(id(segment), None)
        self._pool.recycle(segment)

    def memory_returned(self, reader: SubpartitionReader) -> None:
        """Its consumer gave memory back, or has more credit: there may be something to read."""
        self._go_on(reader)

    def leave(self, reader: SubpartitionReader) -> None:
        """The reader takes nothing any more."""
        with self._lock:
            self._sweep.remove(reader)
        self._go_on()

    # Life of the files and of the runs

    def _begin_creating(self) -> None:
        with self._lock:
            self._expect_open()
            self._creating += 1

    def _end_creating(self) -> None:
        with self._lock:
            self._creating -= 1
        self._go_on()

    def _expect_open(self) -> None:
        if self._cause is not None:
            raise self._cause

    def _cursor(self, index: Index, subpartitions: SubpartitionRange, part: RangePart) -> ExtentCursor:
        try:
            return ExtentCursor(index, subpartitions, part)
        except Malformed as problem:
            place = Place(self.file.index_path, offset=problem.offset, writer=str(index.writer))
            raise CorruptDataError(place, problem.what) from None

    def _opened(self) -> SweptFile:
        """The files, opened if they are not; for whoever is making a reader."""
        with self._opening:
            if self._data is None:
                data = SweptFile(self.file, read_index(self.file, self.file_id))
                try:
                    self._pool.register(self)
                except BaseException:
                    data.close()
                    raise
                with self._lock:
                    self._data = data
            return self._data

    def _let_go(self) -> None:
        """Close the files if nobody needs them. Under the lock."""
        if self._data is None or self._is_needed:
            return
        self._data.close()
        self._data = None
        self._pool.unregister(self)

    @property
    def _is_needed(self) -> bool:
        return bool(self._running or self._creating or self._sweep.readers)

    def _go_on(self, changed: SubpartitionReader | None = None) -> None:
        """Start a run if one is due; if nobody reads any more, let go of the files and say so. ``changed``:
        as in `Sweep.is_due`."""
        if self._running and self._cause is None:
            return  # the run looks at everything when it ends
        with self._lock:
            start = not self._running and self._cause is None and self._sweep.is_due(self._limits(), changed)
            self._running |= start
            self._let_go()
            tell = self._cause is not None and not (self._is_needed or self._told)
            self._told |= tell
        if tell:
            self._closed.set_result(None)
        if start:
            self._start()

    def _limits(self) -> ReadLimits:
        fair, batch = self._pool.average_per_requester, self._pool.segments_per_request
        lent, allowance = len(self._lent), min(BATCHES_AHEAD * batch, fair)
        spare = self._pool.available - LEAST_SHARE * len(self._sweep.readers)
        least = max(LEAST_SHARE, min(batch // 2, spare // POOL_SHARES))
        return ReadLimits(
            share=max(least, (allowance - lent) // 2),
            crowded=lent + batch > allowance,
            tail=TAIL_SEGMENTS if spare >= POOL_SHARES * TAIL_SEGMENTS else 0,
        )

    def _start(self) -> None:
        try:
            self._threads.submit(self._run)
        except RuntimeError as error:  # the threads were shut down
            self._finish(error)

    def _run(self) -> None:
        try:
            self._run_once()
        except BaseException as error:
            self._finish(error)
        else:
            self._finish(None)

    def _finish(self, failure: BaseException | None) -> None:
        if failure is not None:
            self._fail_all(failure)
        with self._lock:
            self._running = False
        self._go_on()

    def _fail_all(self, cause: BaseException) -> None:
        with self._lock:
            readers = list(self._sweep.readers)
        for reader in readers:
            _fail(reader, cause)

    # One run

    def _run_once(self) -> None:
        segments = self._request_batch()
        if not segments:
            return
        batch = SegmentBatch(segments, self)
        try:
            while self._make_pass(batch):
                continue
        finally:
            self._lent.update(dict.fromkeys(map(id, segments)))
            batch.release()

    def _make_pass(self, batch: SegmentBatch) -> bool:
        """Begin a pass, or go on with the last one. Whether anything was read for it."""
        with self._lock:
            self._sweep.begin_pass(self._limits())
        planned = False
        while (read := self._plan(batch)) is not None:
            self._serve(read, batch)
            planned = True
        return planned

    def _request_batch(self) -> list[MemorySegment]:
        """One batch; nothing if nobody waits for it any more. Raises `BufferTimeoutError`."""
        started = self._clock()

        def still_wanted() -> bool:
            if self._sweep.readers:
                self._pool.expect_progress(started, self._timeout)
            return bool(self._sweep.readers)

        try:
            return self._pool.request(still_wanted=still_wanted)
        except BufferTimeoutError as error:
            raise BufferTimeoutError(f"{self.file.data_path}: {error}") from None

    def _plan(self, batch: SegmentBatch) -> PlannedRead | None:
        with self._lock:
            return self._sweep.plan(batch, self._limits())

    def _serve(self, read: PlannedRead, batch: SegmentBatch) -> None:
        """Read, and hand each reader its slices. If that fails, it fails those whose own bytes are bad."""
        # What is delivered is never read over: readers of the same bytes get them from the same attempt
        first = read.chunks[0]
        views = [view for start, size in read.places for view in batch.views(start, size)]
        try:
            self._read(views, first)
        except Exception as error:
            if len(read.places) > 1:
                for part in read.place_by_place():
                    self._serve(part, batch)
            else:
                for chunk in read.chunks:
                    _fail(chunk.reader, error)
            return
        for chunk in read.chunks:
            self._deliver(chunk, batch.slices(chunk.start, chunk.size))

    def _read(self, views: list[memoryview], first: Chunk) -> None:
        assert self._data is not None  # nobody closes it while a run is on
        self._data.read_into(views, first.offset, first.extent)
        self.reads += 1
        self.bytes_read += sum(map(len, views))

    def _deliver(self, chunk: Chunk, slices: list[Buffer]) -> None:
        reader = chunk.reader
        position = reader.cursor.position
        pieces = []
        for buffer in slices:
            pieces.append(ReadPiece(chunk.extent, position, buffer))
            position += buffer.size
        reader.cursor.advance(chunk.size)
        complete = reader.cursor.is_at_end
        _add(reader, pieces, complete=complete)
        if complete:
            with self._lock:
                self._sweep.remove(reader)


def _add(reader: SubpartitionReader, pieces: Sequence[ReadPiece], *, complete: bool) -> None:
    try:
        reader.add(pieces, complete=complete)
    except Exception as error:  # it was released meanwhile, or its consumer's callback failed
        _fail(reader, error)


def _fail(reader: SubpartitionReader, cause: BaseException) -> None:
    try:
        reader.fail(cause)
    except Exception:
        pass  # its consumer's callback failed; the reader has failed already, and others must hear of theirs


def _behind(views: list[memoryview], size: int) -> list[memoryview]:
    """What is left of ``views`` when their first ``size`` bytes are filled."""
    for number, view in enumerate(views):
        if size < len(view):
            return [view[size:], *views[number + 1 :]]
        size -= len(view)
    return []
