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
SAMPLE_SIZE = 16  # elements to walk in a container: spread over a list or a small dict, else the first ones
WHOLE_DICT = 256  # entries of a small dict: it may be a record
# Objects to visit in one estimate. For batches of 50 pairs with ten dicts of ten lists in each value, it took
# 21 and 43 % of the time to pickle them with 128 and 256 visits, and 377 % without a limit. For 3,000 random
# shapes of records, 1 % of the estimates were below 0.15 and 0.42 of the truth
VISITS = 256
UNKNOWN = 64  # bytes of an object without a size

_PLAIN = frozenset({int, float, str, bytes, bool, complex, type(None)})
_CONTAINERS: tuple[type, ...] = (list, tuple, dict, set, frozenset, deque)


def heap_bytes(thing: Any) -> int:
    """Estimate the bytes of an object and all that it refers to. Shared objects are counted each time."""
    return _Walk().bytes_of(thing)


def mean_bytes(things: Sequence[Any]) -> float:
    """Estimate the mean bytes of some objects; 0 if there are none."""
    if not things:
        return 0.0
    sample = things[:: _step(len(things))]
    return _Walk().bytes_of_all(sample, len(sample)) / len(sample)


class _Walk:
    """One estimate. ``left``: visits that are left. ``random``: chooses where the walk of a part begins.

    Elements of a container that refer to nothing take one visit each. Each of the others gets an equal share
    of the visits that remain, and what those before it did not need. If the shares would be too small to walk
    down, fewer elements are walked, in each container other ones: then a field of records that is large is
    found in some of them. So a large object is found though others beside it refer to many.
    """

    __slots__ = ("left", "random")

    def __init__(self) -> None:
        self.left = VISITS
        self.random = 0

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
            size += self.bytes_of_all(attributes, len(attributes), deep - 1, floor, alike=False)
        return max(size, _shared_bytes(thing))

    def _elements(self, container: Any, thing: Any, deep: int, floor: int) -> int:
        """Estimate the bytes of the elements of ``thing``. All methods are those of ``container``, which is
        its built-in class: a user's class may have others of these names."""
        count = container.__len__(thing)
        if container is dict:
            step = _step(count) if count <= WHOLE_DICT else 1
            start = self._any() % step
            keys, values = (_some(each(thing), start, step) for each in (dict.keys, dict.values))
            return self.bytes_of_all(keys, count, deep, floor) + self.bytes_of_all(
                values, count, deep, floor, alike=False
            )
        if container is list or container is tuple:
            step = _step(count)
            sample = container.__getitem__(thing, slice(self._any() % step, None, step))
            # a tuple may be a record
            return self.bytes_of_all(sample, count, deep, floor, alike=container is list)
        return self.bytes_of_all(_some(container.__iter__(thing)), count, deep, floor)

    def bytes_of_all(
        self, sample: Sequence[Any], count: int, deep: int = DEEPEST, floor: int = 0, *, alike: bool = True
    ) -> int:
        """Estimate the bytes of ``count`` objects from a sample. ``alike``: whether those that are not walked
        are taken to be like the others."""
        if not count:
            return 0
        holders = [each for each in sample if type(each) not in _PLAIN]
        self.left -= len(sample) - len(holders)
        total = sum(getsizeof(each) for each in sample if type(each) in _PLAIN)
        total += self._holders(holders, deep, floor, alike) if holders else 0
        return total * count // len(sample)

    def _holders(self, holders: Sequence[Any], deep: int, floor: int, alike: bool) -> int:
        """Estimate the bytes of some objects that refer to others."""
        planned = min(len(holders), max(1, (self.left - floor) // (deep + 1)))
        first = self._any() if planned < len(holders) else 0
        total = walked = 0
        while walked < planned and (self.left > floor or not walked):
            share = max(0, self.left - floor) // (planned - walked)
            at = (first + walked * len(holders) // planned) % len(holders)
            total += self.bytes_of(holders[at], deep, self.left - share)
            walked += 1
        total = total * len(holders) // walked
        # one that is not walked may be larger than all others
        return total if alike or walked == len(holders) else max(total, sum(map(_alone, holders)))

    def _any(self) -> int:
        """Return the next of a fixed sequence of random numbers (Numerical Recipes' generator): a task that
        runs again must estimate the same, and records that are alike must not all be walked at one place."""
        self.random = (self.random * 1664525 + 1013904223) & 0xFFFF_FFFF
        return self.random >> 16  # the high bits are the random ones


def _step(count: int) -> int:
    """Return the distance of the elements in a sample of so many."""
    return max(1, -(-count // SAMPLE_SIZE))


def _some(things: Iterable[Any], start: int = 0, step: int = 1) -> list[Any]:
    return list(islice(things, start, start + SAMPLE_SIZE * step, step))


def _alone(thing: Any) -> int:
    """Estimate the bytes of an object without what it refers to."""
    size = _own_bytes(thing)
    return size if type(thing) in _CONTAINERS else max(size, _shared_bytes(thing))


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
