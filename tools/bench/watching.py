"""`watching`: looks at something again and again, in a thread, while a benchmark runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watching(look: Callable[[], None], interval: float) -> Iterator[None]:
    """Call ``look`` every ``interval`` seconds while the block runs. An error of it ends the looking, and is
    raised when the block has ended."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def watch() -> None:
        try:
            while not stop.wait(interval):
                look()
        except BaseException as error:
            failures.append(error)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
    if failures:
        raise failures[0]
