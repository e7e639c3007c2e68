"""The greeting: the first 16 bytes that a JVM and the engine send each other (docs/manager.md).

The engine's greeting holds the port of its service, because the port may change with a restart. Port 0 means
that the engine refuses the JVM's key; a reply with the reason follows.
The JVM's greeting holds the length of the key that follows it. That key encrypts the application's files. The
launcher sends no key.

Standard library only: the launcher sends a greeting too, and the first shuffle of each JVM waits for it.
"""

from __future__ import annotations

import struct

from sortshuffle.errors import ProtocolError

MAGIC = b"\x89SSJ\r\n\x1a\n"
VERSION = 4
MOST_KEY_BYTES = 32
GREETING = struct.Struct("<8sII")
_MOST_PORT = (1 << 16) - 1


def pack_greeting(port: int = 0) -> bytes:
    """Return a greeting without a key. ``port``: the port of this host's service, if the engine greets."""
    return GREETING.pack(MAGIC, VERSION, port)


def check_greeting(data: bytes | bytearray, is_of_engine: bool = False) -> int:
    """Return the last field of a greeting: the engine's port, or the length of a JVM's key. Raises
    `ProtocolError` unless the peer speaks this version."""
    magic, version, last = GREETING.unpack(data)
    if magic != MAGIC:
        raise ProtocolError(f"the peer is no shuffle manager: it begins with {magic!r}")
    if version != VERSION:
        raise ProtocolError(
            f"the peer speaks version {version} of the manager's protocol, and this engine {VERSION}:"
            " use one release of sortshuffle in the driver and on all hosts"
        )
    if last > (_MOST_PORT if is_of_engine else MOST_KEY_BYTES):
        what = "a port" if is_of_engine else "the length of a key"
        raise ProtocolError(f"a greeting with {last} in the place of {what}")
    return int(last)
