"""`ResultPartitionManager`: the result partitions that the shuffle service reads, by the 16-byte id that both
files of a partition carry.

The catalog registers a map output when a consumer first requests it, and gets its `ReadScheduler`, which
makes the views.

    unknown --register--> registered --forget, or idle and many others--> unknown
                                     --release--> unknown, files deleted
    any --shutdown--> shut down

Rules
* Only files below the roots, after following symbolic links, are served: a request can name nothing else. The
  roots are looked up at each registration, because new executors bring new directories.
* Registering opens nothing. The first view opens a partition's data file; it is closed when the last view
  has been read to its end, has failed or was released (`ReadScheduler`). Indexes are kept for all partitions
  together, in `KEPT_INDEX_BYTES`; a view of a partition whose index is not kept reads it.
* When more than `MOST_REGISTERED` partitions are known, idle ones are forgotten, the least recently used
  first. Registering them again costs nothing.
* Forgetting closes nothing: a caller that has just got a scheduler can still make views. The files stay.
* `release` fails every unfinished view at once, and deletes the files when the last view has let go of them,
  as Flink does. (If open views could read on, one stuck consumer would keep a disk full. A consumer
  that still needs the data fails where its producer can run again.)
* After `shutdown` nothing is registered.

Lock order: the manager's lock is held for look-ups only. Schedulers are called, futures completed and files
deleted under no lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from sortshuffle import calls
from sortshuffle.errors import MissingDataError, Place, StateError, UsageError
from sortshuffle.memory.read_buffer_pool import ReadBufferPool
from sortshuffle.options import MIB
from sortshuffle.reading.index_cache import IndexCache
from sortshuffle.reading.scheduler import BUFFER_TIMEOUT, ReadScheduler, sweep_threads
from sortshuffle.storage.files.partitioned_file import PartitionedFile

# an idle partition costs a few KiB. Up to this number on one host, each map output is looked up only once
MOST_REGISTERED = 4096
# bytes of all indexes that a service keeps: those of 1,000 map outputs with 300 extents each. A service then
# takes 6 % less CPU for a GB in extents of 4 MiB
KEPT_INDEX_BYTES = 16 * MIB

Roots = Callable[[], Sequence[str]]
"""Returns the directories that are served now; called each time they are needed."""


@dataclass(frozen=True, slots=True)
class ReadFigures:
    """Figures of current and past reads. ``waiting``: partitions whose reads wait for a thread or for memory,
    or are under way."""

    partitions_open: int
    readers: int
    waiting: int
    reads_total: int
    bytes_read_total: int


class ResultPartitionManager:
    """Result partitions below ``roots``, read into ``pool``. ``timeout``: seconds without progress of any
    reader until readers fail, on the pool's ``clock``. ``most``: idle partitions to remember."""

    def __init__(
        self,
        roots: Roots,
        pool: ReadBufferPool,
        *,
        timeout: float = BUFFER_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
        most: int = MOST_REGISTERED,
    ) -> None:
        self._roots = roots
        self._pool = pool
        self._timeout = timeout
        self._clock = clock
        self._most = most
        self._indexes = IndexCache(KEPT_INDEX_BYTES)
        self._lock = threading.Lock()
        self._partitions: dict[bytes, ReadScheduler] = {}  # least recently used first
        self._reads = self._bytes_read = 0  # of forgotten partitions
        self._shut_down = False
        self._threads = ThreadPoolExecutor(sweep_threads(pool), thread_name_prefix="sortshuffle-sweep")

    def register(self, file_id: bytes, file: PartitionedFile) -> ReadScheduler:
        """Register a finished pair and return its scheduler. If the id is known already, perhaps for files of
        another name, return the known scheduler: equal ids mean equal bytes.

        Raises `UsageError` for a file outside the roots, `StateError` after `shutdown`.
        """
        check_inside(file, self._roots())
        scheduler = ReadScheduler(
            file,
            file_id,
            self._pool,
            self._threads,
            timeout=self._timeout,
            clock=self._clock,
            indexes=self._indexes,
        )
        with self._lock:
            if self._shut_down:
                raise StateError("the result partition manager is shut down: it registers no more partitions")
            known = self._partitions.setdefault(file_id, scheduler)
            self._forget_idle()
        return known

    def registered(self, file_id: bytes) -> ReadScheduler | None:
        """Return a partition's scheduler, if it is known, and mark it as used just now."""
        with self._lock:
            scheduler = self._partitions.pop(file_id, None)
            if scheduler is not None:
                self._partitions[file_id] = scheduler
            return scheduler

    def forget(self, scheduler: ReadScheduler) -> None:
        """Forget a partition, because its files are gone or have moved. Does nothing if it is unknown."""
        with self._lock:
            if self._partitions.get(scheduler.file_id) is scheduler:
                self._take_out(scheduler)

    def release(self, file_id: bytes) -> Future[None]:
        """Forget the partition, fail its open views, and delete its files when the last view has let go. Then
        the future is done, with an OSError if the files could not be deleted; at once, if the partition is
        not registered. It cannot be cancelled. The same files may be registered again afterwards."""
        deleted: Future[None] = Future()
        deleted.set_running_or_notify_cancel()
        with self._lock:
            scheduler = self._partitions.get(file_id)
            if scheduler is not None:
                self._take_out(scheduler)
        if scheduler is None:
            deleted.set_result(None)
            return deleted
        file = scheduler.file
        cause = MissingDataError(Place(file.data_path), f"result partition {file_id.hex()} was released")
        scheduler.close(cause).add_done_callback(lambda _: _delete(file, deleted))
        return deleted

    def __contains__(self, file_id: bytes) -> bool:
        return file_id in self._partitions

    def __len__(self) -> int:
        return len(self._partitions)

    def figures(self) -> ReadFigures:
        """Return the figures of this moment."""
        with self._lock:
            known = list(self._partitions.values())
            reads, size = self._reads, self._bytes_read
        return ReadFigures(
            partitions_open=sum(each.is_open for each in known),
            readers=sum(each.readers for each in known),
            waiting=sum(not each.is_idle for each in known),
            reads_total=reads + sum(each.batches.reads for each in known),
            bytes_read_total=size + sum(each.batches.bytes_read for each in known),
        )

    def shutdown(self) -> None:
        """Fail all open views, and return when no file is open: not while a disk hangs. May be called
        again."""
        with self._lock:
            self._shut_down = True
            partitions = list(self._partitions.values())
        for closed in [each.close(_shut_down_cause(each)) for each in partitions]:
            closed.result()
        self._threads.shutdown()
        with self._lock:
            for each in list(self._partitions.values()):
                self._take_out(each)

    def _forget_idle(self) -> None:
        """Forget idle partitions, if too many are known: a few more than necessary, so that not every
        registration has to. The partition being registered stays. Called under the lock."""
        excess = len(self._partitions) - self._most
        if excess <= 0:
            return
        others = list(self._partitions.values())[:-1]
        idle = [each for each in others if each.is_idle and not each.is_open]
        for each in idle[: excess + self._most // 8]:
            self._take_out(each)

    def _take_out(self, scheduler: ReadScheduler) -> None:
        del self._partitions[scheduler.file_id]
        self._reads += scheduler.batches.reads
        self._bytes_read += scheduler.batches.bytes_read


def _delete(file: PartitionedFile, deleted: Future[None]) -> None:
    try:
        file.delete()
    except OSError as error:
        deleted.set_exception(error)
    else:
        deleted.set_result(None)


def check_inside(file: PartitionedFile, roots: Sequence[str]) -> None:
    """Raise `UsageError` unless both files of the pair lie below a root, after following links. A root that
    the name begins with is tried first, the others only if necessary: their disks may hang."""
    by_name = sorted(roots, key=lambda root: not file.base.startswith(os.path.join(root, "")))
    for path in (file.data_path, file.index_path):
        real = calls.realpath(path)
        if not any(_is_below(real, root) for root in by_name):
            raise UsageError(f"{path} is not below {' or '.join(roots)}: it is not served")


def _is_below(real: str, root: str) -> bool:
    real_root = calls.realpath(root)
    return os.path.commonpath([real_root, real]) == real_root


def _shut_down_cause(scheduler: ReadScheduler) -> StateError:
    return StateError(f"{scheduler.file.base} cannot be read: the service is shut down")
