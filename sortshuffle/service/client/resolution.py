"""Resolves the name of a service's host within a bounded time.

The system's resolver may take half a minute or more, and cannot be interrupted. So one thread for each name
calls it, and callers wait for its answer only as long as they want. An answer that comes after all callers
have given up is kept for the next one, once and for at most `KEPT` seconds (hosts move). Without that, a
resolver slower than every caller would never help anybody. A numeric address needs no resolver.

The resolver needs descriptors and memory. If this process has none left, the error is that, and not one of
the name.

A forked process has none of the threads, and one of them may have held the lock: the process starts anew.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from dataclasses import dataclass, field

from sortshuffle import calls
from sortshuffle.errors import ServiceUnavailableError
from sortshuffle.service.client.shortage import descriptor_shortage

KEPT = 60.0  # seconds; several times as long as a client waits before it tries again (`client.backoff`)


@dataclass(slots=True)
class _Question:
    """A question to the resolver. ``answered_at``: by the monotonic clock, valid once ``answered`` is set."""

    answered: threading.Event = field(default_factory=threading.Event)
    answered_at: float = 0.0
    found: tuple[str, ...] = ()
    error: OSError | None = None


_lock = threading.Lock()
_open: dict[str, _Question] = {}  # by host: questions under way, and late answers that were not used yet


def resolve(host: str, timeout: float) -> tuple[str, ...]:
    """Return the numeric addresses of a host, in the system's order. Raises OSError as the system does,
    `ServiceUnavailableError` if there is no answer within ``timeout`` seconds, or no thread to ask."""
    try:
        return _ask_system(host, socket.AI_NUMERICHOST)
    except (socket.gaierror, UnicodeError):
        pass  # a name
    question = _ask(host)
    if not question.answered.wait(timeout):
        raise ServiceUnavailableError(f"the address of {host} was not found within {timeout:g} s")
    _forget(host, question)
    if question.error is not None:
        raise question.error
    return question.found


def _ask(host: str) -> _Question:
    with _lock:
        question = _open.get(host)
        if question is None or _is_old(question):
            question = _Question()
            thread = threading.Thread(
                target=_answer, args=(host, question), name=f"sortshuffle-resolve-{host}", daemon=True
            )
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:  # the system has no thread for it now
                raise ServiceUnavailableError(
                    f"the address of {host} cannot be asked for: {error}"
                ) from error
            _open[host] = question
        return question


def _is_old(question: _Question) -> bool:
    return question.answered.is_set() and time.monotonic() - question.answered_at > KEPT


def _answer(host: str, question: _Question) -> None:
    try:
        question.found = _ask_system(host)
    except socket.gaierror as error:
        question.error = _shortage_behind(error) or error
    except OSError as error:
        question.error = error
    except MemoryError as error:
        question.error = _no_memory(error)
    except UnicodeError as error:  # a name that no host can have
        question.error = OSError(f"{host!r} is not the name of a host: {error}")
    finally:
        question.answered_at = time.monotonic()
        if not question.found:
            _forget(host, question)
        question.answered.set()


def _shortage_behind(error: socket.gaierror) -> OSError | None:
    """Return the lack of memory or descriptors that may have caused the resolver's error, with that as its
    cause. Without descriptors, the resolver says that there is no such name, or no answer now, as of a host
    that has none."""
    if error.errno == socket.EAI_MEMORY:
        return _no_memory(error)
    shortage = descriptor_shortage()
    if shortage is not None:
        shortage.__cause__ = error
    return shortage


def _no_memory(error: Exception) -> OSError:
    shortage = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    shortage.__cause__ = error
    return shortage


def _forget(host: str, question: _Question) -> None:
    with _lock:
        if _open.get(host) is question:
            del _open[host]


def _begin_anew() -> None:
    global _lock, _open
    _lock, _open = threading.Lock(), {}


os.register_at_fork(after_in_child=_begin_anew)


def _ask_system(host: str, flags: int = 0) -> tuple[str, ...]:
    found = calls.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    return tuple(str(address[0]) for *_, address in found)
