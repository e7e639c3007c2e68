"""How much memory objects take, as far as looking at some of them tells.

Used by everything that holds users' objects: tables of combiners, groups, runs that are being sorted. Python
does not say what an object keeps alive, and asking the process (as PySpark does) says what it once took: the
heap does not give memory back. So a few objects are walked, and stand for those around them. The answer
depends on the objects alone, so that a task that runs again spills where it did the first time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from sys import getsizeof
from typing import Any

POINTER = 8  # bytes of a reference in a list
# Bytes of a dict for each key: three words of an entry and its place in the hash table, both of which grow by
# doubling: 50 just before, 105 just after
DICT_ENTRY = 100
DEEPEST = 6  # containers in containers that are walked
SEEN = 16  # elements of a container, spread over it, that stand for all
UNKNOWN = 64  # bytes of what does not tell

_PLAIN = frozenset({int, float, str, bytes, bool, complex, type(None)})


def heap_bytes(thing: Any, deep: int = DEEPEST) -> int:
    """Bytes that an object and what it refers to take, about. What is shared is counted each time."""
    try:
        size = getsizeof(thing)
    except Exception:  # a class of the user's may say anything
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
    """What one of these takes, about; 0 if there are none."""
    if not things:
        return 0.0
    seen = things[:: -(-len(things) // SEEN)]
    return sum(map(heap_bytes, seen)) / len(seen)


def _elements(things: Collection[Any], count: int, deep: int) -> int:
    if not count:
        return 0
    step = -(-count // SEEN)
    seen: Iterable[Any] = things[::step] if isinstance(things, (list, tuple)) else islice(things, SEEN)
    sizes = [heap_bytes(each, deep) for each in seen]
    return sum(sizes) * count // len(sizes)
