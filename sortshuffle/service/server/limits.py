"""`Limits`: the bounds of one shuffle service, so that no client can use up its resources.

A request over the limit of channels, credit or questions is answered with `Fault.TOO_MUCH`. A client that
exceeds any other quantity loses its connection.
"""

from __future__ import annotations

from dataclasses import dataclass

from sortshuffle.service.wire.handshake import GREETING_TIMEOUT


@dataclass(frozen=True, slots=True)
class Limits:
    """Every bound of a server. Times are in seconds."""

    # a task has one connection to a host; 10,000 cores that read from one host at once are a large cluster.
    # The process's limit of open files may be lower
    connections: int = 10_000
    # connections that have not completed the greeting: our own clients need milliseconds for it
    strangers: int = 1_000
    # per connection: enough for a task that reads all map outputs of a host at once
    channels: int = 10_000
    # segments per channel: 2 GiB at 512 KiB each. A client that claims more room is wrong
    credit: int = 4096
    # per connection, unanswered: reports of damage, searches for map outputs and removals use the disks
    questions: int = 64
    # bytes of answers (errors, verdicts, found map outputs) that a client leaves unread
    answers: int = 4 << 20
    # bytes copied for stalled clients, in total; each has at most one turn's. The same as the default read
    # memory of the service
    kept: int = 64 << 20
    greeting: float = GREETING_TIMEOUT
    # until the memory read for a client that takes no bytes is given back: long enough for a garbage
    # collection or a busy core, short enough for the consumers that wait for the memory
    stall: float = 2.0
    # until a connection without channels is closed: a task keeps its connection while it computes
    idle: float = 300.0
    # until a client that takes no bytes counts as gone
    gone: float = 900.0
