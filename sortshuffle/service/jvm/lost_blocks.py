"""`LostBlocksError`: says which blocks of a request are lost.

A `DataLossError` concerns one place, this error a whole request. It does not leave the engine: the engine
reports it to the JVM in a reply, and the JVM makes Spark run the map tasks again.
"""

from __future__ import annotations

from collections.abc import Sequence


class LostBlocksError(Exception):
    """``blocks``: numbers of the lost blocks. ``is_reachable``: False if their service does not answer."""

    def __init__(self, blocks: Sequence[int], why: str, is_reachable: bool = True) -> None:
        super().__init__(why)
        self.blocks = tuple(blocks)
        self.is_reachable = is_reachable
