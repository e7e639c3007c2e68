"""`RemoteInputChannel`: the `InputChannel` to a map output behind the shuffle service of another host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.options import KIB
from sortshuffle.service.client.client import ServiceClients
from sortshuffle.service.client.remote_reader import RemoteFile, RemoteReader
from sortshuffle.service.wire.protocol import MapOutputAddress
from sortshuffle.storage.files.extents import Extent, ExtentReader

# What a reader of parts has asked for beyond its part: one segment of the service, whose default it is. That
# it is another one is known only when the service has greeted, and plans are made before
SEGMENT_BYTES = 512 * KIB


@dataclass(frozen=True, slots=True)
class RemoteInputChannel:
    """``service``: host:port. ``host``: where the files lie; ``path``: of the data file there, and
    ``writer``: who wrote it, for errors. ``extents``: of one subpartition or of one region; none that lies
    between two others is left out.

    ``key``: by which they are decrypted; the service has none.

    It belongs to the task that ``clients`` belongs to: only there it may be opened.
    """

    clients: ServiceClients
    service: str
    output: MapOutputAddress
    host: str
    path: str
    writer: str
    extents: tuple[Extent, ...]
    key: EncryptionKey | None = None

    @property
    def map_index(self) -> int:
        return self.output.map_index

    @property
    def read_ahead(self) -> int:
        return SEGMENT_BYTES

    @property
    def held_parts(self) -> int:
        return 1  # the service sends ahead, `read_ahead` bytes

    def open(self, extents: Sequence[Extent]) -> ExtentReader:
        file = RemoteFile(self.output, self.host, self.path, self.writer)
        return RemoteReader(self.clients.client(self.service), file, extents, self.key)
