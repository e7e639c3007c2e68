"""What several threads ask for at once is done once, and all have its result or its error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import pytest
from consumers import PATIENCE
from engine import eventually

from sortshuffle.service.jvm import single_flight
from sortshuffle.service.jvm.single_flight import SingleFlight

ASKING = 4


class Call:
    """A call that ends when it may."""

    def __init__(self) -> None:
        self.calls = 0
        self.go = threading.Event()
        self.error: Exception | None = None

    def __call__(self) -> str:
        self.calls += 1
        assert self.go.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return "result"


def asked(flights: SingleFlight[str], call: Call, threads: ThreadPoolExecutor) -> list[Future[str]]:
    """Several that wait for the same."""
    found = [threads.submit(flights.do, b"key", call) for _ in range(ASKING)]
    eventually(lambda: flights._under_way, "one has begun")
    all_but_one_wait(flights)
    return found


def all_but_one_wait(flights: SingleFlight[str]) -> None:
    future: Any = flights._under_way[b"key"]
    eventually(lambda: len(future._waiters) == ASKING - 1, "all but one wait for it")


def test_of_several_that_ask_at_once_one_does_it() -> None:
    flights, call = SingleFlight[str](), Call()
    with ThreadPoolExecutor(ASKING) as threads:
        results = asked(flights, call, threads)
        call.go.set()
        assert [each.result(PATIENCE) for each in results] == ["result"] * ASKING
    assert call.calls == 1
    assert flights.do(b"key", call) == "result"
    assert call.calls == 2, "nothing is kept"


def test_those_who_wait_fail_with_it_and_later_ones_do_not() -> None:
    flights, call = SingleFlight[str](), Call()
    call.error = OSError("away")
    with ThreadPoolExecutor(ASKING) as threads:
        results = asked(flights, call, threads)
        call.go.set()
        for each in results:
            with pytest.raises(OSError, match="away"):
                each.result(PATIENCE)
    call.error = None
    assert (flights.do(b"key", call), call.calls) == ("result", 2)


@contextmanager
def under_way(flights: SingleFlight[str]) -> Iterator[None]:
    """Somebody does it for as long as the block."""
    call = Call()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(flights.do, b"key", call)
        eventually(lambda: call.calls == 1, "it has begun")
        yield
        call.go.set()
        assert first.result(PATIENCE) == "result"


def test_who_waits_too_long_does_it_itself() -> None:
    flights = SingleFlight[str](patience=0.01)
    with under_way(flights):
        assert flights.do(b"key", lambda: "mine") == "mine"


def test_of_those_who_wait_too_long_one_does_it_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    flights, call = SingleFlight[str](), Call()
    with under_way(flights), ThreadPoolExecutor(ASKING) as threads:
        slow: Any = flights._under_way[b"key"]
        patience = {slow: 0.0}
        monkeypatch.setattr(single_flight, "wait", lambda on, _: wait(on, patience.get(on[0], PATIENCE)))
        results = [threads.submit(flights.do, b"key", call) for _ in range(ASKING)]
        eventually(lambda: flights._under_way[b"key"] is not slow, "one has begun it anew")
        all_but_one_wait(flights)
        call.go.set()
        assert [each.result(PATIENCE) for each in results] == ["result"] * ASKING
    assert call.calls == 1
    assert flights.do(b"key", call) == "result"
    assert call.calls == 2, "nothing is kept"


def test_others_are_done_meanwhile() -> None:
    flights = SingleFlight[str]()
    with under_way(flights):
        assert flights.do(b"other", lambda: "other") == "other"
