"""The server's loop: calls of other threads, work in the background, and an end that forgets nothing."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from consumers import PATIENCE, together

from sortshuffle.errors import StateError
from sortshuffle.service.server.loop import BACKGROUND_THREADS, LONG_THREADS, EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop()
    with together(made.run):
        yield made
        made.stop()
    made.close()


class Echo:
    """Remembers what came on one end of a pair of sockets, and in which thread."""

    def __init__(self) -> None:
        self.here, self.there = socket.socketpair()
        self.heard = threading.Event()
        self.events = 0

    def fileno(self) -> int:
        return self.here.fileno()

    def on_ready(self, events: int) -> None:
        self.events = events
        self.here.recv(100)
        self.heard.set()

    def close(self) -> None:
        self.here.close()
        self.there.close()


def test_calls_are_made_in_order_by_one_thread(loop: EventLoop) -> None:
    seen: list[tuple[int, int]] = []
    done = threading.Event()

    def leave(number: int) -> None:
        loop.call_soon(lambda: seen.append((number, threading.get_ident())))

    def leave_many() -> None:
        for number in range(1000):
            leave(number)

    leave_many()
    loop.call_soon(done.set)
    assert done.wait(PATIENCE)
    assert [number for number, _ in seen] == list(range(1000))
    assert {thread for _, thread in seen} != {threading.get_ident()}
    assert len({thread for _, thread in seen}) == 1


def test_calls_from_many_threads_all_arrive(loop: EventLoop) -> None:
    seen: list[int] = []

    def leave() -> None:
        for number in range(500):
            loop.call_soon(lambda n=number: seen.append(n))

    with together(*[leave] * 6):
        pass
    assert loop.ask(lambda: len(seen), PATIENCE) == 3000


def test_watched_descriptors_are_heard_until_they_are_not_watched(loop: EventLoop) -> None:
    echo = Echo()
    loop.ask(lambda: loop.watch(echo, selectors.EVENT_READ), PATIENCE)
    echo.there.send(b"x")
    assert echo.heard.wait(PATIENCE)
    assert echo.events == selectors.EVENT_READ
    loop.ask(lambda: loop.watch(echo, 0), PATIENCE)
    echo.heard.clear()
    echo.there.send(b"x")
    loop.ask(lambda: None, PATIENCE)
    loop.ask(lambda: None, PATIENCE)
    assert not echo.heard.is_set()
    echo.close()


def test_a_call_that_fails_costs_nothing_else(loop: EventLoop, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("this call's own fault")

    loop.call_soon(fail)
    assert loop.ask(lambda: "still there", PATIENCE) == "still there"
    assert "this call's own fault" in caplog.text


def test_a_tick_that_fails_costs_nothing_else(loop: EventLoop, caplog: pytest.LogCaptureFixture) -> None:
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise ValueError("this tick's own fault")

    loop.on_tick = fail
    assert failed.wait(PATIENCE)
    assert loop.ask(lambda: "still there", PATIENCE) == "still there"
    assert "this tick's own fault" in caplog.text


def test_questions_may_fail_and_take_too_long(loop: EventLoop) -> None:
    def fail() -> None:
        raise KeyError("asked for")

    with pytest.raises(KeyError):
        loop.ask(fail, PATIENCE)
    go_on = threading.Event()
    loop.call_soon(lambda: [go_on.wait(PATIENCE)].clear())
    with pytest.raises(TimeoutError, match=r"did not answer within 0\.01 s"):
        loop.ask(lambda: None, 0.01)
    go_on.set()


def test_work_in_the_background_comes_back_to_the_loop(loop: EventLoop) -> None:
    threads: list[int] = []
    results: list[Future[int]] = []
    done = threading.Event()

    def back(result: Future[int]) -> None:
        threads.append(threading.get_ident())
        results.append(result)
        if len(results) == 2:
            done.set()

    loop.in_background(lambda: 7, back)
    loop.in_background(lambda: 1 // 0, back)
    assert done.wait(PATIENCE)
    assert sorted(str(each.exception() or each.result()) for each in results) == [
        "7",
        "integer division or modulo by zero",
    ]
    assert set(threads) == {loop.ask(threading.get_ident, PATIENCE)}


def test_time_goes_on_and_turns_are_taken(loop: EventLoop) -> None:
    ticked, turns = threading.Event(), []

    def turn() -> bool:
        turns.append(1)
        return len(turns) % 100 != 0

    loop.on_tick = ticked.set
    loop.on_turn = turn
    assert ticked.wait(PATIENCE)
    assert loop.ask(lambda: len(turns), PATIENCE) >= 1


def test_what_is_left_of_the_work_is_done_at_the_end() -> None:
    loop = EventLoop()
    go_on = threading.Event()
    came_back: list[int] = []
    with together(loop.run):
        loop.in_background(lambda: go_on.wait(PATIENCE), lambda done: came_back.append(1))
        loop.stop()
    assert came_back == []
    go_on.set()
    loop.close()
    assert came_back == [1]


def test_work_that_has_not_begun_when_the_loop_stops_is_not_done() -> None:
    loop = EventLoop()
    go_on = threading.Event()
    begun: list[int] = []
    results: list[Future[None]] = []
    for _ in range(BACKGROUND_THREADS):
        loop.in_background(lambda: go_on.wait(PATIENCE), lambda done: None)
    loop.in_background(lambda: begun.append(1), results.append)
    loop.stop()
    go_on.set()
    loop.close()
    assert begun == []
    assert isinstance(results[0].exception(), StateError)


def test_work_that_no_thread_could_be_started_for_fails_and_is_not_begun_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = EventLoop()
    busy, go_on = threading.Event(), threading.Event()
    begun: list[int] = []
    results: list[Future[None]] = []

    def work() -> None:
        busy.set()
        go_on.wait(PATIENCE)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    loop.in_background(work, lambda done: None)
    assert busy.wait(PATIENCE)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        loop.in_background(lambda: begun.append(1), results.append)
    go_on.set()
    loop.close()
    assert begun == []
    assert "can't start new thread" in str(results[0].exception())


@pytest.mark.parametrize("threads", [LONG_THREADS, 10 * LONG_THREADS], ids=["busy", "queue"])
def test_what_takes_long_keeps_nothing_else_waiting(loop: EventLoop, threads: int) -> None:
    go_on, done = threading.Event(), threading.Event()
    for _ in range(threads):
        loop.in_background(lambda: go_on.wait(PATIENCE), lambda done: None, takes_long=True)
    loop.in_background(lambda: 1, lambda result: done.set())
    assert done.wait(PATIENCE)
    go_on.set()


def test_it_can_be_stopped_before_it_runs() -> None:
    loop = EventLoop()
    loop.stop()
    loop.run()
    assert loop.ask(lambda: 5, 0) == 5
    loop.close()
