"""`ApplicationEnd`: each function is called once, before or after the context stops, whoever stops it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from sortshuffle.spark.session import application_end
from sortshuffle.spark.session.application_end import ApplicationEnd


class Context:
    """All that an end needs of a SparkContext, of which a process has only one."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def stop(self) -> None:
        self._said.append("stop")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def context(said: list[str]) -> Iterator[Context]:
    context = Context(said)
    yield context
    context.stop()
    assert not [key for key in application_end._ends if key[0] == "app-1"]


def end_of(context: Context) -> ApplicationEnd:
    return ApplicationEnd.of(context, "app-1")


def saying(said: list[str], what: str) -> Callable[[], None]:
    return lambda: said.append(what)


def test_functions_are_called_in_their_order_around_the_stop(context: Context, said: list[str]) -> None:
    end_of(context).after(saying(said, "after"))
    end_of(context).before(saying(said, "first"))
    end_of(context).before(saying(said, "second"))
    context.stop()
    assert said == ["first", "second", "stop", "after"]


def test_functions_are_called_once(context: Context, said: list[str]) -> None:
    end_of(context).before(saying(said, "before"))
    end_of(context).after(saying(said, "after"))
    context.stop()
    context.stop()
    assert said == ["before", "stop", "after", "stop"]


def test_one_that_fails_hinders_no_other(
    context: Context, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("on purpose")

    end_of(context).before(fail)
    end_of(context).before(saying(said, "before"))
    context.stop()
    assert said == ["before", "stop"]
    assert "on purpose" in caplog.text


def test_the_context_stops_even_if_one_is_interrupted(context: Context, said: list[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    end_of(context).before(interrupt)
    end_of(context).before(saying(said, "needs the context"))
    end_of(context).after(saying(said, "after"))
    with pytest.raises(KeyboardInterrupt):
        context.stop()
    assert said == ["stop", "after"]


def test_one_that_comes_after_the_end_is_called_at_once(context: Context, said: list[str]) -> None:
    end = end_of(context)
    context.stop()
    end.before(saying(said, "before"))
    end.after(saying(said, "after"))
    assert said == ["stop", "before", "after"]


def test_a_stop_within_the_stop_returns(context: Context, said: list[str]) -> None:
    """As a signal's handler does, which runs in the thread that stops."""
    end_of(context).before(context.stop)
    end_of(context).before(saying(said, "before"))
    context.stop()
    assert said == ["before", "stop"]


def test_another_thread_that_stops_waits(context: Context, said: list[str]) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        assert goes_on.wait(30)
        said.append("before")

    end_of(context).before(slow)
    first, second = threading.Thread(target=context.stop), threading.Thread(target=context.stop)
    first.start()
    assert began.wait(30)
    second.start()
    goes_on.set()
    first.join(30)
    second.join(30)
    assert said == ["before", "stop", "stop"]


def test_a_forked_process_leaves_the_functions_to_its_parent(context: Context, said: list[str]) -> None:
    end_of(context).before(saying(said, "before"))
    child = os.fork()
    if not child:
        context.stop()
        os._exit(said != ["stop"])
    assert os.waitpid(child, 0)[1] == 0
    assert said == []
