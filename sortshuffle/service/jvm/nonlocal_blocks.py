"""`NonLocalBlocks`: the blocks of one request that are not files of this host, and how they are fetched.

    RemoteBlocks   through the shuffle services of other hosts       (`service.jvm.remote`)
    StoredBlocks   from storage that every host sees                 (`service.jvm.stored`)

For each map output a request
1. finds the index, in the cache or at the source, unless the cache has all records;
2. reads a small map output whole, if the cache has room: a thousand tasks each want a few bytes of it;
3. else caches the index, holds the entries of its own block (`IndexPart`), and fetches extents ahead, in
   threads, within a budget (`reading.fetcher`).

The two subclasses differ in where they read, and in what counts as a loss. All requests share the cache
(`NonLocalCache`, thread-safe). A `NonLocalBlocks` belongs to one request and one thread, and starts threads
that find map outputs and fetch.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from sortshuffle.errors import Place
from sortshuffle.format.checksum import BytesLike
from sortshuffle.format.header import HEADER_BYTES
from sortshuffle.format.index import Index
from sortshuffle.memory.shared_budget import SharedBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import MIB
from sortshuffle.payload.record_bytes import RecordBytesPayload
from sortshuffle.reading.channel import InputChannel
from sortshuffle.reading.fetcher import Fetcher
from sortshuffle.reading.index_cache import IndexCache
from sortshuffle.service.jvm.index_part import IndexPart, check_range
from sortshuffle.service.jvm.outputs import MapOutputCache, SmallMapOutput
from sortshuffle.service.jvm.protocol import Block, ReadRequest
from sortshuffle.service.jvm.small_outputs import SmallOutputRecords, is_small
from sortshuffle.storage.files.grouping import in_groups
from sortshuffle.storage.files.partitioned_file import PartitionedFile

READ_AHEAD_BYTES = 32 * MIB  # at most, for one request: half of what a task of this package reads ahead
# All requests together: enough for four. Beyond 16, each still has the floor: eight fetches of 1 MiB
ALL_READ_AHEAD_BYTES = 128 * MIB
READ_AHEAD_FLOOR = 8 * MIB
# Of one request, planned at a time. Each takes some 300 bytes, and a request may have hundreds of thousands
MOST_EXTENTS = 16384
THREADS = 4  # to fetch, verify and decompress for one request: as many as for a task of this package
# Bytes of indexes to keep for later requests. Those of 1,000 map outputs with 1,000 subpartitions take 48 MB;
# without room for them each reduce task would request all of them again
MOST_INDEX_BYTES = 64 * MIB

IndexOrRecords: TypeAlias = SmallOutputRecords | Index
"""The records of a small map output, or the index of a larger one."""

PartOrRecords: TypeAlias = SmallOutputRecords | IndexPart
"""What a request holds of it."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class NonLocalCache:
    """What an engine knows of map outputs elsewhere, kept for later requests. ``small``: records of small
    ones; ``indexes``: of the others. Thread-safe."""

    def __init__(self, small: MapOutputCache) -> None:
        self.small = small
        self.indexes = IndexCache(MOST_INDEX_BYTES)

    def get(self, file_id: bytes) -> IndexOrRecords | None:
        return self.get_all((file_id,)).get(file_id)

    def get_all(self, ids: Sequence[bytes]) -> dict[bytes, IndexOrRecords]:
        """Return what is known, by id. Unknown map outputs are left out."""
        found: dict[bytes, IndexOrRecords] = {}
        for file_id, kept in zip(ids, self.small.get_all(ids), strict=True):
            known = kept.small if isinstance(kept, SmallMapOutput) else self.indexes.get(file_id)
            if known is not None:
                found[file_id] = known
        return found

    def parts(self, blocks: Sequence[tuple[int, Block]]) -> dict[int, PartOrRecords]:
        """Return, by number, what a request needs of the known map outputs. It copies the entries of indexes,
        so a request keeps no whole index alive after the cache has dropped it. Raises `UsageError`."""
        known = self.get_all([block.file_id for _, block in blocks])
        return {
            number: part_for(block, known[block.file_id])
            for number, block in blocks
            if block.file_id in known
        }

    def keep(
        self, index: Index, file: PartitionedFile, read: Callable[[], SmallOutputRecords | None]
    ) -> IndexOrRecords:
        """Keep and return the records of a small map output if there is room for them, else its index.
        ``read``: reads the records, or returns None if the index has to do."""
        if is_small(index) and self.small.has_room_for_small():
            small = read()
            if small is not None:
                self.small.keep(SmallMapOutput(file, index.header.file_id, small))
                return small
        self.indexes.keep(index)
        return index

    def forget(self, file_id: bytes) -> None:
        """Forget a map output that is damaged or gone."""
        self.small.forget(file_id)
        self.indexes.forget(file_id)

    def forget_indexes(self, ids: Iterable[bytes]) -> None:
        """Forget what may be lost by now. Records of small map outputs stay: they are in memory."""
        for file_id in ids:
            self.indexes.forget(file_id)

    def forget_all(self, shuffle: int) -> None:
        """Forget all map outputs of a removed shuffle."""
        self.small.forget_all(PartitionedFile.prefix_of(shuffle))
        self.indexes.forget_all(shuffle)


