"""Estimates of the memory of objects, from samples.

All code that holds users' objects uses these: tables of combiners, groups, runs that are being sorted. Python
does not say how much memory an object keeps alive. The size of the process (which PySpark uses) only grows,
because the heap does not give memory back. So a few objects are walked as a sample of those around them. An
estimate visits some `VISITS` objects at most, so its cost has a limit, however nested the objects are. It
depends only on the objects, so a task that runs again spills at the same records.
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
# Objects to visit in one estimate. For batches of 50 pairs with ten dicts of ten lists in each value, it took
# 12, 18, 32 and 69 % of the time to pickle them with 128, 256, 512 and 1024 visits, and 377 % without a limit
VISITS = 256
UNKNOWN = 64  # bytes of an object without a size

_PLAIN = frozenset({int, float, str, bytes, bool, complex, type(None)})
_CONTAINERS: tuple[type, ...] = (list, tuple, dict, set, frozenset, deque)


def heap_bytes(thing: Any) -> int:
    """Estimate the bytes of an object and all that it refers to. Shared objects are counted each time."""
    return _Walk().bytes_of(thing)


def mean_bytes(things: Sequence[Any]) -> float:
    """Estimate the mean bytes of some objects; 0 if there are none. The sample is smaller if objects refer to
    many others."""
    if not things:
        return 0.0
    walk = _Walk()
    sizes: list[int] = []
    for thing in things[:: -(-len(things) // SAMPLE_SIZE)]:
        sizes.append(walk.bytes_of(thing))
        if walk.left <= 0:
            break
    return sum(sizes) / len(sizes)


class _Walk:
    """One estimate. ``left``: visits that are left. When there are none, the walk takes only one element of
    each further container: this ends soon, and still sees the rest of the containers that it is in."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = VISITS

    def bytes_of(self, thing: Any, deep: int = DEEPEST) -> int:
        """Estimate the bytes of an object. ``deep``: levels to walk below it."""
        self.left -= 1
        kind = type(thing)
        if kind in _PLAIN:
            return getsizeof(thing)
        size = _own_bytes(thing)
        for container in _CONTAINERS:
            if issubclass(kind, container):
                return size + self._elements(container, thing, deep - 1) if deep else size
        if deep:
            attributes = _attributes(thing)
            size += self._scaled(attributes, len(attributes), deep - 1)
        return max(size, _shared_bytes(thing))

    def _elements(self, container: Any, thing: Any, deep: int) -> int:
        """Estimate the bytes of the elements of ``thing``. All methods are those of ``container``, which is
        its built-in class: a user's class may have others of these names."""
        count = container.__len__(thing)
        if container is dict:
            keys, values = dict.keys(thing), dict.values(thing)
            return self._scaled(keys, count, deep) + self._scaled(values, count, deep)
        if container is list or container is tuple:
            step = -(-count // SAMPLE_SIZE) or 1
            return self._scaled(container.__getitem__(thing, slice(None, None, step)), count, deep)
        return self._scaled(container.__iter__(thing), count, deep)

    def _scaled(self, things: Iterable[Any], count: int, deep: int) -> int:
        """Measure a few elements, and estimate the bytes of all ``count``."""
        if not count:
            return 0
        most = SAMPLE_SIZE if self.left > 0 else 1
        sizes = [self.bytes_of(each, deep) for each in islice(things, most)]
        return sum(sizes) * count // len(sizes)


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


def _attributes(thing: Any) -> list[Any]:
    """Return an object's dict of attributes, if it has one, and the values of those in slots."""
    try:
        state = thing.__dict__
    except Exception:  # most often there is none
        state = None
    found: list[Any] = [state] if type(state) is dict else []
    for kind in type(thing).__mro__:
        if "__slots__" in vars(kind):
            found += _slots(kind, thing)
    return found


def _slots(kind: type, thing: Any) -> Iterator[Any]:
    for slot in vars(kind).values():
        if type(slot) is MemberDescriptorType:
            with suppress(AttributeError):  # nothing was assigned to it
                yield slot.__get__(thing)
