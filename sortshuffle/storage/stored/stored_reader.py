"""`StoredFileReader`: reads extents of a finished result partition in a store, by ranges of its data object.

Rules
* Only ranges of known place and length are requested: the control rows, or else the index, have them. There
  are no listings, no requests for the object's existence or size, and no speculative reads.
* The first whole extent that is fetched brings all extents that the reader was opened for: in as few requests
  as `planned_requests` finds, `CONCURRENT_REQUESTS` at a time. The caller takes them one after another, and
  has counted the memory of all (`reading.channel.Fetch`). A part of an extent is a separate request, without
  the bytes that the previous part already has: the caller still holds that part when it fetches the next.
* The store's bytes are copied once, into aligned memory, and freed: for a moment the extents of a fetch are
  held twice. A fetch counts enough memory for that: decoded bytes in addition to the stored ones.
* The data object's own header is not read, because it would cost a request. The checksums, which came with
  the extents from the writer, prove that the bytes are the right ones: an object of another attempt, or of
  another application, fails them.
* A missing object is a `MissingDataError`, one that ends too early a `CorruptDataError`. Other failures of
  the store are tried again (`urls.retry`), and then become an OSError with the URL: the data may well be
  there, so only the reading task runs again, not the producer.

One thread at a time, except for `give_up`. Nothing is kept open; `close` drops extents that were not taken.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sortshuffle.errors import MissingDataError, Place
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.index import Index
from sortshuffle.options import KIB, MIB
from sortshuffle.storage.files.extents import Extent, ExtentReader, aligned_memory
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index, verified_index
from sortshuffle.storage.files.urls import (
    is_final,
    is_past_end,
    mounted_file,
    open_store,
    retry,
    store_errors,
)

# Extents with no larger gap are read in one request: at 100 MB/s per connection 512 KiB take 5 ms, while
# another request takes 10 to 100 ms until its first byte
GAP_BYTES = 512 * KIB
# Larger ranges are read in several requests, over as many connections. Amazon advises 8 to 16 MB for each
REQUEST_BYTES = 8 * MIB
# Of one reader. All readers of the process share s3fs's pool of connections, 10 by default
CONCURRENT_REQUESTS = 16


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """A request for the bytes ``start..end-1`` of the data object, which these extents need."""

    start: int
    end: int
    extents: tuple[Extent, ...]


class StoredFileReader(ExtentReader):
    """``extents``: those that will be fetched, in this order. ``writer``: the task that wrote them, for
    errors. ``key`` and ``file_id`` decrypt them.

    Raises `WorkerSetupError` if the store's library is missing. Makes no request before the first fetch.
    """

    def __init__(
        self,
        file: PartitionedFile,
        extents: Sequence[Extent] = (),
        writer: str | None = None,
        key: EncryptionKey | None = None,
        file_id: bytes = b"",
    ) -> None:
        super().__init__(file.data_path, writer, key, file_id)
        self._filesystem, self._object = open_store(file.data_path)
        self._unfetched = list(extents)
        self._fetched: dict[Extent, pa.Buffer] = {}
        self._last_part: tuple[int, pa.Buffer] | None = None  # (its start in the data object, its bytes)
        self._given_up = threading.Event()

    def fetch(self, size: int, extent: Extent, position: int = 0) -> pa.Buffer:
        if size != extent.bytes:
            return self._part(size, extent, position)
        if extent not in self._fetched:
            wanted = self._unfetched if extent in self._unfetched else [extent]
            self._unfetched = []
            self._fetch_all(wanted)
        return self._fetched.pop(extent)

    def close(self) -> None:
        self._unfetched = []
        self._fetched = {}
        self._last_part = None

    def give_up(self) -> None:
        """Make no more requests. A running request is waited for."""
        self._given_up.set()

    def _part(self, size: int, extent: Extent, position: int) -> pa.Buffer:
        memory, view = aligned_memory(size)
        start = extent.offset + position
        known = self._copy_known(start, view)
        for request, data in self._read(_split(start + known, start + size, (extent,))):
            self._check_length(request, data)
            at = request.start - start
            view[at : at + len(data)] = data
        self._last_part = (start, memory) if position + size < extent.bytes else None
        return memory

    def _copy_known(self, start: int, view: memoryview) -> int:
        """Copy the bytes that the last part has to a view that begins at ``start``. Return their number."""
        if self._last_part is None:
            return 0
        last_start, last = self._last_part
        if not last_start <= start < last_start + last.size:
            return 0
        known = memoryview(last).cast("B")[start - last_start :][: len(view)]
        view[: len(known)] = known
        return len(known)

    def _fetch_all(self, extents: Sequence[Extent]) -> None:
        memories = {extent: aligned_memory(extent.bytes) for extent in extents}
        for request, data in self._read(planned_requests(extents)):
            self._check_length(request, data)
            for extent in request.extents:
                _copy(request, data, extent, memories[extent][1])
        self._fetched = {extent: memory for extent, (memory, _) in memories.items()}

    def _check_length(self, request: RangeRequest, data: bytes) -> None:
        """Raise `CorruptDataError` for the first extent that reaches beyond the object's end."""
        end = request.start + len(data)
        if end == request.end:
            return
        if end > request.end:
            what = f"the store gave {len(data)} bytes where {request.end - request.start} were asked for"
            remedy = "name one that serves ranges with spark.sortshuffle.dir"
            raise OSError(errno.EIO, f"reading a range failed: {what}; {remedy}", self.path)
        for extent in request.extents:
            if end < min(request.end, _end(extent)):
                raise self.cut_short(extent, max(0, end - extent.offset))

    def _read(self, requests: Sequence[RangeRequest]) -> Iterable[tuple[RangeRequest, bytes]]:
        """Yield each request with its bytes, fewer at the object's end. The next step frees them."""
        answers: dict[RangeRequest, bytes] = {}
        try:
            self._wait(0)
            retry(lambda: self._ask(requests, answers), self._wait)
        except FileNotFoundError as error:
            raise MissingDataError(self.place(), "the data object is gone") from error
        except Exception as error:
            if not is_past_end(error):
                with store_errors("reading ranges", self.path):
                    raise
            answers.update((request, b"") for request in requests if request not in answers)
        for request in requests:
            yield request, answers.pop(request)

    def _ask(self, requests: Sequence[RangeRequest], answers: dict[RangeRequest, bytes]) -> None:
        """Make the requests that have no answer yet. Raises one of the store's errors, a final one if any."""
        errors = self._take_answers(requests, answers)
        if errors:
            try:
                raise next(filter(is_final, errors), errors[0])
            finally:
                errors.clear()  # an error held by this frame would keep alive the data that was read

    def _take_answers(
        self, requests: Sequence[RangeRequest], answers: dict[RangeRequest, bytes]
    ) -> list[Exception]:
        """Add the store's answers to ``answers``. Return the store's errors."""
        missing = [request for request in requests if request not in answers]
        errors: list[Exception] = []
        for request, answer in zip(missing, self._cat(missing), strict=True):
            if isinstance(answer, Exception):
                errors.append(answer)
            else:
                answers[request] = answer
        return errors

    def _cat(self, requests: Sequence[RangeRequest]) -> list[bytes | Exception]:
        paths = [self._object] * len(requests)
        starts = [request.start for request in requests]
        ends = [request.end for request in requests]
        # only asynchronous file systems accept the bound; others make one request at a time
        bound = {"batch_size": CONCURRENT_REQUESTS} if self._filesystem.async_impl else {}
        answers: list[Any] = self._filesystem.cat_ranges(paths, starts, ends, on_error="return", **bound)
        return answers

    def _wait(self, seconds: float) -> None:
        if self._given_up.wait(seconds):
            raise OSError(errno.ECANCELED, "the read was abandoned", self.path)


