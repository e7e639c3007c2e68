"""`ask_each`: the same question to the services of many hosts, some of which are gone.

A few are asked at once, and the next as soon as one has answered. So a service that does not answer holds up
one place of these, and not the others.

Rules
* What is asked is over when the time is: who has not answered then is not waited for. That nothing was heard
  of a service counts only if it had all of its own time.
* A worker may run at the limit of its address space, its threads or its files: then fewer are asked at once.
  A thread that finds no room leaves its service to the others and ends. When all helpers have ended, the
  caller's own thread asks those that are left, one after another. Whom it cannot ask even then has not been
  asked: nothing is said of that service.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

from sortshuffle.errors import OUT_OF, ServiceUnavailableError, SortShuffleError
from sortshuffle.service.client.client import ServiceClient, ServiceClients
from sortshuffle.service.client.client_settings import ClientSettings

# services; each takes up to three threads (who asks, who receives, who finds the host), and the address space
# of their stacks, 8 MiB each: these 240 MiB fit into a worker whose address space is limited to 1 GiB
# (spark.executor.pyspark.memory)
AT_ONCE = 10

# of these there are no more for another connection: descriptors, memory, ports
OF_THIS_PROCESS = (*OUT_OF, errno.ENOBUFS, errno.EADDRNOTAVAIL)

Answer = TypeVar("Answer")


def ask_each(
    addresses: Iterable[str],
    ask: Callable[[ServiceClient], Answer],
    settings: ClientSettings,
    within: float,
) -> dict[str, Answer | None]:
    """What ``ask`` gives of the service at each address, None where that does not answer. ``settings``: say
    how long one service may take; ``within``: all together, in seconds, however much ``ask`` asks for. Those
    whose turn does not come in that time are not in the result, nor those that did not answer in what was
    left of it, nor those that this process had no thread, memory or descriptor to ask. Does not raise what
    services, threads or memory are at fault for."""
    until = time.monotonic() + within
    left = deque(dict.fromkeys(addresses))
    answers: dict[str, Answer | None] = {}

    def work(is_alone: bool = False) -> None:
        """``is_alone``: no other thread takes room, and none would take over what is left to it."""
        while (seconds := until - time.monotonic()) > 0:
            try:
                address = left.popleft()  # which threads may do at once
            except IndexError:
                return
            try:
                timed = replace(settings, timeout=min(settings.timeout, seconds), until=until)
                with closing(ServiceClients(timed)) as clients:
                    answers[address] = ask(clients.client(address))
            except (SortShuffleError, OSError, RuntimeError, MemoryError) as error:
                if _is_own(error):
                    if not is_alone:
                        left.appendleft(address)  # first: what comes first is what the caller wants most
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
        pass  # no thread to be had: those that run ask all
    work()
    for helper in helpers:
        helper.join(max(0.0, until - time.monotonic()))
    work(is_alone=True)
    return dict(answers)  # one that is late, because it closes its connection, changes that no more


def _is_silence(error: BaseException) -> bool:
    """Whether it might have answered later."""
    return isinstance(error, ServiceUnavailableError) and error.refused is None


def _is_own(error: BaseException | None) -> bool:
    """Whether it is not the service that is at fault, but what this process is out of."""
    while error is not None:
        is_no_thread = isinstance(error, RuntimeError) and not isinstance(error, SortShuffleError)
        if is_no_thread or isinstance(error, MemoryError):
            return True
        if isinstance(error, OSError) and error.errno in OF_THIS_PROCESS:
            return True
        error = error.__cause__
    return False
