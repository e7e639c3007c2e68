"""`ServiceConfig`: the settings of a service that a task starts, and how they are passed to its process.

Standard library only: the supervisor and the launcher use it, too.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from sortshuffle.options import Options


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Settings of a service. ``memory``: bytes to read into. ``certificate``, ``key``, ``authority``: PEM
    files for TLS, all empty for none. The others are for the engine (`service.jvm`): ``write_memory``: bytes
    of records that wait for their region; ``codec``, ``codec_level``: of its map outputs; ``timeout``:
    seconds in which services of other hosts must answer."""

    secret: bytes = field(repr=False)
    memory: int
    certificate: str = ""
    key: str = ""
    authority: str = ""
    write_memory: int = 128 << 20
    codec: str = "lz4"
    codec_level: int = 1
    timeout: float = 60.0

    @staticmethod
    def of(secret: bytes, options: Options) -> ServiceConfig:
        """Return the settings of a service with these options."""
        return ServiceConfig(
            secret,
            options.service_memory,
            *options.tls_files,
            write_memory=options.manager_memory,
            codec=options.codec,
            codec_level=options.codec_level,
            timeout=options.service_timeout,
        )

    def pack(self) -> bytes:
        """Return one line for the process's standard input: its arguments would be visible to all users."""
        return json.dumps({**asdict(self), "secret": self.secret.hex()}).encode() + b"\n"

    @staticmethod
    def unpack(line: bytes) -> ServiceConfig:
        fields = json.loads(line)
        return ServiceConfig(**{**fields, "secret": bytes.fromhex(fields["secret"])})
