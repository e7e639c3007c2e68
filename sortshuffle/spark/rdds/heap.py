"""Estimates of the memory of objects, from samples.

All code that holds users' objects uses these: tables of combiners, groups, runs that are being sorted. Python
does not say how much memory an object keeps alive. The size of the process (which PySpark uses) only grows,
because the heap does not give memory back. So a few objects are walked as a sample of those around them. The
estimate depends only on the objects, so a task that runs again spills at the same records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from sys import getsizeof
from types import MemberDescriptorType
from typing import Any

POINTER = 8  # bytes of a reference in a list
# Bytes of a dict for each key: an entry of three words, and a slot in the hash table. Both grow by doubling:
# a key takes 50 bytes just before, 105 just after
DICT_ENTRY = 100
DEEPEST = 6  # levels of nested containers to walk
SAMPLE_SIZE = 16  # elements to walk in a container, spread over it
UNKNOWN = 64  # bytes of an object without a size

_PLAIN = frozenset({int, float, str, bytes, bool, complex, type(None)})
_CONTAINERS: tuple[type, ...] = (list, tuple, dict, set, frozenset, deque)


def heap_bytes(thing: Any, deep: int = DEEPEST) -> int:
    """Estimate the bytes of an object and all that it refers to. Shared objects are counted each time."""
    kind = type(thing)
    if kind in _PLAIN:
        return getsizeof(thing)
    size = _own_bytes(thing)
    for container in _CONTAINERS:
        if issubclass(kind, container):
            return size + _elements(container, thing, deep - 1) if deep else size
    if deep:
        size += sum(heap_bytes(each, deep - 1) for each in _attributes(thing))
    return max(size, _shared_bytes(thing))


def mean_bytes(things: Sequence[Any]) -> float:
    """Estimate the mean bytes of some objects; 0 if there are none."""
    if not things:
        return 0.0
    seen = things[:: -(-len(things) // SAMPLE_SIZE)]
    return sum(map(heap_bytes, seen)) / len(seen)


def _own_bytes(thing: Any) -> int:
    try:
        return getsizeof(thing)
    except Exception:  # a user's class may do anything in __sizeof__
        return UNKNOWN


def _shared_bytes(thing: Any) -> int:
    """Return the bytes of an array, 0 for other objects. Its size leaves out memory that it shares, and an
    unpickled array shares its memory with the pickle."""
    try:
        count = thing.nbytes
    except Exception:  # or in __getattr__
        return 0
    return count if type(count) is int else 0


def _attributes(thing: Any) -> Iterator[Any]:
    """Yield the values of an object's attributes, if they are in its dict or in slots."""
    try:
        state = thing.__dict__
    except Exception:  # most often there is none
        state = None
    if type(state) is dict:
        yield state
    for kind in type(thing).__mro__:
        if "__slots__" in vars(kind):
            yield from _slots(kind, thing)


def _slots(kind: type, thing: Any) -> Iterator[Any]:
    for slot in vars(kind).values():
        if type(slot) is MemberDescriptorType:
            with suppress(AttributeError):  # nothing was assigned to it
                yield slot.__get__(thing)


def _elements(container: Any, thing: Any, deep: int) -> int:
    """Estimate the bytes of the elements of ``thing``. All methods are those of ``container``, which is its
    built-in class: a user's class may have others of these names."""
    count = container.__len__(thing)
    if not count:
        return 0
    if container is dict:
        return _scaled(dict.keys(thing), count, deep) + _scaled(dict.values(thing), count, deep)
    if container is list or container is tuple:
        step = -(-count // SAMPLE_SIZE)
        return _scaled(container.__getitem__(thing, slice(None, None, step)), count, deep)
    return _scaled(container.__iter__(thing), count, deep)


def _scaled(things: Iterable[Any], count: int, deep: int) -> int:
    """Measure a few elements, and estimate the bytes of all ``count``."""
    sizes = [heap_bytes(each, deep) for each in islice(things, SAMPLE_SIZE)]
    return sum(sizes) * count // len(sizes)
