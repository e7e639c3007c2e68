"""Figures of a shuffle service, for tests of what shows them: every one another number."""

from __future__ import annotations

from dataclasses import replace

from sortshuffle.service.pages.status import ApplicationStatus, ConnectionStatus, ServiceStatus

QUIET = ConnectionStatus("10.0.0.2:40001", 3, 12.5, 5_000, 0, 0.0)
STALLED = ConnectionStatus("10.0.0.3:40002", 4, 75.0, 6_000, 2_048, 61.5)
SMALL = ApplicationStatus("app-small", 1, 5, 1_000)
LARGE = ApplicationStatus("app-large", 2, 30, 70_000)
STATUS = ServiceStatus(
    address="10.0.0.1:7448",
    version="1.2.3",
    pid=4711,
    uptime=3725.5,
    authenticated=True,
    encrypted=False,
    roots=("/disks/one", "/disks/two"),
    connections=(QUIET, STALLED),
    applications=(SMALL, LARGE),
    pool_segments=2_000,
    pool_segments_free=1_750,
    segment_bytes=32_768,
    partitions_open=21,
    readers=22,
    reads_waiting=23,
    connections_total=101,
    connections_refused_total=102,
    requests_total=103,
    errors_total=104,
    bytes_sent_total=3 << 30,
    buffers_sent_total=106,
    reads_total=107,
    bytes_read_total=107 << 20,
)
IDLE = replace(
    STATUS,
    uptime=0.0,
    authenticated=False,
    encrypted=True,
    connections=(),
    applications=(),
    pool_segments=0,
    pool_segments_free=0,
    connections_refused_total=0,
    errors_total=0,
    bytes_sent_total=0,
    reads_total=0,
    bytes_read_total=0,
)
