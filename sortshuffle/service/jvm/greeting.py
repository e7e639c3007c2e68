"""The greeting: the 16 bytes that a JVM and the engine send each other first (docs/manager.md).

The engine's greeting has the port of its service: a service that was started again may have another port.

Standard library only: the launcher sends it, too, and each JVM's first shuffle waits for the launcher.
"""

from __future__ import annotations

import struct

from sortshuffle.errors import ProtocolError

MAGIC = b"\x89SSJ\r\n\x1a\n"
VERSION = 2
GREETING = struct.Struct("<8sII")


def pack_greeting(port: int = 0) -> bytes:
    """``port``: of this host's service, if the engine greets."""
    return GREETING.pack(MAGIC, VERSION, port)


def check_greeting(data: bytes | bytearray) -> None:
    """Raise `ProtocolError` unless the peer speaks this version."""
    magic, version, _ = GREETING.unpack(data)
    if magic != MAGIC:
        raise ProtocolError(f"the peer is no shuffle manager: it begins with {magic!r}")
    if version != VERSION:
        raise ProtocolError(
            f"the peer speaks version {version} of the manager's protocol, and this engine {VERSION}:"
            " use one release of sortshuffle in the driver and on all hosts"
        )
