"""`IndexPart`: what a request holds of a map output's index, namely the entries of its block.

A whole index has 56 bytes for each region and subpartition. Those of 2,000 map outputs with 16 regions and
1,000 subpartitions take 1.8 GB. A request wants some subpartitions of each map output, so it holds the
entries of these alone. Whole indexes are held only by what keeps them for later requests, within a limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from sortshuffle.errors import UsageError
from sortshuffle.format.header import Codec
from sortshuffle.format.index import Entries, Index
from sortshuffle.service.jvm.protocol import Block


@dataclass(frozen=True, slots=True)
class IndexPart:
    """``entries``: of the block's subpartitions, which begin with ``first``, shape (regions, subpartitions).
    They are a copy. ``codec``, ``writer``, ``data_bytes``: of the map output."""

    codec: Codec
    writer: str
    data_bytes: int
    first: int
    entries: Entries

    @staticmethod
    def of(index: Index, block: Block) -> IndexPart:
        """Return the part of a whole index that a block needs. Raises `UsageError`."""
        header = index.header
        check_range(block, header.subpartitions)
        entries = entries_of(index.entries, block)
        return IndexPart(header.codec, str(index.writer), index.data_bytes, block.first, entries)


def entries_of(entries: Entries, block: Block) -> Entries:
    """Return a copy of a block's entries, which does not keep the others in memory."""
    own: Entries = entries[:, block.first : block.end].copy()
    return own


def check_range(block: Block, subpartitions: int) -> None:
    """Raise `UsageError` if a map output with this number of subpartitions lacks any of the block's."""
    if block.end > subpartitions:
        raise UsageError(
            f"subpartitions {block.first} to {block.end - 1} of a map output that has {subpartitions}"
        )
