"""`ServiceStatus`: the figures of a shuffle service at one moment.

Made by `ShuffleService.status`; shown by `/metrics`, the status page and `sortshuffle serve --status`.
"""

from __future__ import annotations

from dataclasses import dataclass

STALL = 5.0  # seconds without taking bytes after which pages mark a client


@dataclass(frozen=True, slots=True)
class ConnectionStatus:
    """One client. ``backlog``: bytes that wait to be sent to it. ``stalled``: seconds since it last took any
    of them, 0 if none wait."""

    peer: str
    channels: int
    seconds: float
    bytes_sent: int
    backlog: int
    stalled: float


@dataclass(frozen=True, slots=True)
class ApplicationStatus:
    """The map outputs of one application."""

    application: str
    homes: int
    map_outputs: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The whole service. ``*_total``: counted since its start."""

    address: str
    version: str
    pid: int
    uptime: float
    authenticated: bool
    encrypted: bool
    roots: tuple[str, ...]
    connections: tuple[ConnectionStatus, ...]
    applications: tuple[ApplicationStatus, ...]
    pool_segments: int
    pool_segments_free: int
    segment_bytes: int
    partitions_open: int
    readers: int
    reads_waiting: int
    connections_total: int
    connections_refused_total: int
    requests_total: int
    errors_total: int
    bytes_sent_total: int
    buffers_sent_total: int
    reads_total: int
    bytes_read_total: int

    @property
    def pool_segments_used(self) -> int:
        return self.pool_segments - self.pool_segments_free

    @property
    def slowest_connections(self) -> list[ConnectionStatus]:
        """All connections, the slowest first."""
        return sorted(self.connections, key=lambda each: (-each.stalled, -each.backlog, each.peer))

    @property
    def largest_applications(self) -> list[ApplicationStatus]:
        """All applications, the one with the most bytes first."""
        return sorted(self.applications, key=lambda each: (-each.bytes, each.application))
