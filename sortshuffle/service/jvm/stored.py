"""`StoredBlocks`: the blocks of one request that lie on storage that every host sees.

Whoever asks reads them from there, with no service between. So it does not matter which host or executor
wrote them, nor whether it lives.

    locate   the index of each map output, many at a time; of a small one all records with it
    pieces   ranges of the data objects, many at a time (`read.stored_channel`)

Rules
* An object that is gone or damaged is a lost map output. A store that fails, after all patience, is not: the
  data may well be there, so the task fails and no producer runs again.
* When one is found lost, the shuffle is listed once. So all that are gone or cut short are told together, and
  Spark runs their tasks again in one attempt of the stage.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from sortshuffle.errors import DataLossError
from sortshuffle.format.checksum import BytesLike
from sortshuffle.format.index import Index
from sortshuffle.options import MIB
from sortshuffle.read.stored_channel import CONCURRENT_FETCHES, StoredInputChannel
from sortshuffle.service.jvm.elsewhere import BlocksElsewhere, KnownIndexes, Located, base_name
from sortshuffle.service.jvm.lost import LostBlocksError
from sortshuffle.service.jvm.outputs import KnownOutputs, SmallMapOutput
from sortshuffle.service.jvm.protocol import Block, ReadRequest
from sortshuffle.service.jvm.remote import RemoteBlocks, RemoteSettings
from sortshuffle.service.jvm.small_outputs import SmallOutput, is_small, read_small
from sortshuffle.storage.extents import Extent, extent_of
from sortshuffle.storage.partitioned_file import DATA_SUFFIX, PartitionedFile
from sortshuffle.storage.stored_cleaning import sizes_of_exchange
from sortshuffle.storage.stored_reader import read_stored_index

# Of indexes that are kept for the next request. Those of 1,000 map outputs with 1,000 subpartitions take
# 48 MB; were they driven out, each reduce task would ask the store for all of them once more
MOST_INDEX_BYTES = 64 * MIB

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """``home``: the URL at which the application's map outputs lie. ``indexes``, ``small``: what the engine
    knows of them: the index of each, and of small ones the records."""

    home: str
    indexes: KnownIndexes
    small: KnownOutputs

    @staticmethod
    def at(home: str) -> StoredSettings:
        """For an engine that knows nothing yet."""
        return StoredSettings(home, KnownIndexes(MOST_INDEX_BYTES), KnownOutputs())


@dataclass(frozen=True, slots=True)
class _Found:
    """A map output. ``small``: its records; None where it is read extent by extent."""

    index: Index
    small: SmallOutput | None


def blocks_elsewhere(
    request: ReadRequest, blocks: Sequence[tuple[int, Block]], settings: RemoteSettings | StoredSettings
) -> BlocksElsewhere:
    """What reads the blocks of a request that are not files of this host."""
    if isinstance(settings, StoredSettings):
        return StoredBlocks(request, blocks, settings)
    return RemoteBlocks(request, blocks, settings)


class StoredBlocks(BlocksElsewhere):
    """``blocks``: with their numbers in the request."""

    def __init__(
        self, request: ReadRequest, blocks: Sequence[tuple[int, Block]], settings: StoredSettings
    ) -> None:
        super().__init__(blocks)
        self._shuffle = request.shuffle
        self._settings = settings
        self._small: dict[int, SmallOutput] = {}  # by the number of the block
        self._small_bytes = 0

    @property
    def bytes_read(self) -> int:
        return super().bytes_read + self._small_bytes

    def locate(self) -> None:
        """Raises OSError where the store does not answer, too."""
        lost: list[int] = []
        why = ""
        for (number, block), found in zip(self._blocks, self._outputs(), strict=True):
            if isinstance(found, DataLossError):
                lost.append(number)
                why = why or str(found)
                continue
            self._located.append(Located(number, block, found.index, self._file(block).data_path))
            if found.small is not None:
                self._small[number] = found.small
        if lost:
            raise LostBlocksError(sorted({*lost, *self._gone()}), why)

    def pieces(self) -> Iterator[BytesLike]:
        try:
            numbered = enumerate(self._located, 1)
            for is_small, blocks in groupby(numbered, lambda each: each[1].number in self._small):
                read = self._slices if is_small else self._fetched
                yield from read(blocks)
            self.blocks_begun = len(self._blocks)  # the last ones may be empty
        except DataLossError as error:
            lost = self._numbers_of(error.place.file) | self._gone()
            for each in self._located:
                if each.number in lost:
                    self._settings.indexes.forget(each.block.file_id)
                    self._settings.small.forget(each.block.file_id)
            raise LostBlocksError(sorted(lost), str(error)) from error

    def close(self) -> None:
        self._located.clear()
        self._small.clear()

    def _slices(self, blocks: Iterable[tuple[int, Located]]) -> Iterator[memoryview]:
        for begun, each in blocks:
            block, small = each.block, self._small[each.number]
            self.blocks_begun = begun
            self._small_bytes += small.stored_bytes(block.first, block.end)
            yield small.records(block.first, block.end)

    def _outputs(self) -> list[_Found | DataLossError]:
        """Of each block."""
        ids = [block.file_id for _, block in self._blocks]
        indexes = map(self._settings.indexes.get, ids)
        small = self._settings.small.get_all(ids)
        found: dict[bytes, _Found | DataLossError] = {
            file_id: _Found(index, kept.small if isinstance(kept, SmallMapOutput) else None)
            for file_id, index, kept in zip(ids, indexes, small, strict=True)
            if index is not None
        }
        unknown = {block.file_id: block for _, block in self._blocks if block.file_id not in found}
        if unknown:
            with ThreadPoolExecutor(min(len(unknown), CONCURRENT_FETCHES)) as threads:
                found.update(zip(unknown, threads.map(self._read, unknown.values()), strict=True))
        return [found[file_id] for file_id in ids]

    def _read(self, block: Block) -> _Found | DataLossError:
        file, settings = self._file(block), self._settings
        small: SmallOutput | None = None
        try:
            index = read_stored_index(file, block.file_id)
            if is_small(index) and settings.small.has_room_for_small():
                with StoredInputChannel(file, block.file_id, 0, str(index.writer), ()).open(()) as reader:
                    small = read_small(reader, index)
        except DataLossError as error:
            return error
        settings.indexes.put(index)
        if small is not None:
            settings.small.keep(SmallMapOutput(file, block.file_id, small))
        return _Found(index, small)

    def _gone(self) -> set[int]:
        """The located blocks whose data is not there, or not all of it. Only what is already known to be lost
        is told where the store does not answer."""
        try:
            sizes = sizes_of_exchange(self._settings.home, self._shuffle)
        except OSError as error:
            _log.warning("which map outputs of shuffle %d are lost cannot be told: %s", self._shuffle, error)
            return set()
        return {
            each.number
            for each in self._located
            if sizes.get(base_name(each.path) + DATA_SUFFIX) != each.index.data_bytes
        }

    def _channels(self, located: Located) -> Iterator[StoredInputChannel]:
        """One for the whole block: neighbouring extents then come by one request."""
        block, index = located.block, located.index
        extents = tuple(_extents(index, block.first, block.end))
        if extents:
            writer = str(index.writer)
            yield StoredInputChannel(self._file(block), block.file_id, block.map_index, writer, extents)

    def _file(self, block: Block) -> PartitionedFile:
        return PartitionedFile.named(self._settings.home, self._shuffle, block.map_index, block.map_id)


def _extents(index: Index, first: int, end: int) -> Iterator[Extent]:
    """The non-empty extents of the subpartitions ``first..end-1``, as they lie in the file."""
    for region, row in enumerate(index.entries[:, first:end]):
        for subpartition in np.flatnonzero(row["bytes"]).tolist():
            yield extent_of(row[subpartition], region, first + subpartition)
