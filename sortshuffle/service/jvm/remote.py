"""`RemoteBlocks`: the blocks of one request that lie on other hosts, read through their shuffle services.

The engine asks for a JVM of its own host: credit, reconnecting and verifying are those of every remote reader
(`service.client`, `read.fetcher`).

A service that does not answer for its time-out has its blocks counted as unreachable, together: Spark then
runs the map tasks of that host again.

Owns its connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sortshuffle.errors import DataLossError, ProtocolError, ServiceUnavailableError
from sortshuffle.format.index import Index
from sortshuffle.options import MIB
from sortshuffle.service.client import ClientSettings, ServiceClients
from sortshuffle.service.jvm.elsewhere import BlocksElsewhere, KnownIndexes, Located, base_name
from sortshuffle.service.jvm.lost import LostBlocksError
from sortshuffle.service.jvm.protocol import Block, ReadRequest
from sortshuffle.service.protocol import MapOutputAddress
from sortshuffle.service.remote_input_channel import RemoteInputChannel
from sortshuffle.storage.extents import extents_of
from sortshuffle.storage.partitioned_file import PartitionedFile
from sortshuffle.storage.reader import verified_index

MOST_INDEX_BYTES = 32 * MIB  # of other hosts' map outputs, kept for the next request


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """How the engine talks to other hosts. ``indexes``: what it knows of their map outputs."""

    application: str
    clients: ClientSettings
    indexes: KnownIndexes

    def blocks(self, request: ReadRequest, numbered: Sequence[tuple[int, Block]]) -> RemoteBlocks:
        return RemoteBlocks(request, numbered, self)


class RemoteBlocks(BlocksElsewhere):
    """``blocks``: with their numbers in the request. The caller closes it."""

    def __init__(
        self, request: ReadRequest, blocks: Sequence[tuple[int, Block]], settings: RemoteSettings
    ) -> None:
        super().__init__(blocks)
        self._request = request
        self._settings = settings
        self._located: list[Located] = []
        self._clients = ServiceClients(settings.clients)

    def locate(self) -> None:
        lost: list[int] = []
        unreachable: dict[str, str] = {}  # services, and why
        why = ""
        for number, block in self._blocks:
            service = self._request.services[block.service]
            if service in unreachable:
                continue
            try:
                path = self._path(service, block)
                self._located.append(Located(number, block, self._index(service, block), path))
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
        try:
            yield from self._fetched(enumerate(self._located, 1))
            self.blocks_begun = len(self._blocks)  # the last ones may be empty
        except DataLossError as error:
            raise self._lost(error) from error
        except ServiceUnavailableError as error:
            raise self._unreachable({error.address: str(error)}) from error

    def close(self) -> None:
        self._clients.close()

    def _lost(self, error: DataLossError) -> LostBlocksError:
        """The block that the error is of, and all others that are lost by now: the services tell."""
        name = base_name(error.place.file)
        lost = {each.number for each in self._located if base_name(each.path) == name}
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

    def _channels(self, located: Located) -> Iterator[RemoteInputChannel]:
        block, index = located.block, located.index
        service = self._request.services[block.service]
        for subpartition in range(block.first, block.end):
            extents = extents_of(index, subpartition)
            if extents:
                yield RemoteInputChannel(
                    self._clients,
                    service,
                    self._address(block),
                    service,
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
