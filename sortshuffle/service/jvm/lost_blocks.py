"""`LostBlocksError`: which blocks of a request are lost.

A `DataLossError` is about one place, this one about a request. It does not leave the engine: the JVM gets it
in a reply, and makes Spark run the map tasks again.
"""

from __future__ import annotations

from collections.abc import Sequence


class LostBlocksError(Exception):
    """``blocks``: the numbers of those whose map outputs are lost. ``is_reachable``: False where the service
    of their host does not answer."""

    def __init__(self, blocks: Sequence[int], why: str, is_reachable: bool = True) -> None:
        super().__init__(why)
        self.blocks = tuple(blocks)
        self.is_reachable = is_reachable
