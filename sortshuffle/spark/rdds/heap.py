"""Estimates of the memory of objects, from samples.

All code that holds users' objects uses these: tables of combiners, groups, runs that are being sorted. Python
does not say how much memory an object keeps alive. The size of the process (which PySpark uses) only grows,
because the heap does not give memory back. So a few objects are walked as a sample of those around them. The
number of visits has a limit, and so has the cost of an estimate, however nested the objects are. It depends
only on the objects, so a task that runs again spills at the same records.
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
SAMPLE_SIZE = 16  # elements to walk in a container: spread over a list, the first ones of others
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
        before = walk.left
        sizes.append(walk.bytes_of(thing))
        if walk.left < before - walk.left:  # too few visits are left for another one
            break
    return sum(sizes) / len(sizes)


class _Walk:
    """One estimate. ``left``: visits that are left.

    Each element of a container gets an equal share of the visits, and what those before it did not need. If
    the shares would be too small to walk down, fewer elements are walked. So a large object is found though
    others beside it refer to many.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = VISITS

    def bytes_of(self, thing: Any, deep: int = DEEPEST, floor: int = 0) -> int:
        """Estimate the bytes of an object. ``deep``: levels to walk below it. ``floor``: visits to leave."""
        self.left -= 1
        kind = type(thing)
        if kind in _PLAIN:
            return getsizeof(thing)
        size = _own_bytes(thing)
        for container in _CONTAINERS:
            if issubclass(kind, container):
                return size + self._elements(container, thing, deep - 1, floor) if deep else size
        if deep:
            attributes = _attributes(thing)
            size += self._unlike(attributes, len(attributes), deep - 1, floor)
        return max(size, _shared_bytes(thing))

    def _elements(self, container: Any, thing: Any, deep: int, floor: int) -> int:
        """Estimate the bytes of the elements of ``thing``. All methods are those of ``container``, which is
        its built-in class: a user's class may have others of these names."""
        count = container.__len__(thing)
        if container is dict:
            keys, values = (_some(each(thing)) for each in (dict.keys, dict.values))
            return self._alike(keys, count, deep, floor) + self._unlike(values, count, deep, floor)
        if container is list or container is tuple:
            step = -(-count // SAMPLE_SIZE) or 1
            sample = container.__getitem__(thing, slice(None, None, step))
            estimate = self._alike if container is list else self._unlike  # a tuple may be a record
            return estimate(sample, count, deep, floor)
        return self._alike(_some(container.__iter__(thing)), count, deep, floor)

    def _alike(self, sample: Sequence[Any], count: int, deep: int, floor: int) -> int:
        """Estimate the bytes of ``count`` objects that are like those of the sample."""
        if not count:
            return 0
        walked = min(len(sample), max(1, (self.left - floor) // (deep + 1)))
        total = 0
        for at in range(walked):
            share = max(0, self.left - floor) // (walked - at)
            total += self.bytes_of(sample[at], deep, self.left - share)
        return total * count // walked

    def _unlike(self, sample: Sequence[Any], count: int, deep: int, floor: int) -> int:
        """The same for objects that may have little in common. If only some are walked, and all without what
        they refer to take more, that counts."""
        return max(self._alike(sample, count, deep, floor), _without_others(sample, count))


def _some(things: Iterable[Any]) -> list[Any]:
    return list(islice(things, SAMPLE_SIZE))


def _without_others(sample: Sequence[Any], count: int) -> int:
    """Estimate the bytes of ``count`` objects without what they refer to."""
    if not count:
        return 0
    return sum(max(_own_bytes(each), _shared_bytes(each)) for each in sample) * count // len(sample)


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
