"""`ReadScheduler`: reads one result partition for all of its consumers in this process, in file order.

Used by the shuffle service: one long-lived process per host, with dozens of consumers of each map output at
the same time. Separately, these would read small pieces from all over the file. (A task knows everything that
it will read, has a separate process, and uses `InputGate`.)

    idle --a reader may have more--> a run on the shared threads --no reader may have more--> idle

A run takes one batch of segments from the pool, all or nothing. It serves the readers in the order of their
next offset. Neighbours share one positioned read, and each gets slices of the segments.

Rules
* A partition has at most one run at a time, with one batch: partitions take turns in the threads' queue.
* A run that the threads refuse (`submission`) fails all readers.
* A *pass* serves each reader once, in ascending file order (`Sweep`). A run makes passes until its batch is
  used up, and leaves the rest of a pass to the next run. So offsets go back only between passes.
* Adjacent bytes for several readers are read with one call. Bytes that several readers want (a broadcast
  region) are read once: their segments then belong to several readers, by reference-counted slices.
* A reader never gets more than its share and a tail (`ReadShares`), nor more than its consumer has credit
  for.
* A failed read fails the readers whose bytes are affected (`BatchReader`). A failed request for segments, or
  `close`, fails all readers that have something left to read.
* The files are opened for the first reader, and closed when no reader has anything left to read. They are
  opened under a separate lock, so that only callers that create a reader wait for a disk.
* Open files keep no index: thousands may be open, each with an index of many MiB. Whoever creates a reader
  takes the index from `IndexCache`, or else reads it.

Ownership: a run owns its batch and returns the unused segments; a reader owns the slices delivered to it.
When all slices of a segment have been recycled, the segment returns to the pool (`ReadShares.recycle`).

Lock order: the opening lock, then the scheduler's lock, then the pool's. No lock is held while readers are
called, futures completed or runs submitted. Only the opening lock is held while a file is read.
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
from sortshuffle.reading.index_cache import IndexCache
from sortshuffle.reading.read_shares import ReadShares
from sortshuffle.reading.submission import submit_once
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

BUFFER_TIMEOUT = 300.0  # seconds in which no segment was taken from the pool or returned; Flink's figure
THREADS_PER_CORE = 4  # more than one, because threads wait for disks more than they compute


def sweep_threads(pool: ReadBufferPool) -> int:
    """Return a suitable number of threads for all partitions that read into this pool."""
    return max(1, min(pool.max_concurrent_requests, THREADS_PER_CORE * (os.cpu_count() or 1)))


class ReadScheduler:
    """Reads for the consumers of one result partition. ``file_id``: the id that both files must have.

    ``threads``: shared by all partitions (see `sweep_threads`). ``timeout``: seconds without progress of the
    pool after which a run fails. ``clock``: must be the pool's clock. ``indexes``: has the index, if it was
    read lately; None: the index is read for each reader. ``batches``: reads, and counts reads.
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
        indexes: IndexCache | None = None,
    ) -> None:
        self.file = file
        self.file_id = file_id
        self._pool = pool
        self._threads = threads
        self._timeout = timeout
        self._clock = clock
        self._indexes = indexes
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        self._data: SweptFile | None = None  # open while there is something to read
        self._creating = 0  # number of readers being created: the files stay open for them
        self._sweep = Sweep()
        self._shares = ReadShares(pool)
        self.batches = BatchReader(self._sweep, self._shares, self._lock)
        self._running = False
        self._cause: BaseException | None = None
        self._closed: Future[None] = Future()
        self._closed.set_running_or_notify_cancel()  # so that a waiting thread cannot cancel it
        self._close_reported = False

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
        """Number of passes begun so far. The offsets of reads have gone back fewer times than that."""
        return self._sweep.passes

    @property
    def readers(self) -> int:
        """Number of readers that have something left to read."""
        return len(self._sweep.readers)

    def create_reader(
        self,
        subpartitions: SubpartitionRange,
        on_available: Callable[[SubpartitionReader], None],
        part: RangePart = EVERYTHING,
        credits: int | None = None,
    ) -> SubpartitionReader:
        """Create a reader of (a part of) these subpartitions, and begin to read for it. The caller releases
        it. ``credits``: the consumer's room, in segments (`SubpartitionReader.grant`); None: any number.

        Raises `MissingDataError` or `CorruptDataError` if the files are missing or damaged, `UsageError` for
        subpartitions or parts that do not exist, and after `close` the cause passed to it.
        """
        self._begin_creating()
        try:
            index = self._open_files()
            cursor = self._cursor(index, subpartitions, part)
            compressed = index.header.codec is not Codec.NONE
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
        """Fail all readers with ``cause`` and create no new ones. Readers with everything queued may still be
        polled. The future is done when the files are closed. May be called again, in any thread."""
        with self._lock:
            if self._cause is None:
                self._cause = cause
        self._fail_all(cause)
        self._go_on()
        return self._closed

    def memory_returned(self, reader: SubpartitionReader) -> None:
        """Read for ``reader`` if possible: its consumer has recycled memory, or has more credit."""
        self._go_on(reader)

    def leave(self, reader: SubpartitionReader) -> None:
        """Stop reading for ``reader``."""
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

    def _open_files(self) -> Index:
        """Open the data file if necessary, and return the index. The caller must be creating a reader."""
        with self._opening:
            index = self._index()
            if self._data is None:
                data = SweptFile(self.file, self.file_id, str(index.writer))
                try:
                    self._pool.register(self)
                except BaseException:
                    data.close()
                    raise
                with self._lock:
                    self._data = data
            return index

    def _index(self) -> Index:
        if self._indexes is None:
            return read_index(self.file, self.file_id)
        index = self._indexes.get(self.file_id)
        if index is None:
            index = read_index(self.file, self.file_id)
            self._indexes.keep(index)
        return index

    def _close_if_unneeded(self) -> None:
        """Close the files if they are not needed. Call with the lock held."""
        if self._data is None or self._is_needed:
            return
        self._data.close()
        self._data = None
        self._pool.unregister(self)

    @property
    def _is_needed(self) -> bool:
        return bool(self._running or self._creating or self._sweep.readers)

    def _go_on(self, changed: SubpartitionReader | None = None) -> None:
        """Start a run if one is due. Close the files if they are not needed, and after `close` complete its
        future then. ``changed``: as in `Sweep.is_due`."""
        if self._running and self._cause is None:
            return  # the run calls this for all readers when it ends
        with self._lock:
            start = not self._running and self._cause is None and self._is_due(changed)
            self._running |= start
            self._close_if_unneeded()
            report_close = self._cause is not None and not (self._is_needed or self._close_reported)
            self._close_reported |= report_close
        if report_close:
            self._closed.set_result(None)
        if start:
            self._start()

    def _is_due(self, changed: SubpartitionReader | None) -> bool:
        return self._sweep.is_due(self._shares.limits(len(self._sweep.readers)), changed)

    def _start(self) -> None:
        submit_once(self._threads, self._run, self._finish)

    def _run(self) -> None:
        try:
            data = self._data
            assert data is not None  # it stays open during a run
            segments = self._request_batch()
            if segments:
                self.batches.fill(segments, data)
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
        """Return a batch, or nothing if no reader is left to wait. Raises `BufferTimeoutError`."""
        started = self._clock()

        def still_wanted() -> bool:
            if self._sweep.readers:
                self._pool.expect_progress(started, self._timeout)
            return bool(self._sweep.readers)

        try:
            return self._pool.request(still_wanted=still_wanted)
        except BufferTimeoutError as error:
            raise BufferTimeoutError(f"{self.file.data_path}: {error}") from None
