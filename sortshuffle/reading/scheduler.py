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
* A reader is never given more than its share and a tail (`ReadShares`), nor more than its consumer has credit
  for.
* A failed read fails the readers whose bytes these are (`BatchReader`); a failed request for segments, or
  `close`, fails all that have something left to read.
* The files are opened for the first reader and closed when the last has had its last byte, failed or left.
  They are opened under a lock of their own, so that only who opens a view waits for a disk.

Ownership: the run owns its batch and gives back what it did not fill; a delivered slice is its reader's. When
slices come to an end the segment returns to the pool by itself (`ReadShares.recycle`).

Lock order: the opening lock, then the scheduler's, then the pool's. Readers are called, futures completed and
runs submitted under no lock, and none but the opening lock is held while a file is read.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future

from sortshuffle.errors import BufferTimeoutError, CorruptDataError, Place
from sortshuffle.format.header import Codec
from sortshuffle.format.index import Index
from sortshuffle.format.malformed import Malformed
from sortshuffle.memory.read_buffer_pool import ReadBufferPool
from sortshuffle.memory.segment import MemorySegment
from sortshuffle.reading.batch_reader import BatchReader, add_to_reader, fail_reader
from sortshuffle.reading.read_shares import ReadShares
from sortshuffle.reading.subpartition_reader import SubpartitionReader
from sortshuffle.reading.sweep import Sweep
from sortshuffle.reading.swept_file import SweptFile
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.ranges import (
    EVERYTHING,
    ExtentCursor,
    RangePart,
    SubpartitionRange,
)
from sortshuffle.storage.files.reader import read_index

BUFFER_TIMEOUT = 300.0  # seconds in which nobody got or gave back a segment; the ancestor's
THREADS_PER_CORE = 4  # they wait for disks more than they compute


def sweep_threads(pool: ReadBufferPool) -> int:
    """How many threads are worth having for all partitions that read into this pool."""
    return max(1, min(pool.max_concurrent_requests, THREADS_PER_CORE * (os.cpu_count() or 1)))


class ReadScheduler:
    """Reads for the consumers of one result partition. ``file_id``: the id that both files must have.

    ``threads``: shared by all partitions (see `sweep_threads`). ``timeout``: seconds, on ``clock``, which
    must be the pool's own. ``batches``: what reads, and counts what was read.
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
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        self._data: SweptFile | None = None  # open while there is something to read
        self._creating = 0  # readers that are being made: the files stay open for them
        self._sweep = Sweep()
        self._shares = ReadShares(pool)
        self.batches = BatchReader(self._sweep, self._shares, self._lock)
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
            add_to_reader(reader, (), complete=True)
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
            start = not self._running and self._cause is None and self._is_due(changed)
            self._running |= start
            self._let_go()
            tell = self._cause is not None and not (self._is_needed or self._told)
            self._told |= tell
        if tell:
            self._closed.set_result(None)
        if start:
            self._start()

    def _is_due(self, changed: SubpartitionReader | None) -> bool:
        return self._sweep.is_due(self._shares.limits(len(self._sweep.readers)), changed)

    def _start(self) -> None:
        try:
            self._threads.submit(self._run)
        except RuntimeError as error:  # the threads were shut down
            self._finish(error)

    def _run(self) -> None:
        try:
            segments = self._request_batch()
            if segments:
                assert self._data is not None  # nobody closes it while a run is on
                self.batches.fill(segments, self._data)
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
            fail_reader(reader, cause)

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
