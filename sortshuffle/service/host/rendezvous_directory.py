"""The directory of a rendezvous: where it is, its lock, and how its small files are read.

Rules
* A directory that is a link, or not this user's alone, is refused: its content decides whom tasks talk to.
* Services with other secrets or certificates have other directories: their digest differs.
* The lock is in the directory. A process that gets the lock of a directory that is gone tries again.

Standard library only: the supervisor uses it, too.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sortshuffle import calls
from sortshuffle.errors import UsageError
from sortshuffle.homes.processes import boot_id, process_namespace
from sortshuffle.options import Options
from sortshuffle.service.wire.address import LONGEST_PATH
from sortshuffle.storage.files.descriptors import close_after_reading, lock_until

LOCK_FILE = "lock"
LOCK_PATIENCE = 30.0  # seconds; the lock is held for as long as starting a process takes, some milliseconds
POLL_SECONDS = 0.005  # seconds between looks at a lock that another process holds
DIGEST_BYTES = 4
SOCKET_DIGEST_BYTES = 12
SOCKET_SUFFIX = ".socket"
SHORT_DIRECTORY = "/tmp"
_OWN = "sortshuffle-{uid}"  # the directory of this user alone


def directory_of(application: str, host: str, secret: bytes, options: Options) -> str:
    """Return the rendezvous of an application on this host.

    Its name, which all users can see, has a digest of what distinguishes services. So ``secret`` is a random
    one, or empty if it comes from a file. The digest also covers the machine's boot and the namespace of
    processes: containers may share a temporary directory and a host name."""
    apart = (secret.hex(), options.service_secret_file, *options.tls_files)
    everything = json.dumps((*apart, boot_id(), process_namespace()))
    return os.path.join(own_directory(), f"{application}-{host}-{_digest(everything, DIGEST_BYTES)}")


def own_directory() -> str:
    """Return the parent directory of all rendezvous of this user."""
    import tempfile  # imports hashlib

    return os.path.join(tempfile.gettempdir(), _OWN.format(uid=os.geteuid()))


def socket_path(directory: str) -> str:
    """Return the path of the Unix socket of this rendezvous's service. It is beside the rendezvous; if that
    path is longer than Java accepts, it is in the directory of the same name below ``/tmp``."""
    name = f"{_digest(directory, SOCKET_DIGEST_BYTES)}{SOCKET_SUFFIX}"
    path = os.path.join(os.path.dirname(directory), name)
    if len(path.encode()) <= LONGEST_PATH:
        return path
    return os.path.join(SHORT_DIRECTORY, _OWN.format(uid=os.geteuid()), name)


def _digest(text: str, size: int) -> str:
    import hashlib  # 4 MB, which the supervisor does without until an executor has ended

    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


@contextmanager
def directory_lock(directory: str, patience: float | None = None) -> Iterator[None]:
    """Hold the lock of a rendezvous, which is made if it does not exist. ``patience``: seconds to wait for
    other processes, `LOCK_PATIENCE` by default. Raises TimeoutError if they hold it for longer, other
    OSErrors, `UsageError`."""
    until = time.monotonic() + (LOCK_PATIENCE if patience is None else patience)
    path = os.path.join(directory, LOCK_FILE)
    while True:
        try:
            make_own(os.path.dirname(directory))
            make_own(directory)
            lock = calls.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            if time.monotonic() >= until:
                raise  # dissolving never takes so long: the temporary directory is gone
            time.sleep(POLL_SECONDS)
            continue
        try:
            lock_until(lock, path, until, POLL_SECONDS)
            if _is_still_there(lock, path):
                yield
                return
        finally:
            close_after_reading(lock)


def _is_still_there(lock: int, path: str) -> bool:
    try:
        return os.path.samestat(calls.fstat(lock), calls.lstat(path))
    except FileNotFoundError:
        return False


def make_own(directory: str) -> None:
    """Make a directory for this user alone. Raises `UsageError` if it exists and is not such, and OSError."""
    with suppress(FileExistsError):
        calls.mkdir(directory, 0o700)
    found = calls.lstat(directory)
    others = stat.S_IMODE(found.st_mode) & 0o077
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or others:
        raise UsageError(
            f"{directory} is not a directory of user {os.geteuid()} alone: it could have been put there by"
            " another user. Remove it, or set TMPDIR in the executors' environment (spark.executorEnv.TMPDIR)"
        )


def read_json(path: str) -> object:
    """Return the content of a JSON file; None if it is missing or malformed. Raises OSError."""
    try:
        with calls.open_file(path, encoding="utf-8") as opened:
            return json.load(opened)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def names_in(directory: str) -> list[str]:
    """Return the names in a directory; none if it is gone."""
    try:
        return calls.listdir(directory)
    except FileNotFoundError:
        return []
