"""`Counts`: the counters of a shuffle service since it started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Counters that only grow. Only the loop's thread changes them."""

    connections: int = 0
    refused: int = 0
    requests: int = 0
    errors: int = 0
    bytes_sent: int = 0
    buffers_sent: int = 0
