"""`RemoteBlocks`: the blocks of one request that lie on other hosts, read through their shuffle services.

The engine asks for a JVM of its own host: credit, reconnecting and verifying are those of every remote reader
(`service.client`, `read.fetcher`).

A service that does not answer for its time-out has its blocks counted as unreachable, together: Spark then
runs the map tasks of that host again.

Single-threaded, but for the threads of the fetcher. Owns its connections.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from sortshuffle.errors import DataLossError, ProtocolError, ServiceUnavailableError
from sortshuffle.format.index import Index
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import MIB
from sortshuffle.payload.record_bytes import RecordBytesPayload
from sortshuffle.read.fetcher import Fetcher
from sortshuffle.service.client import ClientSettings, ServiceClients
from sortshuffle.service.jvm.lost import LostBlocksError
from sortshuffle.service.jvm.protocol import Block, ReadRequest
from sortshuffle.service.protocol import MapOutputAddress
from sortshuffle.service.remote_input_channel import RemoteInputChannel
from sortshuffle.storage.extents import extents_of
from sortshuffle.storage.partitioned_file import PartitionedFile
from sortshuffle.storage.reader import verified_index

READ_AHEAD_BYTES = 32 * MIB  # that one request may hold, half of what a task of this package reads ahead
THREADS = 4  # that fetch, verify and decompress for one request; as many as a task of this package has
MOST_INDEX_BYTES = 32 * MIB  # of other hosts' map outputs, kept for the next request


class RemoteIndexes:
    """Indexes of map outputs on other hosts, the longest unused forgotten first. Thread-safe; the lock is a
    leaf."""

    def __init__(self, most_bytes: int = MOST_INDEX_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, Index] = OrderedDict()
        self._bytes = 0

    def get(self, file_id: bytes) -> Index | None:
        with self._lock:
            known = self._known.get(file_id)
            if known is not None:
                self._known.move_to_end(file_id)
            return known

    def put(self, index: Index) -> None:
        with self._lock:
            self._drop(index.header.file_id)
            self._known[index.header.file_id] = index
            self._bytes += index.entries.nbytes
            while self._bytes > self._most_bytes and len(self._known) > 1:
                self._drop(next(iter(self._known)))

    def forget(self, file_id: bytes) -> None:
        with self._lock:
            self._drop(file_id)

    def _drop(self, file_id: bytes) -> None:
        known = self._known.pop(file_id, None)
        if known is not None:
            self._bytes -= known.entries.nbytes


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """How the engine talks to other hosts. ``indexes``: what it knows of their map outputs."""

    application: str
    clients: ClientSettings
    indexes: RemoteIndexes


@dataclass(frozen=True, slots=True)
class _Located:
    """A remote block whose index is known. ``path``: of its data file, as errors name it."""

    number: int
    block: Block
    service: str
    index: Index
    path: str


class RemoteBlocks:
    """``blocks``: with their numbers in the request. ``blocks_begun``: how many of them `pieces` has come to.
    The caller closes it."""

    def __init__(
        self, request: ReadRequest, blocks: Sequence[tuple[int, Block]], settings: RemoteSettings
    ) -> None:
        self._request = request
        self._blocks = blocks
        self._settings = settings
        self._clients = ServiceClients(settings.clients)
        self._located: list[_Located] = []
        self._metrics = TaskMetrics()
        self.blocks_begun = 0

    @property
    def bytes_read(self) -> int:
        """Bytes of extents that came so far."""
        return self._metrics.counts["bytes_read"]

    def locate(self) -> None:
        """Find all map outputs. Raises `LostBlocksError`."""
        lost: list[int] = []
        unreachable: dict[str, str] = {}  # services, and why
        why = ""
        for number, block in self._blocks:
            service = self._request.services[block.service]
            if service in unreachable:
                continue
            try:
                path = self._path(service, block)
                self._located.append(_Located(number, block, service, self._index(service, block), path))
            except DataLossError as error:
                lost.append(number)
                why = why or str(error)
            except ServiceUnavailableError as error:
                unreachable[service] = str(error)
            except ProtocolError as error:
                raise ProtocolError(
                    f"the shuffle service at {service} breaks the protocol: {error}"
                ) from error
        if unreachable:
            raise self._unreachable(unreachable, lost)
        if lost:
            raise LostBlocksError(lost, why)

    def pieces(self) -> Iterator[pa.Buffer]:
        """The bytes of records, block by block. Raises `LostBlocksError`."""
        try:
            numbered = enumerate(self._located, 1)
            for codec, located in groupby(numbered, lambda each: each[1].index.header.codec):
                payload = RecordBytesPayload(codec)
                fetcher = Fetcher(payload, MemoryBudget(READ_AHEAD_BYTES), THREADS, self._metrics)
                channels = [(begun, channel) for begun, each in located for channel in self._channels(each)]
                # by identity: a block that is asked for twice has channels that are equal
                begun_with = {id(channel): begun for begun, channel in channels}
                with closing(fetcher.items([channel for _, channel in channels])) as items:
                    for channel, piece in items:
                        self.blocks_begun = begun_with[id(channel)]
                        yield piece
            self.blocks_begun = len(self._blocks)  # the last ones may be empty
        except DataLossError as error:
            raise self._lost(error) from error
        except ServiceUnavailableError as error:
            raise self._unreachable({error.address: str(error)}) from error

    def close(self) -> None:
        """Give up what is under way. May be called again."""
        self._clients.close()

    def _lost(self, error: DataLossError) -> LostBlocksError:
        """The block that the error is of, and all others that are lost by now: the services tell."""
        name = _base_name(error.place.file)
        lost = {each.number for each in self._located if _base_name(each.path) == name}
        for each in self._located:
            self._settings.indexes.forget(each.block.file_id)
        self._located.clear()
        try:
            self.locate()
        except LostBlocksError as others:
            lost.update(others.blocks)
        return LostBlocksError(sorted(lost), str(error))

    def _unreachable(self, services: dict[str, str], lost: Sequence[int] = ()) -> LostBlocksError:
        """All blocks of services that do not answer, and what is lost besides."""
        blocks = {n for n, block in self._blocks if self._request.services[block.service] in services}
        return LostBlocksError(sorted({*blocks, *lost}), "; ".join(services.values()), is_reachable=False)

    def _index(self, service: str, block: Block) -> Index:
        known = self._settings.indexes.get(block.file_id)
        if known is None:
            data = self._clients.client(service).index(self._address(block), service)
            known = verified_index(data, self._path(service, block), block.file_id)
            self._settings.indexes.put(known)
        return known

    def _channels(self, located: _Located) -> Iterator[RemoteInputChannel]:
        block, index = located.block, located.index
        for subpartition in range(block.first, block.end):
            extents = extents_of(index, subpartition)
            if extents:
                yield RemoteInputChannel(
                    self._clients,
                    located.service,
                    self._address(block),
                    located.service,
                    located.path,
                    str(index.writer),
                    tuple(extents),
                )

    def _address(self, block: Block) -> MapOutputAddress:
        return MapOutputAddress(
            self._settings.application, self._request.shuffle, block.map_index, block.map_id, block.file_id
        )

    def _path(self, service: str, block: Block) -> str:
        return PartitionedFile.named(service, self._request.shuffle, block.map_index, block.map_id).data_path


def _base_name(path: str) -> str:
    """Of a map output's file: the same here, where its path is made up, and on its own host."""
    file = PartitionedFile.of(path)
    return os.path.basename(file.base if file is not None else path)
