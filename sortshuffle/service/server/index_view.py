"""`IndexView`: streams the index file of a map output to a channel.

It has the interface of a `SubpartitionReader`. Each poll reads its bytes in the loop's own thread: the whole
file was read and verified just before, so the bytes come from the page cache. Between two polls the view
holds neither memory nor a descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from sortshuffle import calls
from sortshuffle.errors import OUT_OF, CorruptDataError, DataLossError, MissingDataError, Place, UsageError
from sortshuffle.storage.files.descriptors import close_after_reading, read_at
from sortshuffle.storage.files.partitioned_file import PartitionedFile


@dataclass(frozen=True, slots=True)
class IndexPortion:
    """The result of one poll, like a `Delivery`, but with memory that is garbage collected."""

    data: bytes
    credits: int
    backlog: int
    end_of_partition: bool

    @property
    def runs(self) -> Iterator[list[memoryview]]:
        """The bytes as one run; none if there are no bytes."""
        if self.data:
            yield [memoryview(self.data)]

    def recycle(self) -> None:
        """Do nothing: there is no memory to give back."""


class IndexView:
    """Reads a finished index file from byte ``skip`` on.

    Raises `MissingDataError` if the file is gone, `UsageError` if ``skip`` is beyond its end, and OSError if
    this process lacks descriptors or memory.
    """

    compressed = False

    def __init__(self, file: PartitionedFile, segment_bytes: int, skip: int = 0) -> None:
        self._path = file.index_path
        self._segment_bytes = segment_bytes
        self._position = skip
        try:
            self._size = calls.stat(self._path).st_size
        except OSError as error:
            self._raise_missing(error)
        if skip > self._size:
            raise UsageError(f"{skip} bytes are to be skipped of an index of {self._size}")
        self._ended = False
        self._cause: BaseException | None = None

    @property
    def cause(self) -> BaseException | None:
        """The error that a poll failed with; None if the view has not failed."""
        return self._cause

    @property
    def is_queued(self) -> bool:
        """False: the view holds no memory."""
        return False

    def is_available(self, credits: int) -> bool:
        """Return whether to poll now: with credit, at the end, or after a failure."""
        return bool(credits) or self._is_at_end() or self._cause is not None

    def grant(self, credits: int) -> None:
        """Do nothing: the view reads only when it is polled."""

    def poll(self, credits: int, most: int) -> IndexPortion | None:
        """Return the next bytes, at most ``most`` and as far as ``credits`` go. None if there is nothing to
        send; then look at `cause`."""
        size = min(credits * self._segment_bytes, most, self._size - self._position)
        if self._ended or self._cause is not None or not (size or self._is_at_end()):
            return None
        try:
            data = self._read(size)
        except (DataLossError, OSError) as error:
            self._cause = error
            return None
        self._position += size
        self._ended = self._is_at_end()
        return IndexPortion(
            data, self._in_credits(size), self._in_credits(self._size - self._position), self._ended
        )

    def release(self) -> None:
        """Stop: nothing more will be polled."""
        self._ended = True

    def _is_at_end(self) -> bool:
        return self._position == self._size and not self._ended

    def _read(self, size: int) -> bytes:
        try:
            descriptor = calls.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = read_at(descriptor, size, self._position)
            finally:
                close_after_reading(descriptor)
        except OSError as error:
            self._raise_missing(error)
        if len(data) < size:
            place = Place(self._path, offset=self._position)
            raise CorruptDataError(place, "the index is cut short", expected=size, found=len(data))
        return data

    def _in_credits(self, size: int) -> int:
        return -(-size // self._segment_bytes)

    def _raise_missing(self, error: OSError) -> NoReturn:
        if error.errno in OUT_OF:
            raise error
        what = f"the index file cannot be opened: {error.strerror}"
        raise MissingDataError(Place(self._path), what) from error
