"""A value that is computed once, by threads that do not wait for each other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from sortshuffle.spark.plan.once import once

PATIENCE = 60  # seconds; nobody waits unless something is wrong


class Doubled:
    def __init__(self, number: int) -> None:
        self.number = number
        self.computed = 0

    @once
    def value(self) -> int:
        """Twice the number."""
        self.computed += 1
        return 2 * self.number


def test_a_value_is_computed_when_it_is_asked_for_and_kept() -> None:
    one, other = Doubled(1), Doubled(2)
    assert (one.computed, one.value, one.value, one.computed) == (0, 2, 2, 1)
    assert (other.value, other.computed) == (4, 1)
    assert Doubled.value.__doc__ == "Twice the number."


def test_computing_one_value_waits_for_no_other() -> None:
    class Paired:
        """Computes only while the other one does, too."""

        def __init__(self, both: threading.Barrier) -> None:
            self.both = both

        @once
        def value(self) -> int:
            return self.both.wait(PATIENCE)

    both = threading.Barrier(2)
    pair = Paired(both), Paired(both)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(lambda each: each.value, pair)) == [0, 1]
