"""Where pairs go by their keys: the numbers are `portable_hash`'s, for whatever a batch is mixed of."""

from __future__ import annotations

import math
import pickle
import struct
from collections import namedtuple
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.core.rdd import portable_hash
from pyspark.errors import PySparkRuntimeError

from sortshuffle.spark.rdds.key_selectors import FunctionKeySelector, PortableHashSelector, selector_of

FLOATS = st.floats(allow_nan=False)
PLAIN = st.none() | st.booleans() | st.integers() | FLOATS | st.text() | st.binary() | st.dates()
KEYS = st.recursive(PLAIN, lambda keys: st.tuples(keys) | st.tuples(keys, keys, keys) | st.frozensets(PLAIN))
Point = namedtuple("Point", "x y")


@pytest.fixture(autouse=True)
def seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # as Spark sets it for its workers


@given(st.lists(KEYS), st.integers(1, 2**31 - 1))
def test_any_keys_are_placed_by_portable_hash(keys: list[Any], count: int) -> None:
    assert PortableHashSelector(count).assign(keys).tolist() == [portable_hash(key) % count for key in keys]


NAT = np.datetime64("NaT")


@pytest.mark.parametrize(
    "nan",
    [
        math.nan,
        np.float64("nan"),
        np.float32("nan"),
        complex(0, math.nan),
        Decimal("nan"),
        NAT,
        np.timedelta64("NaT"),
    ],
    ids=repr,
)
def test_nan_has_one_place_wherever_the_object_lies(nan: Any) -> None:
    """Python hashes it by its address, so a task that runs again would send it elsewhere."""
    keys = [nan, (nan, 1), ("a", (nan,))]
    places = [PortableHashSelector(1009).assign([key]).tolist() for key in keys]
    assert places == [[portable_hash(key) % 1009] for key in (0, (0, 1), ("a", (0,)))]
    assert PortableHashSelector(1009).assign([1.5, nan, *keys]).tolist() == [
        portable_hash(1.5) % 1009,
        0,
        *(place for (place,) in places),
    ]


@given(st.lists(st.integers() | st.booleans()), st.integers(1, 1000))
def test_whatever_int_a_function_gives_counts_modulo(keys: list[int], count: int) -> None:
    assert FunctionKeySelector(lambda key: key, count).assign(keys).tolist() == [key % count for key in keys]


def test_a_subclass_of_tuple_is_hashed_as_one() -> None:
    keys = [Point(None, "a"), (None, "a")]
    assert PortableHashSelector(1000).assign(keys).tolist() == [portable_hash(key) % 1000 for key in keys]


@pytest.mark.parametrize(("count", "dtype"), [(1, np.uint8), (256, np.uint8), (257, np.uint16)])
def test_ids_are_as_narrow_as_they_can_be(count: int, dtype: type) -> None:
    assert PortableHashSelector(count).assign([1, 2]).dtype == dtype
    assert FunctionKeySelector(hash, count).assign([1, 2]).dtype == dtype
    assert PortableHashSelector(count).assign([]).shape == (0,)
    assert FunctionKeySelector(hash, count).assign([]).shape == (0,)


def test_only_the_default_function_is_known() -> None:
    assert selector_of(portable_hash, 3) == PortableHashSelector(3)
    assert selector_of(hash, 3) == FunctionKeySelector(hash, 3)
    assert pickle.loads(pickle.dumps(selector_of(portable_hash, 3))) == PortableHashSelector(3)


def test_the_environment_is_asked_once_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED")
    with pytest.raises(PySparkRuntimeError, match="PYTHON_HASH_SEED_NOT_SET"):
        PortableHashSelector(2).assign([1])


def test_what_is_no_key_and_no_int_is_refused() -> None:
    for unhashable in ([1], (1, [2]), {}):
        with pytest.raises(TypeError, match="unhashable"):
            PortableHashSelector(2).assign([1, unhashable])
    with pytest.raises(struct.error):
        FunctionKeySelector(lambda key: 1.0, 2).assign([1])
