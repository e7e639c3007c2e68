"""The shared secret of services and their clients, read from a file."""

from __future__ import annotations

import os
import stat

from sortshuffle import calls
from sortshuffle.errors import UsageError

LEAST_BYTES = 16  # fewer could be guessed
MOST_BYTES = 4096
_REMEDY = "for example: (umask 077; head -c 32 /dev/urandom | base64 > FILE), copied to every host"


def read_secret(path: str) -> bytes:
    """Return the content of the file, without white space at its ends. Raises `UsageError` for a file that
    cannot be read, that others can read, or that is too short."""
    try:
        descriptor = calls.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with calls.open_file(descriptor, "rb") as opened:
            status = calls.fstat(descriptor)
            secret = opened.read(MOST_BYTES).strip()
    except OSError as error:
        raise UsageError(
            f"the file with the services' secret cannot be read: {error}. Make one: {_REMEDY}"
        ) from error
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise UsageError(f"{path} holds the services' secret and others may read it: chmod 600 {path}")
    if len(secret) < LEAST_BYTES:
        raise UsageError(
            f"{path} holds {len(secret)} bytes, and a secret has at least {LEAST_BYTES}. Make one: {_REMEDY}"
        )
    return secret
