"""`ServiceStatus`: what a shuffle service is doing, as plain figures at one moment.

Made by `ShuffleService.status`; shown by `/metrics`, the status page and `sortshuffle serve --status`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionStatus:
    """One client. ``backlog``: bytes that wait to be sent to it; ``stalled``: seconds since it last took any
    while some waited, 0 if none do."""

    peer: str
    channels: int
    seconds: float
    bytes_sent: int
    backlog: int
    stalled: float


@dataclass(frozen=True, slots=True)
class ApplicationStatus:
    """What is served of one application."""

    application: str
    homes: int
    map_outputs: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The whole service. Figures that only grow: ``*_total``, from its start on."""

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
