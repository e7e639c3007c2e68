"""`BlocksElsewhere`: the blocks of one request that are not files of this host, and how they are fetched.

    RemoteBlocks   through the shuffle services of other hosts       (`service.jvm.remote`)
    StoredBlocks   from storage that every host sees                 (`service.jvm.stored`)

Both find the index of each map output first, and then fetch extents as every reader of this package does
(`read.fetcher`): ahead, in threads, within a budget. They differ in where an index and an extent come from,
and in what is to be thought when they do not come.

Single-threaded, but for the threads of the fetcher.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import pyarrow as pa

from sortshuffle.format.checksum import BytesLike
from sortshuffle.format.index import Index
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import MIB
from sortshuffle.payload.record_bytes import RecordBytesPayload
from sortshuffle.read.channel import InputChannel
from sortshuffle.read.fetcher import Fetcher
from sortshuffle.service.jvm.protocol import Block, ReadRequest
from sortshuffle.storage.partitioned_file import PartitionedFile

READ_AHEAD_BYTES = 32 * MIB  # that one request may hold, half of what a task of this package reads ahead
THREADS = 4  # that fetch, verify and decompress for one request; as many as a task of this package has


class KnownIndexes:
    """Indexes of map outputs elsewhere, the longest unused forgotten first. Thread-safe; the lock is a
    leaf."""

    def __init__(self, most_bytes: int) -> None:
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
class Located:
    """A block whose index is known. ``number``: its own in the request. ``path``: of its data file, as errors
    name it."""

    number: int
    block: Block
    index: Index
    path: str


class Elsewhere(Protocol):
    """How blocks are read that are not files of this host."""

    def blocks(self, request: ReadRequest, numbered: Sequence[tuple[int, Block]]) -> BlocksElsewhere:
        """What reads these, each with its number in the request."""


class BlocksElsewhere(ABC):
    """``blocks``: with their numbers in the request. ``blocks_begun``: how many of them `pieces` has come to.
    The caller closes it."""

    def __init__(self, blocks: Sequence[tuple[int, Block]]) -> None:
        self._blocks = blocks
        self._metrics = TaskMetrics()
        self.blocks_begun = 0

    @property
    def bytes_read(self) -> int:
        """Bytes of extents that came so far."""
        return self._metrics.counts["bytes_read"]

    @abstractmethod
    def locate(self) -> None:
        """Find all map outputs. Raises `LostBlocksError`."""

    @abstractmethod
    def pieces(self) -> Iterator[BytesLike]:
        """The bytes of records, block by block, after `locate`. Raises `LostBlocksError`."""

    @abstractmethod
    def close(self) -> None:
        """Give up what is under way. May be called again."""

    @abstractmethod
    def _channels(self, located: Located) -> Iterator[InputChannel]:
        """What a block is read through."""

    def _fetched(self, numbered: Iterable[tuple[int, Located]]) -> Iterator[pa.Buffer]:
        """The bytes of records of located blocks; with each comes how many are begun with it. Raises what
        fetching raises."""
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


def base_name(path: str) -> str:
    """Of a map output's file: the same wherever it lies, and by whatever path it is named."""
    file = PartitionedFile.of(path)
    return os.path.basename(file.base if file is not None else path)
