"""`ResultPartitionManager`: the result partitions that the shuffle service has, and who reads them.

The door that uses it is the shuffle service: its writers and its scan at start register map outputs, its
connections ask for views of them, its sweep releases them. Result partitions are known by the 16-byte id that
both of their files carry.

    unknown --register--> registered --release--> unknown (files deleted)
    any --shutdown--> shut down (files stay: the next service finds them by scanning)

Rules
* Only files below the root are served, symbolic links followed: a request can name nothing else.
* Nothing is opened to register. The first view opens a partition's files and reads its index; they are closed
  when the last view has been read to its end, has failed or was released (`ReadScheduler`).
* A consumer may come before its map output: `await_view` waits for it, no longer than its time-out.
  `expire_waiting`, called from time to time, ends what has waited too long.
* `release` fails at once every view that was not read to its end, and wakes who waits; the files are deleted
  when the last view has let go of them. (As the ancestor does. The alternative, to let open views read on,
  would let one stuck consumer keep the disk full; a consumer that still needed the data fails where its
  producer can run again.)
* After `shutdown` nothing is registered.

Lock order: the manager's lock is held for look-ups only. Schedulers are called, futures completed and files
deleted under no lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from sortshuffle.errors import MissingDataError, Place, StateError, UsageError
from sortshuffle.memory.read_buffer_pool import ReadBufferPool
from sortshuffle.read.scheduler import BUFFER_TIMEOUT, ReadScheduler, sweep_threads
from sortshuffle.read.subpartition_reader import SubpartitionReader
from sortshuffle.storage.partitioned_file import PartitionedFile
from sortshuffle.storage.ranges import SubpartitionRange

VIEW_TIMEOUT = 10.0  # seconds that a consumer waits for a map output that is not there yet

OnAvailable = Callable[[SubpartitionReader], None]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. ``buffers``: without anybody's progress, until readers fail. ``view``: until a consumer is
    told that a map output does not come."""

    buffers: float = BUFFER_TIMEOUT
    view: float = VIEW_TIMEOUT


@dataclass(eq=False, slots=True)
class _Waiting:
    """A consumer that waits for a partition; ``until`` on the manager's clock."""

    subpartitions: SubpartitionRange
    on_available: OnAvailable
    until: float
    view: Future[SubpartitionReader]


