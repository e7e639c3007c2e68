"""`ask_each`: ask the services of many hosts the same question, although some of them may be gone.

A few services are asked at a time; when one has answered, the next is asked. So a service that does not
answer occupies one place, and does not hold up the others.

Rules
* The time for all services is limited: when it is over, the remaining answers are not waited for. A service
  counts as silent only if it had its full time-out.
* A worker may run at the limit of its address space, threads or descriptors: then fewer services are asked at
  a time. A helper thread that lacks one of these leaves its service to the others and ends. When all helpers
  have ended, the caller's thread asks the remaining services one after another. The result says nothing of a
  service that even this thread cannot ask.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

from sortshuffle.errors import ServiceUnavailableError, SortShuffleError
from sortshuffle.service.client.client import ServiceClient, ServiceClients
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.client.shortage import is_own_shortage

# services; each takes up to three threads (asking, receiving, resolving), whose stacks take 8 MiB of address
# space each: these 240 MiB fit into a worker limited to 1 GiB (spark.executor.pyspark.memory)
AT_ONCE = 10

Answer = TypeVar("Answer")


def ask_each(
    addresses: Iterable[str],
    ask: Callable[[ServiceClient], Answer],
    settings: ClientSettings,
    within: float,
) -> dict[str, Answer | None]:
    """Return what ``ask`` returns for the service at each address; None for a service that does not answer.

    ``settings``: limit the time of one service. ``within``: seconds for all of them, however many requests
    ``ask`` makes. The result leaves out services whose turn did not come in that time, that did not answer in
    what was left of it, or that this process lacked the threads, memory or descriptors to ask. Raises no
    errors that services, or a lack of threads or memory, cause."""
    until = time.monotonic() + within
    left = deque(dict.fromkeys(addresses))
    answers: dict[str, Answer | None] = {}

    def work(is_alone: bool = False) -> None:
        """Ask services until none is left. ``is_alone``: no other thread would take over a service."""
        while (seconds := until - time.monotonic()) > 0:
            try:
                address = left.popleft()  # thread-safe
            except IndexError:
                return
            try:
                timed = replace(settings, timeout=min(settings.timeout, seconds), until=until)
                with closing(ServiceClients(timed)) as clients:
                    answers[address] = ask(clients.client(address))
            except (SortShuffleError, OSError, RuntimeError, MemoryError) as error:
                if is_own_shortage(error):
                    if not is_alone:
                        left.appendleft(address)  # first again: callers put first what they want most
                        return
                    continue
                is_cut = seconds < settings.timeout or time.monotonic() >= until
                if not (is_cut and _is_silence(error)):
                    answers[address] = None

    helpers: list[threading.Thread] = []
    try:
        for _ in range(min(AT_ONCE, len(left)) - 1):
            helper = threading.Thread(target=work, name="sortshuffle-asking", daemon=True)
            helper.start()
            helpers.append(helper)
    except (RuntimeError, MemoryError):
        pass  # no more threads: those that run ask all services
    work()
    for helper in helpers:
        helper.join(max(0.0, until - time.monotonic()))
    work(is_alone=True)
    return dict(answers)  # a copy, which a helper that is late does not change


def _is_silence(error: BaseException) -> bool:
    """Return whether the service might have answered later."""
    return isinstance(error, ServiceUnavailableError) and error.refused is None
