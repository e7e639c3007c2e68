"""`StoredInputChannel`: the `InputChannel` to a map output on storage that every host sees.

In a directory that all hosts have mounted, the files are opened like local files, without a copy. From a
store, all extents of a fetch are requested at once (`storage.stored.stored_reader`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sortshuffle.errors import CorruptDataError, Place
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.storage.files.extents import Extent, ExtentReader
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import PartitionedFileReader
from sortshuffle.storage.files.urls import mounted_file, retry
from sortshuffle.storage.stored.stored_reader import StoredFileReader

# Concurrent fetches of one consumer. Each waits 10 to 100 ms for a store, without using a processor. 16
# fetches of 8 MiB are as much as a connection of 10 Gbit/s carries in 100 ms
CONCURRENT_FETCHES = 16


@dataclass(frozen=True, slots=True)
class StoredInputChannel:
    """The `InputChannel` to a map output whose ``file`` has a URL as its base. ``file_id``: the expected id
    of the data file. ``key``: decrypts the file."""

    file: PartitionedFile
    file_id: bytes
    map_index: int
    writer: str
    extents: tuple[Extent, ...]
    key: EncryptionKey | None = None

    @property
    def path(self) -> str:
        return self.file.data_path

    @property
    def read_ahead(self) -> int:
        return 0

    @property
    def held_parts(self) -> int:
        if mounted_file(self.file) is not None:
            return 1
        # The part in use, the next part, and the encrypted bytes of the next part
        return 2 if self.key is None else 3

    def open(self, extents: Sequence[Extent]) -> ExtentReader:
        local = mounted_file(self.file)
        if local is not None:
            return retry(
                lambda: PartitionedFileReader(local, self.file_id, self.writer, mounted=True, key=self.key)
            )
        return StoredFileReader(self.file, extents, self.writer, self.key, self.file_id)

    def expect_data(self, size: int) -> None:
        """Check that the data file is there now and not shorter than ``size`` bytes. Reads the last of them:
        what a listing shows, or a mount says of a file, may be old. Raises `DataLossError`, OSError."""
        last = Extent(0, 0, offset=size - 1, bytes=1, raw_bytes=1, records=0, checksum=0, buffers=0)
        with self.open((last,)) as reader:
            try:
                reader.fetch(1, last)
            except CorruptDataError:
                place = Place(self.path, writer=self.writer or None)
                what = "the data file is cut short"
                raise CorruptDataError(place, what, expected=f"{size} bytes", found="fewer") from None
