"""`Catalog`: finds map outputs on this host's disks.

The disks are its only source: it looks up each map output when a client first names it. So a service that was
just started serves everything that the previous one did.

    <root>/sortshuffle/<application>/<home>/exchange-E-map-M-attempt-A.data, .index

Rules
* The roots are looked up each time: new executors bring new directories.
* A request names an application, numbers and an id, never a path. The files found must carry the id, and lie
  below a root after following all links (`ResultPartitionManager.register`).
* Files that this process cannot open for lack of descriptors or memory are not lost: that is an OSError, and
  the client asks again. So is a directory that cannot be listed, unless that lasts (`_Unlisted`): then the
  disk counts as broken, and the producers of its map outputs must run again.
* Only map outputs that an *ended* executor left may be adopted (`EndedHomes`), and none that proved lost but
  could not be deleted.

The methods use the disks. They are called by threads that may block, several at a time. The lock is that of
``_lost``.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing

from sortshuffle import calls
from sortshuffle.errors import OUT_OF, DataLossError, MissingDataError, Place, UsageError
from sortshuffle.format.index import Index
from sortshuffle.homes.owner import HOME_ROOT
from sortshuffle.reading.scheduler import ReadScheduler
from sortshuffle.reading.subpartition_reader import SubpartitionReader
from sortshuffle.service.pages.status import ApplicationStatus
from sortshuffle.service.server.ended_homes import EndedHomes
from sortshuffle.service.server.index_view import IndexView
from sortshuffle.service.server.result_partition_manager import ResultPartitionManager, Roots, check_inside
from sortshuffle.service.wire.protocol import FoundOutput, MapOutputAddress, PartitionRequest
from sortshuffle.storage.files.partitioned_file import DATA_SUFFIX, INDEX_SUFFIX, PartitionedFile
from sortshuffle.storage.files.presence import is_gone
from sortshuffle.storage.files.ranges import RangePart
from sortshuffle.storage.files.reader import PartitionedFileReader, read_index

# seconds for which a directory may fail to be listed before its files count as lost: longer than a disk or a
# mount takes to come back, shorter than clients retry (60)
LISTED_WITHIN = 20.0
TRANSIENT_ERRNOS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)  # possibly passing errors of disks and mounts
MOST_LOST = 4096  # lost map outputs to remember; most of them are deleted, too

OnAvailable = Callable[[SubpartitionReader], None]


class Catalog:
    """The map outputs below ``roots``, read through ``manager``. ``segment_bytes``: bytes of one credit."""

    def __init__(self, roots: Roots, manager: ResultPartitionManager, segment_bytes: int) -> None:
        self._roots = roots
        self._manager = manager
        self._segment_bytes = segment_bytes
        self._ended = EndedHomes()
        self._unlisted = _Unlisted()
        self._lock = threading.Lock()
        self._lost: dict[bytes, None] = {}  # ids, the oldest first

    def homes(self, application: str) -> list[str]:
        """Return the homes of an application's executors, live or not."""
        return [
            home
            for root in self._roots()
            for home in _directories(os.path.join(root, HOME_ROOT, application))
        ]

    def find(self, output: MapOutputAddress) -> PartitionedFile:
        """Return the finished pair that carries the id.

        Raises `MissingDataError` if there is none, `CorruptDataError` if files of that name are damaged, and
        OSError if the pair may be in a place that cannot be read now.
        """
        failed: OSError | None = None
        for root in self._roots():
            place = os.path.join(root, HOME_ROOT, output.application)
            try:
                homes = self._unlisted.names(place)
            except OSError as error:
                failed = error  # another root may have the pair
                continue
            for home in homes:
                file = output.file_in(os.path.join(place, home))
                if is_gone(file.index_path) or not self._is_served(file):
                    continue
                try:
                    PartitionedFileReader(file, output.file_id).close()
                except MissingDataError:
                    continue
                return file
        if failed is not None:
            raise failed
        anywhere = Place(output.file_in(os.path.join(HOME_ROOT, output.application, "*")).data_path)
        what = f"no directory that this service serves has the map output ({', '.join(self._roots())})"
        raise MissingDataError(anywhere, what, expected=f"id {output.file_id.hex()}")

    def places(self, output: MapOutputAddress) -> list[PartitionedFile]:
        """Return the places where the pair may be, or was: one in each served home of its application."""
        files = [output.file_in(home) for home in self.homes(output.application)]
        return [file for file in files if self._is_served(file)]

    def is_another(self, file: PartitionedFile, file_id: bytes) -> bool:
        """Return whether the data file exists and has another id. Raises OSError if it cannot be opened."""
        try:
            with closing(PartitionedFileReader(file)) as reader:
                return reader.header.file_id != file_id
        except DataLossError:
            return False

    def create_view(self, request: PartitionRequest, on_available: OnAvailable) -> SubpartitionReader:
        """Return a view of the requested extents, which the caller releases. Raises `MissingDataError`,
        `CorruptDataError`, and `UsageError` for extents that do not exist."""
        output = request.output
        known = self._manager.registered(output.file_id)
        if known is not None:
            try:
                return _view(known, request, on_available)
            except MissingDataError:  # the files are gone, perhaps to another place
                self._manager.forget(known)
        return _view(self._manager.register(output.file_id, self.find(output)), request, on_available)

    def index_view(self, request: PartitionRequest) -> IndexView:
        """Return a view of the index file, verified with the data file's size. Raises as `create_view`."""
        file = self.find(request.output)
        _verified_index(file, request.output.file_id)
        return IndexView(file, self._segment_bytes, request.skip)

    def adoptable(self, wanted: MapOutputAddress) -> FoundOutput | None:
        """Return a finished map output that an ended executor of this host left, of several attempts the
        first; None if there is none. ``wanted``: as in a find request, with the driver's id."""
        left = self._ended.outputs(self._roots(), wanted.application, wanted.exchange, wanted.map_index)
        for file, owner in left:
            file_id = self._finished_id(file, wanted.file_id)
            if file_id is not None and file_id not in self._lost:
                return FoundOutput(file_id, file.attempt or 0, file.base, owner.host)
        return None

    def withdraw(self, file_id: bytes) -> None:
        """Stop offering a lost map output for adoption."""
        with self._lock:
            self._lost[file_id] = None
            while len(self._lost) > MOST_LOST:
                del self._lost[next(iter(self._lost))]

    def applications(self) -> list[ApplicationStatus]:
        """Return the figures of each application."""
        names = {name for root in self._roots() for name in _names(os.path.join(root, HOME_ROOT))}
        return [status for name in sorted(names) if (status := self._status(name)) is not None]

    def _is_served(self, file: PartitionedFile) -> bool:
        try:
            check_inside(file, self._roots())
        except UsageError:
            return False
        return True

    def _finished_id(self, file: PartitionedFile, driver: bytes) -> bytes | None:
        """Return the pair's id if its index and sizes are right, and its exchange is of this driver."""
        try:
            check_inside(file, self._roots())
            index = _verified_index(file)
        except (DataLossError, UsageError, OSError):
            return None
        return index.header.file_id if index.writer.driver == driver.hex() else None

    def _status(self, application: str) -> ApplicationStatus | None:
        homes = self.homes(application)
        if not homes:
            return None
        outputs = size = 0
        for home in homes:
            for name in _names(home):
                if name.endswith(INDEX_SUFFIX):
                    outputs += 1
                    size += _size(os.path.join(home, name.removesuffix(INDEX_SUFFIX) + DATA_SUFFIX))
        return ApplicationStatus(application, len(homes), outputs, size)


