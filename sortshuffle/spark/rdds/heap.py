"""Estimates of the memory of objects, from samples.

All code that holds users' objects uses these: tables of combiners, groups, runs that are being sorted. Python
does not say how much memory an object keeps alive. The size of the process (which PySpark uses) only grows,
because the heap does not give memory back. So a few objects are walked as a sample of those around them. The
number of visits has a limit, and so has the cost of an estimate, however nested the objects are. It depends
only on the objects, so a task that runs again spills at the same records.
"""

from __future__ import annotations

import random
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
SAMPLE_SIZE = 16  # elements to walk in a container: spread over lists, tuples, small dicts; else the first
SMALL_DICT = 256  # entries of a dict that may be a record
# Objects to visit in one estimate. For batches of 50 pairs with ten dicts of ten lists in each value, it took
# 21 and 43 % of the time to pickle them with 128 and 256 visits, and 377 % without a limit. For 3,000 random
# shapes of records, 1 % of the estimates were below 0.15 and 0.42 of the truth
VISITS = 256
UNKNOWN = 64  # bytes of an object without a size
# Random places in a part, as 65536ths of its length, always the same. Of 3,000 seeds this is the one with
# which samples of sequences of many lengths best saw records that are large in turns of 2 to 5
_PLACES = random.Random(90).choices(range(1 << 16), k=256)

_PLAIN = frozenset({int, float, str, bytes, bool, complex, type(None)})
_CONTAINERS: tuple[type, ...] = (list, tuple, dict, set, frozenset, deque)


def heap_bytes(thing: Any) -> int:
    """Estimate the bytes of an object and all that it refers to. Shared objects are counted each time."""
    return _Walk().bytes_of(thing)


def bytes_of_each(things: Iterable[Any]) -> list[int]:
    """Estimate the bytes of each object. Each estimate looks at other fields than the one before: if the
    objects are alike, their mean is right although none of them is walked whole."""
    walk = _Walk()
    return [walk.restarted().bytes_of(thing) for thing in things]


def mean_bytes(things: Sequence[Any]) -> float:
    """Estimate the mean bytes of some objects; 0 if there are none."""
    if not things:
        return 0.0
    seen = take_sample(things)
    return _Walk().bytes_of_all(seen, len(seen)) / len(seen)


def take_sample(things: Sequence[Any], most: int = SAMPLE_SIZE) -> list[Any]:
    """Return at most ``most`` of some objects, spread over them."""
    return [things[at] for at in spread(len(things), most, start=len(things))]


class _Walk:
    """One estimate. ``left``: visits that are left. ``state``: of the generator that chooses places.

    Elements of a container that refer to nothing take one visit each. Each of the others gets an equal share
    of the visits that remain, and what those before it did not need. If the shares would be too small to walk
    down, fewer elements are walked, in each container other ones: then a field of records that is large is
    found in some of them. So a large object is found though others beside it refer to many.
    """

    __slots__ = ("left", "state")

    def __init__(self) -> None:
        self.left = VISITS
        self.state = 0

    def restarted(self) -> _Walk:
        """Begin another estimate, which looks at other places."""
        self.left = VISITS
        return self

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
            keys, values = (self._entries(each(thing), count) for each in (dict.keys, dict.values))
            return self.bytes_of_all(keys, count, deep, floor) + self.bytes_of_all(
                values, count, deep, floor, alike=False
            )
        if container is list or container is tuple:
            sample = self._some_of(container, thing, count)
            # a tuple may be a record
            return self.bytes_of_all(sample, count, deep, floor, alike=container is list)
        return self.bytes_of_all(_some(container.__iter__(thing)), count, deep, floor)

    def _entries(self, entries: Iterable[Any], count: int) -> Sequence[Any]:
        """Return a sample of a dict's keys or values, which can only be iterated over."""
        if count > SMALL_DICT:
            return _some(entries)
        every = list(entries)
        return self._some_of(list, every, len(every))

    def _some_of(self, container: Any, thing: Any, count: int) -> Sequence[Any]:
        """Return a sample of a list or a tuple. Slices allow that another thread makes it shorter."""
        elements = container.__getitem__
        if count <= SAMPLE_SIZE:
            whole: Sequence[Any] = elements(thing, slice(None))
            return whole
        positions = spread(count, start=self._any())
        return [each for at in positions for each in elements(thing, slice(at, at + 1))]

    def bytes_of_all(
        self, sample: Sequence[Any], count: int, deep: int = DEEPEST, floor: int = 0, *, alike: bool = True
    ) -> int:
        """Estimate the bytes of ``count`` objects from a sample. ``alike``: whether those that are not walked
        are taken to be like the others."""
        if not sample:
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
        self.state = (self.state * 1664525 + 1013904223) & 0xFFFF_FFFF
        return self.state >> 16  # the high bits are the random ones


def spread(count: int, most: int = SAMPLE_SIZE, *, start: int) -> Sequence[int]:
    """Return at most ``most`` of the positions 0 to ``count - 1``, ascending: one in each of as many parts of
    equal length. Its place in the part depends on ``start``, and differs from part to part: otherwise, of
    records that are large and small in turn, only one kind might be seen."""
    step = -(-count // most)
    if step <= 1:
        return range(count)
    parts = enumerate(range(0, count, step))
    places = len(_PLACES)
    return [min(first + (_PLACES[(start + part) % places] * step >> 16), count - 1) for part, first in parts]


def _some(things: Iterable[Any]) -> list[Any]:
    return list(islice(things, SAMPLE_SIZE))


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
