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

# What a reader of parts requests beyond its part: one segment, in the default size of services. Plans are
# made before a service's greeting says whether its segments have another size
SEGMENT_BYTES = 512 * KIB


@dataclass(frozen=True, slots=True)
class RemoteInputChannel:
    """A channel of the task that owns ``clients``; only that task may open it.

    ``service``: host:port. ``host``: where the files lie; ``path``: the data file there, and ``writer``: who
    wrote it, both for errors. ``extents``: of one subpartition or of one region, with none between two others
    left out. ``key``: decrypts them; the service has none.
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
