"""Estimates of the memory of objects: about right whatever the objects refer to, from few visits."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors

from sortshuffle.spark.rdds.heap import VISITS, bytes_of_each, heap_bytes, mean_bytes, spread


class Thing:
    def __init__(self, data: Any) -> None:
        self.data = data


class Slotted:
    __slots__ = ("__data", "unset")

    def __init__(self, data: Any) -> None:
        self.__data = data


class SlottedBelow(Slotted):
    __slots__ = "more"

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.more = data


class Broken:
    def __sizeof__(self) -> int:
        raise RuntimeError("no size")


class BrokenAttributes:
    __slots__ = ("data",)

    def __init__(self, data: Any) -> None:
        self.data = data

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class Disguised:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class ByName(tuple[Any, ...]):
    def __getitem__(self, name: Any) -> Any:
        return {"data": super().__getitem__(0)}[name]


class OddDict(dict[Any, Any]):
    def __len__(self) -> int:
        return 10**9

    def keys(self) -> Any:
        return iter(())

    values = keys


class OddSet(set[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("not now")


def unpickled(thing: Any) -> Any:
    """As an exchange delivers it: arrays are views of the pickle's memory."""
    buffers: list[pickle.PickleBuffer] = []
    packed = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(packed, buffers=[bytes(each.raw()) for each in buffers])


@pytest.mark.parametrize(
    ("make", "least", "most"),
    [
        (lambda: 1, 28, 28),
        (lambda: "x" * 1000, 1000, 1100),
        (lambda: [b"x" * 100] * 10_000, 10_000 * 100, 10_000 * 160),
        (lambda: {n: str(n) for n in range(10_000)}, 10_000 * 100, 10_000 * 200),
        (lambda: set(range(10_000)), 10_000 * 50, 10_000 * 110),
        (lambda: Thing(b"x" * 5000), 5000, 6000),
        (lambda: Thing([Thing(b"x" * 5000)] * 3), 15_000, 18_000),
        (lambda: np.zeros(10_000), 80_000, 81_000),
        (lambda: unpickled(np.zeros(10_000)), 80_000, 81_000),
        (lambda: unpickled([("key", np.zeros(10_000))] * 100), 100 * 80_000, 100 * 82_000),
        (lambda: unpickled(Vectors.dense(np.zeros(10_000))), 80_000, 81_000),
        (lambda: unpickled(Vectors.sparse(10**6, range(1000), np.ones(1000))), 12_000, 13_000),
        (lambda: Slotted(b"x" * 5000), 5000, 6000),
        (lambda: SlottedBelow(b"x" * 5000), 10_000, 12_000),
        (Broken, 1, 2000),
        (lambda: BrokenAttributes(b"x" * 5000), 5000, 6000),
        (Disguised, 1, 2000),
        (lambda: ByName([b"x" * 5000]), 5000, 6000),
        (lambda: OddDict(a=b"x" * 5000), 5000, 6000),
        (lambda: OddSet([b"x" * 5000]), 5000, 6000),
    ],
)
def test_objects_take_about_what_they_hold(make: Callable[[], Any], least: int, most: int) -> None:
    assert least <= heap_bytes(make()) <= most


class Visited:
    """Counts the visits to objects of its kind."""

    __slots__ = tuple(f"next_{n}" for n in range(8))
    visits: ClassVar[int] = 0

    def __sizeof__(self) -> int:
        Visited.visits += 1
        return 100


def linked() -> Visited:
    """One of 25 objects with eight references to others each."""
    things = [Visited() for _ in range(25)]
    for at, thing in enumerate(things):
        for n, slot in enumerate(Visited.__slots__):
            setattr(thing, slot, things[(at + n + 1) % len(things)])
    return things[0]


def nested(levels: int, inner: Any) -> Any:
    return [nested(levels - 1, inner)] * 16 if levels else inner


@pytest.mark.parametrize("make", [linked, lambda: nested(5, Visited())], ids=["linked", "nested"])
@pytest.mark.parametrize(
    "measure", [heap_bytes, lambda thing: mean_bytes([thing] * 100)], ids=["one", "mean"]
)
def test_an_estimate_visits_a_limited_number_of_objects(
    make: Callable[[], Any], measure: Callable[[Any], float]
) -> None:
    thing = make()
    Visited.visits = 0
    assert measure(thing) > 100
    assert 0 < Visited.visits < 10 * VISITS  # with those that are seen without what they refer to


