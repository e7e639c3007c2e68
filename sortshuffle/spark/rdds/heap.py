"""Estimates of the memory of objects, from samples.

All code that holds users' objects uses these: tables of combiners, groups, runs that are being sorted. Python
does not say how much memory an object keeps alive. The size of the process (which PySpark uses) only grows,
because the heap does not give memory back. So a few objects are walked as a sample of those around them. The
estimate depends only on the objects, so a task that runs again spills at the same records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from sys import getsizeof
from typing import Any

POINTER = 8  # bytes of a reference in a list
# Bytes of a dict for each key: an entry of three words, and a slot in the hash table. Both grow by doubling:
# a key takes 50 bytes just before, 105 just after
DICT_ENTRY = 100
DEEPEST = 6  # levels of nested containers to walk
SAMPLE_SIZE = 16  # elements to walk in a container, spread over it
UNKNOWN = 64  # bytes of an object without a size

_PLAIN = frozenset({int, float, str, bytes, bool, complex, type(None)})


def heap_bytes(thing: Any, deep: int = DEEPEST) -> int:
    """Estimate the bytes of an object and all that it refers to. Shared objects are counted each time."""
    try:
        size = getsizeof(thing)
    except Exception:  # a user's class may do anything in __sizeof__
        size = UNKNOWN
    kind = type(thing)
    if kind in _PLAIN or not deep:
        return size
    if isinstance(thing, (list, tuple, set, frozenset, deque)):
        return size + _elements(thing, len(thing), deep - 1)
    if isinstance(thing, dict):
        keys, values = thing.keys(), thing.values()
        return size + _elements(keys, len(thing), deep - 1) + _elements(values, len(thing), deep - 1)
    state = getattr(thing, "__dict__", None)
    if type(state) is dict:
        size += heap_bytes(state, deep - 1)
    return size


def mean_bytes(things: Sequence[Any]) -> float:
    """Estimate the mean bytes of some objects; 0 if there are none."""
    if not things:
        return 0.0
    seen = things[:: -(-len(things) // SAMPLE_SIZE)]
    return sum(map(heap_bytes, seen)) / len(seen)


def _elements(things: Collection[Any], count: int, deep: int) -> int:
    if not count:
        return 0
    step = -(-count // SAMPLE_SIZE)
    seen: Iterable[Any] = things[::step] if isinstance(things, (list, tuple)) else islice(things, SAMPLE_SIZE)
    sizes = [heap_bytes(each, deep) for each in seen]
    return sum(sizes) * count // len(sizes)
