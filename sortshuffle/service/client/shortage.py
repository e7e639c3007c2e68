"""Tells whether a request to a service failed because this process lacks the means to make it.

A process may have no descriptor, memory, port or thread left for a connection. That says nothing about the
service: its host may be sound, and its map outputs are not lost.

The connection retries after most shortages, until the client's time-out. The request then fails with an error
for the service, and the shortage is among its causes. Two are raised at once (`is_raised_at_once`): no thread
for the link, and no memory for the request itself.
"""

from __future__ import annotations

import errno
import os

from sortshuffle import calls
from sortshuffle.errors import OUT_OF, SortShuffleError

# this process lacks descriptors, memory or ports for another connection
LOCAL_SHORTAGES = (*OUT_OF, errno.ENOBUFS, errno.EADDRNOTAVAIL)

# The texts of the plain RuntimeErrors of `threading`, in every release of Python: they have no class
NO_THREAD = ("can't start new thread", "can't allocate lock")

_REMEDIES = {
    errno.EMFILE: "Allow this process more open files (ulimit -n)",
    errno.ENFILE: "Allow this host more open files (sysctl fs.file-max)",
    errno.ENOMEM: "Give this host more memory, or run fewer tasks on it at a time",
    errno.ENOBUFS: "Give this host more memory, or run fewer tasks on it at a time",
    errno.EADDRNOTAVAIL: "Give this host more ports for connections (sysctl net.ipv4.ip_local_port_range)",
    errno.EAGAIN: "Allow this process more threads (ulimit -u) or more address space (ulimit -v)",
}


def is_raised_at_once(error: BaseException) -> bool:
    """Return whether this error itself is a lack of a thread or of memory, which no client has waited for."""
    is_no_thread = type(error) is RuntimeError and str(error) in NO_THREAD
    return is_no_thread or (isinstance(error, MemoryError) and not isinstance(error, SortShuffleError))


def shortage_behind(error: BaseException | None) -> BaseException | None:
    """Return the first shortage of this process among an error and its causes; None if there is none."""
    while error is not None:
        if is_raised_at_once(error):
            return error
        if isinstance(error, OSError) and error.errno in LOCAL_SHORTAGES:
            return error
        error = error.__cause__
    return None


def is_own_shortage(error: BaseException | None) -> bool:
    """Return whether the cause is not the service, but a shortage in this process."""
    return shortage_behind(error) is not None


def descriptor_shortage() -> OSError | None:
    """Return the error if this process cannot open a descriptor now, else None. For calls whose own errors do
    not tell."""
    try:
        calls.close(calls.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error if is_own_shortage(error) else None
    return None


def cannot_ask(service: str, shortage: BaseException) -> OSError:
    """Return the error of a task that cannot ask ``service`` because of a shortage. It names the remedy."""
    if isinstance(shortage, OSError) and shortage.errno is not None:
        number, what = shortage.errno, os.strerror(shortage.errno)
    elif isinstance(shortage, MemoryError):
        number, what = errno.ENOMEM, os.strerror(errno.ENOMEM)
    else:
        number, what = errno.EAGAIN, str(shortage)
    return OSError(number, f"the shuffle service at {service} cannot be asked: {what}. {_REMEDIES[number]}")
