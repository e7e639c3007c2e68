"""How much memory NumPy and Arrow take."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

# Arrays of a block may live longer than the block, and free memory of its pool
_POOLS: list[pa.MemoryPool] = []


@contextmanager
def peak_bytes() -> Iterator[list[int]]:
    """What NumPy and Arrow hold at most while the block runs, together."""
    usual = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(usual)
    _POOLS.append(counting)
    peak: list[int] = []
    pa.set_memory_pool(counting)
    tracemalloc.start()
    try:
        yield peak
        peak.append(tracemalloc.get_traced_memory()[1] + (counting.max_memory() or 0))
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