def read_stored_index(file: PartitionedFile, file_id: bytes | None = None) -> Index:
    """Return the whole, verified index of a map output at a URL, in one request.

    Raises `MissingDataError`, `CorruptDataError`; OSError if the store cannot be read.
    """
    local = mounted_file(file)
    if local is not None:
        return retry(lambda: read_index(local, file_id, mounted=True))
    url = file.index_path
    filesystem, path = open_store(url)
    try:
        # as a range, because s3fs first requests the size of an object that it reads whole
        data: bytes = retry(lambda: filesystem.cat_file(path, start=0))
    except FileNotFoundError as error:
        raise MissingDataError(Place(url), "the index object is gone") from error
    except Exception:
        with store_errors("reading an index", url):
            raise
    return verified_index(data, url, file_id)


def planned_requests(extents: Iterable[Extent]) -> list[RangeRequest]:
    """Return requests for whole extents, in file order. Neighbours with no more than `GAP_BYTES` between them
    share a request, up to `REQUEST_BYTES`; a larger extent takes several."""
    requests: list[RangeRequest] = []
    group: list[Extent] = []
    for extent in sorted(extents, key=lambda extent: extent.offset):
        if group and not _is_near(group, extent):
            requests += _split(group[0].offset, _end(group[-1]), tuple(group))
            group = []
        group.append(extent)
    if group:
        requests += _split(group[0].offset, _end(group[-1]), tuple(group))
    return requests


def _is_near(group: Sequence[Extent], extent: Extent) -> bool:
    gap = extent.offset - _end(group[-1])
    return gap <= GAP_BYTES and _end(extent) - group[0].offset <= REQUEST_BYTES


def _end(extent: Extent) -> int:
    return extent.offset + extent.bytes


def _copy(request: RangeRequest, data: bytes, extent: Extent, view: memoryview) -> None:
    """Copy the request's bytes of an extent to their place in the extent's memory."""
    start, end = max(request.start, extent.offset), min(request.end, _end(extent))
    part = memoryview(data)[start - request.start : end - request.start]
    view[start - extent.offset : end - extent.offset] = part


def _split(start: int, end: int, extents: tuple[Extent, ...]) -> list[RangeRequest]:
    return [
        RangeRequest(at, min(at + REQUEST_BYTES, end), extents) for at in range(start, end, REQUEST_BYTES)
    ]