class _Unlisted:
    """Applications' directories that could not be listed lately, each with the times of its first and last
    failure, by `time.monotonic`. Needs no lock: each change is one operation of a dict."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[float, float]] = {}

    def names(self, directory: str) -> list[str]:
        """Return the directory's names, sorted. Raises OSError while a failure may pass. A directory that
        could not be listed for `LISTED_WITHIN` seconds counts as empty."""
        try:
            found = sorted(calls.listdir(directory))
        except OSError as error:
            if error.errno in OUT_OF or self._may_pass(directory, error):
                raise
            return []
        self._failures.pop(directory, None)
        return found

    def _may_pass(self, directory: str, error: OSError) -> bool:
        if error.errno not in TRANSIENT_ERRNOS:
            return False
        if len(self._failures) > MOST_LOST:
            self._failures.clear()
        now = time.monotonic()
        first, last = self._failures.get(directory, (now, now))
        if now - last > LISTED_WITHIN:  # too old: nothing is known of the time between
            first = now
        self._failures[directory] = first, now
        return now - first < LISTED_WITHIN


def _verified_index(file: PartitionedFile, file_id: bytes | None = None) -> Index:
    """Return the index, after checking the data file's header and size. Raises as `PartitionedFileReader`."""
    index = read_index(file, file_id)
    with closing(PartitionedFileReader(file, index.header.file_id, str(index.writer))) as reader:
        reader.expect_size(index.data_bytes)
    return index


def _view(
    scheduler: ReadScheduler, request: PartitionRequest, on_available: OnAvailable
) -> SubpartitionReader:
    part = RangePart(request.regions, request.skip)
    return scheduler.create_reader(request.subpartitions, on_available, part, request.credit)


def _names(directory: str) -> list[str]:
    try:
        return calls.listdir(directory)
    except OSError as error:
        if error.errno in OUT_OF:
            raise
        return []


def _directories(directory: str) -> list[str]:
    return [path for name in sorted(_names(directory)) if calls.isdir(path := os.path.join(directory, name))]


def _size(path: str) -> int:
    try:
        return calls.stat(path).st_size
    except OSError:
        return 0
