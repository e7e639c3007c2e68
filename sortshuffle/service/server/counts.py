"""`Counts`: what a shuffle service has done since it started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Figures that only grow. Only the loop's thread counts."""

    connections: int = 0
    refused: int = 0
    requests: int = 0
    errors: int = 0
    bytes_sent: int = 0
    buffers_sent: int = 0
