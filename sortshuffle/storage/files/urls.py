"""Storage that every host sees, named by a URL: the meaning of URLs, errors of stores, and retries.

    file:///mount/dir      a directory that all hosts have mounted: read and written by descriptor
    s3://bucket/prefix     and any other scheme that fsspec knows: read by ranges, written in one stream each

Used by `PartitionedFileWriter` (`storage.stored.stored_pair`), `StoredFileReader`, and for removal. A map
output lies at ``<URL>/<application>-<token>/exchange-E-map-M-attempt-A``. The token is random, because two
masters may give two applications the same id. No level of hashes is needed above it: S3 splits a range of
keys by itself where the requests are, and the outputs of one exchange, which are read together, differ in the
number of the map.

The address and keys of a store are not options of this package: the store's library takes them from its usual
places. For S3 those are the ``AWS_*`` variables and files, and fsspec's own configuration (``FSSPEC_S3_*``
variables, files in ``~/.config/fsspec``), on the driver and on every host.
"""

from __future__ import annotations

import errno
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sortshuffle.errors import DataLossError, SortShuffleError, UsageError, WorkerSetupError
from sortshuffle.storage.files.partitioned_file import PartitionedFile

Result = TypeVar("Result")

MOUNTED_SCHEMES = ("file://", "local://")
_WITH_TOKEN = re.compile(r"(.+)-[0-9a-f]{32}")
# of the schemes that fsspec knows
_READ_ONLY = ("data", "git", "github", "http", "https", "libarchive", "tar", "zip")
# The store's library has already tried a request several times (s3fs: five times, for 5 s where nothing
# listens). Trying again helps with a store that is busy for longer: a task that fails reads everything again
ATTEMPTS = 3
FIRST_WAIT = 0.5  # seconds; doubles with each attempt
# errors that another attempt would meet again
_FINAL = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ImportError,
    DataLossError,
)
# errno for errors that have none
_CODES = (
    (FileNotFoundError, errno.ENOENT),
    (PermissionError, errno.EACCES),
    (TimeoutError, errno.ETIMEDOUT),
)
_OUT_OF_RANGE = "InvalidRange"  # S3's code for a range that begins after the end of the object
_REMEDY = (
    "See that this host reaches the store and may use it; its address and keys come from the environment and"
    " from fsspec's configuration (docs/operations.md)"
)


def is_url(path: str) -> bool:
    """Return whether a directory, or the base path of a map output, is on storage that every host sees."""
    return "://" in path


def mounted_path(url: str) -> str | None:
    """Return the local path of a URL in a directory that all hosts have mounted; None for other URLs."""
    for scheme in MOUNTED_SCHEMES:
        if url.startswith(scheme):
            return url.removeprefix(scheme)
    return None


def mounted_file(file: PartitionedFile) -> PartitionedFile | None:
    """Return the same map output by its local path; None unless it is in a mounted directory."""
    base = mounted_path(file.base)
    return None if base is None else PartitionedFile(base)


def why_not_shared(url: str) -> str:
    """Return why several processes cannot write to a URL together; empty if its scheme allows it. Only the
    scheme counts: the caller need not reach the storage, nor have its library."""
    from fsspec.registry import known_implementations, registry

    scheme = url.partition("://")[0]
    if scheme == "memory":
        return "no other process sees that. Name storage that all hosts see"
    if scheme in _READ_ONLY:
        return "nothing can be written there. Name storage that all hosts write to"
    if scheme in known_implementations or scheme in registry:
        return ""
    return (
        f"fsspec knows no storage {scheme}://. It knows, among others, s3://, gs://, abfs://, hdfs:// and"
        " file://, a directory that all hosts have mounted"
    )


def stored_name(application: str, token: str) -> str:
    """Return the name of an application's directory. ``token``: 16 random bytes, hexadecimal."""
    return f"{application}-{token}"


def application_of(name: str) -> str:
    """Return the application of a directory of this name, with or, as in older versions, without a token."""
    found = _WITH_TOKEN.fullmatch(name)
    return found[1] if found else name


def application_url(root: str, name: str) -> str:
    """Return the URL of the application's directory with this name."""
    return f"{root.rstrip('/')}/{name}"


def root_and_application(url: str) -> tuple[str, str]:
    """Split the result of `application_url` into its arguments."""
    root, _, application = url.rpartition("/")
    return root, application


def open_store(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it. Makes no request.

    Raises `WorkerSetupError` if the store's library is not installed, `UsageError` if fsspec rejects the URL.
    """
    from fsspec.core import url_to_fs

    try:
        filesystem, path = url_to_fs(url)
    except ImportError as error:
        raise WorkerSetupError(
            f"{url} cannot be used by the Python at {sys.executable} on {socket.gethostname()}: {error}."
            " Install it there",
            path=url,
        ) from error
    except ValueError as error:
        raise UsageError(f"{url} is no URL that fsspec takes: {error}") from error
    return filesystem, path


@contextmanager
def store_errors(doing: str, url: str) -> Iterator[None]:
    """Turn any error of a store's library into an OSError that names the URL and a remedy."""
    try:
        yield
    except SortShuffleError:
        raise
    except Exception as error:
        if _names_url(url, error):
            raise
        # do not bind this error to a variable: that would keep the data alive that was read
        raise store_error(doing, url, error) from error


def store_error(doing: str, url: str, error: Exception) -> OSError:
    """Return the OSError to raise for ``error``, of the same kind if possible, such as PermissionError."""
    code = error.errno if isinstance(error, OSError) else None
    if code is None:
        code = next((number for kind, number in _CODES if isinstance(error, kind)), errno.EIO)
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return OSError(code, f"{doing} failed: {text or type(error).__name__}. {_REMEDY}", url)


def _names_url(url: str, error: Exception) -> bool:
    return isinstance(error, OSError) and error.filename == url


def retry(
    call: Callable[[], Result], wait: Callable[[float], None] = time.sleep, attempts: int = ATTEMPTS
) -> Result:
    """Return the result of ``call``, trying up to ``attempts`` times with a doubling wait. Raises the last
    error, or at once an error that is final (`is_final`)."""
    for attempt in range(attempts - 1):
        try:
            return call()
        except Exception as error:
            if is_final(error):
                raise
        wait(FIRST_WAIT * 2**attempt)
    return call()


def is_final(error: Exception) -> bool:
    """Return whether another attempt would meet the same error."""
    return isinstance(error, _FINAL) or is_past_end(error)


def is_past_end(error: Exception) -> bool:
    """Return whether the store says that an object ends before the requested range."""
    response = getattr(error.__cause__, "response", None)
    return isinstance(response, dict) and response.get("Error", {}).get("Code") == _OUT_OF_RANGE
