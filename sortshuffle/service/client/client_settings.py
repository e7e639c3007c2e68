"""`ClientSettings`: what a task needs to ask shuffle services: secret, certificates, time limits."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from sortshuffle.options import MIB

FLOATING_BYTES = 8 * MIB  # the default, and the most: of the 64 MiB that a task reads ahead
FLOATING_SHARE = 8  # one eighth of what a task reads ahead, if that is less


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Paths of PEM files: the trusted authority, and the client's own certificate and key if it has them."""

    authority: str
    certificate: str | None = None
    key: str | None = None

    def context(self) -> ssl.SSLContext:
        """Create the SSL context. Raises OSError for files that cannot be read or used."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.authority)
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key)
        return context


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of a task's clients. ``secret``: None if services ask for none. ``timeout``: seconds without
    progress before giving up. ``floating_bytes``: memory for data ahead of their consumers, of all channels
    together. ``until``: when to give up all requests, by `time.monotonic`; None: never."""

    secret: bytes | None = field(default=None, repr=False)
    tls: ClientTls | None = None
    timeout: float = 60.0
    floating_bytes: int = FLOATING_BYTES
    until: float | None = None


def floating_bytes_of(read_ahead: int) -> int:
    """Return how many bytes of ``read_ahead`` are for data that arrive before their consumer wants them."""
    return min(FLOATING_BYTES, read_ahead // FLOATING_SHARE)