def test_an_estimate_with_few_visits_is_about_right() -> None:
    assert heap_bytes(nested(5, Visited())) == pytest.approx(16**5 * 100, rel=0.3)
    large = np.zeros(100_000)
    assert heap_bytes({"index": nested(5, "x"), "data": large}) > large.nbytes
    for holder in ({"id": 7, "data": large}, {"id": 7, "meta": {"id": 7, "data": [0, {"of": large}]}}):
        assert heap_bytes({"index": nested(5, "x"), "holder": holder}) > large.nbytes
    slots = [f"_{at}" for at in range(40)]
    wide = type("Wide", (), {"__slots__": slots})()
    for slot in slots:
        setattr(wide, slot, nested(5, "x") if slot < "_3" else slot)
    wide._39 = large
    assert heap_bytes(wide) > large.nbytes
    records = [(n, {str(i): {str(j): [j, j + 1] for j in range(10)} for i in range(10)}) for n in range(50)]
    assert mean_bytes(records) == pytest.approx(heap_bytes(records[0]), rel=0.2)


def test_what_refers_to_itself_has_a_size() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert heap_bytes(cycle) < 10_000
    assert mean_bytes([]) == 0
    assert mean_bytes([b"x" * 67] * 1000) == pytest.approx(100)
    assert partial(mean_bytes, [1, 2])() == 28


LARGE = 80_000  # bytes of an array
FEW = [1, "two", 3.0, True, None, 6, 7]


def large() -> Any:
    return np.zeros(LARGE // 8)


@pytest.mark.parametrize(
    "record",
    [
        lambda: [*FEW, bytes(LARGE)],
        lambda: (*FEW, Thing(large())),
        lambda: (Thing(large()), *FEW),
        lambda: dict(enumerate([*FEW, Thing(large())])),
        lambda: [*[0] * 14, large()],
        lambda: (Thing(1), Thing([large()])),
        lambda: {"m": {"tags": ["a"], "s": ("x",)}, "v": Thing(large())},
        lambda: {"tags": [(1, 2)] * 3, "image": {"pixels": large()}},
    ],
)
@pytest.mark.parametrize("count", [16, 64])
def test_one_large_field_of_records_is_found(record: Callable[[], Any], count: int) -> None:
    records = [record() for _ in range(count)]
    expected = pytest.approx(count * LARGE, rel=0.5)  # of some records only a part is walked
    assert heap_bytes(records) == expected
    assert heap_bytes(tuple(records)) == expected
    assert mean_bytes(records) * count == expected
    assert mean_bytes([("key", records)] * 4) == expected


@pytest.mark.parametrize("at", range(0, 20, 3))
@pytest.mark.parametrize("kind", [tuple, list, lambda fields: dict(enumerate(fields))])
def test_a_large_field_of_many_is_found(kind: Callable[[list[Any]], Any], at: int) -> None:
    records = [kind([*[1] * at, bytes(LARGE), *[2] * (19 - at)]) for _ in range(64)]
    assert mean_bytes(records) == pytest.approx(LARGE, rel=0.9)
    assert sum(bytes_of_each(records)) / 64 == pytest.approx(LARGE, rel=0.6)


@pytest.mark.parametrize("count", [24, 32, 600, 4096, 16 * 7919])
@pytest.mark.parametrize(("period", "at"), [(period, at) for period in (2, 3, 4, 5) for at in range(period)])
def test_records_that_are_large_in_turn_are_seen(count: int, period: int, at: int) -> None:
    thing = bytes(LARGE)
    things = [thing if n % period == at else 1 for n in range(count)]
    for found in (mean_bytes(things), heap_bytes(things) / count):
        assert 0.2 * LARGE / period < found < 2.5 * LARGE / period


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 31, 33, 4095, 4096, 16 * 7919])
@pytest.mark.parametrize("start", [0, 1, 15470])
def test_positions_are_spread(count: int, start: int) -> None:
    found = list(spread(count, 16, start=start))
    assert found == sorted(set(found))
    assert len(found) <= 16
    assert all(0 <= at < count for at in found)
    step = -(-count // 16)
    assert [at // step for at in found] == list(range(-(-count // step) if step else 0))


def test_one_record_that_refers_to_many_does_not_hide_the_others() -> None:
    many = [dict(enumerate(FEW)) for _ in range(16)]
    records = [(0, many), *((n, large()) for n in range(1, 16))]
    assert mean_bytes(records) == pytest.approx(LARGE * 15 / 16, rel=0.1)
