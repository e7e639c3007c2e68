"""What lies behind an error of a client: a service that does not answer, or a process that cannot ask it."""

from __future__ import annotations

import errno
import os

import pytest
from serving import no_descriptor_left

from sortshuffle.errors import InsufficientBuffersError, ProtocolError, ServiceUnavailableError, StateError
from sortshuffle.service.client.shortage import (
    cannot_ask,
    descriptor_shortage,
    is_own_shortage,
    shortage_behind,
)

HERE = "127.0.0.1:1"


def unavailable(cause: BaseException | None) -> ServiceUnavailableError:
    """As a link raises it when its time-out is over."""
    error = ServiceUnavailableError("no answer")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "too many"),
        OSError(errno.EADDRNOTAVAIL, "no port"),
        MemoryError(),
        RuntimeError("can't start new thread"),
    ],
    ids=repr,
)
def test_a_shortage_of_this_process_is_found_behind_the_errors_that_it_caused(error: Exception) -> None:
    assert shortage_behind(error) is error
    assert shortage_behind(unavailable(unavailable(error))) is error
    assert is_own_shortage(unavailable(error))


@pytest.mark.parametrize(
    "error",
    [
        None,
        unavailable(None),
        unavailable(ConnectionRefusedError(errno.ECONNREFUSED, "refused")),
        ProtocolError("odd"),
        StateError("closed"),
        NotImplementedError("a codec"),
        RuntimeError("dictionary changed size during iteration"),
        InsufficientBuffersError("too small a pool"),
    ],
    ids=repr,
)
def test_other_errors_are_no_shortage(error: Exception | None) -> None:
    assert shortage_behind(error) is None
    assert not is_own_shortage(error)


@pytest.mark.parametrize(
    ("short", "number", "texts"),
    [
        (
            OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
            errno.EMFILE,
            ("Too many open files", "ulimit -n"),
        ),
        (
            OSError(errno.ENFILE, os.strerror(errno.ENFILE)),
            errno.ENFILE,
            ("Too many open files in system", "fs.file-max"),
        ),
        (MemoryError(), errno.ENOMEM, ("Cannot allocate memory", "more memory")),
        (OSError(errno.ENOBUFS, "no buffers"), errno.ENOBUFS, ("No buffer space", "more memory")),
        (
            OSError(errno.EADDRNOTAVAIL, "no port"),
            errno.EADDRNOTAVAIL,
            ("Cannot assign requested address", "net.ipv4.ip_local_port_range"),
        ),
        (
            RuntimeError("can't start new thread"),
            errno.EAGAIN,
            ("can't start new thread", "ulimit -u"),
        ),
    ],
)
def test_the_error_names_the_service_what_is_short_and_the_remedy(
    short: Exception, number: int, texts: tuple[str, ...]
) -> None:
    error = cannot_ask(HERE, short)
    assert error.errno == number
    for text in (*texts, HERE):
        assert text in str(error)
    assert not isinstance(error, ServiceUnavailableError)


def test_a_lack_of_descriptors_is_found_where_no_error_tells_of_it() -> None:
    assert descriptor_shortage() is None
    with no_descriptor_left():
        lack = descriptor_shortage()
    assert lack is not None
    assert lack.errno == errno.EMFILE