@dataclass(frozen=True, slots=True)
class FoundBlock:
    """A block whose map output was found. ``number``: in the request. ``path``: of the data file."""

    number: int
    block: Block
    path: str
    known: PartOrRecords

    @property
    def part(self) -> IndexPart:
        """The part of the index, of a map output whose records are not kept."""
        assert isinstance(self.known, IndexPart)
        return self.known

    @property
    def data_bytes(self) -> int:
        """The size of the data file in bytes."""
        known = self.known
        if isinstance(known, IndexPart):
            return known.data_bytes
        return HEADER_BYTES + known.stored_bytes(0, known.subpartitions)


class NonLocalSource(Protocol):
    """A source of map outputs other than this host's files."""

    def blocks(self, request: ReadRequest, numbered: Sequence[tuple[int, Block]]) -> NonLocalBlocks:
        """Return a reader of these blocks. ``numbered``: each with its number in the request."""


class NonLocalBlocks(ABC):
    """Reads ``blocks``, each with its number in the request. ``memory``: that of all requests, to read ahead.
    ``blocks_begun``: the number of blocks that `pieces` has begun. The caller closes it."""

    def __init__(self, blocks: Sequence[tuple[int, Block]], memory: SharedBudget) -> None:
        self._blocks = blocks
        self._memory = memory
        self._found: list[FoundBlock] = []
        self._metrics = TaskMetrics()
        self._small_bytes = 0
        self.blocks_begun = 0

    @property
    def bytes_read(self) -> int:
        """Bytes of extents read so far, including those of small map outputs that were known."""
        return self._metrics.counts["bytes_read"] + self._small_bytes

    @abstractmethod
    def locate(self) -> None:
        """Find all map outputs. Raises `LostBlocksError`."""

    @abstractmethod
    def check_known(self) -> None:
        """Look for the map outputs whose index `locate` knew, because others of the request are lost. Raises
        `LostBlocksError`."""

    @abstractmethod
    def forget(self) -> None:
        """Do not trust what is known of these blocks, other than records: `locate` then looks for them
        again."""

    @abstractmethod
    def pieces(self) -> Iterator[BytesLike]:
        """Yield the bytes of records, block by block, after `locate`. Raises `LostBlocksError`."""

    def close(self) -> None:
        """Stop fetching and release everything. May be called again."""
        self._found.clear()

    @abstractmethod
    def _channels(self, found: FoundBlock) -> Iterator[InputChannel]:
        """Yield the channels to the extents of a block whose index is known."""

    def _blocks_of(self, place: Place) -> set[int]:
        """Return the numbers of the blocks whose map output has the file of this place."""
        name = base_name(place.file)
        return {each.number for each in self._found if base_name(each.path) == name}

    def _pieces(self) -> Iterator[BytesLike]:
        """Yield the bytes of records of all found blocks, in their order. Raises the errors of fetching."""
        # one fetcher for all: it goes on fetching while small map outputs come from memory
        with closing(self._fetch_records()) as fetched:
            piece = next(fetched, None)  # fetching begins here, even if the first blocks come from memory
            for begun, found in enumerate(self._found, 1):
                self.blocks_begun = begun
                if isinstance(found.known, SmallOutputRecords):
                    yield self._slice(found.block, found.known)
                    continue
                while piece is not None and piece[0] == begun:
                    yield piece[1]
                    piece = next(fetched, None)
            assert piece is None, "pieces come in the order of their blocks"

    def _slice(self, block: Block, small: SmallOutputRecords) -> BytesLike:
        self._small_bytes += small.stored_bytes(block.first, block.end)
        return small.records(block.first, block.end)

    def _fetch_records(self) -> Generator[tuple[int, BytesLike], None, None]:
        """Yield the records of map outputs whose index is known. Each piece comes with its block's place in
        `_found`, counted from 1."""
        numbered = [each for each in enumerate(self._found, 1) if isinstance(each[1].known, IndexPart)]
        with closing(self._memory.open("read-ahead")) as budget:
            for codec, same_codec in groupby(numbered, lambda each: each[1].part.codec):
                fetcher = Fetcher(RecordBytesPayload(codec), budget, THREADS, self._metrics)
                sized = ((each, int(np.count_nonzero(each[1].part.entries["bytes"]))) for each in same_codec)
                for group in in_groups(sized, MOST_EXTENTS):
                    yield from self._fetch_group(group, fetcher)

    def _fetch_group(
        self, group: Sequence[tuple[int, FoundBlock]], fetcher: Fetcher
    ) -> Iterator[tuple[int, BytesLike]]:
        channels = [(place, channel) for place, found in group for channel in self._channels(found)]
        # by identity: two requests for the same block have equal channels
        places = {id(channel): place for place, channel in channels}
        with closing(fetcher.items([channel for _, channel in channels])) as items:
            for channel, piece in items:
                yield places[id(channel)], piece


