"""The error tree: one class per thing the caller must do next.

=====================  =============================================  ==========================
class                  what the caller must do                        also caught as
=====================  =============================================  ==========================
UsageError             fix the call                                   ValueError
  OptionError          fix a ``spark.sortshuffle.*`` setting          ValueError
  ColumnError          name a column that is there                    ValueError, LookupError
  SchemaMismatchError  make function and declared schema agree        ValueError, TypeError
  UnsupportedError     use the alternative the message names          ValueError, NotImplementedError
StateError             call methods in their order (finish, abandon)  RuntimeError
ResultOverflowError    compute with a wider type                      ArithmeticError
DataLossError          run the producer task again
  CorruptDataError     run the producer task again; look at the disk  ValueError
  MissingDataError     run the producer task again                    FileNotFoundError
OutOfDiskError         free disk space or name another directory      OSError
FileAccessError        look at the disk, or the limit, that is named  OSError
InsufficientBuffersError
                       give the pool that is named more memory        MemoryError
BufferTimeoutError     find who holds the buffers; give more memory   TimeoutError
ServiceUnavailableError
                       see that the named service runs; the network   ConnectionError
AuthenticationError    give both sides the same secret or certificate PermissionError
DecryptionError        give the files' key; or see who writes there   ValueError
ProtocolError          use one version of the package on all hosts    ConnectionError
WorkerSetupError       install what the workers' Python lacks         ImportError
=====================  =============================================  ==========================

Rules: a message says where the error is (file, region, subpartition, offset), what was expected, what was
found, and which option or action fixes it. This module imports nothing else from the package.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errnos that do not concern the file or the peer: this process or its host lacks descriptors or memory."""


class SortShuffleError(Exception):
    """Base of everything this package raises on purpose."""


class UsageError(SortShuffleError, ValueError):
    """The call is wrong: an argument, a name, or a combination of arguments."""


class OptionError(UsageError):
    """A ``spark.sortshuffle.*`` setting is unknown or has a value that is not allowed."""


class ColumnError(UsageError, LookupError):
    """A named column does not exist, is ambiguous, or cannot be used for this purpose."""


class SchemaMismatchError(UsageError, TypeError):
    """A user function returned data whose schema differs from the declared one."""


class UnsupportedError(UsageError, NotImplementedError):
    """The request is understood and refused; the message names the alternative."""


class StateError(SortShuffleError, RuntimeError):
    """A method was called out of order, such as writing after ``finish()``."""


class ResultOverflowError(SortShuffleError, OverflowError):
    """A result does not fit its type, and the caller did not ask for wrap-around."""


class WorkerSetupError(SortShuffleError, ImportError):
    """The workers' Python, or this process's, lacks something that this package needs. ``path``: the URL that
    needs it; None if the need comes from elsewhere."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a result partition, for error messages. Unknown parts are None.

    ``offset`` is in bytes from the start of ``file``; ``writer`` says which task attempt wrote the file.
    """

    file: str
    region: int | None = None
    subpartition: int | None = None
    offset: int | None = None
    writer: str | None = None

    def __str__(self) -> str:
        parts = [self.file]
        if self.region is not None:
            parts.append(f"region {self.region}")
        if self.subpartition is not None:
            parts.append(f"subpartition {self.subpartition}")
        if self.offset is not None:
            parts.append(f"offset {self.offset}")
        if self.writer is not None:
            parts.append(f"written by {self.writer}")
        return ", ".join(parts)


class DataLossError(SortShuffleError):
    """Written data cannot be read. The task that produced it must run again."""

    def __init__(self, place: Place, what: str, *, expected: object = None, found: object = None) -> None:
        self.place = place
        self.what = what
        self.expected = expected
        self.found = found
        message = f"{what} ({place})"
        if expected is not None or found is not None:
            message += f": expected {expected}, found {found}"
        super().__init__(message + ". The task that wrote it must run again")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_data_loss, (type(self), self.place, self.what, self.expected, self.found)


def _rebuild_data_loss(
    kind: type[DataLossError], place: Place, what: str, expected: object, found: object
) -> DataLossError:
    return kind(place, what, expected=expected, found=found)


class CorruptDataError(DataLossError, ValueError):
    """The bytes differ from those that were written."""


class MissingDataError(DataLossError, FileNotFoundError):
    """A file is gone, or another file has taken its place."""


class OutOfDiskError(SortShuffleError, OSError):
    """No directory has room for what must be written."""

    def __init__(self, path: str, wanted: int, free: int) -> None:
        self.path = path
        self.wanted = wanted
        self.free = free
        super().__init__(
            errno.ENOSPC,
            f"no space left for {wanted} bytes below {path} ({free} bytes free). Free some, or name"
            " directories on other disks with spark.sortshuffle.dir (spark.local.dir sets the default)",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return OutOfDiskError, (self.path, self.wanted, self.free)


class FileAccessError(SortShuffleError, OSError):
    """The system refused a call on a file, though the disk is not full.

    ``errno`` and ``filename`` are those of the system's error.
    """

    def __init__(self, number: int, path: str) -> None:
        super().__init__(number, f"{os.strerror(number)}: {_remedy_of(number)}", path)

    def __reduce__(self) -> tuple[object, ...]:
        return FileAccessError, (self.errno, self.filename)


def _remedy_of(number: int) -> str:
    if number in (errno.EMFILE, errno.ENFILE):
        return "allow the process, or the host, more open files (ulimit -n)"
    if number == errno.ENOMEM:
        return "the host's memory is used up"
    return "look at the disk, or name directories on others with spark.sortshuffle.dir; a task may run again"


class InsufficientBuffersError(SortShuffleError, MemoryError):
    """The pool can never supply that many buffers: it is too small, or they are guaranteed to others."""


class ServiceUnavailableError(SortShuffleError, ConnectionError):
    """A shuffle service could not be reached, or did not answer, before the timeout.

    ``address``: the service's host:port, if known. ``refused``: what a service that does answer cannot serve;
    None if the service is unavailable as a whole, or lacks room or time.
    """

    address = ""
    refused: Place | None = None


class AuthenticationError(SortShuffleError, PermissionError):
    """A peer did not prove that it knows the shared secret, or its certificate is not trusted."""


class DecryptionError(SortShuffleError, ValueError):
    """Encrypted data cannot be decrypted: the key is missing or wrong, or bytes were tampered with. Or data
    is not encrypted although all of it should be: somebody else wrote it. No producer runs again: with a
    wrong key its new output could not be read either, and a person must look at tampering. ``remedy``: the
    end of the message."""

    def __init__(self, place: Place, what: str, remedy: str) -> None:
        self.place = place
        self.what = what
        self.remedy = remedy
        super().__init__(f"{what} ({place}). {remedy}")

    def __reduce__(self) -> tuple[object, ...]:
        return DecryptionError, (self.place, self.what, self.remedy)


class ProtocolError(SortShuffleError, ConnectionError):
    """A peer broke the protocol."""


class BufferTimeoutError(SortShuffleError, TimeoutError):
    """Buffers did not become free in time: no reader made progress, or users kept guaranteed buffers."""
