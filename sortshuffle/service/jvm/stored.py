"""`StoredBlocks`: the blocks of one request that lie on storage that every host sees.

The engine reads them directly, not through a service. So it does not matter which host or executor wrote
them, nor whether it is alive.

    locate   reads the index of each map output, or all records of a small one; many at a time
    pieces   reads ranges of the data objects, many at a time (`reading.stored_channel`)

Rules
* A map output whose object is gone or damaged is lost. If the store itself fails after all retries, nothing
  is lost, because the data may well be there: the task fails, but no producer runs again.
* `locate` raises such an error only if nothing is lost: Spark must hear of the losses of other map outputs.
* A host that does not see the home has lost nothing either: it has not mounted the directory.
* When one map output is lost, the shuffle is listed once. So all objects that are gone or cut short are
  reported together, and Spark runs their tasks again in one attempt of the stage.
* A listing may be old, above all in a mounted directory. So it only says which objects to look at; only the
  look at an object itself counts. An object that was missing, but is listed, is looked at a second time: a
  mount that is away for a moment loses nothing.
* Bytes come in the order of the request, whatever is known already: if an answer breaks off, the reader takes
  the rest from the next answer.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from sortshuffle.errors import DataLossError, MissingDataError
from sortshuffle.format.checksum import BytesLike
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.index import Index
from sortshuffle.homes.shared_home import expect_stored_home
from sortshuffle.memory.shared_budget import SharedBudget
from sortshuffle.reading.stored_channel import CONCURRENT_FETCHES, StoredInputChannel
from sortshuffle.service.jvm.index_part import IndexPart
from sortshuffle.service.jvm.lost_blocks import (
    PROBLEMS,
    LostBlocksError,
    is_no_loss,
    raise_for,
    warn_of,
    without_frames,
)
from sortshuffle.service.jvm.nonlocal_blocks import (
    FoundBlock,
    IndexOrRecords,
    NonLocalBlocks,
    NonLocalCache,
    PartOrRecords,
    base_name,
    map_in_threads,
    part_for,
    read_ahead_memory,
)
from sortshuffle.service.jvm.outputs import MapOutputCache
from sortshuffle.service.jvm.protocol import Block, ReadRequest
from sortshuffle.service.jvm.single_flight import SingleFlight
from sortshuffle.service.jvm.small_outputs import SmallOutputRecords, read_small
from sortshuffle.storage.files.extents import Extent, extent_of
from sortshuffle.storage.files.partitioned_file import DATA_SUFFIX, INDEX_SUFFIX, PartitionedFile
from sortshuffle.storage.files.urls import retry
from sortshuffle.storage.stored.stored_cleaning import sizes_of_exchange
from sortshuffle.storage.stored.stored_reader import read_stored_index

THREAD_NAME = "sortshuffle-read-stored"

_log = logging.getLogger(__name__)

Found: TypeAlias = PartOrRecords | Exception
"""What a look for a block finds: the part of the index, or the records of the map output, a loss, or an error
that is no loss."""

Blocks: TypeAlias = Sequence[tuple[int, Block]]
"""Blocks, each with its number in the request."""


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """``home``: the URL where the application's map outputs lie. ``known``: what the engine knows of them.
    ``under_way``: map outputs that are being read, by file id. ``key``: decrypts them. ``read_ahead``: the
    memory of all requests to read ahead in."""

    home: str
    known: NonLocalCache
    under_way: SingleFlight[IndexOrRecords]
    key: EncryptionKey | None = None
    read_ahead: SharedBudget = field(default_factory=read_ahead_memory)

    @staticmethod
    def at(home: str, small: MapOutputCache) -> StoredSettings:
        """Return the settings of an engine that knows no indexes yet."""
        return StoredSettings(home, NonLocalCache(small), SingleFlight())

    def blocks(self, request: ReadRequest, numbered: Blocks) -> StoredBlocks:
        return StoredBlocks(request, numbered, self)


class StoredBlocks(NonLocalBlocks):
    """Reads ``blocks``, each with its number in the request."""

    def __init__(self, request: ReadRequest, blocks: Blocks, settings: StoredSettings) -> None:
        super().__init__(blocks, settings.read_ahead)
        self._shuffle = request.shuffle
        self._settings = settings

    def locate(self) -> None:
        """Find all map outputs. Also raises OSError: the store fails, or this host does not see the home."""
        known = self._look_up(self._blocks)
        losses = _losses(known)
        if losses:
            sizes = self._sizes()
            known |= self._look_up([each for each in self._blocks if _may_be_back(each, losses, sizes)])
            losses = _losses(known)
        self._found = [
            FoundBlock(number, block, self._file(block).data_path, found)
            for number, block in self._blocks
            if not isinstance(found := known[number], Exception)
        ]
        raise_for([self._lost(losses, sizes)] if losses else [], known.values(), self._shuffle)

    def check_known(self) -> None:
        pass  # `locate` has compared all with the list of the shuffle, if the store has given one

    def forget(self) -> None:
        # indexes alone are read again: a data object that is gone is found when one of these is, too
        self._settings.known.forget_indexes(block.file_id for _, block in self._blocks)

    def pieces(self) -> Iterator[BytesLike]:
        try:
            yield from self._pieces()
        except DataLossError as error:
            raise self._lost(dict.fromkeys(self._blocks_of(error.place), error), self._sizes()) from error

    def _look_up(self, blocks: Blocks) -> dict[int, Found]:
        """Return what is found for each block, by number. Reads the unknown map outputs."""
        found: dict[int, Found] = {**self._settings.known.parts(blocks)}
        unknown: dict[bytes, list[tuple[int, Block]]] = defaultdict(list)
        for number, block in blocks:
            if number not in found:
                unknown[block.file_id].append((number, block))
        for read in map_in_threads(self._read_once, list(unknown.values()), CONCURRENT_FETCHES, THREAD_NAME):
            found |= read
        return found

    def _read_once(self, blocks: Blocks) -> dict[int, Found]:
        """Read the map output that has these blocks, on behalf of all requests that want it at this time.
        Return what is found for each block, or the error for all of them: all requests read the same stored
        object."""
        settings, (_, first) = self._settings, blocks[0]
        file_id = first.file_id
        try:
            read = settings.under_way.do(file_id, lambda: settings.known.get(file_id) or self._read(first))
            return {number: part_for(block, read) for number, block in blocks}
        except PROBLEMS as error:
            return dict.fromkeys((number for number, _ in blocks), without_frames(error))

    def _read(self, block: Block) -> IndexOrRecords:
        file = self._file(block)
        index = read_stored_index(file, block.file_id)
        return self._settings.known.keep(index, file, lambda: self._read_whole(file, index))

    def _read_whole(self, file: PartitionedFile, index: Index) -> SmallOutputRecords:
        key = self._settings.key
        channel = StoredInputChannel(file, index.header.file_id, 0, str(index.writer), (), key)
        with channel.open(()) as reader:
            return read_small(reader, index)

    def _lost(self, losses: Mapping[int, DataLossError], sizes: Mapping[str, int] | None) -> LostBlocksError:
        """Return an error with these blocks, by number, and all others that are gone by now. All are
        forgotten: the next request looks for them again."""
        lost = {**losses, **self._gone(sizes)}
        for number, block in self._blocks:
            if number in lost:
                self._settings.known.forget(block.file_id)
        return LostBlocksError(lost, map(str, lost.values()))

    def _sizes(self) -> dict[str, int] | None:
        """Return the sizes of the shuffle's files, by name; None if the store does not answer. Raises OSError
        if this host does not see the home, as the list would be empty then."""
        home = self._settings.home
        expect_stored_home(home)
        try:
            sizes = retry(lambda: sizes_of_exchange(home, self._shuffle))
        except OSError as error:
            _log.warning("which map outputs of shuffle %d are lost cannot be told: %s", self._shuffle, error)
            return None
        expect_stored_home(home)
        return sizes

    def _gone(self, sizes: Mapping[str, int] | None) -> dict[int, DataLossError]:
        """Return the losses among the found blocks. Looks only at the data objects that are missing in the
        list, or have another size there."""
        suspects = {
            each.block.file_id: each
            for each in self._found
            if sizes is not None and sizes.get(base_name(each.path) + DATA_SUFFIX) != each.data_bytes
        }
        found = map_in_threads(self._error_of_data, list(suspects.values()), CONCURRENT_FETCHES, THREAD_NAME)
        errors = dict(zip(suspects, found, strict=True))
        losses = {file_id: error for file_id, error in errors.items() if isinstance(error, DataLossError)}
        if losses:
            expect_stored_home(self._settings.home)  # without it, each file would seem to be gone
        problem = next(filter(is_no_loss, errors.values()), None)
        if problem is not None:
            warn_of(problem, self._shuffle)
        numbered = ((each.number, each.block.file_id) for each in self._found)
        return {number: losses[file_id] for number, file_id in numbered if file_id in losses}

    def _error_of_data(self, found: FoundBlock) -> Exception | None:
        """Look at the block's data object. Return the error, None if the object is sound."""
        writer = found.known.writer if isinstance(found.known, IndexPart) else ""
        file, block = self._file(found.block), found.block
        try:
            # without the key: nothing is decrypted
            StoredInputChannel(file, block.file_id, block.map_index, writer, ()).expect_data(found.data_bytes)
        except PROBLEMS as error:
            return without_frames(error)
        return None

    def _channels(self, found: FoundBlock) -> Iterator[StoredInputChannel]:
        """Yield one channel for the whole block: one request then brings neighbouring extents."""
        block, part = found.block, found.part
        extents = tuple(_extents(part))
        if extents:
            yield StoredInputChannel(
                self._file(block), block.file_id, block.map_index, part.writer, extents, self._settings.key
            )

    def _file(self, block: Block) -> PartitionedFile:
        return PartitionedFile.named(self._settings.home, self._shuffle, block.map_index, block.map_id)


def _losses(known: Mapping[int, Found]) -> dict[int, DataLossError]:
    return {number: each for number, each in known.items() if isinstance(each, DataLossError)}


def _may_be_back(
    numbered: tuple[int, Block], losses: Mapping[int, DataLossError], sizes: Mapping[str, int] | None
) -> bool:
    """Return whether this block's map output was missing, and may be there now. Only another look at the
    files tells for sure: the list may be old, or missing."""
    error = losses.get(numbered[0])
    if not isinstance(error, MissingDataError):
        return False
    name = base_name(error.place.file)
    return sizes is None or (name + DATA_SUFFIX in sizes and name + INDEX_SUFFIX in sizes)


def _extents(part: IndexPart) -> Iterator[Extent]:
    """Yield the non-empty extents of a block, region by region."""
    for region, row in enumerate(part.entries):
        for at in np.flatnonzero(row["bytes"]).tolist():
            yield extent_of(row[at], region, part.first + at)
