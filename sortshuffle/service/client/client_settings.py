"""`ClientSettings`: what a task knows of shuffle services before it asks one: secret, certificates, time."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from sortshuffle.options import MIB

FLOATING_BYTES = 8 * MIB  # at most, and by default: of the 64 MiB that a task reads ahead
FLOATING_SHARE = 8  # of what is read ahead: so much of it, where that is less


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Paths of PEM files: the authority that is trusted, and the client's own certificate if it has one."""

    authority: str
    certificate: str | None = None
    key: str | None = None

    def context(self) -> ssl.SSLContext:
        """Raises OSError for files that cannot be read or used."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.authority)
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key)
        return context


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """``secret``: None where services ask for none. ``timeout``: seconds without progress until it is given
    up. ``floating_bytes``: room for data ahead of their consumers, of all channels together. ``until``: when
    all that is asked is given up, by `time.monotonic`; None: never."""

    secret: bytes | None = field(default=None, repr=False)
    tls: ClientTls | None = None
    timeout: float = 60.0
    floating_bytes: int = FLOATING_BYTES
    until: float | None = None


def floating_bytes_of(read_ahead: int) -> int:
    """Bytes out of ``read_ahead`` for data that come before they are asked for."""
    return min(FLOATING_BYTES, read_ahead // FLOATING_SHARE)