class ResultPartitionManager:
    """Result partitions below ``root``, read into ``pool``. ``clock``: the pool's own."""

    def __init__(
        self,
        root: str,
        pool: ReadBufferPool,
        *,
        timeouts: Timeouts = Timeouts(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = os.path.realpath(root)
        self._pool = pool
        self._timeouts = timeouts
        self._clock = clock
        self._lock = threading.Lock()
        self._partitions: dict[bytes, ReadScheduler] = {}
        self._waiting: dict[bytes, list[_Waiting]] = {}
        self._shut_down = False
        self._threads = ThreadPoolExecutor(sweep_threads(pool), thread_name_prefix="sortshuffle-sweep")

    def register(self, file_id: bytes, file: PartitionedFile) -> None:
        """From now on views of this finished pair may be had; who waits for it gets theirs.

        Raises `UsageError` for a file outside the root or an id that is taken, `StateError` after `shutdown`.
        """
        self._check_inside(file)
        scheduler = ReadScheduler(
            file, file_id, self._pool, self._threads, timeout=self._timeouts.buffers, clock=self._clock
        )
        with self._lock:
            if self._shut_down:
                raise StateError("the result partition manager is shut down: it registers nothing any more")
            if file_id in self._partitions:
                raise UsageError(f"result partition {file_id.hex()} is registered already: {file.base}")
            self._partitions[file_id] = scheduler
            waiting = self._waiting.pop(file_id, [])
        for each in waiting:
            _create_for(each, scheduler)

    def __contains__(self, file_id: bytes) -> bool:
        return file_id in self._partitions

    def create_view(
        self, file_id: bytes, subpartitions: SubpartitionRange, on_available: OnAvailable
    ) -> SubpartitionReader:
        """A view of these subpartitions, which the caller releases.

        Raises `MissingDataError` if the partition is not registered or its files are gone,
        `CorruptDataError` if they are damaged, `UsageError` for subpartitions that it does not have.
        """
        scheduler = self._partitions.get(file_id)
        if scheduler is None:
            raise _not_found(file_id, "is not registered")
        return scheduler.create_reader(subpartitions, on_available)

    def await_view(
        self, file_id: bytes, subpartitions: SubpartitionRange, on_available: OnAvailable
    ) -> Future[SubpartitionReader]:
        """The same as soon as the partition is there; the future fails with what `create_view` raises, and
        with `MissingDataError` when it was not registered in time. When the consumer is gone, cancel the
        future, or release its view if it is too late for that."""
        until = self._clock() + self._timeouts.view
        waiting = _Waiting(subpartitions, on_available, until, Future())
        with self._lock:
            scheduler = self._partitions.get(file_id)
            if scheduler is None and not self._shut_down:
                self._waiting.setdefault(file_id, []).append(waiting)
                return waiting.view
        if scheduler is not None:
            _create_for(waiting, scheduler)
        else:
            _refuse(waiting, _not_found(file_id, "cannot be had: the service is shut down"))
        return waiting.view

    def expire_waiting(self) -> None:
        """Tell those that have waited too long that their partition does not come."""
        now = self._clock()
        expired: list[tuple[bytes, _Waiting]] = []
        with self._lock:
            for file_id, waiting in list(self._waiting.items()):
                expired += [(file_id, each) for each in waiting if each.until <= now]
                left = [each for each in waiting if each.until > now and not each.view.cancelled()]
                self._waiting[file_id] = left
                if not left:
                    del self._waiting[file_id]
        for file_id, each in expired:
            _refuse(each, _not_found(file_id, f"was not registered within {self._timeouts.view:g} s"))

    def release(self, file_id: bytes) -> Future[None]:
        """Forget the partition, fail its open views, and delete its files when the last has let go: then the
        future is done, with the OSError if they could not be deleted. Nothing if it is not registered, but
        who waits for it is told. Cannot be cancelled; the same file may be registered again afterwards."""
        with self._lock:
            scheduler = self._partitions.pop(file_id, None)
            waiting = self._waiting.pop(file_id, [])
        for each in waiting:
            _refuse(each, _not_found(file_id, "was released"))
        deleted: Future[None] = Future()
        deleted.set_running_or_notify_cancel()
        if scheduler is None:
            deleted.set_result(None)
            return deleted
        closed = scheduler.close(_not_found(file_id, "was released", scheduler.file))
        closed.add_done_callback(lambda _: _delete(scheduler.file, deleted))
        return deleted

    def shutdown(self) -> None:
        """Fail all open views and wake all who wait; returns when no file is open. The files stay. May be
        called again."""
        with self._lock:
            self._shut_down = True
            partitions, self._partitions = self._partitions, {}
            waiting, self._waiting = self._waiting, {}
        why = "cannot be had: the service is shut down"
        for file_id, each in [(file_id, each) for file_id, found in waiting.items() for each in found]:
            _refuse(each, _not_found(file_id, why))
        closed = [
            scheduler.close(_not_found(file_id, why, scheduler.file))
            for file_id, scheduler in partitions.items()
        ]
        for each_closed in closed:
            each_closed.result()
        self._threads.shutdown()

    def _check_inside(self, file: PartitionedFile) -> None:
        for path in (file.data_path, file.index_path):
            if os.path.commonpath([self._root, os.path.realpath(path)]) != self._root:
                raise UsageError(f"{path} is not below {self._root}: it is not served")


def _create_for(waiting: _Waiting, scheduler: ReadScheduler) -> None:
    if not waiting.view.set_running_or_notify_cancel():
        return
    try:
        view = scheduler.create_reader(waiting.subpartitions, waiting.on_available)
    except Exception as error:
        waiting.view.set_exception(error)
    else:
        waiting.view.set_result(view)


def _refuse(waiting: _Waiting, error: MissingDataError) -> None:
    if waiting.view.set_running_or_notify_cancel():
        waiting.view.set_exception(error)


def _not_found(file_id: bytes, what: str, file: PartitionedFile | None = None) -> MissingDataError:
    place = Place(file.data_path if file else "no file")
    return MissingDataError(place, f"result partition {file_id.hex()} {what}")


def _delete(file: PartitionedFile, deleted: Future[None]) -> None:
    try:
        file.delete()
    except OSError as error:
        deleted.set_exception(error)
    else:
        deleted.set_result(None)
