"""`StoredPair`: the two new objects of a result partition in a store, written through fsspec.

    new --append_data, append_index--> new --commit--> both are there
                                           --discard--> nothing is left

Nothing is visible before `commit`, which makes the data object appear first and the index second: an index
means a complete pair. The way depends on the store:

* an object store (fsspec's asynchronous file systems: S3, Google, Azure) takes an object in parts that stay
  invisible until the upload is completed (`_Upload`). An object smaller than a part is put in one request;
* elsewhere the object is written under a name that ends in ``.partial`` and then moved (`_Moved`).

A killed process leaves an uncompleted upload, or a ``.partial``. The driver removes it at its end, or
`sortshuffle clean` does.

Single-threaded. Appended bytes are copied: up to a part of each object is held here, and fsspec holds twice
as much while it sends a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

from sortshuffle.format.checksum import BytesLike
from sortshuffle.options import KIB, MIB
from sortshuffle.storage.files.partitioned_file import PARTIAL_SUFFIX, PartitionedFile
from sortshuffle.storage.files.urls import open_store, store_errors

# S3 requires 5 MiB or more for every part but the last, and takes 10,000 parts: an object has up to 78 GiB.
# The latency of a request, some 50 ms, is the time that 5 MB take at 100 MB/s: much smaller parts are slower.
PART_BYTES = 8 * MIB
BLOCK_BYTES = 256 * KIB  # of one write call elsewhere; larger blocks are not faster


class StoredPair:
    """Raises OSError with the URL if the store fails, `WorkerSetupError` if its library is missing."""

    def __init__(self, file: PartitionedFile) -> None:
        self._data = _new_object(file.data_path)
        try:
            self._index = _new_object(file.index_path)
        except BaseException:
            _discard(self._data)
            raise

    def append_data(self, pieces: Sequence[BytesLike]) -> None:
        self._data.append(pieces)

    def append_index(self, data: bytes) -> None:
        self._index.append([data])

    def commit(self) -> None:
        self._data.commit()
        self._index.commit()

    def discard(self) -> None:
        """Delete both objects, also after a `commit` that failed between them. Ignores errors: the task's own
        error must be seen. What stays is removed together with the remains of killed processes."""
        _discard(self._index)
        _discard(self._data)


class _Object(Protocol):
    def append(self, pieces: Sequence[BytesLike]) -> None: ...

    def commit(self) -> None: ...

    def discard(self) -> None: ...


def _discard(one: _Object) -> None:
    with suppress(OSError):
        one.discard()


def _new_object(url: str) -> _Object:
    filesystem, path = open_store(url)
    return _Upload(filesystem, path, url) if filesystem.async_impl else _Moved(filesystem, path, url)


class _Upload:
    """An object that is uploaded in parts of `PART_BYTES`; a smaller one is put whole."""

    def __init__(self, filesystem: Any, path: str, url: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self._url = url
        self._held = bytearray()
        self._stream: Any = None
        self._is_put = False

    def append(self, pieces: Sequence[BytesLike]) -> None:
        for piece in pieces:
            view = memoryview(piece).cast("B")
            while len(self._held) + len(view) >= PART_BYTES:
                room = PART_BYTES - len(self._held)
                self._held += view[:room]
                view = view[room:]
                self._send()
            self._held += view

    def commit(self) -> None:
        with store_errors("writing", self._url):
            self._is_put = True  # it may be, also where no answer arrives
            if self._stream is None:
                self._filesystem.pipe_file(self._path, bytes(self._held))
            else:
                self._stream.write(self._held)
                self._stream.close()  # sends the last part; without autocommit it completes nothing
                self._stream.commit()
        self._held = bytearray()

    def discard(self) -> None:
        self._held = bytearray()
        stream, self._stream = self._stream, None
        with store_errors("removing an unfinished upload", self._url):
            if stream is not None:
                _abort(stream)
            if self._is_put:
                _remove(self._filesystem, self._path)

    def _send(self) -> None:
        """Send the held bytes as a part: they fill exactly one block of the stream."""
        with store_errors("writing", self._url):
            if self._stream is None:
                self._stream = self._filesystem.open(
                    self._path, "wb", block_size=PART_BYTES, autocommit=False
                )
            self._stream.write(self._held)
        self._held = bytearray()


class _Moved:
    """An object that is written under another name and then moved."""

    def __init__(self, filesystem: Any, path: str, url: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self._url = url
        self._partial = path + PARTIAL_SUFFIX
        self._is_moved = False
        with store_errors("writing", url):
            filesystem.makedirs(filesystem._parent(path), exist_ok=True)
            self._stream = filesystem.open(self._partial, "wb")

    def append(self, pieces: Sequence[BytesLike]) -> None:
        with store_errors("writing", self._url):
            for block in _in_blocks(pieces):
                self._stream.write(block)

    def commit(self) -> None:
        with store_errors("writing", self._url):
            self._stream.close()
            self._is_moved = True  # it may be, also where no answer arrives
            self._filesystem.mv(self._partial, self._path)

    def discard(self) -> None:
        with store_errors("removing an unfinished file", self._url):
            self._stream.close()
            _remove(self._filesystem, self._partial)
            if self._is_moved:
                _remove(self._filesystem, self._path)


def _in_blocks(pieces: Sequence[BytesLike]) -> Iterator[BytesLike]:
    """Join small pieces. Yield blocks of at least `BLOCK_BYTES`, except for the last."""
    block = bytearray()
    for piece in pieces:
        if not block and len(piece) >= BLOCK_BYTES:
            yield piece
            continue
        block += piece
        if len(block) >= BLOCK_BYTES:
            yield block
            block = bytearray()
    if block:
        yield block


def _abort(stream: Any) -> None:
    stream.closed = True  # so that garbage collection does not send the last part
    try:
        stream.discard()
    except FileNotFoundError:
        pass  # it was completed, but the answer did not arrive


def _remove(filesystem: Any, path: str) -> None:
    try:
        filesystem.rm_file(path)
    except FileNotFoundError:
        pass  # it was not made yet