def read_ahead_memory() -> SharedBudget:
    """Return the memory to read ahead in, for all requests of an engine together."""
    return SharedBudget(ALL_READ_AHEAD_BYTES, READ_AHEAD_FLOOR, READ_AHEAD_BYTES)


def map_in_threads(
    call: Callable[[Item], Result], items: Sequence[Item], threads: int, name: str
) -> list[Result]:
    """Return what ``call`` returns for each item, in their order. Calls it in up to ``threads`` threads of
    this name. If the system does not give so many, half of those that it gives end again, as ``call`` may
    need a thread itself, and the caller's own thread calls, too. After an error no further call begins, and
    the error is raised."""
    if not items:
        return []
    count = min(len(items), threads)
    left = deque(enumerate(items))
    results: dict[int, Result] = {}
    seats: deque[None] = deque()  # one for each thread that stays
    may_begin = threading.Event()

    def work() -> None:
        while True:
            try:
                number, item = left.popleft()  # thread-safe
            except IndexError:
                return
            try:
                results[number] = call(item)
            except BaseException:
                left.clear()  # nobody gets the other results
                raise

    def work_if_seated() -> None:
        may_begin.wait()
        try:
            seats.pop()  # thread-safe
        except IndexError:
            return
        work()

    with ThreadPoolExecutor(count, name) as pool:
        workers: list[Future[None]] = []
        try:
            for _ in range(count):
                workers.append(pool.submit(work_if_seated))
        except (RuntimeError, MemoryError):  # there is no further thread
            seats.extend([None] * (len(workers) // 2))
            pool.shutdown(wait=False)  # threads without a seat end at once
        else:
            seats.extend([None] * count)
        finally:
            may_begin.set()
        if len(workers) < count:
            work()
        for worker in workers:
            worker.result()
    return [results[number] for number in range(len(items))]


def part_for(block: Block, known: IndexOrRecords) -> PartOrRecords:
    """Return what a request for this block holds of a map output. Raises `UsageError`."""
    if isinstance(known, Index):
        return IndexPart.of(known, block)
    check_range(block, known.subpartitions)
    return known


def base_name(path: str) -> str:
    """Return the base name of the map output that a file belongs to, the same for each of its files."""
    file = PartitionedFile.of(path)
    return os.path.basename(file.base if file is not None else path)
